//! Tests against the kernel, in a network namespace per test. Few test machines support ipvs; unit tests cover virtual
//! servers.

use ferroute_ipvs::{Devices, IpSets, SetError, VirtualServer, VirtualServers, kube_proxy_set_names};
use ferroute_testing::NetNs;

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
    let removed: Vec<String> = host.run(|| {
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
        (libc::IPPROTO_TCP, "10.96.0.1:443", true, false),
        (libc::IPPROTO_UDP, "10.96.0.1:443", false, false),
        (libc::IPPROTO_TCP, "10.96.0.1:80", false, false),
        (libc::IPPROTO_TCP, "10.96.0.2:443", false, false),
        (libc::IPPROTO_UDP, "[2001:db8::1]:53", true, false),
        (libc::IPPROTO_TCP, "[2001:db8::1]:53", false, false),
        (libc::IPPROTO_SCTP, "192.0.2.1:30132", true, false),
        (libc::IPPROTO_TCP, "192.0.2.1:30080", false, true),
        (libc::IPPROTO_UDP, "192.0.2.1:30080", false, false),
        (libc::IPPROTO_TCP, "192.0.2.1:30081", false, false),
        (libc::IPPROTO_TCP, "[2001:db8::1]:30080", false, false),
        (libc::IPPROTO_UDP, "[2001:db8::1]:30053", false, true),
    ];
    host.run(|| {
        let mut sets = IpSets::open().unwrap();
        for (protocol, address, is_service, is_node_port) in cases {
            let server = VirtualServer { protocol: protocol as u16, address: address.parse().unwrap() };
            let result = (sets.has_service(server).unwrap(), sets.has_node_port(server).unwrap());
            assert_eq!(result, (is_service, is_node_port), "{server}");
        }
    });
}
