use super::*;

#[test]
fn addresses_and_routes_of_an_unnumbered_node_are_read() {
    let text = "1: lo: <LOOPBACK,UP> mtu 65536\n    inet 127.0.0.1/8 scope host lo\n\
                2: eth0@if9: <BROADCAST> mtu 1500\n    inet 192.168.6.121/24 brd 192.168.6.255 scope global eth0\n\
                default via 192.168.6.1 dev eth0 \nblackhole 10.244.1.0/24 proto bird \nthrow 10.97.0.0/16 \n\
                10.244.1.5 dev cali1 scope link \n192.168.6.0/24 dev eth0 proto kernel scope link src 192.168.6.121 \n\
                198.51.100.0/24 \n\tnexthop via 192.168.6.2 dev eth0 weight 1 \n\tnexthop via 192.168.7.2 dev eth1 weight 1 \n\
                default via fe80::1 dev eth0 metric 1024 pref medium\n";
    let router = StaticRouter::parse(text);
    assert_eq!(router.own_addresses(), ["192.168.6.121".parse::<IpAddr>().unwrap()]);
    let route = |to: &str| {
        let destination = to.parse().unwrap();
        match router.route(&RoutedPacket { destination, source: None, input: None, mark: 0, transport: None }) {
            RouteDecision::Unicast { interface, source, .. } => {
                format!("{interface} {}", source.map(|source| source.to_string()).unwrap_or_default())
            }
            other => format!("{other:?}"),
        }
    };
    assert_eq!(route("10.244.1.5"), "cali1 192.168.6.121");
    assert_eq!(route("10.244.1.9"), "Dropped(\"blackhole route\")");
    assert_eq!(route("10.97.0.1"), "Unreachable");
    assert_eq!(route("8.8.8.8"), "eth0 192.168.6.121");
    assert!(route("198.51.100.7").starts_with("Paths([(1, Unicast { interface: \"eth0\""), "{}", route("198.51.100.7"));
    assert_eq!(route("2001:db8::1"), "eth0 ");
    assert_eq!(router.address_type("192.168.6.255".parse().unwrap()), Some(AddressKind::Broadcast));
}

#[test]
fn sources_have_the_scope_of_the_destination() {
    let text = "1: lo: <UP>\n    inet 10.88.8.8/32 scope link lo\n\
                2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\n    inet 192.168.6.122/24 scope global secondary eth0\n\
                inet6 fd00:6::121/64 scope global\n3: cali1: <UP>\n    inet6 fe80::ee/64 scope link\n\
                4: kube-ipvs0: <NOARP>\n    inet 10.96.0.1/32 scope global kube-ipvs0\n\
                default via 192.168.6.1 dev eth0\nfd00:244::5 dev cali1 metric 1024\n\
                local 192.168.6.122 dev eth0 table local proto kernel scope host src 192.168.6.121\n";
    let router = StaticRouter::parse(text);
    let masqueraded = |to: &str| router.masquerade_source(to.parse().unwrap(), "cali1", None).unwrap().to_string();
    assert_eq!([masqueraded("fd00:244::5"), masqueraded("fe80::5")], ["fd00:6::121", "fe80::ee"]);
    assert_eq!(masqueraded("10.244.1.5"), "192.168.6.121");
    let host = Host { addresses: router.own_addresses(), router: Some(Arc::new(router)), ..Host::default() };
    for (to, source) in [
        ("192.168.6.122", "192.168.6.121"),
        ("10.96.0.1", "10.96.0.1"),
        ("203.0.113.7", "192.168.6.121"),
        ("127.0.0.1", "127.0.0.1"),
    ] {
        assert_eq!(host.source_to(to.parse().unwrap(), None).unwrap().to_string(), source, "{to}");
    }
}

