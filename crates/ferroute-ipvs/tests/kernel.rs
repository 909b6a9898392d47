//! Tests against the kernel, in a network namespace per test. Few test machines support ipvs; unit tests cover virtual
//! servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::{collections::HashSet, net::SocketAddr};

use ferroute_core::{IpFamily, Protocol};
use ferroute_ipvs::{
    Devices, IpSets, SetError, VirtualServers, kube_proxy_set_names,
    plan::{Entry, ServerKey, SetKind},
};
use ferroute_testing::NetNs;

fn key(protocol: Protocol, address: &str) -> ServerKey {
    let socket: SocketAddr = address.parse().unwrap();
    ServerKey { address: socket.ip(), port: socket.port(), protocol }
}

#[test]
fn sets_have_kube_proxys_settings_and_creating_them_again_keeps_their_entries() {
    let host = NetNs::new();
    host.run(|| {
        let mut sets = IpSets::open().unwrap();
        for family in IpFamily::BOTH {
            SetKind::ALL.into_iter().for_each(|kind| sets.create(kind, family).unwrap());
        }
    });
    host.command("ipset", &["add", "KUBE-CLUSTER-IP", "10.96.0.1,tcp:443"]);
    for family in IpFamily::BOTH {
        for kind in SetKind::ALL {
            host.run(|| IpSets::open().unwrap().create(kind, family)).unwrap();
            // kube-proxy creates its sets with these options; `ipset` fails if a set exists with other settings.
            let inet = if family == IpFamily::V4 { "inet" } else { "inet6" };
            let set_type = kind.set_type().as_str();
            let settings = match set_type {
                "bitmap:port" => vec!["range", "0-65535"],
                _ => vec!["family", inet, "hashsize", "1024", "maxelem", "65536"],
            };
            host.command("ipset", &[&["create", kind.name(family), set_type], &settings[..], &["-exist"]].concat());
        }
    }
    assert!(host.command("ipset", &["save"]).contains("add KUBE-CLUSTER-IP 10.96.0.1,tcp:443"));
}

#[test]
fn sets_that_other_programs_created_with_other_settings_are_replaced() {
    let host = NetNs::new();
    let create = |kind, family| host.run(|| IpSets::open().unwrap().create(kind, family));
    let header = |name: &str| host.command("ipset", &["list", "-t", name]);
    let services = &["-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst"][..];
    let ports = &["-p", "tcp", "-m", "set", "--match-set", "KUBE-NODE-PORT-TCP", "dst"][..];
    let entry = "10.96.0.1,tcp:443";
    // Settings of the existing set, an entry of it, and whether the new set has the entry. The result is the same while
    // a rule uses the set, unless its type or family differs.
    for (kind, settings, added, is_kept, rule) in [
        (SetKind::ClusterIp, &["hash:ip,port", "maxelem", "10"][..], entry, true, services),
        (SetKind::ClusterIp, &["hash:ip,port", "timeout", "600"], entry, true, services),
        (SetKind::ClusterIp, &["hash:ip,port", "counters", "maxelem", "262144"], entry, true, services),
        (SetKind::ClusterIp, &["hash:ip,port", "comment", "skbinfo"], entry, true, services),
        (SetKind::NodePortTcp, &["bitmap:port", "range", "30000-30100"], "30080", true, ports),
        (SetKind::ClusterIp, &["hash:net"], "10.96.0.1", false, &[]),
        (SetKind::ClusterIp, &["hash:ip,port", "family", "inet6"], "fd00::1,tcp:443", false, &[]),
        (SetKind::NodePortTcp, &["hash:ip"], "10.96.0.1", false, &[]),
    ] {
        let name = kind.name(IpFamily::V4);
        host.command("ipset", &[&["create", name], settings].concat());
        host.command("ipset", &["add", name, added]);
        if !rule.is_empty() {
            host.command("iptables-legacy", &[&["-A", "FORWARD"], rule].concat());
        }
        create(kind, IpFamily::V4).unwrap();
        let wanted = if kind == SetKind::ClusterIp { "Type: hash:ip,port\n" } else { "Type: bitmap:port\n" };
        let replaced = header(name);
        assert!(replaced.contains(wanted) && !replaced.contains("timeout"), "{settings:?}: {replaced}");
        assert!(!["counters", "comment", "inet6", "maxelem 10 "].iter().any(|it| replaced.contains(it)), "{replaced}");
        let saved = host.command("ipset", &["save", name]);
        assert_eq!(saved.contains(&format!("add {name} {added}")), is_kept, "{settings:?}: {saved}");
        assert_eq!(host.command("ipset", &["list", "-n"]).trim(), name);
        if !rule.is_empty() {
            assert!(replaced.contains("References: 1"), "{replaced}");
            host.command("iptables-legacy", &[&["-D", "FORWARD"], rule].concat());
        }
        destroy(&host, name);
    }
}

