//! The first sync of a large cluster: the order of Services and the size of transactions.

mod common;

use std::sync::{Arc, Mutex};

use common::{Host, settings};
use ferroute_core::{
    Changes, Dataplane, IpFamily, ServicePort, ServiceTable,
    testing::{endpoint, entry, node, port_name, service_port, udp_port_name},
};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{InterceptedKernel, MemoryKernel},
};

#[test]
fn urgent_services_are_written_first_and_the_rest_in_several_transactions() {
    let mut table = ServiceTable::new(IpFamily::V4, Arc::new(node("node-1")));
    let backends = |first: u32| (first..first + 10).map(|i| endpoint(&format!("{}:8080", std::net::Ipv4Addr::from(i))));
    for i in 0..5_000_u32 {
        let service = service_port(&format!("{}:80", std::net::Ipv4Addr::from(0x0a60_1000 + i)));
        table
            .entries
            .insert(port_name(&format!("bench/web-{i:04}:http")), entry(service, backends(0x6440_0001 + 10 * i)));
    }
    let urgent = |socket| ServicePort { is_urgent: true, ..service_port(socket) };
    let api = entry(urgent("10.96.0.1:443"), [endpoint("192.168.0.1:6443")]);
    table.entries.insert(port_name("default/kubernetes:https"), api);
    let dns = entry(urgent("10.96.0.10:53"), [endpoint("10.244.0.2:53")]);
    table.entries.insert(udp_port_name("kube-system/kube-dns:dns"), dns);

    let transactions = Arc::new(Mutex::new(Vec::<Vec<String>>::new()));
    let writer = transactions.clone();
    // Transactions are dropped: a first sync does not read the table.
    let kernel = InterceptedKernel::new(MemoryKernel::new(), move |_, transaction| {
        let changes = transaction.changes.iter().map(|change| change.text(&transaction.table)).collect();
        writer.lock().unwrap().push(changes);
        Ok(())
    });
    let mut dataplane = NftablesDataplane::with_kernel(kernel, IpFamily::V4, settings(), Box::new(Host::default()));
    let progress = dataplane.progress().unwrap();
    let report = dataplane.resync(&table).unwrap();
    assert!(report.full);
    assert_eq!(progress.get(), (5_002, 5_002));

    let transactions = transactions.lock().unwrap();
    let services =
        |changes: &[String]| changes.iter().filter(|line| line.starts_with("add element ip ferroute services")).count();
    let first = transactions.iter().find(|changes| services(changes) > 0).unwrap();
    assert_eq!(services(first), 2);
    let first = first.join("\n");
    assert!(first.contains("default/kubernetes:https") && first.contains("kube-system/kube-dns:dns"), "{first}");
    assert!(transactions.len() > 3, "all other Services are in one transaction");
    assert_eq!(transactions.iter().map(|changes| services(changes)).sum::<usize>(), 5_002);
    // A Service is written in one transaction: each element with a number of endpoints comes with that many endpoints.
    for changes in transactions.iter() {
        let endpoints =
            changes.iter().filter(|line| line.starts_with("add element") && line.contains("-endpoints {")).count();
        let singles = changes
            .iter()
            .filter(|line| line.starts_with("add element ip ferroute lists") && line.contains(" : 91:"))
            .count();
        assert_eq!(endpoints, 10 * (services(changes) - singles) + singles);
    }
    drop(transactions);
    assert_eq!(dataplane.sync(&table, &Changes::default()).unwrap().written, 0);
}
