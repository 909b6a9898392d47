//! Reads rules that administrators, network plugins and proxies have written. Each test has its own network namespace.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::net::UdpSocket;

use ferroute_core::IpFamily;
use ferroute_iptables::{
    ChainName, Counters, HostExec, TableName,
    exec::{Backend, search_path},
    text::Line,
};
use ferroute_modes::{
    REGISTRY,
    cleanup::RemovalReport,
    kernel_rules::{KernelRules, read},
};
use ferroute_nftables::kernel::TableSnapshot;
use ferroute_testing::NetNs;

fn read_in(host: &NetNs, family: IpFamily) -> KernelRules {
    host.run(|| read(family, &HostExec, &search_path())).unwrap()
}

/// Returns the descriptions of all proxies whose rules are in the kernel.
fn proxies(host: &NetNs, family: IpFamily) -> Vec<&'static str> {
    REGISTRY.active_proxies(&read_in(host, family)).iter().map(|proxy| proxy.description).collect()
}

fn lines(rules: &KernelRules, backend: Backend, table: TableName, chain: &str) -> Vec<String> {
    let snapshot = rules.iptables.iter().find(|snapshot| snapshot.backend == backend).unwrap();
    let chain: ChainName = chain.parse().unwrap();
    snapshot.saved.rules.rules(table, chain).iter().map(|rule| Line(chain, rule).to_string()).collect()
}

#[test]
fn network_namespace_without_rules_has_none() {
    let host = NetNs::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        let rules = read_in(&host, family);
        assert_eq!((rules.iptables, rules.nftables, rules.family), (vec![], vec![], family));
    }
}

#[test]
fn rules_of_both_backends_are_read_separately() {
    let host = NetNs::new();
    host.command("iptables-nft", &["-A", "INPUT", "-s", "10.0.0.1/32", "-m", "mark", "--mark", "5", "-j", "LOG"]);
    host.command("iptables-legacy", &["-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE"]);
    let rules = read_in(&host, IpFamily::V4);
    let backends: Vec<_> = rules.iptables.iter().map(|snapshot| snapshot.backend).collect();
    assert_eq!(backends, [Backend::NfTables, Backend::Legacy]);
    assert_eq!(
        lines(&rules, Backend::NfTables, TableName::Filter, "INPUT"),
        ["-A INPUT -s 10.0.0.1/32 -m mark --mark 0x5 -j LOG"]
    );
    assert_eq!(lines(&rules, Backend::Legacy, TableName::Nat, "POSTROUTING"), ["-A POSTROUTING -o eth0 -j MASQUERADE"]);
    assert_eq!(read_in(&host, IpFamily::V6).iptables, []);
}

#[test]
fn options_without_a_variant_are_distinguished() {
    let host = NetNs::new();
    for range in ["10.0.0.1-10.0.0.5", "10.0.0.1-10.0.0.6", "10.0.0.1-10.0.0.5"] {
        host.command("iptables-nft", &["-A", "OUTPUT", "-m", "iprange", "--dst-range", range, "-j", "ACCEPT"]);
    }
    host.command("iptables-nft", &["-t", "raw", "-A", "OUTPUT", "-j", "CT", "--notrack"]);
    host.command("iptables-nft", &["-t", "raw", "-A", "OUTPUT", "-j", "CT", "--zone", "1"]);
    let rules = read_in(&host, IpFamily::V4);
    let output = lines(&rules, Backend::NfTables, TableName::Filter, "OUTPUT");
    assert!(output[0] != output[1] && output[0] == output[2], "{output:?}");
    let raw = lines(&rules, Backend::NfTables, TableName::Raw, "OUTPUT");
    assert_eq!(raw, ["-A OUTPUT -j CT --notrack", "-A OUTPUT -j CT --zone 1"]);
}

