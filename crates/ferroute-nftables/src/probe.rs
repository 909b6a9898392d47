use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
    sync::Arc,
};

use ferroute_core::{
    Affinity, CreationTime, Endpoint, IpFamily, NamespacedName, NodeView, Protocol, ServicePort, ServicePortEntry,
    ServicePortName, ServiceTable, TrafficPolicy,
};
use ipnet::IpNet;

use crate::{
    kernel::Kernel,
    model::{Change, Name, TableId},
    plan::{NftablesSettings, render},
};

/// Checks whether a kernel supports everything that the mode needs, by creating and deleting a table with all kinds of
/// objects in one transaction. No packet ever sees the table.
///
/// # Errors
///
/// The kernel refused the transaction. The error names the first unsupported object.
pub fn probe<K: Kernel>(kernel: &mut K, family: IpFamily, settings: &NftablesSettings) -> Result<(), K::Error> {
    let mut transaction = render(&sample(family), settings, &[]);
    transaction.table = TableId { family, name: TABLE };
    transaction.push(Change::DeleteTable);
    kernel.commit(&transaction)
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
        health_check_node_port: None,
        affinity: Some(Affinity { timeout_seconds: 1 }),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
        created: CreationTime::UNKNOWN,
    };
    let endpoint =
        Endpoint { address, port: 80, ready: true, serving: true, terminating: false, local: true, hints: None };
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
