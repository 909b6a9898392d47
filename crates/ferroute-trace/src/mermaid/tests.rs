use ferroute_core::{HostState, IpFamily};
use ferroute_iptables::{IptablesContext, RuleSet, render};

use super::*;
use crate::{
    Ruleset,
    testing::{from_outside, from_pod, host, nginx, settings, socket},
};

fn chart(rules: &RuleSet, packet: &Packet) -> String {
    let mut text = String::new();
    write_into(&mut text, &Ruleset::from_rules(rules).trace(&host(), packet), packet, &|_| None).unwrap();
    text
}

fn planned() -> RuleSet {
    let table = nginx(|it| it).table(IpFamily::V4);
    render(&table, &IptablesContext::new(&settings(), &table, &HostState::default()))
}

/// Asserts that every line conforms to Mermaid's grammar: a node with quoted text, or an edge between existing nodes,
/// optionally with a quoted label.
fn check(chart: &str) {
    let mut lines = chart.lines();
    assert_eq!(lines.next(), Some("flowchart TD"));
    let mut nodes = Vec::new();
    for line in lines {
        let line = line.strip_prefix("    ").unwrap();
        if let Some((from, rest)) = line.split_once(" -->") {
            let to = match rest.strip_prefix("|\"") {
                Some(labelled) => {
                    let (label, to) = labelled.split_once("\"| ").unwrap();
                    assert!(is_quotable(label), "{line}");
                    to
                }
                None => rest.trim_start(),
            };
            assert!(nodes.contains(&from.to_owned()) && nodes.contains(&to.to_owned()), "{line}");
            continue;
        }
        let (head, rest) = line.split_once('"').unwrap();
        let (text, tail) = rest.rsplit_once('"').unwrap();
        let name = head.strip_suffix("([").filter(|_| tail == "])").or(head.strip_suffix('[').filter(|_| tail == "]"));
        let name = name.unwrap();
        assert!(is_quotable(text), "{line}");
        nodes.push(name.to_owned());
    }
    assert!(nodes.len() > 1);
}

fn is_quotable(text: &str) -> bool {
    !text.is_empty() && !text.contains(['"', '<', '>', '&', '\n'])
}

#[test]
fn endpoints_are_drawn_side_by_side() {
    let chart = chart(&planned(), &from_outside("192.168.49.2:31628"));
    check(&chart);
    insta::assert_snapshot!(chart, @r#"
    flowchart TD
        n1(["tcp 203.0.113.7:40000 to 192.168.49.2:31628"])
        n2["nat PREROUTING"]
        n1 --> n2
        n3["nat KUBE-SERVICES"]
        n2 --> n3
        n4["nat KUBE-NODEPORTS"]
        n3 --> n4
        n5["nat KUBE-EXT-V2OKYYMBY3REGZOG"]
        n4 --> n5
        n6["nat KUBE-MARK-MASQ"]
        n5 --> n6
        n7["nat KUBE-EXT-V2OKYYMBY3REGZOG"]
        n6 -->|"mark 0x0 becomes 0x4000"| n7
        n8["nat KUBE-SVC-V2OKYYMBY3REGZOG"]
        n7 --> n8
        n9["KUBE-SEP-3VDHYO53IOQ2XWUD: DNAT 192.168.49.2:31628 to 172.17.0.4:80"]
        n8 -->|"33.3 %"| n9
        n10["KUBE-SEP-C54WIGIB4NQVIFB3: DNAT 192.168.49.2:31628 to 172.17.0.5:80"]
        n8 -->|"33.3 %"| n10
        n11["KUBE-SEP-KN3IA7DQGTHQJWSD: DNAT 192.168.49.2:31628 to 172.17.0.6:80"]
        n8 -->|"33.3 %"| n11
        n12["routed through cni0"]
        n9 --> n12
        n10 --> n12
        n11 --> n12
        n13["filter FORWARD"]
        n12 --> n13
        n14["filter KUBE-FORWARD"]
        n13 --> n14
        n15["nat POSTROUTING"]
        n14 -->|"accept"| n15
        n16["nat KUBE-POSTROUTING"]
        n15 --> n16
        n17(["delivered"])
        n16 -->|"mark 0x4000 becomes 0x0, masquerade 203.0.113.7 as 172.17.0.1"| n17
    "#);
}

#[test]
fn every_branch_starts_at_the_packet() {
    let packet = Packet { source: socket("172.17.0.5:40000"), ..from_pod("10.111.175.78:80") };
    let chart = chart(&planned(), &packet);
    check(&chart);
    let first_edges: Vec<&str> = chart.lines().filter(|line| line.starts_with("    n1 -->")).collect();
    assert_eq!(first_edges.len(), 2, "{chart}");
    assert!(first_edges[0].contains("66.7 %") && first_edges[1].contains("33.3 %"), "{chart}");
}

#[test]
fn special_characters_are_escaped() {
    assert_eq!(escaped(r##"a "b" <c> #d &"##), "a #34;b#34; #60;c#62; #35;d #38;");
    let strange = "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j STRANGE --with \"<quotes>\"\nCOMMIT\n";
    check(&chart(&RuleSet::parse_save(IpFamily::V4, strange).unwrap(), &from_pod("10.0.0.9:80")));
}
