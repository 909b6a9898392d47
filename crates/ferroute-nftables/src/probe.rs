use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
    slice::Iter,
    sync::Arc,
};

use ferroute_core::{
    Affinity, Balancing, CreationTime, Endpoint, IpFamily, NamespacedName, NodeView, Protocol, ServicePort,
    ServicePortEntry, ServicePortName, ServiceTable, SourceRangesScope, TrafficPolicy,
};
use ipnet::IpNet;

use crate::{
    kernel::{ErrorKind, Kernel, KernelError, ListedRule, Listing},
    model::{Chain, ChainType, Change, Flowtable, Hook, Name, Rule, Statement, TableId, Transaction},
    plan::{FLOWTABLE, NftablesSettings, render},
};

/// The first kernel that supports all features of the mode, see [the crate's documentation](crate#required-kernel). It
/// is for messages; [`probe`] tests the kernel instead of comparing versions, because distributions add features to
/// older kernels.
pub const MINIMUM_KERNEL: &str = "5.10";

/// Reason why a kernel does not support the mode.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError<E: KernelError> {
    /// The kernel refused a request. The error names the first object that it does not support.
    #[error(transparent)]
    Kernel(#[from] E),
    /// The kernel accepted an object, but without some of its attributes.
    #[error("the kernel ignored a part of «{object}»")]
    Incomplete {
        /// The object in `nft` syntax.
        object: String,
    },
}

/// Checks whether a kernel supports all features that the mode needs, by creating a table with all kinds of objects. No
/// packet ever passes the table.
///
/// # Errors
///
/// The kernel refuses an object, or ignores a part of it.
pub fn probe<K: Kernel>(
    kernel: &mut K,
    family: IpFamily,
    settings: &NftablesSettings,
) -> Result<(), ProbeError<K::Error>> {
    let table = TableId { family, name: TABLE };
    let mut transaction = render(&sample(family), settings, &[]);
    transaction.table = table.clone();
    // Base chains are created and deleted in one transaction, so that they are never active.
    transaction.push(Change::DeleteTable);
    kernel.commit(&transaction)?;
    transaction.changes.pop();
    // All other objects are read back, in a table that no hook leads to.
    for change in &mut transaction.changes {
        if let Change::AddChain(chain) = change {
            chain.base = None;
        }
    }
    // Replaces the table of an interrupted probe.
    transaction.changes.splice(0..0, [Change::AddTable(None), Change::DeleteTable]);
    kernel.commit(&transaction)?;
    let generation = kernel.generation()?;
    let listing = kernel.list_table(&table);
    // Another probe at the same time would delete or replace the table.
    let is_unchanged = kernel.generation()? == generation;
    match kernel.commit(&Transaction { table, changes: vec![Change::DeleteTable] }) {
        Err(error) if error.kind() != Some(ErrorKind::NotFound) => return Err(error.into()),
        _ => {}
    }
    match listing? {
        Some(listing) if is_unchanged => compare(&transaction, &listing),
        _ => Ok(()),
    }
}

/// Checks whether a kernel supports flowtables (`CONFIG_NF_FLOW_TABLE`, `CONFIG_NFT_FLOW_OFFLOAD`), by creating one without
/// devices and deleting it in the same transaction.
///
/// # Errors
///
/// The kernel refuses it.
pub(crate) fn probe_flowtable<K: Kernel>(kernel: &mut K, family: IpFamily) -> Result<(), K::Error> {
    let mut transaction = Transaction::new(TableId { family, name: TABLE });
    transaction.changes.extend([Change::AddTable(None), Change::DeleteTable, Change::AddTable(None)]);
    transaction.push(Change::AddFlowtable(Flowtable { name: FLOWTABLE, devices: Vec::new() }));
    let rule = Rule::new([Statement::FlowAdd(FLOWTABLE)]);
    transaction.add_chain(Chain::new(Name::fixed("offload")).base(ChainType::Filter, Hook::Forward, 0).rules([rule]));
    transaction.push(Change::DeleteTable);
    kernel.commit(&transaction)
}

/// Compares the objects that a transaction created with those in the kernel.
fn compare<E: KernelError>(transaction: &Transaction, listing: &Listing) -> Result<(), ProbeError<E>> {
    let family = transaction.table.family;
    let mut rules: HashMap<&Name, Iter<'_, ListedRule>> =
        listing.chains.iter().map(|chain| (&chain.name, chain.rules.iter())).collect();
    for (index, change) in transaction.changes.iter().enumerate() {
        let is_flushed_later = |chain: &Name| {
            transaction.changes[index..]
                .iter()
                .any(|later| matches!(later, Change::FlushChain(flushed) if flushed == chain))
        };
        let is_complete = match change {
            Change::AddRule(chain, _) if is_flushed_later(chain) => true,
            Change::AddSet(set) => listing.sets.iter().any(|listed| listed.set.as_ref() == Some(set)),
            Change::AddChain(chain) => listing.chains.iter().any(|listed| listed.chain.as_ref() == Some(chain)),
            Change::AddRule(chain, rule) => rules
                .get_mut(chain)
                .and_then(Iterator::next)
                .is_some_and(|listed: &ListedRule| listed.matches(rule, family)),
            _ => true,
        };
        if !is_complete {
            return Err(ProbeError::Incomplete { object: change.text(&transaction.table) });
        }
    }
    Ok(())
}

/// Returns a Service that uses all features.
fn sample(family: IpFamily) -> ServiceTable {
    let address: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpFamily::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let service = ServicePort {
        cluster_ip: Some(address),
        port: 80,
        node_port: NonZeroU16::new(30_000),
        external_ips: Vec::new(),
        load_balancer_vips: vec![address],
        load_balancer_source_ranges: vec![IpNet::from(address)],
        source_ranges_scope: SourceRangesScope::default(),
        health_check_node_port: None,
        affinity: Some(Affinity { timeout_seconds: 1 }),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
        balancing: Balancing::default(),
        limits: None,
        created: CreationTime::UNKNOWN,
        is_urgent: false,
    };
    let endpoint = Endpoint {
        address,
        port: 80,
        ready: true,
        serving: true,
        terminating: false,
        local: true,
        node_unknown: false,
        hints: None,
        weight: Endpoint::DEFAULT_WEIGHT,
        ejected: false,
    };
    let name = ServicePortName {
        service: NamespacedName::new("probe", "probe"),
        port: Arc::from(""),
        protocol: Protocol::Tcp,
    };
    let entry = ServicePortEntry { service: Arc::new(service), endpoints: [endpoint].into() };
    ServiceTable {
        entries: BTreeMap::from([(name, entry)]),
        ..ServiceTable::new(family, Arc::new(NodeView::default()))
    }
}

const TABLE: Name = Name::fixed("ferroute-probe");
