//! The flowtable: its rules, its frontends, and its devices, which come and go.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::sync::{Arc, Mutex};

use common::{Host, SharedKernel, contents, settings, table_id};
use ferroute_core::{
    Dataplane, FlowtableSettings, IpFamily, ServiceTable,
    testing::{Cluster, service, slice},
};
use ferroute_host::{Device, DeviceError, HostDevices};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{ErrorKind, InterceptedKernel, Kernel, MemoryError, MemoryKernel},
    model::{Change, Flowtable, Name, Transaction},
    plan::{NftablesSettings, render},
};
use ferroute_testing::NetNs;

/// The devices of a host, which the test changes.
#[derive(Clone, Default)]
struct Devices(Arc<Mutex<Vec<Device>>>);

impl Devices {
    fn set(&self, devices: &[(&str, u32)]) {
        *self.0.lock().unwrap() =
            devices.iter().map(|(name, index)| Device { name: (*name).into(), index: *index }).collect();
    }
}

impl HostDevices for Devices {
    fn list(&mut self) -> Result<Vec<Device>, DeviceError> {
        Ok(self.0.lock().unwrap().clone())
    }
}

fn with_flowtable(devices: &[&str]) -> NftablesSettings {
    let devices = devices.iter().map(|device| device.parse().unwrap()).collect();
    NftablesSettings { flowtable: Some(FlowtableSettings { devices, packets: 20 }), ..settings() }
}

