//! Helpers of several tests.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test crate uses a part, and all of it is tests"
)]

pub mod lab;
pub mod shop;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use ferroute_core::{IpFamily, LocalTrafficDetector, NodePortAddresses, ProxySettings};
use ferroute_host::{AddressError, HostAddresses};
use ferroute_nftables::{
    kernel::{Consistency, ErrorKind, Kernel, Listing, MemoryError, MemoryKernel, MemoryTable, OnElement},
    model::{ChainWithRules, Data, Element, Key, Name, Set, Statement, TableId, Transaction, Value, Verdict},
    plan::{ListId, NftablesSettings, SetId, TABLE},
};

/// A host with fixed addresses.
#[derive(Clone)]
pub struct Host(pub Vec<IpAddr>);

impl Default for Host {
    fn default() -> Self {
        Self(["127.0.0.1", "192.168.0.1", "::1", "fd00:168::1"].map(|address| address.parse().unwrap()).into())
    }
}

impl HostAddresses for Host {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        Ok(self.0.clone())
    }
}

/// An in-memory kernel that the test and the dataplane share.
#[derive(Clone, Default)]
pub struct SharedKernel {
    kernel: Arc<Mutex<MemoryKernel>>,
    refuses: Arc<Mutex<bool>>,
}

impl SharedKernel {
    /// Returns the kernel.
    pub fn lock(&self) -> MutexGuard<'_, MemoryKernel> {
        self.kernel.lock().unwrap()
    }

    /// Sets whether it refuses all transactions.
    pub fn refuse(&self, refuses: bool) {
        *self.refuses.lock().unwrap() = refuses;
    }
}

impl Kernel for SharedKernel {
    type Error = MemoryError;

    fn commit(&mut self, transaction: &Transaction) -> Result<(), MemoryError> {
        if *self.refuses.lock().unwrap() {
            return Err(MemoryError { change: transaction.to_string(), kind: ErrorKind::Other });
        }
        self.lock().commit(transaction)
    }

    fn generation(&mut self) -> Result<u32, MemoryError> {
        self.lock().generation()
    }

    fn list_table(&mut self, table: &TableId) -> Result<Option<Listing>, MemoryError> {
        self.lock().list_table(table)
    }

    fn dump_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        on_element: &mut OnElement<'_>,
    ) -> Result<Consistency, MemoryError> {
        self.lock().dump_elements(table, set, on_element)
    }

    fn get_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        on_element: &mut OnElement<'_>,
    ) -> Result<(), MemoryError> {
        self.lock().get_elements(table, set, keys, on_element)
    }
}

/// Returns kube-proxy's defaults for this mode, with `--detect-local-mode=ClusterCIDR`.
pub fn settings() -> NftablesSettings {
    let proxy = ProxySettings {
        localhost_node_ports: false,
        node_port_addresses: NodePortAddresses::Primary,
        detector: LocalTrafficDetector::ClusterCidr(
            ["10.244.0.0/16", "fd00:244::/48"].map(|net| net.parse().unwrap()).into(),
        ),
        ..ProxySettings::default()
    };
    NftablesSettings { proxy, ..NftablesSettings::default() }
}

/// Returns the ID of Ferroute's table.
pub fn table_id(family: IpFamily) -> TableId {
    TableId { family, name: TABLE }
}

/// The contents of a table, without the order of endpoints in their lists, which has no contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    chains: Vec<String>,
    sets: Vec<String>,
    /// The elements by set, sorted, without the index of endpoints.
    elements: BTreeMap<Name, Vec<String>>,
    /// The indexes of each list.
    indexes: BTreeMap<(Name, Key, u16), BTreeSet<u16>>,
}

impl Contents {
    /// Returns the contents with the number of elements instead of the elements.
    pub fn with_counts(&self) -> (&[String], &[String], Vec<(&Name, usize)>) {
        (&self.chains, &self.sets, self.elements.iter().map(|(set, elements)| (set, elements.len())).collect())
    }
}

/// Returns the normalized contents of a table.
pub fn contents(table: &MemoryTable, family: IpFamily) -> Contents {
    let mut contents = Contents::default();
    // Unreferenced chains have no effect.
    for chain in reachable(table) {
        contents.chains.push(format!("{:?}", chain.chain));
        contents.chains.extend(chain.rules.iter().map(|rule| rule.text(family).to_string()));
    }
    let owners = owners(table);
    for set in table.sets() {
        let name = &set.name;
        contents.sets.push(format!("{name} {:?}", set.properties()));
        let has_lists = [SetId::Endpoints.name(), SetId::Slots.name()].contains(name);
        let elements = contents.elements.entry(name.clone()).or_default();
        for element in table.elements(name) {
            let mut element = element.clone();
            if has_lists
                && let Some(&Value::ClassId(class)) = element.key.last()
                && ListId::from_index(class).is_some()
            {
                element.key.pop();
                let list = (name.clone(), element.key.clone(), class.major());
                contents.indexes.entry(list).or_default().insert(class.minor());
            }
            let mut text = element.to_string();
            // If two lists have the same preferred owner number, the first one gets it.
            for (owner, position) in &owners {
                text = text.replace(&format!("{owner:x}:"), &format!("owner-{position}:"));
            }
            elements.push(text);
        }
        elements.sort_unstable();
    }
    contents
}

/// Returns the owners of slots by position among the lists, which does not depend on earlier states.
fn owners(table: &MemoryTable) -> BTreeMap<u16, usize> {
    let mut owners = BTreeMap::new();
    for element in table.elements(&SetId::Slots.name()) {
        if let Some(Data::Values(fields)) = &element.data
            && let Some(Value::ClassId(slot)) = fields.last()
        {
            let position = owners.len();
            owners.entry(slot.major()).or_insert(position);
        }
    }
    owners
}

/// Returns the chains that are reachable from hooks, sorted by name.
fn reachable(table: &MemoryTable) -> Vec<&ChainWithRules> {
    let mut reachable: BTreeMap<&Name, &ChainWithRules> = BTreeMap::new();
    let mut open: Vec<&ChainWithRules> = table.chains().filter(|chain| chain.chain.base.is_some()).collect();
    while let Some(chain) = open.pop() {
        if reachable.insert(&chain.chain.name, chain).is_some() {
            continue;
        }
        for statement in chain.rules.iter().flat_map(|rule| &rule.statements) {
            let verdicts: Vec<&Verdict> = match statement {
                Statement::Verdict(verdict) => vec![verdict],
                Statement::Vmap { map, .. } => table.elements(map).filter_map(verdict_of).collect(),
                _ => Vec::new(),
            };
            open.extend(verdicts.into_iter().filter_map(|verdict| match verdict {
                Verdict::Goto(chain) | Verdict::Jump(chain) => table.chain(chain),
                _ => None,
            }));
        }
    }
    reachable.into_values().collect()
}

fn verdict_of(element: &Element) -> Option<&Verdict> {
    match &element.data {
        Some(Data::Verdict(verdict)) => Some(verdict),
        _ => None,
    }
}