#[test]
fn rules_have_packet_counters() {
    let host = NetNs::new();
    for backend in ["iptables-nft", "iptables-legacy"] {
        host.command(backend, &["-A", "OUTPUT", "-p", "tcp", "-j", "ACCEPT"]);
        host.command(backend, &["-A", "OUTPUT", "-p", "udp", "--dport", "9", "-j", "ACCEPT"]);
    }
    let socket = host.run(|| UdpSocket::bind("127.0.0.1:0")).unwrap();
    (0..3).for_each(|_| _ = socket.send_to(b"four", "127.0.0.1:9"));
    let rules = read_in(&host, IpFamily::V4);
    assert_eq!(rules.iptables.len(), 2);
    for snapshot in rules.iptables {
        let counters = |n| snapshot.saved.counters.get(TableName::Filter, ChainName::OUTPUT, n).unwrap();
        assert_eq!(counters(0), Counters::default());
        // ICMP errors in response are not UDP.
        assert_eq!(counters(1), Counters { packets: 3, bytes: 3 * (20 + 8 + 4) }, "{}", snapshot.backend);
    }
}

#[test]
fn proxy_is_detected_by_its_chains_and_not_by_those_of_kubelet() {
    let host = NetNs::new();
    let kubelet = "*nat\n:KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SERVICES - [0:0]\nCOMMIT\n";
    host.feed("iptables-nft-restore", &["--noflush"], kubelet);
    assert_eq!(proxies(&host, IpFamily::V4), [""; 0]);
    host.feed("iptables-nft-restore", &["--noflush"], "*nat\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n");
    assert_eq!(proxies(&host, IpFamily::V4), ["kube-proxy or Ferroute in iptables mode"]);
}

#[test]
fn proxies_are_detected_by_their_tables() {
    let host = NetNs::new();
    host.feed(
        "nft",
        &["-f", "-"],
        "table ip kube-proxy { chain services { }; }; table ip6 ferroute { chain services { }; }",
    );
    assert_eq!(proxies(&host, IpFamily::V4), ["kube-proxy in nftables mode"]);
    assert_eq!(proxies(&host, IpFamily::V6), ["Ferroute in nftables mode"]);
}

