//! Both modes do the same: in every cluster, the rules of nftables and those of iptables send every new connection to
//! the same endpoints, as often and with the same source, except where [`ModeDifference`] says otherwise. Node ports
//! on other addresses than the primary one are a matter of settings; here both modes have the same ones.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]

mod common;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use common::world::{Client, World, ip, world};
use ferroute_core::{
    IpFamily, Protocol, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_explain::diff::{self, End, Ends, ModeDifference, ModeFacts};
use ferroute_iptables::{HostFacts, PlanContext, RuleSet};
use ferroute_nftables::{
    Class, Value,
    kernel::{Kernel, MemoryKernel, MemoryTable},
    model::{Change, Datum, Element, Name, TableId, Transaction},
    plan::{NftablesSettings, TABLE},
};
use ferroute_trace::{Ending, Host, Packet, iptables, nftables};
use ipnet::IpNet;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

/// What the planners make of one family of a cluster.
struct Modes<'a> {
    world: &'a World,
    host: Host,
    services: ServiceTable,
    iptables: RuleSet,
    nftables: MemoryKernel,
}

fn of_family(networks: &[IpNet], family: IpFamily) -> Vec<IpNet> {
    networks.iter().copied().filter(|net| IpFamily::of(net.addr()) == family).collect()
}

impl<'a> Modes<'a> {
    fn new(cluster: &Cluster, world: &'a World, family: IpFamily, know_networks: bool) -> Self {
        let mut services = cluster.table(family);
        let facts = HostFacts { addresses: world.addresses(), random_fully: true, ..HostFacts::default() };
        let iptables = ferroute_iptables::render(&services, &PlanContext::new(&world.settings, &services, &facts));
        let networks: Vec<IpNet> =
            if know_networks { CLUSTER_IPS.map(|net| net.parse().unwrap()).into() } else { Vec::new() };
        services.service_cidrs = of_family(&networks, family);
        let settings = NftablesSettings { proxy: world.settings.clone(), counters: false };
        let mut nftables = MemoryKernel::new();
        nftables.commit(&ferroute_nftables::plan::render(&services, &settings, &world.addresses())).unwrap();
        Self { world, host: world.host(), services, iptables, nftables }
    }

    fn id(&self) -> TableId {
        TableId { family: self.services.family, name: TABLE }
    }

    fn table(&self) -> &MemoryTable {
        self.nftables.table(&self.id()).unwrap()
    }

    fn through_iptables(&self, packet: &Packet) -> Ends {
        ends(packet, iptables::endings(&self.iptables, &self.host, packet))
    }

    fn through_nftables(&self, packet: &Packet) -> Ends {
        ends(packet, nftables::endings(self.table(), &self.host, packet))
    }

    /// Compares the modes; tells where they are meant to differ.
    fn check(
        &self,
        facts: &ModeFacts<'_>,
        client: &Client,
        packet: &Packet,
    ) -> Result<Option<ModeDifference>, TestCaseError> {
        let (iptables, nftables) = (self.through_iptables(packet), self.through_nftables(packet));
        let (difference, expected) = match facts.difference(packet, &iptables, |other| self.through_iptables(other)) {
            Some((difference, expected)) => (Some(difference), expected),
            None => (None, iptables.clone()),
        };
        let same = nftables.keys().eq(expected.keys())
            && nftables.values().zip(expected.values()).all(|(one, other)| (one - other).abs() < ROUNDING);
        prop_assert!(
            same,
            "{client:?} {packet:?}\niptables {iptables:?}\nnftables {nftables:?}\nexpected ({difference:?}) {expected:?}"
        );
        Ok(difference)
    }

