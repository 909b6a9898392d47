//! Helpers that several tests share.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test crate uses a part, and all of it is tests"
)]

pub mod case;
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
    plan::{ListNumber, NftablesSettings, SetId, TABLE},
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
    type Encoded = ();

    fn encode(_transaction: &Transaction) {}

    fn commit_encoded(&mut self, transaction: &Transaction, (): ()) -> Result<(), MemoryError> {
        if *self.refuses.lock().unwrap() {
            let change = transaction.to_string();
            return Err(MemoryError { change, kind: ErrorKind::Circumstances, refused: None });
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

/// Contents of a table, except for those that depend on earlier states: the numbers of lists, the order of endpoints,
/// and objects of unused classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    chains: Vec<String>,
    sets: Vec<String>,
    /// The elements by set, sorted, without the index of endpoints.
    elements: BTreeMap<Name, Vec<String>>,
    /// The indexes of each list.
    indexes: BTreeMap<(Name, String), BTreeSet<u32>>,
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
    let used = used_classes(table);
    for chain in reachable(table, &used) {
        contents.chains.push(format!("{:?}", chain.chain));
        contents.chains.extend(chain.rules.iter().map(|rule| rule.text(family).to_string()));
    }
    let names = names(table);
    for set in table.sets() {
        let name = &set.name;
        contents.sets.push(format!("{name} {:?}", set.properties()));
        let elements = contents.elements.entry(name.clone()).or_default();
        for element in table.elements(name).filter(|element| is_used(name, element, &used)) {
            let mut key: Vec<String> = element.key.iter().map(|value| value_text(*value, name, &names)).collect();
            if let Some(Value::Integer(index)) = element.key.last()
                && *index > 0
            {
                key.pop();
                contents.indexes.entry((name.clone(), key.join(" . "))).or_default().insert(*index);
            }
            let data = match &element.data {
                Some(Data::Values(values)) => {
                    values.iter().map(|value| value_text(*value, name, &names)).collect::<Vec<_>>().join(" . ")
                }
                data => format!("{data:?}"),
            };
            elements.push(format!("{} {:?} : {data}", key.join(" . "), element.comment));
        }
        elements.sort_unstable();
    }
    contents
}

/// Returns the names of the service ports with these numbers.
fn names(table: &MemoryTable) -> BTreeMap<ListNumber, String> {
    let maps = [SetId::Services, SetId::NodePorts].map(SetId::name);
    let elements = maps.iter().flat_map(|map| table.elements(map));
    elements
        .filter_map(|element| {
            let (number, _) = ListNumber::from_class_id(element.data.as_ref()?.class_id()?)?;
            Some((number, element.comment.as_ref()?.as_str().to_owned()))
        })
        .collect()
}

fn value_text(value: Value, set: &Name, names: &BTreeMap<ListNumber, String>) -> String {
    let Value::ClassId(id) = value else { return value.to_string() };
    if is_dispatch(set) {
        return id.to_string();
    }
    match ListNumber::from_class_id(id) {
        Some((number, list)) => {
            let name = names.get(&number).map_or("no frontend", String::as_str);
            format!("{:x} of {name} {list:?}", id.0 >> 20)
        }
        None => id.to_string(),
    }
}

/// Returns the class ids in map `lists`, without their lists.
fn used_classes(table: &MemoryTable) -> BTreeSet<u32> {
    let mut used = BTreeSet::new();
    for class in table.elements(&SetId::Lists.name()).filter_map(|element| element.data.as_ref()?.class_id()) {
        let class = class.0 >> 20;
        used.insert(class);
        // Chains of other kinds go to the chain that chooses an endpoint.
        used.insert(match class % 8 {
            1..=3 => class - class % 8 + 1,
            4..=6 => class - class % 8 + 4,
            _ => class,
        });
    }
    used
}

fn is_dispatch(set: &Name) -> bool {
    [SetId::Dispatch, SetId::LocalDispatch].map(SetId::name).contains(set)
}

fn is_used(set: &Name, element: &Element, used: &BTreeSet<u32>) -> bool {
    match element.key[..] {
        [Value::ClassId(class)] if is_dispatch(set) => class.0 >> 20 & 7 == 7 || used.contains(&(class.0 >> 20)),
        _ => true,
    }
}

/// Returns the chains that are reachable from hooks, sorted by name.
fn reachable<'a>(table: &'a MemoryTable, used: &BTreeSet<u32>) -> Vec<&'a ChainWithRules> {
    let mut reachable: BTreeMap<&Name, &ChainWithRules> = BTreeMap::new();
    let mut open: Vec<&ChainWithRules> = table.chains().filter(|chain| chain.chain.base.is_some()).collect();
    while let Some(chain) = open.pop() {
        if reachable.insert(&chain.chain.name, chain).is_some() {
            continue;
        }
        for statement in chain.rules.iter().flat_map(|rule| &rule.statements) {
            let verdicts: Vec<&Verdict> = match statement {
                Statement::Verdict(verdict) => vec![verdict],
                Statement::Vmap { map, .. } => {
                    table.elements(map).filter(|element| is_used(map, element, used)).filter_map(verdict_of).collect()
                }
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
