//! Reads rules that administrators, network plugins and proxies have written. Each test has its own network namespace.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::net::UdpSocket;

use ferroute_core::IpFamily;
use ferroute_iptables::{
    ChainName, Counters, HostExec, TableName,
    exec::{Backend, search_path},
    text::Line,
};
use ferroute_proxy::{
    kernel_rules::{KernelRules, read},
    modes::REGISTRY,
};
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
    host.command("iptables-nft", &["-A", "INPUT", "-s", "10.0.0.1/32", "-m", "limit", "--limit", "5/min", "-j", "LOG"]);
    host.command("iptables-legacy", &["-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE"]);
    let rules = read_in(&host, IpFamily::V4);
    let backends: Vec<_> = rules.iptables.iter().map(|snapshot| snapshot.backend).collect();
    assert_eq!(backends, [Backend::NfTables, Backend::Legacy]);
    assert_eq!(
        lines(&rules, Backend::NfTables, TableName::Filter, "INPUT"),
        ["-A INPUT -s 10.0.0.1/32 -m limit --limit 5/min -j LOG"]
    );
    assert_eq!(lines(&rules, Backend::Legacy, TableName::Nat, "POSTROUTING"), ["-A POSTROUTING -o eth0 -j MASQUERADE"]);
    assert_eq!(read_in(&host, IpFamily::V6).iptables, []);
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
    assert_eq!(rules.iptables[0].saved.partial, [TableName::Nat]);
    let [nat] = &*rules.nftables else { panic!("{:?}", rules.nftables) };
    let bases = nat.table.chains().filter(|chain| chain.chain.base.is_some());
    assert_eq!(
        (nat.name.as_str(), bases.map(|chain| chain.chain.name.to_string()).collect()),
        ("nat", vec!["own".to_owned()])
    );
}
