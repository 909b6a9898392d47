//! In nftables mode, a packet that is between two rules when a transaction takes effect reaches an endpoint, if its Service
//! has one before and after.
//!
//! The kernel evaluates a packet with the rules of the time when it came to a hook, and with the elements of the time when it
//! looks them up (`nft_do_chain`, `nft_lookup_eval`). A chain that did not exist when the packet came has no rules for it.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]

mod common;

use std::{
    fmt::Debug,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use common::world::{Client, World, ip, world};
use ferroute_core::{Dataplane, IpFamily, ServiceTable, testing::arbitrary};
use ferroute_host::{AddressError, HostAddresses};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{InterceptedKernel, Kernel, MemoryKernel, MemoryTable},
    model::{Change, Name, TableId, Transaction},
    plan::{NftablesSettings, SetId, TABLE},
};
use ferroute_trace::{Leaf, Packet, Ruleset, Verdict};
use proptest::prelude::*;

struct Addresses(Vec<IpAddr>);

impl HostAddresses for Addresses {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        Ok(self.0.clone())
    }
}

/// The tables that packets may see, in the order of time: while a transaction takes effect, and after it.
type Seen = Arc<Mutex<Vec<MemoryTable>>>;

/// Returns a kernel that records what packets may see.
fn recorder(kernel: MemoryKernel) -> (impl Kernel + AsRef<MemoryKernel>, Seen) {
    let seen = Seen::default();
    let writer = seen.clone();
    let kernel = InterceptedKernel::new(kernel, move |kernel: &mut MemoryKernel, transaction: &Transaction| {
        let mut seen = writer.lock().unwrap();
        if kernel.table(&transaction.table).is_some() {
            for first in 0..LOOKUPS {
                let mut in_flight = kernel.clone();
                let changes = transaction.changes.iter().filter(|change| is_seen(change, first)).cloned().collect();
                in_flight.commit(&Transaction { table: transaction.table.clone(), changes })?;
                seen.extend(in_flight.table(&transaction.table).cloned());
            }
        }
        kernel.commit(transaction)?;
        seen.extend(kernel.table(&transaction.table).cloned());
        Ok(())
    });
    (kernel, seen)
}

/// Reports whether a packet sees a change that takes effect before it comes to this lookup.
fn is_seen(change: &Change, first: usize) -> bool {
    match change {
        Change::AddElement(set, _) | Change::DeleteElement(set, _) => lookup(set) >= first,
        Change::AddSet(_) => true,
        // Without rules.
        Change::AddChain(chain) => chain.base.is_none(),
        Change::AddTable(_)
        | Change::AddOwnedTable(_)
        | Change::DeleteTable
        | Change::FlushChain(_)
        | Change::DeleteChain(_)
        | Change::AddRule(..)
        | Change::DeleteSet(..)
        | Change::AddFlowtable(_)
        | Change::DeleteDevices(_)
        | Change::DeleteFlowtable(_) => false,
    }
}

/// Returns when packets look up a set, on the path that the documentation of the mode describes.
fn lookup(set: &Name) -> usize {
    match SetId::from_name(set) {
        Some(SetId::Services | SetId::NodePorts) => 1,
        Some(SetId::Limited) => 2,
        Some(SetId::Lists) => 3,
        Some(SetId::Dispatch | SetId::LocalDispatch) => 4,
        // A packet that does not find its endpoint comes to both once more.
        Some(SetId::Slots | SetId::Endpoints(_)) => 5,
        // Source ranges and cluster IPs are looked up at hooks of their own.
        _ => 0,
    }
}

const LOOKUPS: usize = 6;

/// Returns the first packets of clients to all frontends.
fn packets(table: &ServiceTable, world: &World) -> Vec<Packet> {
    let node = ip(["192.168.0.1", "fd00:168::1"][table.family.index()]);
    let clients = Client::all(table.family);
    let frontends = table.entries.iter().flat_map(|(name, entry)| entry.service.frontends(name.protocol));
    frontends
        .flat_map(|(_, frontend)| {
            let to = SocketAddr::new(frontend.address.unwrap_or(node), frontend.port);
            // A pod, another host, and the node.
            [0, 5, clients.len() - 1].map(|client| clients[client].packet(world, frontend.protocol, to))
        })
        .collect()
}

/// Reports whether a packet reaches an endpoint in any case.
fn is_forwarded(seen: &MemoryTable, world: &World, packet: &Packet) -> bool {
    let leaves = Ruleset::from_nftables_table("", seen).verdicts(&world.host(), packet);
    leaves.iter().all(|Leaf { verdict, .. }| matches!(verdict, Verdict::Delivered { translated: true, .. }))
}

/// A proxy and what packets may see in its table.
struct Proxy<'a, K: Kernel> {
    dataplane: NftablesDataplane<K>,
    seen: Seen,
    world: &'a World,
}

/// Starts a proxy with this kernel.
fn start(
    kernel: MemoryKernel,
    family: IpFamily,
    world: &World,
) -> Proxy<'_, impl Kernel<Error: Debug> + AsRef<MemoryKernel>> {
    let (kernel, seen) = recorder(kernel);
    let settings = NftablesSettings { proxy: world.settings.clone(), ..NftablesSettings::default() };
    let addresses = Box::new(Addresses(world.addresses()));
    Proxy { dataplane: NftablesDataplane::with_kernel(kernel, family, settings, addresses), seen, world }
}

impl<K: Kernel + AsRef<MemoryKernel>> Proxy<'_, K> {
    /// Checks packets to the frontends of a table that is replaced meanwhile.
    fn check(
        &mut self,
        before: &ServiceTable,
        sync: impl FnOnce(&mut NftablesDataplane<K>),
    ) -> Result<(), TestCaseError> {
        let first = self.dataplane.kernel().as_ref().table(&TableId { family: before.family, name: TABLE }).cloned();
        self.seen.lock().unwrap().clear();
        sync(&mut self.dataplane);
        let (Some(first), seen) = (first, self.seen.lock().unwrap()) else { return Ok(()) };
        let Some((last, between)) = seen.split_last() else { return Ok(()) };
        for packet in packets(before, self.world) {
            let is_forwarded = |seen| is_forwarded(seen, self.world, &packet);
            if is_forwarded(&first) && is_forwarded(last) {
                prop_assert!(between.iter().all(is_forwarded), "{packet:?}");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn packets_reach_an_endpoint_while_transactions_take_effect(
        cluster in arbitrary::cluster(),
        edits in arbitrary::edits(1..12),
        later in arbitrary::edits(1..4),
        world in world(),
    ) {
        for family in IpFamily::BOTH {
            let mut tracker = cluster.tracker();
            let mut proxy = start(MemoryKernel::new(), family, &world);
            proxy.dataplane.resync(tracker.table(family)).unwrap();
            let mut before = cluster.table(family);
            for edit in &edits {
                edit.apply_to(&mut tracker);
                let changes = tracker.update(family);
                proxy.check(&before, |dataplane| _ = dataplane.sync(tracker.table(family), &changes).unwrap())?;
                before = tracker.table(family).clone();
            }
            // A restart finds the table as it was.
            later.iter().for_each(|edit| edit.apply_to(&mut tracker));
            tracker.update(family);
            let mut restarted = start(proxy.dataplane.kernel().as_ref().clone(), family, &world);
            restarted.check(&before, |dataplane| _ = dataplane.resync(tracker.table(family)).unwrap())?;
        }
    }
}