#[test]
fn source_of_the_host_depends_on_rules_for_protocols_and_ports() {
    let text = "2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\n3: eth1: <UP>\n    inet 192.168.7.121/24 scope global eth1\n\
                0:\tfrom all lookup local\n100:\tfrom all ipproto udp lookup 101\n101:\tfrom all dport 80 lookup 101\n\
                102:\tfrom all dport 90 lookup 102\n32766:\tfrom all lookup main\n\
                default via 192.168.6.1 dev eth0\ndefault via 192.168.7.1 dev eth1 table 101\n";
    let router = StaticRouter::parse(text);
    let host = Host { addresses: router.own_addresses(), router: Some(Arc::new(router)), ..Host::default() };
    let to = "198.51.100.7".parse().unwrap();
    let source = |protocol, port| host.source_to(to, Some((protocol, 40_000, port))).map(|source| source.to_string());
    use ferroute_core::Protocol::{Tcp, Udp};
    let [first, second] = ["192.168.6.121", "192.168.7.121"].map(|source| Some(source.to_owned()));
    assert_eq!(
        [source(Tcp, 443), source(Tcp, 80), source(Udp, 443), source(Tcp, 90)],
        [first, second.clone(), second, None]
    );
    let reason = host.unknown_route(to, Some((Tcp, 40_000, 90))).unwrap();
    assert!(reason.contains("table 102"), "{reason}");
}

#[test]
fn tables_paths_and_policy_rules_are_followed() {
    let text = "2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\n3: eth1: <UP>\n    inet 192.168.7.121/24 scope global eth1\n\
                0:\tfrom all lookup local\n512:\tfrom all fwmark 0x80/0xff lookup 101\n513:\tfrom 10.244.1.9 lookup 102\n\
                514:\tfrom all lookup main suppress_prefixlength 0\n515:\tfrom 10.244.1.5 lookup vpn\n32766:\tfrom all lookup main\n\
                default via 192.168.7.1 dev eth1 table 101\nthrow 203.0.113.0/24 table 101\ndefault via 192.168.7.9 dev eth1 table vpn\n\
                default proto static \n\tnexthop via 192.168.6.1 dev eth0 weight 1 \n\tnexthop via 192.168.7.1 dev eth1 weight 3 \n\
                \tnexthop via 192.168.8.1 dev eth2 weight 1 dead linkdown\n\
                192.168.6.0/24 dev eth0 proto kernel scope link src 192.168.6.121\n";
    let router = StaticRouter::parse(text);
    assert!(router.has_several_paths());
    let route = |to: &str, from: &str, mark| {
        let (destination, source) = (to.parse().unwrap(), Some(from.parse().unwrap()));
        let paths = |decision| match decision {
            RouteDecision::Unicast { interface, gateway, .. } => format!("{interface} {}", gateway.unwrap()),
            other => format!("{other:?}"),
        };
        match router.route(&RoutedPacket { destination, source, input: Some("cali1"), mark, transport: None }) {
            RouteDecision::Paths(all) => all
                .into_iter()
                .map(|(weight, path)| format!("{weight}: {}", paths(path)))
                .collect::<Vec<_>>()
                .join(", "),
            one => paths(one),
        }
    };
    let all = "1: eth0 192.168.6.1, 3: eth1 192.168.7.1";
    assert_eq!(route("198.51.100.7", "10.244.1.6", 0), all);
    assert_eq!(route("198.51.100.7", "10.244.1.6", 0x180), "eth1 192.168.7.1");
    assert_eq!(route("203.0.113.7", "10.244.1.6", 0x80), all);
    assert_eq!(route("198.51.100.7", "10.244.1.5", 0), "eth1 192.168.7.9");
    assert!(route("198.51.100.7", "10.244.1.9", 0).contains("table 102: add the output of ip route show table all"));
    assert!(route("192.168.6.121", "10.244.1.9", 0).starts_with("Local"));
}

#[test]
fn sources_select_routes() {
    let text = "2001:db8:1::/48 from fd00::/64 via fe80::7 dev eth1 metric 1024 pref medium\n\
                2001:db8:1::/48 via fe80::8 dev eth2 metric 1024 pref medium\n\
                2001:db8:1:1::/64 from fd01::/64 via fe80::9 dev eth3 metric 1024 pref medium\n\
                default from all via fe80::1 dev eth0 metric 1024 pref medium\n";
    let router = StaticRouter::parse(text);
    let interface = |to: &str, from: &str| {
        let (destination, source) = (to.parse().unwrap(), from.parse().ok());
        match router.route(&RoutedPacket { destination, source, input: Some("cali1"), mark: 0, transport: None }) {
            RouteDecision::Unicast { interface, .. } => interface.to_string(),
            other => format!("{other:?}"),
        }
    };
    let interfaces =
        [("2001:db8:1:1::1", "fd00::5"), ("2001:db8:1:1::1", "fd01::5"), ("2001:db8:1::1", "fd01::5"), ("::5", "")];
    assert_eq!(interfaces.map(|(to, from)| interface(to, from)), ["eth1", "eth3", "eth2", "eth0"]);
}

