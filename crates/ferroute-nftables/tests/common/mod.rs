//! What the tests have in common.

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
    kernel::{Counter, Kernel, Listing, MemoryError, MemoryKernel, MemoryTable, Objection, Reading},
    model::{ChainWithRules, Datum, Element, Key, Name, Set, Statement, TableId, Transaction, Value, Verdict},
    plan::{List, NftablesSettings, SetId, TABLE},
};

/// A host that always has the same addresses.
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

/// A kernel that several can change.
#[derive(Clone, Default)]
pub struct SharedKernel {
    kernel: Arc<Mutex<MemoryKernel>>,
    refuses: Arc<Mutex<bool>>,
}

impl SharedKernel {
    /// The kernel itself.
    pub fn lock(&self) -> MutexGuard<'_, MemoryKernel> {
        self.kernel.lock().unwrap()
    }

    /// Lets it refuse transactions, or take them again.
    pub fn refuse(&self, refuses: bool) {
        *self.refuses.lock().unwrap() = refuses;
    }
}

impl Kernel for SharedKernel {
    type Error = MemoryError;

    fn commit(&mut self, transaction: &Transaction) -> Result<(), MemoryError> {
        if *self.refuses.lock().unwrap() {
            return Err(MemoryError { change: transaction.to_string(), objection: Objection::Other });
        }
        self.lock().commit(transaction)
    }

    fn generation(&mut self) -> Result<u32, MemoryError> {
        self.lock().generation()
    }

    fn listing(&mut self, table: &TableId) -> Result<Option<Listing>, MemoryError> {
        self.lock().listing(table)
    }

    fn read(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Option<Element>),
    ) -> Result<Reading, MemoryError> {
        self.lock().read(table, set, each)
    }

    fn counts(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Element, Counter),
    ) -> Result<Reading, MemoryError> {
        self.lock().counts(table, set, each)
    }

    fn find(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Option<Element>, Option<Counter>),
    ) -> Result<(), MemoryError> {
        self.lock().find(table, set, keys, each)
    }
}

/// kube-proxy's defaults for this mode, in a cluster whose pods are known by their addresses.
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

/// Our table of a family.
pub fn table_id(family: IpFamily) -> TableId {
    TableId { family, name: TABLE }
}

/// What a table holds, without the order of endpoints in their lists, which has no meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meaning {
    chains: Vec<String>,
    sets: Vec<String>,
    /// Elements by set, sorted; without the index of those that are in a list.
    elements: BTreeMap<Name, Vec<String>>,
    /// The indexes that there are of each list.
    indexes: BTreeMap<(Name, Key, u16), BTreeSet<u16>>,
}

impl Meaning {
    /// The same without the elements themselves.
    pub fn counts(&self) -> (&[String], &[String], Vec<(&Name, usize)>) {
        (&self.chains, &self.sets, self.elements.iter().map(|(set, elements)| (set, elements.len())).collect())
    }
}

/// Reads the meaning of a table.
pub fn meaning(table: &MemoryTable, family: IpFamily) -> Meaning {
    let mut meaning = Meaning::default();
    // A chain that nothing leads to does nothing.
    for chain in reachable(table) {
        meaning.chains.push(format!("{:?}", chain.chain));
        meaning.chains.extend(chain.rules.iter().map(|rule| rule.text(family).to_string()));
    }
    let owners = owners(table);
    for set in table.sets() {
        let name = &set.name;
        meaning.sets.push(format!("{name} {:?}", set.properties()));
        let has_lists = [SetId::Endpoints.name(), SetId::Slots.name()].contains(name);
        let elements = meaning.elements.entry(name.clone()).or_default();
        for element in table.elements(name) {
            let mut element = element.clone();
            if has_lists
                && let Some(&Value::Class(class)) = element.key.last()
                && List::of_index(class).is_some()
            {
                element.key.pop();
                let list = (name.clone(), element.key.clone(), class.major());
                meaning.indexes.entry(list).or_default().insert(class.minor());
            }
            let mut text = element.to_string();
            // Where two owners would have the same number, the one that came first has it.
            for (owner, place) in &owners {
                text = text.replace(&format!("{owner:x}:"), &format!("owner-{place}:"));
            }
            elements.push(text);
        }
        elements.sort_unstable();
    }
    meaning
}

/// The owners of slots by their places among the lists, which do not depend on what was there before.
fn owners(table: &MemoryTable) -> BTreeMap<u16, usize> {
    let mut owners = BTreeMap::new();
    for element in table.elements(&SetId::Slots.name()) {
        if let Some(Datum::Fields(fields)) = &element.datum
            && let Some(Value::Class(slot)) = fields.last()
        {
            let place = owners.len();
            owners.entry(slot.major()).or_insert(place);
        }
    }
    owners
}

/// The chains that packets can get to, sorted by name.
fn reachable(table: &MemoryTable) -> Vec<&ChainWithRules> {
    let mut found: BTreeMap<&Name, &ChainWithRules> = BTreeMap::new();
    let mut open: Vec<&ChainWithRules> = table.chains().filter(|chain| chain.chain.base.is_some()).collect();
    while let Some(chain) = open.pop() {
        if found.insert(&chain.chain.name, chain).is_some() {
            continue;
        }
        for statement in chain.rules.iter().flat_map(|rule| &rule.statements) {
            let verdicts: Vec<&Verdict> = match statement {
                Statement::Verdict(verdict) => vec![verdict],
                Statement::Dispatch { map, .. } => table.elements(map).filter_map(verdict_of).collect(),
                _ => Vec::new(),
            };
            open.extend(verdicts.into_iter().filter_map(|verdict| match verdict {
                Verdict::Goto(chain) | Verdict::Jump(chain) => table.chain(chain),
                _ => None,
            }));
        }
    }
    found.into_values().collect()
}

fn verdict_of(element: &Element) -> Option<&Verdict> {
    match &element.datum {
        Some(Datum::Verdict(verdict)) => Some(verdict),
        _ => None,
    }
}
