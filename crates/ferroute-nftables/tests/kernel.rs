//! Tests with the kernel, in network namespaces: written objects are read back, and `nft` lists them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use common::{Host, settings, table_id};
use std::{
    collections::BTreeMap,
    io::Write,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU16,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use ferroute_core::{
    Affinity, Changes, Dataplane, Endpoint, IpFamily, ServiceTable, TrafficPolicy,
    limits::MAX_ENDPOINTS,
    testing::{arbitrary, *},
};
use ferroute_nftables::{
    NftablesDataplane, ProbeError, delete_table,
    kernel::{
        Consistency, ErrorKind, InterceptedKernel, Kernel, KernelError, MemoryError, MemoryKernel, NetlinkKernel,
    },
    model::{Change, Data, DataType, Element, Name, Set, SetOrMap, Transaction, Value, Verdict, family_name},
    plan::{NftablesSettings, render},
    probe,
};
use ferroute_testing::NetNs;
use ipnet::IpNet;
use proptest::prelude::*;

fn open(ns: &NetNs, family: IpFamily, settings: NftablesSettings) -> NftablesDataplane {
    ns.run(|| NftablesDataplane::open(family, settings, Box::new(Host::default())).unwrap())
}

/// Returns a cluster that fills every set.
fn varied() -> Cluster {
    let two_pods = |name: &str, service: &str| {
        slice(name, service).port("http", 8080).pod(pod("10.244.0.2").on("node-1")).pod(pod("10.244.1.2").on("node-2"))
    };
    Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).external_local())
        .slice(two_pods("shop/web-a", "web"))
        .service(
            service("shop/cart")
                .cluster_ip("10.96.0.2")
                .port("http", 80)
                .node_port(30081)
                .load_balancer("198.51.100.1")
                .source_range("10.0.0.0/8")
                .source_range("192.168.0.9/32")
                .affinity(10_800),
        )
        .slice(two_pods("shop/cart-a", "cart"))
        .service(service("shop/empty").cluster_ip("10.96.0.3").port("http", 80).external_ip("203.0.113.1"))
        .service(service("shop/far").cluster_ip("10.96.0.4").port("http", 80).internal_local())
        .slice(slice("shop/far-a", "far").port("http", 8080).pod(pod("10.244.1.3").on("node-2")))
}

/// Returns `nft`'s listing of a table, sorted, because the order of elements and chains varies.
fn listed(ns: &NetNs, family: IpFamily) -> Vec<String> {
    let listed = ns.command("nft", &["list", "table", family_name(family), "ferroute"]);
    let bare = |line: &str| line.trim_matches(['\t', ' ', ',']).replace("elements = { ", "").replace(" }", "");
    let mut lines: Vec<String> = listed.lines().map(bare).collect();
    lines.sort_unstable();
    lines
}

/// Loads the rendered table with `nft`.
fn load(ns: &NetNs, table: &ServiceTable, settings: &NftablesSettings) {
    ns.feed("nft", &["-f", "-"], &render(table, settings, &Host::default().0).to_string());
}

#[test]
fn written_and_loaded_tables_are_listed_alike() {
    let v6 = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("fd00:96::1").port("http", 80).node_port(30080).affinity(300))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod("fd00:244::2").pod("fd00:244::3"));
    let cases = [
        (varied().table(IpFamily::V4), "10.96.0.2 . tcp . 80 comment \"shop/cart:http\" : 41:1"),
        (v6.table(IpFamily::V6), "fd00:96::1 . tcp . 80 comment \"shop/web:http\" : 41:1"),
    ];
    for (table, element) in cases {
        for counters in [false, true] {
            let settings = NftablesSettings { counters, ..settings() };
            let [native, loaded] = [NetNs::new(), NetNs::new()];
            open(&native, table.family, settings.clone()).resync(&table).unwrap();
            load(&loaded, &table, &settings);
            let native = listed(&native, table.family);
            assert_eq!(native, listed(&loaded, table.family));
            assert!(native.iter().any(|line| line == element || line.contains("counter")), "{native:#?}");
            let client = "update @affinity { meta priority & f:ffff . ";
            assert!(native.iter().any(|line| line.contains(client)), "{native:#?}");
        }
    }
}

