use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU16,
    sync::Arc,
};

use ferroute_core::{
    Affinity, Endpoint, Entry, IpFamily, NodeView, Protocol, ServiceName, ServicePort, ServicePortName, ServiceTable,
    TrafficPolicy,
};
use ipnet::IpNet;

use crate::{
    kernel::Kernel,
    model::{Change, Name, TableId},
    plan::{NftablesSettings, render},
};

/// Finds out whether a kernel can do all that the mode asks of it: a table with everything in it is made and removed in
/// one transaction, so no packet ever meets it. The error names what the kernel has refused.
pub fn probe<K: Kernel>(kernel: &mut K, family: IpFamily, settings: &NftablesSettings) -> Result<(), K::Error> {
    let mut transaction = render(&sample(family), settings, &[]);
    transaction.table = TableId { family, name: TABLE };
    transaction.push(Change::DeleteTable);
    kernel.commit(&transaction)
}

/// One Service that has everything.
fn sample(family: IpFamily) -> ServiceTable {
    let address: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpFamily::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let service = ServicePort {
        cluster_ip: address,
        port: 80,
        node_port: NonZeroU16::new(30_000),
        external_ips: Vec::new(),
        load_balancer_vips: vec![address],
        load_balancer_source_ranges: vec![IpNet::from(address)],
        health_check_node_port: None,
        affinity: Some(Affinity { timeout_seconds: 1 }),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
    };
    let endpoint =
        Endpoint { address, port: 80, ready: true, serving: true, terminating: false, local: true, hints: None };
    let name =
        ServicePortName { service: ServiceName::new("probe", "probe"), port: Arc::from(""), protocol: Protocol::Tcp };
    let entry = Entry { service: Arc::new(service), endpoints: [endpoint].into() };
    ServiceTable {
        entries: BTreeMap::from([(name, entry)]),
        ..ServiceTable::new(family, Arc::new(NodeView::default()))
    }
}

const TABLE: Name = Name::fixed("ferroute-probe");
