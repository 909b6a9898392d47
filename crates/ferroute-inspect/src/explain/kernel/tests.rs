use ferroute_core::{
    HostState, IpFamily, ProxySettings,
    testing::{Cluster, arbitrary, pod, port_name, service, slice, udp_port_name},
};
use ferroute_iptables::{IptablesContext, SavedRulesReader};
use ferroute_nftables::{
    kernel::{Counter, Kernel, MemoryKernel},
    model::TableId,
    plan::{NftablesSettings, TABLE},
};
use insta::assert_snapshot;
use proptest::prelude::*;

use super::*;

fn shop() -> Cluster {
    Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).udp("http2", 80).node_port(30080))
        .service(service("shop/web-2").cluster_ip("10.96.0.2").port("http", 80))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")).pod("10.244.1.2"))
        .slice(slice("shop/web-2a", "web-2").port("http", 8080).pod(pod("10.244.0.2").on("node-1")))
}

fn lines(rules: &[ServiceRule]) -> String {
    let count = |packets: Option<u64>| packets.map_or("-".to_owned(), |packets| packets.to_string());
    rules.iter().map(|rule| format!("{} {} {}\n", count(rule.packets), rule.location, rule.text)).collect()
}

#[test]
fn rules_of_service_port_are_found_in_shared_and_own_chains() {
    let table = shop().table(IpFamily::V4);
    let context = IptablesContext::new(&ProxySettings::default(), &table, &HostState::default());
    let text = ferroute_iptables::render(&table, &context).to_string();
    let mut reader = SavedRulesReader::new(IpFamily::V4);
    text.lines().for_each(|line| reader.line(&line.replace("-A KUBE-SERVICES", "[7:420] -A KUBE-SERVICES")));
    let saved = reader.finish().unwrap();
    assert_snapshot!(lines(&iptables_rules(&saved, &port_name("shop/web:http"))), @"
    7 nat KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-67NZLRHBNDSAWJRO
    - nat KUBE-SVC-67NZLRHBNDSAWJRO -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-OLBUFZVHCJLG5LFW
    - nat KUBE-SVC-67NZLRHBNDSAWJRO -j KUBE-SEP-XTJTEC7KOHLCQM25
    - nat KUBE-SEP-OLBUFZVHCJLG5LFW -s 10.244.0.2/32 -j KUBE-MARK-MASQ
    - nat KUBE-SEP-OLBUFZVHCJLG5LFW -p tcp -m tcp -j DNAT --to-destination 10.244.0.2:8080
    - nat KUBE-SEP-XTJTEC7KOHLCQM25 -s 10.244.1.2/32 -j KUBE-MARK-MASQ
    - nat KUBE-SEP-XTJTEC7KOHLCQM25 -p tcp -m tcp -j DNAT --to-destination 10.244.1.2:8080
    ");
    assert_snapshot!(lines(&iptables_rules(&saved, &udp_port_name("shop/web:http2"))), @"
    - filter KUBE-EXTERNAL-SERVICES -p udp -m addrtype --dst-type LOCAL -m udp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    7 filter KUBE-SERVICES -d 10.96.0.1/32 -p udp -m udp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    ");
    assert_eq!(iptables_rules(&saved, &port_name("shop/we:http")), []);
}

#[test]
fn elements_of_service_port_are_those_of_its_frontends_and_endpoints() {
    let table = shop().table(IpFamily::V4);
    let settings = NftablesSettings { counters: true, ..NftablesSettings::default() };
    let mut kernel = MemoryKernel::new();
    kernel.commit(&ferroute_nftables::plan::render(&table, &settings, &[])).unwrap();
    let table_in_kernel = kernel.table(&TableId { family: IpFamily::V4, name: TABLE }).unwrap();
    let counter = Counter { packets: 7, bytes: 420 };
    let elements: Vec<_> = table_in_kernel
        .sets()
        .flat_map(|set| {
            let counter = set.counter.then_some(counter);
            table_in_kernel.elements(&set.name).map(move |element| (set.name.clone(), element.clone(), counter))
        })
        .collect();
    let own = |name: ServicePortName| {
        let entry = &table.entries[&name];
        lines(&nftables_elements(&elements, &name, entry))
    };
    assert_snapshot!(own(port_name("shop/web:http")), @r#"
    - @cluster-ips 10.96.0.1
    - @hairpin 10.244.0.2 . 10.244.0.2 . tcp . 8080
    - @lists 11:1 : 111:1
    7 @services 10.96.0.1 . tcp . 80 comment "shop/web:http" : 11:1
    7 @tcp-endpoints 1:1 . 1 : 10.244.0.2 . 8080
    7 @tcp-endpoints 1:1 . 2 : 10.244.1.2 . 8080
    "#);
    assert_snapshot!(own(udp_port_name("shop/web:http2")), @r#"
    - @cluster-ips 10.96.0.1
    - @lists 11:5 : 71:5
    - @lists 21:5 : 71:5
    7 @node-ports udp . 30080 comment "shop/web:http2" : 21:5
    7 @services 10.96.0.1 . udp . 80 comment "shop/web:http2" : 11:5
    "#);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn elements_that_are_read_by_key_are_all_of_the_service_port(cluster in arbitrary::cluster()) {
        for family in IpFamily::BOTH {
            let table = cluster.table(family);
            let id = TableId { family, name: TABLE };
            let mut kernel = MemoryKernel::new();
            kernel.commit(&ferroute_nftables::plan::render(&table, &NftablesSettings::default(), &[])).unwrap();
            let in_kernel = kernel.table(&id).unwrap();
            let all: Vec<CountedElement> = in_kernel
                .sets()
                .flat_map(|set| in_kernel.elements(&set.name).map(|element| (set.name.clone(), element.clone(), None)))
                .collect();
            for (name, entry) in &table.entries {
                let read = service_port_elements(&mut kernel.clone(), &id, name, entry).unwrap();
                let sorted = |elements: &[CountedElement]| {
                    let mut rules = nftables_elements(elements, name, entry);
                    rules.sort_by_key(|rule| (rule.location.clone(), rule.text.clone()));
                    rules
                };
                prop_assert_eq!(sorted(&read), sorted(&all));
            }
        }
    }
}
