use ferroute_iptables::{Match, RuleSet, TableName};

use super::*;
use crate::{
    Ruleset,
    testing::{from_pod, host},
};

fn entry(networks: &[&str]) -> IpsetEntry {
    let network =
        |text: &&str| text.parse::<IpNet>().or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from)).unwrap();
    IpsetEntry { networks: networks.iter().map(network).collect(), ..IpsetEntry::default() }
}

fn set(kind: &str, entries: Vec<IpsetEntry>) -> Ipset {
    let family = (!["bitmap:port", "list:set"].contains(&kind)).then_some(IpFamily::V4);
    Ipset { kind: kind.to_owned(), family, netmask: None, markmask: u32::MAX, range: None, entries }
}

/// Reports whether the packet of a pod from 172.17.0.14:40000 to 10.0.0.1:80 is in a set.
fn contains(sets: &[(&str, Ipset)], sides: &str) -> Option<bool> {
    let mut ipsets = Ipsets::default();
    sets.iter().for_each(|(name, set)| ipsets.add(name, set.clone()));
    let rule = format!("*filter\n-A FORWARD -m set --match-set {} {sides} -j DROP\nCOMMIT\n", sets[0].0);
    let rules = RuleSet::parse_save(IpFamily::V4, &rule).unwrap();
    let rule = &rules.rules(TableName::Filter, ferroute_iptables::ChainName::FORWARD)[0];
    let Match::Set(wanted) = &rule.matches[0] else { panic!("{rule}") };
    let (host, packet, ruleset) = (host(), from_pod("10.0.0.1:80"), Ruleset::new());
    let mut state = PacketState::new(&host, &ruleset, &packet, true);
    state.ipsets = Some(&ipsets);
    state.out_interface = Some("eth0".into());
    state.is_in_ipset(&wanted.value().name, &wanted.value().sides)
}

#[test]
fn types_compare_their_dimensions_with_the_sides() {
    let port = |networks: &[&str], protocol, port| IpsetEntry {
        port: Some(port),
        protocol: Some(protocol),
        ..entry(networks)
    };
    let interface =
        |name: &str, wildcard| IpsetEntry { interface: Some(name.into()), wildcard, ..entry(&["172.17.0.0/16"]) };
    for (kind, entries, sides, expected) in [
        ("hash:ip", vec![entry(&["172.17.0.14"])], "src", true),
        ("hash:ip", vec![entry(&["172.17.0.14"])], "dst", false),
        ("bitmap:ip", vec![entry(&["10.0.0.1"])], "dst", true),
        ("hash:net", vec![entry(&["172.17.0.0/16"])], "src", true),
        ("hash:net", vec![entry(&["172.16.0.0/16"])], "src", false),
        ("hash:ip,port", vec![port(&["10.0.0.1"], 6, 80)], "dst,dst", true),
        ("hash:ip,port", vec![port(&["10.0.0.1"], 17, 80)], "dst,dst", false),
        ("hash:ip,port", vec![port(&["10.0.0.1"], 6, 80)], "dst,src", false),
        // Too few sides.
        ("hash:ip,port", vec![port(&["10.0.0.1"], 6, 80)], "dst", false),
        ("hash:net,port", vec![port(&["10.0.0.0/8"], 6, 80)], "dst,dst", true),
        ("hash:ip,port,ip", vec![port(&["10.0.0.1", "172.17.0.14"], 6, 80)], "dst,dst,src", true),
        ("hash:ip,port,net", vec![port(&["10.0.0.1", "172.17.0.0/24"], 6, 80)], "dst,dst,src", true),
        ("hash:net,net", vec![entry(&["172.17.0.0/16", "10.0.0.0/8"])], "src,dst", true),
        ("hash:net,net", vec![entry(&["172.17.0.0/16", "11.0.0.0/8"])], "src,dst", false),
        ("hash:net,iface", vec![interface("cni0", false)], "src,src", true),
        ("hash:net,iface", vec![interface("cni", false)], "src,src", false),
        ("hash:net,iface", vec![interface("cni", true)], "src,src", true),
        ("hash:net,iface", vec![interface("eth0", false)], "src,dst", true),
        ("bitmap:port", vec![IpsetEntry { port: Some(80), ..IpsetEntry::default() }], "dst", true),
        ("hash:ip,mark", vec![IpsetEntry { mark: Some(0), ..entry(&["10.0.0.1"]) }], "dst,dst", true),
        ("hash:ip,mark", vec![IpsetEntry { mark: Some(1), ..entry(&["10.0.0.1"]) }], "dst,dst", false),
    ] {
        assert_eq!(contains(&[("x", set(kind, entries.clone()))], sides), Some(expected), "{kind} {sides} {entries:?}");
    }
}

#[test]
fn most_specific_network_decides() {
    let nomatch = IpsetEntry { nomatch: true, ..entry(&["172.17.0.0/28"]) };
    let networks = vec![entry(&["172.17.0.0/16"]), nomatch.clone()];
    assert_eq!(contains(&[("x", set("hash:net", networks))], "src"), Some(false));
    let inner = vec![entry(&["172.17.0.0/16"]), nomatch, entry(&["172.17.0.14"])];
    assert_eq!(contains(&[("x", set("hash:net", inner))], "src"), Some(true));
}