#[test]
fn native_rules_in_iptables_tables_are_not_an_error() {
    let host = NetNs::new();
    let chain = "a-chain-with-a-name-that-iptables-refuses";
    let table = format!(
        "table ip filter {{
            chain {chain} {{ accept; }}
            chain INPUT {{ type filter hook input priority 0; ip saddr 10.0.0.1 jump {chain}; ip saddr 10.0.0.2 drop; }}
        }}
        table ip nat {{
            chain own {{ type nat hook prerouting priority -100; ip daddr 10.0.0.9 dnat to 10.0.0.10; }}
        }}"
    );
    host.feed("nft", &["-f", "-"], &table);
    let rules = read_in(&host, IpFamily::V4);
    let input = lines(&rules, Backend::NfTables, TableName::Filter, "INPUT");
    assert_eq!(input, [format!("-A INPUT -s 10.0.0.1/32 -j {chain}"), "-A INPUT -s 10.0.0.2/32 -j DROP".to_owned()]);
    assert_eq!(rules.iptables[0].saved.partial, [TableName::Filter, TableName::Nat]);
    let [filter, nat] = &*rules.nftables else { panic!("{:?}", rules.nftables) };
    let bases = |table: &TableSnapshot| {
        let bases = table.table.chains().filter(|chain| chain.chain.base.is_some());
        bases.map(|chain| chain.chain.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((filter.name.as_str(), bases(filter)), ("filter", vec!["INPUT".to_owned()]));
    assert_eq!((nat.name.as_str(), bases(nat)), ("nat", vec!["own".to_owned()]));
}

/// The rules of a proxy in iptables mode by which it is recognised.
const PROXY: &str = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\n:KUBE-SVC-4LVCYZMTA5CQO6SX - [0:0]\n\
    -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
    -A KUBE-SERVICES -m comment --comment \"ns1/a\" -m addrtype --dst-type LOCAL -j KUBE-SVC-4LVCYZMTA5CQO6SX\nCOMMIT\n\
    *filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n\
    -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n\
    *mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n";

/// Rules of other programs that `iptables` cannot show.
const FOREIGN: [&str; 5] = [
    "add rule FAMILY nat POSTROUTING meta mark { 1, 2 } counter",
    "add chain FAMILY filter a-chain-with-a-name-that-is-too-long; \
     add rule FAMILY filter FORWARD ct state vmap { established : accept, invalid : drop }",
    "add rule FAMILY mangle KUBE-PROXY-CANARY meta mark { 1, 2 } counter",
    "add chain FAMILY nat theirs { type nat hook output priority -90; }; add rule FAMILY nat theirs accept",
    "add rule FAMILY nat KUBE-SERVICES meta mark { 1, 2 } counter",
];

const FAMILIES: [(IpFamily, &str, &str); 2] = [(IpFamily::V4, "iptables", "ip"), (IpFamily::V6, "ip6tables", "ip6")];

/// Creates a host with the rules of a proxy in both backends, and this foreign one.
fn with_foreign_rule(family: (IpFamily, &str, &str), foreign: &str) -> NetNs {
    let (host, (_, program, nft_family)) = (NetNs::new(), family);
    for backend in ["nft", "legacy"] {
        host.feed(&format!("{program}-{backend}-restore"), &["--noflush"], PROXY);
    }
    host.command(
        &format!("{program}-nft"),
        &["-w", "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE"],
    );
    host.feed("nft", &["-f", "-"], &foreign.replace("FAMILY", nft_family).replace("; ", "\n"));
    host
}

#[test]
fn proxy_is_detected_beside_rules_of_nft() {
    for family in FAMILIES {
        for foreign in FOREIGN {
            let host = with_foreign_rule(family, foreign);
            let found = ["kube-proxy or Ferroute in iptables mode", "kube-proxy or Ferroute in iptables mode (legacy)"];
            for path in [search_path(), Vec::new()] {
                let rules = host.run(|| read(family.0, &HostExec, &path)).unwrap();
                let proxies: Vec<_> = REGISTRY.active_proxies(&rules).iter().map(|proxy| proxy.description).collect();
                let (wanted, is_unread) = if path.is_empty() { (&found[..1], true) } else { (&found[..], false) };
                assert_eq!((&*proxies, !rules.unread.is_empty()), (wanted, is_unread), "{foreign}");
            }
        }
    }
}

#[test]
fn cleanup_removes_rules_beside_rules_of_nft_in_both_backends() {
    for family in FAMILIES {
        for foreign in FOREIGN {
            let host = with_foreign_rule(family, foreign);
            let mut report = RemovalReport::default();
            host.run(|| REGISTRY.leftovers().into_iter().for_each(|mut leftovers| leftovers.remove(&mut report)));
            let name = family.0;
            assert_eq!(
                report.removed,
                [
                    format!("5 chains and 2 jumps to them from {name} iptables (nf_tables)"),
                    format!("5 chains and 2 jumps to them from {name} iptables (legacy)"),
                ],
                "{foreign}"
            );
            assert_eq!(report.remaining, [""; 0], "{foreign}");
            let rules = read_in(&host, name);
            let chains = rules.iptables.iter().flat_map(|snapshot| snapshot.saved.rules.tables.values());
            let mut chains = chains.flat_map(|table| table.chains.keys());
            assert_eq!(chains.find(|chain| chain.as_str().starts_with("KUBE-")), None, "{foreign}");
        }
    }
}

#[test]
fn cleanup_names_what_it_cannot_remove_and_removes_the_rest() {
    let host = with_foreign_rule(
        FAMILIES[0],
        "add map ip nat verdicts { type mark : verdict; }; add element ip nat verdicts { 1 : jump KUBE-SERVICES }",
    );
    let mut report = RemovalReport::default();
    host.run(|| REGISTRY.leftovers().into_iter().for_each(|mut leftovers| leftovers.remove(&mut report)));
    assert_eq!(report.removed[0], "4 chains and 2 jumps to them from IPv4 iptables (nf_tables)");
    assert_eq!(
        report.remaining,
        [
            "IPv4 iptables (nf_tables): cannot delete chain KUBE-SERVICES of table nat, which was flushed: a rule or map of \
          another program refers to it"
        ]
    );
    let nat = &read_in(&host, IpFamily::V4).iptables[0].saved.rules.tables[&TableName::Nat];
    let chains: Vec<_> = nat.chains.iter().filter(|(name, _)| name.as_str().starts_with("KUBE-")).collect();
    let [(name, chain)] = &chains[..] else { panic!("{chains:?}") };
    assert_eq!((name.as_str(), chain.rules.len()), ("KUBE-SERVICES", 0));
}