    /// All addresses and ports that rules could have to do with, and some that they have not.
    fn destinations(&self) -> BTreeSet<SocketAddr> {
        let family = self.services.family;
        let of_family = |address: &IpAddr| IpFamily::of(*address) == family;
        let node: Vec<IpAddr> = self.world.addresses().into_iter().filter(of_family).collect();
        let mut all = BTreeSet::new();
        for entry in self.services.entries.values() {
            let service = &entry.service;
            let addresses = [service.cluster_ip].into_iter();
            let addresses = addresses.chain(service.external_ips.iter().chain(&service.load_balancer_vips).copied());
            all.extend(addresses.flat_map(|address| [service.port, UNUSED].map(|port| SocketAddr::new(address, port))));
            let node_port = service.node_port.into_iter();
            all.extend(node_port.flat_map(|port| node.iter().map(move |own| SocketAddr::new(*own, port.get()))));
            all.extend(entry.endpoints.first().map(|endpoint| endpoint.socket()));
        }
        let strangers: [&str; 2] =
            [["203.0.113.240", "10.96.0.200"], ["2001:db8:ff::1", "fd00:96::200"]][family.index()];
        all.extend(strangers.map(|address| SocketAddr::new(ip(address), 80)));
        all.extend(node.iter().map(|own| SocketAddr::new(*own, UNUSED)));
        all
    }

    /// Compares the modes for every client and destination; tells where they are meant to differ.
    fn check_all(&self) -> Result<BTreeSet<ModeDifference>, TestCaseError> {
        let mut met = BTreeSet::new();
        let facts = ModeFacts::new(&self.services, &self.world.settings, &self.host);
        let destinations = self.destinations();
        for client in Client::all(self.services.family) {
            for (to, protocol) in destinations.iter().flat_map(|to| PROTOCOLS.map(|protocol| (*to, protocol))) {
                met.extend(self.check(&facts, &client, &client.packet(self.world, protocol, to))?);
            }
        }
        Ok(met)
    }

    /// A client that nftables mode remembers gets its endpoint again at every frontend of the service port that leads
    /// there, whichever it was.
    fn check_affinity(&self, client: &Client) -> Result<(), TestCaseError> {
        let sticky = self.services.entries.iter().filter(|(_, entry)| entry.service.affinity.is_some());
        for (name, entry) in sticky {
            let service = &entry.service;
            let addresses = [service.cluster_ip].into_iter();
            let addresses = addresses.chain(service.external_ips.iter().chain(&service.load_balancer_vips).copied());
            let at = |address| (SocketAddr::new(address, service.port), address);
            let node_port = service.node_port.map(|port| {
                let node = ["192.168.0.1", "fd00:168::1"][self.services.family.index()];
                (SocketAddr::new(ip(node), port.get()), ip(["0.0.0.0", "::"][self.services.family.index()]))
            });
            let frontends: Vec<(Packet, [Value; 3])> = addresses
                .map(at)
                .chain(node_port)
                .map(|(to, address)| {
                    let frontend = [address.into(), Value::protocol(name.protocol), Value::Port(to.port())];
                    (client.packet(self.world, name.protocol, to), frontend)
                })
                .collect();
            for (packet, _) in &frontends {
                for (end, _) in self.through_nftables(packet) {
                    let End::Delivered { to, .. } = end else { continue };
                    self.check_remembered(&frontends, to)?;
                }
            }
        }
        Ok(())
    }

    fn check_remembered(&self, frontends: &[(Packet, [Value; 3])], endpoint: SocketAddr) -> Result<(), TestCaseError> {
        let slots: BTreeSet<Class> =
            frontends.iter().flat_map(|(_, frontend)| self.slots(frontend, endpoint)).collect();
        prop_assert!(!slots.is_empty(), "{endpoint} has no slot");
        for (packet, _) in frontends {
            let leads_there = |end: &End| matches!(end, End::Delivered { to, .. } if *to == endpoint);
            let before = self.through_nftables(packet);
            let there: Vec<&End> = before.keys().filter(|end| leads_there(end)).collect();
            let &[there] = &there[..] else { continue };
            let mut remember = Transaction::new(self.id());
            for slot in &slots {
                let element = Element::new([slot.owner().into(), packet.source.ip().into()]).fields([(*slot).into()]);
                remember.push(Change::AddElement(Name::fixed("affinity"), element));
            }
            let mut kernel = self.nftables.clone();
            kernel.commit(&remember).unwrap();
            let again = nftables::endings(kernel.table(&self.id()).unwrap(), &self.host, packet);
            prop_assert_eq!(ends(packet, again), Ends::from([(there.clone(), 1.0)]));
        }
        Ok(())
    }

