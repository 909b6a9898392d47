//! What people, network plugins and proxies put into a kernel by `iptables` is read back as it is. Each test has a
//! network namespace of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::net::UdpSocket;

use ferroute_core::IpFamily;
use ferroute_iptables::{
    ChainName, Counters, HostExec, TableName,
    exec::{Backend, search_path},
    text::Line,
};
use ferroute_proxy::kernel_rules::{KernelRules, ServiceProxy, read};
use ferroute_testing::NetNs;

fn read_in(host: &NetNs, family: IpFamily) -> KernelRules {
    host.run(|| read(family, &HostExec, &search_path())).unwrap()
}

fn lines(rules: &KernelRules, backend: Backend, table: TableName, chain: &str) -> Vec<String> {
    let found = rules.iptables.iter().find(|found| found.backend == backend).unwrap();
    let chain: ChainName = chain.parse().unwrap();
    found.saved.rules.rules(table, chain).iter().map(|rule| Line(chain, rule).to_string()).collect()
}

#[test]
fn a_namespace_without_rules_has_none() {
    let host = NetNs::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        let rules = read_in(&host, family);
        assert_eq!((rules.iptables, rules.nftables, rules.family), (vec![], vec![], family));
    }
}

#[test]
fn rules_of_both_backends_are_found_each_under_its_own() {
    let host = NetNs::new();
    host.command("iptables-nft", &["-A", "INPUT", "-s", "10.0.0.1/32", "-m", "limit", "--limit", "5/min", "-j", "LOG"]);
    host.command("iptables-legacy", &["-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE"]);
    let rules = read_in(&host, IpFamily::V4);
    let backends: Vec<_> = rules.iptables.iter().map(|found| found.backend).collect();
    assert_eq!(backends, [Backend::NfTables, Backend::Legacy]);
    assert_eq!(
        lines(&rules, Backend::NfTables, TableName::Filter, "INPUT"),
        ["-A INPUT -s 10.0.0.1/32 -m limit --limit 5/min -j LOG"]
    );
    assert_eq!(lines(&rules, Backend::Legacy, TableName::Nat, "POSTROUTING"), ["-A POSTROUTING -o eth0 -j MASQUERADE"]);
    assert_eq!(read_in(&host, IpFamily::V6).iptables, []);
}

#[test]
fn rules_tell_what_they_have_counted() {
    let host = NetNs::new();
    for backend in ["iptables-nft", "iptables-legacy"] {
        host.command(backend, &["-A", "OUTPUT", "-p", "tcp", "-j", "ACCEPT"]);
        host.command(backend, &["-A", "OUTPUT", "-p", "udp", "--dport", "9", "-j", "ACCEPT"]);
    }
    let socket = host.run(|| UdpSocket::bind("127.0.0.1:0")).unwrap();
    (0..3).for_each(|_| _ = socket.send_to(b"four", "127.0.0.1:9"));
    let rules = read_in(&host, IpFamily::V4);
    assert_eq!(rules.iptables.len(), 2);
    for found in rules.iptables {
        let counted = |n| found.saved.counters.get(TableName::Filter, ChainName::OUTPUT, n).unwrap();
        assert_eq!(counted(0), Counters::default());
        // Refusals by ICMP come through, too, but are not UDP.
        assert_eq!(counted(1), Counters { packets: 3, bytes: 3 * (20 + 8 + 4) }, "{}", found.backend);
    }
}

#[test]
fn chains_of_a_proxy_tell_that_it_is_there_and_the_kubelets_do_not() {
    let host = NetNs::new();
    let own = "*nat\n:KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SERVICES - [0:0]\nCOMMIT\n";
    host.feed("iptables-nft-restore", &["--noflush"], own);
    assert_eq!(read_in(&host, IpFamily::V4).proxies(), []);
    host.feed("iptables-nft-restore", &["--noflush"], "*nat\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n");
    assert_eq!(read_in(&host, IpFamily::V4).proxies(), [ServiceProxy::Iptables(Backend::NfTables)]);
}

#[test]
fn tables_tell_which_proxies_have_made_them() {
    let host = NetNs::new();
    host.feed(
        "nft",
        &["-f", "-"],
        "table ip kube-proxy { chain services { }; }; table ip6 ferroute { chain services { }; }",
    );
    assert_eq!(read_in(&host, IpFamily::V4).proxies(), [ServiceProxy::KubeProxyNftables]);
    assert_eq!(read_in(&host, IpFamily::V6).proxies(), [ServiceProxy::FerrouteNftables]);
}

#[test]
fn rules_of_nf_tables_within_the_tables_of_iptables_are_no_error() {
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