/// Checks that a restarted dataplane changes nothing.
#[track_caller]
fn assert_restart_changes_nothing(ns: &NetNs, table: &ServiceTable, settings: &NftablesSettings) {
    let generation = || ns.run(|| NetlinkKernel::open().unwrap().generation().unwrap());
    let before = generation();
    let report = open(ns, table.family, settings.clone()).resync(table).unwrap();
    assert_eq!((report.written, report.removed), (0, 0));
    assert_eq!(generation(), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn restart_after_any_edits_changes_nothing(cluster in arbitrary::cluster(), edits in arbitrary::edits(0..8)) {
        let ns = NetNs::new();
        for family in IpFamily::BOTH {
            let mut tracker = cluster.tracker();
            let mut dataplane = open(&ns, family, settings());
            dataplane.resync(tracker.table(family)).unwrap();
            for edit in &edits {
                edit.apply_to(&mut tracker);
                let changes = tracker.update(family);
                dataplane.sync(tracker.table(family), &changes).unwrap();
                prop_assert!(!dataplane.was_modified_externally().unwrap());
            }
            // A resync deletes unused chains.
            let report = dataplane.resync(tracker.table(family)).unwrap();
            prop_assert_eq!(report.written, 0);
            assert_restart_changes_nothing(&ns, tracker.table(family), &settings());
        }
        ns.command("nft", &["list", "ruleset"]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rendered_table_loaded_by_nft_needs_no_change(
        cluster in arbitrary::cluster(), proxy in arbitrary::settings(), counters: bool,
    ) {
        let (ns, settings) = (NetNs::new(), NftablesSettings { proxy, counters, flowtable: None });
        for family in IpFamily::BOTH {
            let mut table = cluster.table(family);
            let networks = ["10.96.0.0/12", "fd00:96::/108"].map(|net| net.parse::<IpNet>().unwrap());
            table.service_cidrs = networks.into_iter().filter(|net| IpFamily::of(net.addr()) == family).collect();
            if family == IpFamily::V6 {
                // `nft` 1.0.6 loads IPv6 affinity rules with a wrong data register.
                table.entries.values_mut().for_each(|entry| Arc::make_mut(&mut entry.service).affinity = None);
            }
            load(&ns, &table, &settings);
            assert_restart_changes_nothing(&ns, &table, &settings);
        }
    }
}

#[test]
fn external_modifications_are_detected_and_repaired_without_touching_other_tables() {
    let (ns, table) = (NetNs::new(), varied().table(IpFamily::V4));
    ns.command("nft", &["add table ip other; add chain ip other input; add rule ip other input accept"]);
    let mut dataplane = open(&ns, IpFamily::V4, settings());
    dataplane.resync(&table).unwrap();
    ns.command("nft", &["add rule ip other input drop"]);
    assert!(!dataplane.was_modified_externally().unwrap(), "only another table was modified");
    for modification in [
        "delete element ip ferroute cluster-ips { 10.96.0.1 }",
        "add element ip ferroute cluster-ips { 10.96.0.99 }",
        "delete element ip ferroute source-ranges-8 { 10.0.0.0 . 1:1 }",
        "flush chain ip ferroute services",
        "add rule ip ferroute pick-2 accept",
        "add chain ip ferroute mine; add rule ip ferroute mine drop",
        "add set ip ferroute mine { type ipv4_addr ; }",
        "delete table ip ferroute",
    ] {
        ns.command("nft", &[modification]);
        assert!(dataplane.was_modified_externally().unwrap(), "{modification}");
        let report = dataplane.resync(&table).unwrap();
        assert!(
            modification.contains("delete table") || report.written + report.removed <= 6,
            "{modification}: {report:?}"
        );
        assert!(!dataplane.was_modified_externally().unwrap(), "{modification}");
        assert_restart_changes_nothing(&ns, &table, &settings());
    }
    let mut kernel = ns.run(|| NetlinkKernel::open().unwrap());
    let removed = [(); 2].map(|()| delete_table(&mut kernel, table_id(IpFamily::V4)).unwrap());
    assert_eq!(removed, [true, false]);
    let left = ns.command("nft", &["list", "ruleset"]);
    assert!(left.starts_with("table ip other {") && !left.contains("ferroute"), "{left}");
}

/// Each attribute that `nft` lists is changed, one at a time.
#[test]
fn every_attribute_of_own_objects_is_compared_and_restored() {
    let (ns, table) = (NetNs::new(), varied().table(IpFamily::V4));
    let mut dataplane = open(&ns, IpFamily::V4, settings());
    dataplane.resync(&table).unwrap();
    let before = listed(&ns, IpFamily::V4);
    let text = ns.command("nft", &["list", "table", "ip", "ferroute"]);
    let attributes = [
        ("policy accept", "policy drop"),
        ("hook prerouting", "hook input"),
        ("hook output", "hook input"),
        ("hook forward", "hook input"),
        ("priority ", "priority 1 + "),
        ("priority srcnat", "priority 101"),
        ("priority dstnat", "priority -101"),
        ("priority filter", "priority 1"),
        ("type filter hook", "type route hook"),
        ("comment \"services, written", "comment \"another program's, written"),
        ("type ipv4_addr\n", "type ipv4_addr\n\t\tsize 4096\n"),
        ("type ipv4_addr\n", "type ipv4_addr\n\t\tpolicy memory\n"),
        ("chain pick-2 {\n", "chain pick-2 {\n\t\tcomment \"another program's\"\n"),
        ("size ", "size 1"),
        ("flags ", "flags interval,"),
    ];
    // Rules with chains and sets of their own, which the kernel deletes with the rule only.
    let mut changed = vec![
        "add table ip ferroute { flags dormant ; }".to_owned(),
        "insert rule ip ferroute services jump { drop; }".to_owned(),
        "add rule ip ferroute services ip daddr { 192.0.2.1, 192.0.2.2 } drop".to_owned(),
        "add rule ip ferroute services ip daddr vmap { 192.0.2.1 : drop, 192.0.2.2 : goto pick-2 }".to_owned(),
        "add chain ip ferroute x; add map ip ferroute vm { type ipv4_addr : verdict; elements = { 192.0.2.1 : jump x }; }"
            .to_owned(),
        "add chain ip ferroute other; add rule ip ferroute other jump { ip saddr { 192.0.2.1, 192.0.2.2 } drop; }"
            .to_owned(),
    ];
    for (attribute, other) in attributes {
        changed.extend(text.match_indices(attribute).map(|(at, _)| {
            format!("delete table ip ferroute\n{}{other}{}", &text[..at], &text[at + attribute.len()..])
        }));
    }
    let mut accepted = 0;
    for change in changed {
        // Some values are not valid for some attributes.
        if !ns.run(|| load_text(&change)) {
            continue;
        }
        accepted += 1;
        assert!(dataplane.was_modified_externally().unwrap(), "{change}");
        dataplane.resync(&table).unwrap();
        assert_eq!(listed(&ns, IpFamily::V4), before, "{change}");
        assert!(!dataplane.was_modified_externally().unwrap(), "{change}");
        assert_restart_changes_nothing(&ns, &table, &settings());
    }
    assert!(accepted > 10, "only {accepted} changes were possible");
}

/// An element of each set and map is replaced by another one, so that their number does not change.
#[test]
fn replaced_elements_of_every_set_are_noticed_and_restored() {
    let (ns, table, id) = (NetNs::new(), varied().table(IpFamily::V4), table_id(IpFamily::V4));
    let mut dataplane = open(&ns, IpFamily::V4, settings());
    dataplane.resync(&table).unwrap();
    let before = listed(&ns, IpFamily::V4);
    let mut other = ns.run(|| NetlinkKernel::open().unwrap());
    let elements: Vec<(Name, Element)> = render(&table, &settings(), &Host::default().0)
        .changes
        .into_iter()
        .filter_map(|change| if let Change::AddElement(set, element) = change { Some((set, element)) } else { None })
        .collect();
    let of_sets: BTreeMap<&Name, &Element> = elements.iter().map(|(set, element)| (set, element)).collect();
    assert!(of_sets.len() > 12, "{of_sets:?}");
    for (set, element) in of_sets {
        let replaced = replacement(element);
        let mut transaction = Transaction::new(id.clone());
        transaction.push(Change::DeleteElement(set.clone(), element.clone()));
        transaction.push(Change::AddElement(set.clone(), replaced.clone()));
        other.commit(&transaction).unwrap();
        // The first one by a comparison of all elements, for which the next ones would have to wait: the kernel names those.
        assert!(dataplane.was_modified_externally().unwrap(), "{transaction}");
        dataplane.resync(&table).unwrap();
        assert_eq!(listed(&ns, IpFamily::V4), before, "{transaction}");
    }
    // A commit to another table causes no repair.
    ns.command("nft", &["add table ip other"]);
    for _ in 0..50 {
        assert!(!dataplane.was_modified_externally().unwrap());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns an element with other data, or with another key if it has no data.
fn replacement(element: &Element) -> Element {
    let change = |value: &mut Value| match value {
        Value::Address(IpAddr::V4(address)) => *address = Ipv4Addr::from(u32::from(*address) ^ 0x0100_0000),
        Value::Port(port) => *port ^= 1,
        Value::Integer(number) => *number ^= 1 << 9,
        // Not the list: the proxy keeps numbers of lists that it finds.
        Value::ClassId(id) => id.0 ^= 1 << 24,
        value => panic!("{value:?}"),
    };
    let mut replaced = element.clone();
    match &mut replaced.data {
        Some(Data::Values(values)) => change(values.last_mut().unwrap()),
        Some(Data::Verdict(verdict)) => {
            *verdict = if *verdict == Verdict::Drop { Verdict::Accept } else { Verdict::Drop };
        }
        None => change(replaced.key.last_mut().unwrap()),
    }
    replaced
}

/// Loads text with `nft`. Reports whether it was accepted.
fn load_text(text: &str) -> bool {
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

#[test]
fn incompatible_table_is_replaced() {
    let (ns, table) = (NetNs::new(), varied().table(IpFamily::V4));
    open(&ns, IpFamily::V4, settings()).resync(&table).unwrap();
    let counting = NftablesSettings { counters: true, ..settings() };
    let report = open(&ns, IpFamily::V4, counting.clone()).resync(&table).unwrap();
    assert!(report.written >= report.total, "{report:?}");
    assert_restart_changes_nothing(&ns, &table, &counting);
}

#[test]
fn refused_transaction_names_the_change_at_fault_and_changes_nothing() {
    let ns = NetNs::new();
    let mut kernel = ns.run(|| NetlinkKernel::open().unwrap());
    let id = table_id(IpFamily::V4);
    let set =
        Set::new(Name::fixed("numbers"), [DataType::Ipv4Addr, DataType::InetService]).map_to([DataType::InetService]);
    let element = |i: u32, data| {
        Element::new([Value::Address(Ipv4Addr::from(i).into()), Value::Port(7)]).values([Value::Port(data)])
    };
    let add = |i, data| Change::AddElement(set.name.clone(), element(i, data));
    let mut transaction = Transaction::new(id.clone());
    transaction.push(Change::AddTable(None));
    transaction.push(Change::AddSet(set.clone()));
    // Several messages, in a batch far larger than a socket's default buffer.
    transaction.changes.extend((0..300_000).map(|i| add(i, 1)));
    kernel.commit(&transaction).unwrap();
    let mut contradicting = Transaction::new(id.clone());
    contradicting.changes.extend((300_000..305_000).map(|i| add(i, 1)));
    contradicting.changes.insert(3_210, add(5, 2));
    let error = kernel.commit(&contradicting).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::Exists));
    assert_eq!(
        error.to_string(),
        "kernel refused a transaction of 5001 changes at «add element ip ferroute numbers { 0.0.0.5 . 7 : 2 }»"
    );
    let mut count = 0;
    assert_eq!(kernel.dump_elements(&id, &set, &mut |_, _| count += 1).unwrap(), Consistency::Consistent);
    assert_eq!(count, 300_000);
    let missing = Transaction { table: id, changes: vec![Change::DeleteSet(Name::fixed("other"), SetOrMap::Set)] };
    let error = kernel.commit(&missing).unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::NotFound));
    assert_eq!(error.to_string(), "kernel refused a transaction of 1 changes at «delete set ip ferroute other»");
}

#[test]
fn probe_leaves_nothing_behind() {
    let ns = NetNs::new();
    let mut kernel = ns.run(|| NetlinkKernel::open().unwrap());
    for family in IpFamily::BOTH {
        // As an interrupted probe leaves it.
        let table = format!("{} ferroute-probe", family_name(family));
        ns.command(
            "nft",
            &[format!("add table {table}; add chain {table} services; add rule {table} services drop").as_str()],
        );
        let counting = NftablesSettings { counters: true, ..settings() };
        probe(&mut kernel, family, &counting).unwrap();
        probe(&mut MemoryKernel::new(), family, &counting).unwrap();
    }
    assert_eq!(ns.command("nft", &["list", "ruleset"]), "");
}

/// Older kernels ignore unknown attributes, such as the comments of chains.
#[test]
fn probe_detects_that_a_kernel_ignores_attributes() {
    let old: fn(&mut MemoryKernel, &Transaction) -> Result<(), MemoryError> = |kernel, transaction| {
        let mut transaction = transaction.clone();
        for change in &mut transaction.changes {
            if let Change::AddChain(chain) = change {
                chain.comment = None;
            }
        }
        kernel.commit(&transaction)
    };
    let mut kernel = InterceptedKernel::new(MemoryKernel::new(), old);
    let error = probe(&mut kernel, IpFamily::V4, &settings()).unwrap_err();
    let ProbeError::Incomplete { object } = &error else { panic!("{error:?}") };
    assert!(object.starts_with("add chain ip ferroute-probe ") && object.contains("comment"), "{object}");
}

/// Large enough that elements are requested by key instead of dumped.
#[test]
fn large_table_is_read_by_key_and_repaired() {
    let mut table = ServiceTable::new(IpFamily::V4, Arc::new(node("node-1")));
    for i in 0..6_000_u32 {
        let first = 0x6440_0001 + 20 * i;
        let endpoints = (first..first + 20).map(|address| Endpoint {
            local: address % 7 == 0,
            ..endpoint(&format!("{}:8080", Ipv4Addr::from(address)))
        });
        let mut service = service_port(&format!("{}:80", Ipv4Addr::from(0x0a60_0001 + i)));
        service.affinity = i.is_multiple_of(11).then_some(Affinity { timeout_seconds: 300 });
        if i.is_multiple_of(13) {
            service.node_port = NonZeroU16::new(u16::try_from(30_000 + i / 13).unwrap());
            service.external_policy = TrafficPolicy::Local;
        }
        table.entries.insert(port_name(&format!("shop/web-{i:04}:http")), entry(service, endpoints));
    }
    let ns = NetNs::new();
    open(&ns, IpFamily::V4, settings()).resync(&table).unwrap();
    assert_restart_changes_nothing(&ns, &table, &settings());
    for (modification, repaired) in [
        ("delete element ip ferroute tcp-endpoints { 1:5 . 5 : 100.64.0.25 . 8080 }", (1, 0)),
        ("add element ip ferroute tcp-endpoints { 1:5 . 99 : 10.9.9.9 . 8080 }", (0, 1)),
    ] {
        ns.command("nft", &[modification]);
        let report = open(&ns, IpFamily::V4, settings()).resync(&table).unwrap();
        assert_eq!((report.written, report.removed), repaired, "{modification}");
        assert_restart_changes_nothing(&ns, &table, &settings());
    }
}

/// The maximum number of endpoints of a port, which exceeds numbers of 16 bits.
#[test]
fn port_with_the_most_endpoints_is_applied_and_changed() {
    let mut table = ServiceTable::new(IpFamily::V4, Arc::new(node("node-1")));
    let count = u32::try_from(MAX_ENDPOINTS).unwrap();
    let endpoints = |first: u32| {
        (first..count).map(|i| endpoint(&format!("{}:8080", Ipv4Addr::from(0x6440_0000 + i)))).collect::<Vec<_>>()
    };
    let name = port_name("shop/web:http");
    table.entries.insert(name.clone(), entry(service_port("10.96.0.1:80"), endpoints(0)));
    let ns = NetNs::new();
    let mut dataplane = open(&ns, IpFamily::V4, settings());
    dataplane.resync(&table).unwrap();
    ns.command("nft", &["get element ip ferroute tcp-endpoints { 1:1 . 131072 }"]);
    let old = table.entries.insert(name.clone(), entry(service_port("10.96.0.1:80"), endpoints(1)));
    let changes = Changes { previous: [(name, old)].into(), ..Changes::default() };
    let report = dataplane.sync(&table, &changes).unwrap();
    assert!(report.written + report.removed <= 4, "{report:?}");
}