    /// The numbers that the kernel remembers an endpoint by, one for each list of the frontend that it is in.
    fn slots(&self, frontend: &[Value], endpoint: SocketAddr) -> Vec<Class> {
        let (map, datum) = (Name::fixed("endpoints"), [endpoint.ip().into(), Value::Port(endpoint.port())]);
        let of_it = self.table().elements(&map).filter(|element| {
            element.key.starts_with(frontend)
                && matches!(&element.datum, Some(Datum::Fields(fields)) if fields.as_slice() == datum)
        });
        let slot = |element: &Element| match element.key.last() {
            Some(Value::Class(class)) => Some(*class),
            _ => None,
        };
        of_it.filter_map(slot).collect()
    }
}

/// Adds up what the endings come to, of which nothing may be unknown.
fn ends(packet: &Packet, endings: Vec<Ending>) -> Ends {
    let ends = diff::ends(packet, endings);
    for end in ends.keys() {
        assert!(!matches!(end, End::NoRoute | End::Unknown { .. }), "{packet:?} ends in {end:?}");
    }
    ends
}

/// Makes the balancers' addresses external IPs of their Services, too.
fn let_frontends_overlap(cluster: &mut Cluster) {
    for service in &mut cluster.services {
        let addresses = service.status.load_balancer.ingress.iter().map(|point| point.ip.clone());
        service.spec.external_ips.extend(addresses);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn both_modes_send_every_packet_to_the_same_endpoints_with_the_same_source(
        mut cluster in arbitrary::cluster(),
        world in world(),
        know_networks in any::<bool>(),
        overlap in any::<bool>(),
    ) {
        if overlap {
            let_frontends_overlap(&mut cluster);
        }
        for family in IpFamily::BOTH {
            Modes::new(&cluster, &world, family, know_networks).check_all()?;
        }
    }

    #[test]
    fn a_client_that_is_remembered_gets_its_endpoint_again(cluster in arbitrary::cluster(), world in world()) {
        for family in IpFamily::BOTH {
            let modes = Modes::new(&cluster, &world, family, false);
            for client in Client::all(family) {
                modes.check_affinity(&client)?;
            }
        }
    }
}

/// A difference that never shows would be an excuse.
#[test]
fn every_difference_between_the_modes_is_met() {
    // A fixed seed: this is about the list, not about one run's luck.
    let mut runner =
        TestRunner::new_with_rng(ProptestConfig::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut met = BTreeSet::new();
    for _ in 0..32 {
        let mut cluster = arbitrary::cluster().new_tree(&mut runner).unwrap().current();
        let world = world().new_tree(&mut runner).unwrap().current();
        let_frontends_overlap(&mut cluster);
        for family in IpFamily::BOTH {
            met.extend(Modes::new(&cluster, &world, family, true).check_all().unwrap());
        }
    }
    use ModeDifference::*;
    let all = [
        UnknownPortOfClusterIp,
        UnassignedClusterIp,
        OwnCallToExternalAddressWithoutEndpoints,
        SourceRangesWithoutEndpoints,
        SourceRangesOnExternalIp,
        NodePortBeside,
        HairpinOfAnotherNode,
    ];
    assert_eq!(met, all.into());
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// The networks that generated clusters take their cluster IPs from.
const CLUSTER_IPS: [&str; 2] = ["10.96.0.0/16", "fd00:96::/112"];

/// A port that no generated Service has.
const UNUSED: u16 = 4242;

/// More than the kernel's 31 bits of chance lose, over a choice among a dozen.
const ROUNDING: f64 = 1e-7;