fn table() -> ServiceTable {
    Cluster::new("node-1")
        .service(
            service("shop/web").cluster_ip("10.96.0.1").external_ip("203.0.113.1").port("http", 80).node_port(30080),
        )
        .slice(slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2"))
        .table(IpFamily::V4)
}

fn open<K: Kernel>(kernel: K, settings: &NftablesSettings, devices: &Devices) -> NftablesDataplane<K> {
    let host = Box::new(Host::default());
    NftablesDataplane::with_kernel(kernel, IpFamily::V4, settings.clone(), host).with_devices(Box::new(devices.clone()))
}

/// Returns the devices of each flowtable.
fn flowtables(kernel: &MemoryKernel) -> Vec<String> {
    let table = kernel.table(&table_id(IpFamily::V4)).unwrap();
    table.flowtables().map(|Flowtable { name, devices }| format!("{name}: {}", devices.join(" "))).collect()
}

#[test]
fn connections_to_services_are_added_after_some_packets() {
    let transaction = render(&table(), &with_flowtable(&["eth0"]), &[]);
    let text = transaction.to_string();
    let lines = |part: &str| -> String {
        let mut lines: Vec<&str> = text.lines().filter(|line| line.contains(part)).collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    insta::assert_snapshot!(lines("flow"), @r#"
    add element ip ferroute flow-node-ports { tcp . 30080 }
    add element ip ferroute flow-services { 10.96.0.1 . tcp . 80 }
    add element ip ferroute flow-services { 203.0.113.1 . tcp . 80 }
    add flowtable ip ferroute established { hook ingress priority filter ; counter ; }
    add rule ip ferroute offload ct original ip daddr . meta l4proto . ct original proto-dst @flow-services flow add @established
    add rule ip ferroute offload meta l4proto . ct original proto-dst @flow-node-ports flow add @established
    add set ip ferroute flow-node-ports { type inet_proto . inet_service ; comment "the same for node ports" ; }
    add set ip ferroute flow-services { type ipv4_addr . inet_proto . inet_service ; comment "services whose connections may skip the hooks" ; }
    "#);
    insta::assert_snapshot!(lines("filter-forward"), @r"
    add chain ip ferroute filter-forward { type filter hook forward priority 0 ; policy accept ; }
    add rule ip ferroute filter-forward ct state new jump cluster-ips
    add rule ip ferroute filter-forward ct status dnat ct packets > 20 jump offload
    ");
}

#[test]
fn devices_are_added_when_they_appear() {
    let (shared, devices) = (SharedKernel::default(), Devices::default());
    devices.set(&[("cali1", 5), ("eth0", 2), ("lo", 1), ("tunl0", 3)]);
    let mut dataplane = open(shared.clone(), &with_flowtable(&["eth0", "cali*", "lo"]), &devices);
    dataplane.resync(&table()).unwrap();
    assert_eq!(flowtables(&shared.lock()), ["established: cali1 eth0"]);
    devices.set(&[("cali1", 5), ("cali2", 6), ("eth0", 2)]);
    dataplane.maintain();
    assert_eq!(flowtables(&shared.lock()), ["established: cali1 cali2 eth0"]);
    assert!(!dataplane.was_modified_externally().unwrap(), "the dataplane's own change");
    let generation = shared.lock().generation().unwrap();
    dataplane.maintain();
    assert_eq!(shared.lock().generation().unwrap(), generation, "nothing is left to do");
}

/// The kernel removes a deleted device from the flowtable, and does not add its replacement.
#[test]
fn replaced_device_is_added_again() {
    let (shared, devices) = (SharedKernel::default(), Devices::default());
    devices.set(&[("cali1", 5)]);
    let mut dataplane = open(shared.clone(), &with_flowtable(&["cali*"]), &devices);
    dataplane.resync(&table()).unwrap();
    let forget = Change::DeleteDevices(Flowtable { name: Name::fixed("established"), devices: vec!["cali1".into()] });
    shared.lock().commit(&Transaction { table: table_id(IpFamily::V4), changes: vec![forget] }).unwrap();
    devices.set(&[("cali1", 7)]);
    dataplane.maintain();
    assert_eq!(flowtables(&shared.lock()), ["established: cali1"]);
}

#[test]
fn refused_device_costs_neither_others_nor_services() {
    let refuse_cali2 = |kernel: &mut SharedKernel, transaction: &Transaction| {
        if transaction.to_string().contains("cali2") {
            return Err(MemoryError { change: "cali2".to_owned(), kind: ErrorKind::NotFound, refused: None });
        }
        kernel.commit(transaction)
    };
    let (shared, devices) = (SharedKernel::default(), Devices::default());
    devices.set(&[("cali1", 5), ("cali2", 6), ("cali3", 7)]);
    let kernel = InterceptedKernel::new(shared.clone(), refuse_cali2);
    let mut dataplane = open(kernel, &with_flowtable(&["cali*"]), &devices);
    assert!(dataplane.resync(&table()).unwrap().rejected.is_empty());
    assert_eq!(flowtables(&shared.lock()), ["established: cali1 cali3"]);
}

#[test]
fn restart_with_other_settings_leaves_nothing_behind() {
    let (shared, devices, table) = (SharedKernel::default(), Devices::default(), table());
    devices.set(&[("cali1", 5), ("eth0", 2)]);
    open(shared.clone(), &with_flowtable(&["*"]), &devices).resync(&table).unwrap();
    assert_eq!(flowtables(&shared.lock()), ["established: cali1 eth0"]);
    let fewer = open(shared.clone(), &with_flowtable(&["cali*"]), &devices).resync(&table).unwrap();
    assert_eq!(flowtables(&shared.lock()), ["established: cali1"]);
    assert!(fewer.written < fewer.total, "the table was replaced: {fewer:?}");
    let mut without = open(shared.clone(), &settings(), &devices);
    let report = without.resync(&table).unwrap();
    assert!(report.written < report.total, "the table was replaced: {report:?}");
    let (mut expected, id) = (MemoryKernel::new(), table_id(IpFamily::V4));
    expected.commit(&render(&table, &settings(), &Host::default().0)).unwrap();
    let now = shared.lock().table(&id).unwrap().clone();
    assert_eq!(contents(&now, IpFamily::V4), contents(expected.table(&id).unwrap(), IpFamily::V4));
    assert_eq!(now.flowtables().count(), 0);
    assert!(!without.was_modified_externally().unwrap());
}

#[test]
fn removed_flowtable_is_repaired() {
    let (shared, devices) = (SharedKernel::default(), Devices::default());
    devices.set(&[("eth0", 2)]);
    let mut dataplane = open(shared.clone(), &with_flowtable(&["eth0"]), &devices);
    dataplane.resync(&table()).unwrap();
    let changes = vec![Change::FlushChain(Name::fixed("offload")), Change::DeleteFlowtable(Name::fixed("established"))];
    shared.lock().commit(&Transaction { table: table_id(IpFamily::V4), changes }).unwrap();
    assert!(dataplane.was_modified_externally().unwrap());
    dataplane.resync(&table()).unwrap();
    assert_eq!(flowtables(&shared.lock()), ["established: eth0"]);
    assert!(!dataplane.was_modified_externally().unwrap());
}

#[test]
fn devices_that_another_program_adds_or_removes_are_restored() {
    let (shared, devices) = (SharedKernel::default(), Devices::default());
    devices.set(&[("eth0", 2), ("eth1", 3), ("wg0", 4)]);
    let mut dataplane = open(shared.clone(), &with_flowtable(&["eth*"]), &devices);
    dataplane.resync(&table()).unwrap();
    let flowtable = |name: &str| Flowtable { name: Name::fixed("established"), devices: vec![name.into()] };
    for change in [Change::DeleteDevices(flowtable("eth0")), Change::AddFlowtable(flowtable("wg0"))] {
        shared.lock().commit(&Transaction { table: table_id(IpFamily::V4), changes: vec![change] }).unwrap();
        assert!(dataplane.was_modified_externally().unwrap());
        dataplane.resync(&table()).unwrap();
        assert_eq!(flowtables(&shared.lock()), ["established: eth0 eth1"]);
        assert!(!dataplane.was_modified_externally().unwrap());
    }
    // The kernel removes a device that is deleted.
    let removed = Change::DeleteDevices(flowtable("eth1"));
    shared.lock().commit(&Transaction { table: table_id(IpFamily::V4), changes: vec![removed] }).unwrap();
    devices.set(&[("eth0", 2), ("wg0", 4)]);
    assert!(!dataplane.was_modified_externally().unwrap());
}

/// With the kernel: the flowtable exists if the kernel supports it; Services exist in both cases.
#[test]
fn kernel_without_flowtables_gets_a_table_without_one() {
    let (ns, table, family) = (NetNs::new(), table(), IpFamily::V4);
    let trial = "nft 'add table ip trial; add flowtable ip trial f { hook ingress priority 0; devices = { lo }; }' 2>&1 \
                 && nft delete table ip trial || echo unsupported";
    let is_supported = !ns.command("sh", &["-c", trial]).contains("unsupported");
    let flowtable = with_flowtable(&["*"]);
    ns.command("ip", &["link", "add", "fast0", "type", "veth", "peer", "fast1"]);
    let open = || ns.run(|| NftablesDataplane::open(family, flowtable.clone(), Box::new(Host::default())).unwrap());
    let mut dataplane = open();
    dataplane.resync(&table).unwrap();
    assert!(!dataplane.was_modified_externally().unwrap());
    let listed = ns.command("nft", &["list", "table", "ip", "ferroute"]);
    assert!(listed.contains("10.96.0.1 . tcp . 80"), "{listed}");
    assert_eq!(listed.contains("flowtable established"), is_supported, "{listed}");
    assert_eq!(listed.contains("flow add @established"), is_supported, "{listed}");
    assert_eq!(listed.contains("fast0"), is_supported, "{listed}");
    let report = open().resync(&table).unwrap();
    assert_eq!((report.written, report.removed), (0, 0), "after a restart");
    if !is_supported {
        return;
    }
    let flowtable = || ns.command("sh", &["-c", "nft list flowtables; nft list table ip ferroute | grep 'flow add'"]);
    let wanted = flowtable();
    let replace = |script: &str| {
        format!(
            "(echo delete table ip ferroute; nft list table ip ferroute | sed '/flowtable/,/}}/ {{ {script} }}') | nft -f -"
        )
    };
    let changes = [
        "nft 'delete flowtable ip ferroute established { hook ingress priority 0; devices = { fast0 }; }'".to_owned(),
        "nft 'add flowtable ip ferroute established { hook ingress priority 0; devices = { lo }; }'".to_owned(),
        replace("s/priority .*/priority 5/"),
        replace("/counter/d"),
        replace("/devices/d"),
    ];
    for change in changes {
        ns.command("sh", &["-c", &change]);
        assert!(dataplane.was_modified_externally().unwrap(), "{change}");
        dataplane.resync(&table).unwrap();
        assert_eq!(flowtable(), wanted, "{change}");
    }
}