#[test]
fn commands_beside_routes_tell_their_table_and_family() {
    let v4 = "default via 192.168.7.1 dev eth1\n";
    let main = "default via 192.168.6.1 dev eth0\n";
    for command in [
        "root@node:~# ip route show table 2\n",
        "[root@node ~]# ip r s t 2\n",
        "ip -4 -d route list table 2\n",
        "$ sudo ip -n red r ls tab 2\n",
        "# ip route show table 2:\n",
        "+ /sbin/ip route show table 2\n",
        "kubectl exec -n x pod -- ip route show table 2\n",
        "Output of `ip route show table 2`\n",
    ] {
        for text in [format!("{command}{v4}root@node:~# ip route\n{main}"), format!("{main}{command}{v4}$ exit\n")] {
            let router = StaticRouter::parse(&text);
            let tables: Vec<String> =
                router.routes.iter().map(|route| format!("{} {}", route.table, route.to)).collect();
            let mut sorted = tables.clone();
            sorted.sort();
            assert_eq!(sorted, ["2 0.0.0.0/0", "main 0.0.0.0/0"], "{text}");
        }
    }
    let text = "$ ip -6 route\ndefault dev eth0 metric 1024\n$ ip route show table 5\n$ ip rule\n0: from all lookup local\n\
                5: from all lookup 5\n32766: from all lookup main\n$ ip -6 rule\n0: from all lookup local\n5: from all lookup 6\n\
                $ ip route show table all\n10.0.0.0/8 dev eth1 table 7\n192.0.2.0/24 dev eth0\n";
    let router = StaticRouter::parse(text);
    let tables: Vec<String> = router.routes.iter().map(|route| format!("{} {}", route.table, route.to)).collect();
    assert_eq!(tables, ["main ::/0", "7 10.0.0.0/8", "main 192.0.2.0/24"]);
    let route = |to: &str| {
        let destination = to.parse().unwrap();
        router.route(&RoutedPacket { destination, source: None, input: None, mark: 0, transport: None })
    };
    // Scripts that change routes and rules have no output.
    let text = "ip rule add from fd00::/8 lookup 5\nip route add 10.0.0.0/8 dev eth1 table 5\ndefault via 192.168.6.1 dev eth0\n";
    let changed = StaticRouter::parse(text);
    assert_eq!((changed.routes.len(), changed.routes[0].table.as_str()), (1, "main"));
    assert!(!changed.is_known("5"));
    // Table 5 is empty.
    assert!(matches!(route("192.0.2.7"), RouteDecision::Unicast { .. }));
    assert!(matches!(route("2001:db8::1"), RouteDecision::Unknown(reason) if reason.contains("table 6")));
}

#[test]
fn text_without_routes_is_an_error_that_says_what_to_use() {
    for (text, remedy) in [
        ("\n", Some("empty")),
        ("[{\"dst\":\"default\"}]\n", Some("without -j")),
        (
            "Kernel IP routing table\nDestination     Gateway\n0.0.0.0         192.168.6.1\n",
            Some("not that of ifconfig"),
        ),
        ("eth0: flags=4163<UP>  mtu 1500\n        inet 192.168.6.121  netmask 255.255.255.0\n", Some("ifconfig")),
        ("2: eth0: <UP>\n    inet 192.168.6.121/24\n", Some("add the output of ip route")),
        ("hello\n", Some("neither")),
        ("default via 192.168.6.1 dev eth0\n", None),
    ] {
        let reason = StaticRouter::parse(text).why_useless(text);
        let is_expected = reason.zip(remedy).map_or(reason == remedy, |(reason, remedy)| reason.contains(remedy));
        assert!(is_expected, "{text}: {reason:?}");
    }
}