#[test]
fn sets_of_sets_netmasks_families_and_unknown_types() {
    let member = |name: &str| IpsetEntry { set: Some(name.to_owned()), ..IpsetEntry::default() };
    let sets = [
        ("all", set("list:set", vec![member("a"), member("b")])),
        ("a", set("hash:ip", vec![entry(&["10.0.0.9"])])),
        ("b", set("hash:net", vec![entry(&["10.0.0.0/8"])])),
    ];
    assert_eq!(contains(&sets, "dst"), Some(true));
    assert_eq!(contains(&sets[..2], "dst"), None, "a set is missing");
    let masked = Ipset { netmask: Some(24), ..set("hash:ip", vec![entry(&["172.17.0.0"])]) };
    assert_eq!(contains(&[("x", masked)], "src"), Some(true));
    let other = Ipset { family: Some(IpFamily::V6), ..set("hash:ip", vec![entry(&["172.17.0.14"])]) };
    assert_eq!(contains(&[("x", other)], "src"), Some(false));
    assert_eq!(contains(&[("x", set("hash:mac", vec![IpsetEntry::default()]))], "src"), None);
    assert_eq!(contains(&[("x", set("hash:mac", vec![]))], "src"), Some(false));
}

#[test]
fn addresses_with_mac_are_decided_where_they_are_in_no_entry() {
    let addresses = |sides, address| contains(&[("x", set("bitmap:ip,mac", vec![entry(&[address])]))], sides);
    assert_eq!(addresses("src,src", "172.17.0.14"), None);
    assert_eq!(addresses("src,src", "172.17.0.15"), Some(false));
    assert_eq!(addresses("src,dst", "172.17.0.14"), Some(false), "bitmaps match sources only");
    assert_eq!(contains(&[("x", set("hash:ip,mac", vec![entry(&["10.0.0.1"])]))], "dst,dst"), None);
}

#[test]
fn saved_sets_have_limits_and_unsupported_masks() {
    let mut ipsets = Ipsets::default();
    ipsets.add_save(
        "create ip bitmap:ip range 10.0.0.0-10.0.255.255 netmask 24\ncreate port bitmap:port range 80-90\nadd port 80\n\
         create mask hash:ip family inet bitmask 255.0.255.0\n",
    );
    assert_eq!(ipsets.0["ip"].range, Some((0x0a00_0000, 0x0a00_ffff)));
    let (host, packet, ruleset) = (host(), from_pod("10.0.0.1:80"), Ruleset::new());
    let mut state = PacketState::new(&host, &ruleset, &packet, true);
    state.ipsets = Some(&ipsets);
    let (src, dst) = ([SetSide::Source], [SetSide::Destination]);
    assert_eq!(state.is_in_ipset("mask", &dst), None);
    // The address of the pod and its port are beyond the limits.
    for (name, side, is_within) in [("ip", &dst, true), ("ip", &src, false), ("port", &src, false)] {
        state.change_ipset(name, side, true);
        assert_eq!(state.is_in_ipset(name, side), Some(is_within), "{name}");
    }
    assert_eq!(state.is_in_ipset("port", &dst), Some(true));
    state.change_ipset("port", &dst, false);
    assert_eq!(state.is_in_ipset("port", &dst), Some(false));
}

#[test]
fn output_of_list_is_read_like_that_of_save() {
    let save = "create s hash:ip,port family inet hashsize 1024 maxelem 65536\nadd s 10.0.0.1,tcp:80\n\
                add s 10.0.0.2,udp:53 timeout 5\ncreate all list:set size 8\nadd all s\n";
    let list = "Name: s\nType: hash:ip,port\nRevision: 5\nHeader: family inet hashsize 1024 maxelem 65536\nSize in memory: 248\n\
                References: 0\nNumber of entries: 2\nMembers:\n10.0.0.1,tcp:80\n10.0.0.2,udp:53 timeout 5\n\nName: all\n\
                Type: list:set\nRevision: 3\nHeader: size 8\nSize in memory: 80\nReferences: 1\nNumber of entries: 1\nMembers:\ns\n\
                root@node:~# exit\n";
    let read = |text: &str| {
        let mut sets = Ipsets::default();
        sets.add_save(text);
        sets
    };
    assert_eq!(read(list), read(save));
    assert_eq!(read(list).0["s"].entries.len(), 2);
    // Older versions do not print the number of entries.
    let without = |start: &str| {
        list.lines().filter(|line| !line.starts_with(start)).map(|line| format!("{line}\n")).collect::<String>()
    };
    assert_eq!(read(&without("Number").replace("root@node:~# exit", "")), read(save));
    for incomplete in [without("10.0.0.2"), list.replace("Members:\n10.0.0.1,tcp:80\n10.0.0.2,udp:53 timeout 5\n", "")]
    {
        assert_eq!(read(&incomplete).0["s"].dimensions(), None, "{incomplete}");
    }
}
