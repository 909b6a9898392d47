use std::net::IpAddr;

use ferroute_core::{
    EscapedLines, HostState, IpFamily,
    testing::{HOSTILE, assert_visible},
};
use ferroute_iptables::{IptablesContext, RuleSet, render};

use super::*;
use crate::{
    Outcome, Ruleset,
    testing::{from_outside, from_pod, host, ip, nginx, settings, socket},
};

fn rules(cluster: &ferroute_core::testing::Cluster) -> RuleSet {
    let table = cluster.table(IpFamily::V4);
    render(&table, &IptablesContext::new(&settings(), &table, &HostState::default()))
}

fn name(address: IpAddr) -> Option<String> {
    (address == ip("172.17.0.4")).then(|| "pod default/nginx-1".to_owned())
}

fn trace(rules: &RuleSet, packet: &Packet, options: TextOptions<'_>) -> String {
    let mut text = String::new();
    write_trace_into(&mut text, &Ruleset::from_rules(rules).trace(&host(), packet), packet, options).unwrap();
    text
}

fn plain() -> TextOptions<'static> {
    TextOptions { all: false, style: Style::Plain, names: &name }
}

fn read(text: &str) -> RuleSet {
    RuleSet::parse_save(IpFamily::V4, text).unwrap()
}

#[test]
fn endpoints_are_listed_with_their_shares() {
    let text = trace(&rules(&nginx(|it| it)), &from_pod("10.111.175.78:80"), plain());
    let after_the_choice = text.split_once("=> DNAT").unwrap().1;
    insta::assert_snapshot!(after_the_choice.split_once("routed").unwrap().0, @r"
    10.111.175.78:80 to one of 3:
                 33.3 %  KUBE-SEP-3VDHYO53IOQ2XWUD: 172.17.0.4:80 (pod default/nginx-1)
                 33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80
                 33.3 %  KUBE-SEP-KN3IA7DQGTHQJWSD: 172.17.0.6:80
                continuing with the first, 172.17.0.4:80
    ");
    insta::assert_snapshot!(text.split_once("\n=> ").unwrap().1, @r"
    delivered to one of these 3 through cni0, with source 172.17.0.14
       not masqueraded: the endpoint sees the client's address, and replies return through this node; the client sees replies from 10.111.175.78:80
    ");
}

#[test]
fn branches_are_shown_one_after_another_with_their_shares() {
    let packet = Packet { source: socket("172.17.0.5:40000"), ..from_pod("10.111.175.78:80") };
    let trace = Ruleset::from_rules(&rules(&nginx(|it| it))).trace(&host(), &packet);
    assert_eq!(trace.outcome(), Outcome::Delivered);
    let mut text = String::new();
    write_trace_into(&mut text, &trace, &packet, plain()).unwrap();
    let (first, second) = text.split_once("\n\n").unwrap();
    assert!(first.starts_with("in 66.7 % of all cases:\nnat PREROUTING\n"), "{first}");
    assert!(first.contains("to one of 2:") && first.contains("not masqueraded"), "{first}");
    assert!(second.starts_with("in 33.3 % of all cases:\n"), "{second}");
    assert!(second.contains("masqueraded: the client is the endpoint"), "{second}");
}

/// A chain with many rules that do not match.
const MANY: &str = "*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 10.0.0.1/32 -j DROP
-A PREROUTING -d 10.0.0.2/32 -j DROP
-A PREROUTING -p udp -j DROP
-A PREROUTING -d 10.0.0.3/32 -j DROP
-A PREROUTING -p tcp -j ACCEPT
-A PREROUTING -d 10.0.0.4/32 -j DROP
COMMIT
";

#[test]
fn long_runs_of_mismatches_are_abbreviated_without_all() {
    let packet = from_outside("192.168.49.2:22");
    insta::assert_snapshot!(trace(&read(MANY), &packet, plain()), @r"
    nat PREROUTING
      PREROUTING 1 to 4: no match (3 by destination, 1 by protocol)
      PREROUTING 5: -p tcp -j ACCEPT
        yes
        => accept
    routed to this host
    => not translated, delivered to 192.168.49.2:22 on this host, with source 203.0.113.7
    ");
    let all = trace(&read(MANY), &packet, TextOptions { all: true, ..plain() });
    assert_eq!(all.matches("\n    no: ").count(), 4, "{all}");
}

#[test]
fn unknown_rest_of_many_branches_is_shown_without_all() {
    let mark = |n| format!("-A INPUT -m statistic --mode random --probability 0.5 -j MARK --or-mark {:#x}\n", 1 << n);
    let text = format!("*filter\n{}COMMIT\n", (0..12).map(mark).collect::<String>());
    let some = trace(&read(&text), &from_outside("192.168.49.2:22"), plain());
    let end = "1012 more branches, which depend on other assumptions (--all shows them)\n\
               => unknown: there are too many branches to follow all\n";
    assert!(some.ends_with(end), "{some}");
    let log = |n| format!("-A INPUT -m limit --limit {n}/min -j LOG\n");
    let text = format!("*filter\n{}COMMIT\n", (1..12).map(log).collect::<String>());
    let quiet = trace(&read(&text), &from_outside("192.168.49.2:22"), plain());
    assert!(quiet.contains("INPUT 1 to 11: no match (11 by no effect)"), "{quiet}");
}

#[test]
fn long_endpoint_lists_are_abbreviated_without_all() {
    let rules = rules(&ferroute_core::testing::Cluster::uniform(1, 100));
    let packet = from_pod("10.96.0.1:80");
    let some = trace(&rules, &packet, plain());
    assert!(some.contains("to one of 100:") && some.contains("89.0 %  89 more (--all shows them)"), "{some}");
    let all = trace(&rules, &packet, TextOptions { all: true, ..plain() });
    assert_eq!(all.matches(" 1.0 %  KUBE-SEP-").count(), 100, "{all}");
}

#[test]
fn improbable_branch_abbreviates_earlier_random_mismatches() {
    let client = "10.128.0.60:40000";
    let rules = rules(&ferroute_core::testing::Cluster::uniform(1, 100));
    let packet = Packet { source: socket(client), ..from_pod("10.96.0.1:80") };
    let text = trace(&rules, &packet, plain());
    let (_, itself) = text.split_once("in 1.0 % of all cases:").unwrap();
    assert!(itself.contains(" by chance)") && !itself.contains("chance decides otherwise"), "{itself}");
    assert!(itself.contains("masqueraded: the client is the endpoint"), "{itself}");
}

#[test]
fn colours_only_add_escape_sequences() {
    let rules = rules(&nginx(|it| it));
    let packet = from_outside("192.168.49.2:31628");
    let coloured = trace(&rules, &packet, TextOptions { style: Style::Terminal, ..plain() });
    assert!(coloured.contains("\x1b[1mnat PREROUTING\x1b[0m"), "{coloured}");
    let mut bare = String::new();
    for (n, part) in coloured.split("\x1b[").enumerate() {
        bare.push_str(if n == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    assert_eq!(bare, trace(&rules, &packet, plain()));
}

#[test]
fn comments_and_chains_of_other_programs_control_no_terminal() {
    // iptables accepts any bytes in comments, and interfaces may have almost any name.
    let rules = read(&format!(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:x\u{202e} - [0:0]\n-A PREROUTING -m comment --comment \"{HOSTILE}\" -j DROP -p udp\n\
         -A PREROUTING -m comment --comment \"{HOSTILE}\" -j x\u{202e}\n-A x\u{202e} -m strange \"{HOSTILE}\"\n\
         -A x\u{202e} -p tcp -j DNAT --to-destination 172.17.0.4:80\nCOMMIT\n"
    ));
    let hostile = |_| Some(HOSTILE.to_owned());
    let packet = from_outside("192.168.49.2:22");
    for all in [false, true] {
        assert_visible(&trace(&rules, &packet, TextOptions { all, names: &hostile, ..plain() }));
    }
    let trace = Ruleset::from_rules(&rules).trace(&host(), &packet);
    let mut chart = String::new();
    crate::mermaid::write_into(&mut chart, &trace, &packet, &hostile).unwrap();
    assert_eq!(EscapedLines(&chart).to_string(), chart);
    let mut summary = String::new();
    write_summary_into(&mut summary, &trace).unwrap();
    assert_eq!(EscapedLines(&summary).to_string(), summary);
}

#[test]
fn outcome_considers_all_branches() {
    let outcome = |text: &str| Ruleset::from_rules(&read(text)).trace(&host(), &from_pod("10.0.0.9:80")).outcome();
    let nat = |rules: &str| format!("*nat\n:PREROUTING ACCEPT [0:0]\n{rules}COMMIT\n");
    let dnat = "-A PREROUTING -p tcp -j DNAT --to-destination 172.17.0.4:80\n";
    let half = "-A PREROUTING -m statistic --mode random --probability 0.5 -j DROP\n";
    let strange = "-A PREROUTING -m strange --thing -j DROP\n";
    assert_eq!(outcome(&nat(dnat)), Outcome::Delivered);
    assert_eq!(outcome(&nat("")), Outcome::NotDelivered);
    assert_eq!(outcome(&nat(&format!("{half}{dnat}"))), Outcome::NotDelivered);
    assert_eq!(outcome(&nat(&format!("{strange}{dnat}"))), Outcome::Unknown);
    assert_eq!(outcome(&nat(strange)), Outcome::NotDelivered);
    assert_eq!(outcome(&nat("-A PREROUTING -j STRANGE --with 1\n")), Outcome::Unknown);
}