#[test]
fn other_forms_of_ip_are_read() {
    let text = "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n\
                2: eth0    inet 192.168.6.121/24 brd 192.168.6.255 scope global eth0\\       valid_lft forever\n\
                eth1@if7         UP             192.168.7.121/24 fd00:7::121/64 fe80::1/64 \n\
                default via 192.168.9.1 dev eth9 table 100 \n192.0.2.0/24 dev eth8 proto kernel scope link dead linkdown \n\
                unicast default via 192.168.6.1 dev eth0 proto dhcp \nunreachable default dev lo metric 4294967295 error -101 pref medium\n\
                0:\tfrom all lookup local \n32765:\tfrom all fwmark 0x1 lookup 100 \n";
    let router = StaticRouter::parse(text);
    let own: Vec<String> = router.own_addresses().iter().map(ToString::to_string).collect();
    assert_eq!(own, ["192.168.6.121", "192.168.7.121", "fd00:7::121", "fe80::1"]);
    let interface = |to: &str| match router.route_in("main", to.parse().unwrap(), None).map(|route| &route.kind) {
        Some(Kind::Unicast(paths)) => paths[0].interface.clone(),
        other => format!("{other:?}"),
    };
    assert_eq!(["203.0.113.7", "192.0.2.9", "2001:db8::1"].map(interface), ["eth0", "eth0", "Some(Unreachable)"]);
}

#[test]
fn rules_that_skip_others_and_tables_of_vrfs_are_followed() {
    let rules = "0:\tfrom all lookup local\n100:\tfrom all nop\n200:\tfrom 10.244.1.9 goto 32766\n\
                 1000:\tfrom all lookup [l3mdev-table]\n2000:\tfrom all unreachable\n32766:\tfrom all lookup main\n\
                 default via 192.168.6.1 dev eth0\ndefault via 192.168.7.1 dev eth1 table 10\n";
    let links = "2: eth0: <UP> mtu 1500\n    inet 192.168.6.121/24 scope global eth0\n\
                 3: red: <NOARP,MASTER,UP> mtu 65575\n    link/ether 02:00:00:00:00:01\n    vrf table 10 addrgenmode eui64\n\
                 4: eth1@if9: <UP> mtu 1500 qdisc noqueue master red state UP\n    vrf_slave table 10 addrgenmode eui64\n\
                 5: eth2: <UP> mtu 1500 master blue\n";
    let router = StaticRouter::parse(&format!("{links}{rules}"));
    let route = |from: &str, input| {
        let (destination, source) = ("198.51.100.7".parse().unwrap(), Some(from.parse().unwrap()));
        match router.route(&RoutedPacket { destination, source, input: Some(input), mark: 0, transport: None }) {
            RouteDecision::Unicast { interface, .. } => interface.to_string(),
            RouteDecision::Unknown(reason) => reason,
            other => format!("{other:?}"),
        }
    };
    assert_eq!(route("10.244.1.9", "eth0"), "eth0");
    assert_eq!(route("10.244.1.5", "eth0"), "Unreachable");
    assert_eq!([route("10.244.1.5", "eth1"), route("10.244.1.5", "red")], ["eth1", "eth1"]);
    assert!(route("10.244.1.5", "eth2").contains("if blue is a VRF: add the output of ip -details address"));
    assert_eq!(router.vrf("eth1").as_deref(), Some("red"));
}

#[test]
fn groups_and_realms_are_read_where_they_are_printed() {
    let addresses = "2: eth0@if9: <UP> mtu 1500 qdisc noqueue state UP group default qlen 1000\n    inet 192.168.6.121/24 scope global eth0\n\
                     3: eth1: <UP> mtu 1500 state UP group 18 qlen 1000\n4: eth2: <UP> mtu 1500 group uplinks\n5: eth3: <UP> mtu 1500\n";
    let router = |routes: &str| StaticRouter::parse(&format!("{addresses}{routes}"));
    let plain = router("default via 192.168.6.1 dev eth0\n-A FORWARD -m realm --realm 5 -j DROP\n");
    assert_eq!(["eth0", "eth1", "eth2", "eth3"].map(|name| plain.group(name)), [Some(0), Some(18), None, None]);
    assert_eq!(plain.has_realms(), Some(false));
    for routes in [
        "default via 192.168.6.1 dev eth0 realm 5\n",
        "default\n\tnexthop via 192.168.6.1 dev eth0 weight 1 realm 5\n",
        "0:\tfrom all lookup local\n100:\tfrom 10.0.0.0/8 lookup 1 realms 3/4\ndefault via 192.168.6.1 dev eth0\n",
    ] {
        assert_eq!(router(routes).has_realms(), Some(true), "{routes}");
    }
}