#[test]
fn a_set_of_another_type_that_rules_use_is_reported_with_a_remedy() {
    let host = NetNs::new();
    host.command("ipset", &["create", "KUBE-CLUSTER-IP", "hash:net"]);
    host.command("iptables-legacy", &["-A", "FORWARD", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst"]);
    let create = |family| host.run(|| IpSets::open().unwrap().create(SetKind::ClusterIp, family));
    let error = create(IpFamily::V4).unwrap_err();
    assert!(matches!(error, SetError::Differs { name: "KUBE-CLUSTER-IP", .. }), "{error:?}");
    insta::assert_snapshot!(error, @"cannot use ipset KUBE-CLUSTER-IP: it is hash:net family inet maxelem 65536 (want hash:ip,port family inet), and rules refer to it; delete the rules that match KUBE-CLUSTER-IP and run ipset destroy KUBE-CLUSTER-IP");
    create(IpFamily::V6).unwrap();
    assert_eq!(host.command("ipset", &["list", "-n"]), "KUBE-CLUSTER-IP\nKUBE-6-CLUSTER-IP\n");
    host.command("iptables-legacy", &["-F", "FORWARD"]);
    ferroute_testing::wait("the release of the set", || create(IpFamily::V4).ok());
}

#[test]
fn sets_with_entries_show_that_the_mode_was_active() {
    let host = NetNs::new();
    let are_used = || IpFamily::BOTH.map(|family| host.run(|| IpSets::open().unwrap().are_used(family)).unwrap());
    assert_eq!(are_used(), [false, false]);
    for family in IpFamily::BOTH {
        SetKind::ALL.into_iter().for_each(|kind| host.run(|| IpSets::open().unwrap().create(kind, family)).unwrap());
    }
    host.command("ipset", &["create", "theirs", "hash:ip"]);
    host.command("ipset", &["add", "theirs", "192.0.2.1"]);
    assert_eq!(are_used(), [false, false]);
    host.command("ipset", &["add", "KUBE-6-CLUSTER-IP", "fd00:96::1,tcp:443"]);
    assert_eq!(are_used(), [false, true]);
    host.command("ipset", &["add", "KUBE-NODE-PORT-TCP", "30080"]);
    assert_eq!(are_used(), [true, true]);
}

/// Destroys a set once the kernel has released it.
fn destroy(host: &NetNs, name: &str) {
    ferroute_testing::wait("the release of a set", || host.run(|| IpSets::open().unwrap().destroy(name)).ok());
}

#[test]
fn full_set_is_enlarged_while_rules_use_it() {
    let host = NetNs::new();
    let (kind, family) = (SetKind::ClusterIp, IpFamily::V4);
    let reserve = |entries| host.run(|| IpSets::open().unwrap().reserve(kind, family, entries)).unwrap();
    host.run(|| IpSets::open().unwrap().create(kind, family)).unwrap();
    let rule = ["-A", "FORWARD", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst"];
    host.command("iptables-legacy", &rule);
    let add = |address: &str, ports: std::ops::Range<u16>| {
        let mut sets = IpSets::open().unwrap();
        let entry = |port| Entry::Service(key(Protocol::Tcp, &format!("{address}:{port}")));
        sets.add(kind, family, ports.map(entry))
    };
    host.run(|| add("10.96.0.1", 0..60_000)).unwrap();
    // The kernel counts by parts of the set, and permits a few more.
    assert!(host.run(|| add("10.96.0.2", 0..10_000)).is_err(), "a set of kube-proxy's size is full");
    let before = host.run(|| IpSets::open().unwrap().entries(kind, family)).unwrap();
    reserve(70_000);
    assert_eq!(host.run(|| IpSets::open().unwrap().entries(kind, family)).unwrap(), before);
    host.run(|| add("10.96.0.2", 0..10_000)).unwrap();
    let listed = host.run(|| IpSets::open().unwrap().entries(kind, family)).unwrap();
    assert_eq!(listed.len(), 70_000);
    let header = host.command("ipset", &["list", "-t", "KUBE-CLUSTER-IP"]);
    assert!(header.contains("maxelem 262144") && header.contains("References: 1"), "{header}");
    assert_eq!(host.command("ipset", &["list", "-n"]), "KUBE-CLUSTER-IP\n");
    // A later start accepts it, and does not make it smaller.
    host.run(|| IpSets::open().unwrap().create(kind, family)).unwrap();
    reserve(70_000);
    assert_eq!(host.command("ipset", &["list", "-t", "KUBE-CLUSTER-IP"]), header);
}

#[test]
fn entries_of_every_type_are_read_as_ipset_shows_them() {
    let host = NetNs::new();
    let service = key(Protocol::Tcp, "198.51.100.1:443");
    let service6 = key(Protocol::Sctp, "[2001:db8::1]:53");
    let cases = [
        (SetKind::IpvsIps, IpFamily::V4, Entry::Address("10.96.0.1".parse().unwrap())),
        (SetKind::IpvsIps, IpFamily::V6, Entry::Address("fd00:96::1".parse().unwrap())),
        (SetKind::NodePortTcp, IpFamily::V4, Entry::Port(30080)),
        (SetKind::ClusterIp, IpFamily::V4, Entry::Service(service)),
        (SetKind::ClusterIp, IpFamily::V6, Entry::Service(service6)),
        (SetKind::LoopBack, IpFamily::V6, Entry::ServiceAndAddress(service6, service6.address)),
        (
            SetKind::LoadBalancerSourceCidr,
            IpFamily::V4,
            Entry::ServiceAndNetwork(service, "192.0.2.0/24".parse().unwrap()),
        ),
        (
            SetKind::LoadBalancerSourceCidr,
            IpFamily::V4,
            Entry::ServiceAndNetwork(service, "203.0.113.7/32".parse().unwrap()),
        ),
        (
            SetKind::LoadBalancerSourceCidr,
            IpFamily::V6,
            Entry::ServiceAndNetwork(service6, "fd00::/16".parse().unwrap()),
        ),
        (
            SetKind::LoadBalancerSourceCidr,
            IpFamily::V6,
            Entry::ServiceExceptNetwork(service6, "fd00:1::/32".parse().unwrap()),
        ),
    ];
    host.run(|| {
        let mut sets = IpSets::open().unwrap();
        cases.iter().for_each(|(kind, family, _)| sets.create(*kind, *family).unwrap());
    });
    for (kind, family, entry) in cases {
        let name = kind.name(family);
        let words = entry.to_string();
        host.command("ipset", &[&["add", name], &words.split(' ').collect::<Vec<_>>()[..]].concat());
        let line = format!("add {name} {entry}\n");
        assert!(host.command("ipset", &["save", name]).contains(&line), "{line}");
        let read = host.run(|| IpSets::open().unwrap().entries(kind, family)).unwrap();
        assert!(read.contains(&entry), "{name}: {read:?}");
    }
    assert_eq!(
        host.run(|| IpSets::open().unwrap().entries(SetKind::ExternalIp, IpFamily::V4)).unwrap(),
        HashSet::new()
    );
}

#[test]
fn adding_a_network_ends_its_exception() {
    let host = NetNs::new();
    let kind = SetKind::LoadBalancerSourceCidr;
    let (service, net) = (key(Protocol::Tcp, "198.51.100.1:443"), "192.0.2.0/24".parse().unwrap());
    host.run(|| {
        let mut sets = IpSets::open().unwrap();
        sets.create(kind, IpFamily::V4).unwrap();
        for entry in [Entry::ServiceExceptNetwork(service, net), Entry::ServiceAndNetwork(service, net)] {
            sets.add(kind, IpFamily::V4, [entry]).unwrap();
            assert_eq!(sets.entries(kind, IpFamily::V4).unwrap(), HashSet::from([entry]));
        }
    });
}

#[test]
fn only_sets_of_kube_proxy_are_destroyed() {
    let host = NetNs::new();
    for (name, kind) in [
        ("KUBE-CLUSTER-IP", &["hash:ip,port"][..]),
        ("KUBE-6-LOAD-BALANCER-SOURCE-CID", &["hash:ip,port,net", "family", "inet6"]),
        ("KUBE-NODE-PORT-TCP", &["bitmap:port", "range", "0-65535"]),
        ("KUBE-CLUSTER-IP-2", &["hash:ip"]),
        ("theirs", &["hash:net"]),
    ] {
        host.command("ipset", &[&["create", name], kind].concat());
    }
    host.command("ipset", &["add", "KUBE-CLUSTER-IP", "10.96.0.1,tcp:443"]);
    host.command("ipset", &["add", "theirs", "192.0.2.0/24"]);
    let removed: Vec<&str> = host.run(|| {
        let mut sets = IpSets::open().unwrap();
        kube_proxy_set_names().filter(|name| sets.destroy(name).unwrap()).collect()
    });
    assert_eq!(removed, ["KUBE-CLUSTER-IP", "KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-NODE-PORT-TCP"]);
    let left = host.command("ipset", &["save"]);
    assert_eq!(left.lines().filter(|line| line.starts_with("create")).count(), 2, "{left}");
    for stays in ["create KUBE-CLUSTER-IP-2 ", "create theirs ", "add theirs 192.0.2.0/24"] {
        assert!(left.contains(stays), "{left}");
    }
}

#[test]
fn a_set_that_a_rule_refers_to_is_not_destroyed() {
    let host = NetNs::new();
    host.command("ipset", &["create", "KUBE-CLUSTER-IP", "hash:ip,port"]);
    let rule = ["INPUT", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst", "-j", "DROP"];
    host.command("iptables", &[&["-w", "-A"], &rule[..]].concat());
    let error = host.run(|| IpSets::open().unwrap().destroy("KUBE-CLUSTER-IP")).unwrap_err();
    assert!(matches!(&error, SetError::InUse { name } if name == "KUBE-CLUSTER-IP"), "{error:?}");
    host.command("iptables", &[&["-w", "-D"], &rule[..]].concat());
}

#[test]
fn a_device_has_its_kind_and_addresses_and_can_be_deleted() {
    let host = NetNs::new();
    for name in ["kube-ipvs0", "other0"] {
        host.command("ip", &["link", "add", name, "type", "bridge"]);
    }
    host.command("ip", &["address", "add", "10.96.0.1/32", "dev", "kube-ipvs0"]);
    host.command("ip", &["address", "add", "fd00:96::1/128", "dev", "kube-ipvs0", "nodad"]);
    host.command("ip", &["address", "add", "192.0.2.1/32", "dev", "other0"]);
    host.run(|| {
        let mut devices = Devices::open().unwrap();
        let device = devices.find("kube-ipvs0").unwrap().unwrap();
        assert_eq!((device.name.as_str(), device.kind.as_deref()), ("kube-ipvs0", Some("bridge")));
        let mut addresses = devices.addresses(&device).unwrap();
        addresses.sort_unstable();
        assert_eq!(addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.96.0.1", "fd00:96::1"]);
        devices.delete(&device).unwrap();
        assert_eq!(devices.find("kube-ipvs0").unwrap(), None);
        assert!(devices.find("other0").unwrap().is_some());
        assert_eq!(devices.find("lo").unwrap().unwrap().kind, None);
    });
}

#[test]
fn a_text_is_added_to_an_alias_once_and_replaces_one_that_leaves_no_room() {
    let host = NetNs::new();
    host.command("ip", &["link", "add", "kube-ipvs0", "type", "bridge"]);
    let long = "x".repeat(252);
    for (before, after) in [("", "ours"), ("ours", "ours"), ("theirs", "theirs; ours"), (&long, "ours")] {
        host.run(|| {
            let mut devices = Devices::open().unwrap();
            let mut find = || devices.find("kube-ipvs0").unwrap().unwrap();
            let device = find();
            Devices::open().unwrap().set_alias(&device, before).unwrap();
            (0..2).for_each(|_| Devices::open().unwrap().add_to_alias(&find(), "ours").unwrap());
            assert_eq!(find().alias.as_deref(), Some(after));
        });
    }
}

#[test]
fn ipv6_addresses_are_permitted_on_a_device_where_they_are_disabled() {
    let host = NetNs::new();
    host.command("sysctl", &["-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
    host.command("ip", &["link", "add", "kube-ipvs0", "type", "bridge"]);
    host.run(|| {
        let mut devices = Devices::open().unwrap();
        let device = devices.find("kube-ipvs0").unwrap().unwrap();
        (0..2).for_each(|_| devices.enable_ipv6(&device).unwrap());
    });
    host.command("ip", &["address", "add", "fd00:96::1/128", "dev", "kube-ipvs0", "nodad"]);
    assert_eq!(host.command("sysctl", &["-n", "net.ipv6.conf.default.disable_ipv6"]).trim(), "1");
}

#[test]
fn virtual_servers_are_accessible_if_the_kernel_supports_ipvs() {
    let host = NetNs::new();
    let is_supported = std::path::Path::new("/proc/net/ip_vs").exists();
    let servers = host.run(VirtualServers::open).unwrap();
    assert_eq!(servers.is_some(), is_supported);
    if let Some(mut servers) = servers {
        assert_eq!(host.run(|| servers.list()).unwrap(), []);
    }
}

#[test]
fn sets_of_kube_proxy_identify_its_virtual_servers() {
    let host = NetNs::new();
    for (set, kind) in [
        ("KUBE-CLUSTER-IP", "hash:ip,port"),
        ("KUBE-6-EXTERNAL-IP", "hash:ip,port family inet6"),
        ("KUBE-NODE-PORT-SCTP-HASH", "hash:ip,port"),
        ("KUBE-NODE-PORT-TCP", "bitmap:port range 0-65535"),
        ("KUBE-6-NODE-PORT-UDP", "bitmap:port range 0-65535"),
    ] {
        host.command("ipset", &[&["create", set], &kind.split(' ').collect::<Vec<_>>()[..]].concat());
    }
    for (set, element) in [
        ("KUBE-CLUSTER-IP", "10.96.0.1,tcp:443"),
        ("KUBE-6-EXTERNAL-IP", "2001:db8::1,udp:53"),
        ("KUBE-NODE-PORT-SCTP-HASH", "192.0.2.1,sctp:30132"),
        ("KUBE-NODE-PORT-TCP", "30080"),
        ("KUBE-6-NODE-PORT-UDP", "30053"),
    ] {
        host.command("ipset", &["add", set, element]);
    }
    let cases = [
        (Protocol::Tcp, "10.96.0.1:443", true, false),
        (Protocol::Udp, "10.96.0.1:443", false, false),
        (Protocol::Tcp, "10.96.0.1:80", false, false),
        (Protocol::Tcp, "10.96.0.2:443", false, false),
        (Protocol::Udp, "[2001:db8::1]:53", true, false),
        (Protocol::Tcp, "[2001:db8::1]:53", false, false),
        (Protocol::Sctp, "192.0.2.1:30132", true, false),
        (Protocol::Tcp, "192.0.2.1:30080", false, true),
        (Protocol::Udp, "192.0.2.1:30080", false, false),
        (Protocol::Tcp, "192.0.2.1:30081", false, false),
        (Protocol::Tcp, "[2001:db8::1]:30080", false, false),
        (Protocol::Udp, "[2001:db8::1]:30053", false, true),
    ];
    host.run(|| {
        let mut sets = IpSets::open().unwrap();
        for (protocol, address, is_service, is_node_port) in cases {
            let server = key(protocol, address);
            let result = (sets.has_service(server).unwrap(), sets.has_node_port(server).unwrap());
            assert_eq!(result, (is_service, is_node_port), "{server}");
        }
    });
}
