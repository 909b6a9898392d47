//! Elements that rules add and values that they write, for later rules on the path of the same packet.

use ferroute_nftables::script;

use super::*;

/// Returns the ends of a packet in a table, without repetitions.
fn ends(body: &str, packet: &Packet) -> Vec<String> {
    let text = format!("table inet t {{\n{body}\n}}\n");
    let tables = script::parse(IpFamily::V4, &text, &script::Variables::default()).unwrap();
    let ruleset = Ruleset::from_nftables_table("inet t", &tables[0].table);
    let mut ends: Vec<String> = ruleset
        .leaves(&host(), packet)
        .map(|leaf| format!("{}{}", leaf.verdict, if leaf.assumptions.is_empty() { "" } else { " ?" }))
        .collect();
    ends.sort();
    ends.dedup();
    ends
}

const SETS: &str = "set seen {\n type ipv4_addr\n size 2\n flags dynamic,timeout\n }
    set full {\n type ipv4_addr\n size 1\n flags dynamic\n elements = { 192.0.2.1 }\n }
    set known {\n type ipv4_addr\n flags dynamic\n elements = { 172.17.0.14 }\n }
    map backs {\n type ipv4_addr : ipv4_addr\n flags dynamic\n elements = { 192.0.2.1 : 192.0.2.2 }\n }
    map marks {\n type ipv4_addr : mark\n flags dynamic\n }\n";

fn before(rules: &str) -> String {
    format!("{SETS} chain c {{\n type filter hook prerouting priority mangle; policy accept;\n{rules}\n}}")
}

#[test]
fn later_rules_see_elements_that_a_packet_adds_and_deletes() {
    for (rules, is_dropped) in [
        ("add @seen { ip saddr }\nip saddr @seen drop", true),
        ("add @seen { ip saddr timeout 1m }\nip daddr @seen drop", false),
        ("update @seen { ip daddr timeout 1m }\nip daddr @seen drop", true),
        ("update @seen { ip saddr limit rate 5/second } accept\nip saddr @known drop", true),
        ("ip saddr @seen drop\nadd @seen { ip saddr }", false),
        ("delete @known { ip saddr }\nip saddr @known drop", false),
        ("delete @known { ip daddr }\nip saddr @known drop", true),
        ("add @full { ip saddr } accept\ndrop", true),
        ("add @seen { ip saddr & 255.255.255.0 }\nip saddr & 255.255.255.0 @seen drop", true),
        ("add @marks { ip saddr : 0x5 }\nmeta mark set ip saddr map @marks\nmeta mark 0x5 drop", true),
        (
            "meta mark set 0x7\nadd @marks { ip saddr : meta mark }\nmeta mark set 0x0\nmeta mark set ip saddr map @marks\nmeta mark 0x7 drop",
            true,
        ),
        // An existing element keeps its data.
        ("update @backs { 192.0.2.1 : ip saddr }\nip daddr 10.0.0.1 drop", true),
    ] {
        let ends = ends(&before(rules), &from_pod("10.0.0.1:80"));
        let is_limited = rules.contains("limit");
        assert_eq!(ends.iter().any(|end| end.starts_with("dropped")), is_dropped, "{rules}: {ends:?}");
        assert_eq!(ends.len(), if is_limited { 2 } else { 1 }, "{rules}: {ends:?}");
    }
}

#[test]
fn learned_element_is_used_by_a_later_translation() {
    let body = format!(
        "{SETS} chain c {{\n type filter hook prerouting priority mangle;\n add @backs {{ ip daddr : 172.17.0.4 }}\n }}
         chain n {{\n type nat hook prerouting priority dstnat;\n dnat ip to ip daddr map @backs:8080\n }}"
    );
    assert_eq!(
        ends(&body, &from_pod("10.0.0.1:80")),
        ["delivered to 172.17.0.4:8080 through cni0, with source 172.17.0.14"]
    );
}

#[test]
fn element_that_may_have_been_added_leads_to_both_branches() {
    let rules = "limit rate 5/second add @seen { ip saddr }\nip saddr @seen drop";
    assert_eq!(ends(&before(rules), &from_pod("10.0.0.1:80")).len(), 2);
    // The rule has no effect on this packet if no rule reads the set.
    let rules = "limit rate 5/second add @seen { ip saddr }";
    let all = ends(&before(rules), &from_pod("10.0.0.1:80"));
    assert!(matches!(all.as_slice(), [end] if !end.ends_with('?')), "{all:?}");
}

#[test]
fn written_values_are_those_that_later_rules_compare() {
    for (rules, end) in [
        ("meta priority set 1:2\nmeta priority 1:2 drop", "dropped"),
        ("meta priority set 1:2\nmeta priority set none\nmeta priority 1:2 drop", "not translated"),
        ("ip dscp set cs1\nip dscp cs1 drop", "dropped"),
        ("ip dscp set cs1\nip dscp ef drop", "not translated"),
        ("ip ttl set 64\nip ttl < 64 drop", "not translated"),
        ("ip daddr set 172.17.0.4\nip daddr 172.17.0.4 drop", "dropped"),
        ("ip daddr set ip daddr map { 10.0.0.1 : 172.17.0.4 }", "delivered to 172.17.0.4:80 through cni0"),
        ("tcp dport set 8080", "delivered to 10.0.0.1:8080"),
        ("ip daddr set 172.17.0.4\nct original ip daddr 10.0.0.1 drop", "dropped"),
        ("tcp flags set fin", "unknown"),
    ] {
        let ends = ends(&before(rules), &from_pod("10.0.0.1:80"));
        assert!(
            matches!(ends.as_slice(), [found] if found.contains(end) && !found.ends_with('?')),
            "{rules}: {ends:?}"
        );
    }
    // Before connection tracking, the connection gets the new address.
    let raw = before("ip daddr set 172.17.0.4").replace("priority mangle", "priority raw");
    let body =
        format!("{raw}\nchain f {{\n type filter hook forward priority 0;\n ct original ip daddr 172.17.0.4 drop\n }}");
    assert_eq!(ends(&body, &from_pod("10.0.0.1:80")), ["dropped"]);
}

#[test]
fn only_some_chains_route_packets_of_the_host_again() {
    let rules =
        |kind: &str| format!("chain c {{\n type {kind} hook output priority -160;\n ip daddr set 172.17.0.4\n }}");
    assert!(ends(&rules("route"), &from_node("10.0.0.1:80"))[0].contains("172.17.0.4:80 through cni0"));
    // Without that, the packet leaves on the way to its old destination.
    assert!(ends(&rules("filter"), &from_node("10.0.0.1:80"))[0].contains("172.17.0.4:80 through eth0"));
}

#[test]
fn ports_of_a_translation_are_chosen_by_a_map() {
    let nat = |rule: &str| format!("chain n {{\n type nat hook prerouting priority dstnat;\n {rule}\n }}");
    for (rule, ports) in [
        ("dnat ip to 172.17.0.4:numgen inc mod 2 map { 0 : 8080, 1 : 8081 }", &["8080", "8081"][..]),
        ("dnat ip to 172.17.0.4:tcp dport map { 80 : 8080, 81 : 8081 }", &["8080"]),
        ("dnat ip to ip daddr map { 10.0.0.1 : 172.17.0.4 }:9000", &["9000"]),
    ] {
        let expected: Vec<String> = ports
            .iter()
            .map(|port| format!("delivered to 172.17.0.4:{port} through cni0, with source 172.17.0.14"))
            .collect();
        assert_eq!(ends(&nat(rule), &from_pod("10.0.0.1:80")), expected, "{rule}");
    }
}

#[test]
fn chains_that_call_each_other_are_cut_off() {
    let chain = |name: &str, rules: &str| format!("chain {name} {{\n {rules}\n }}\n");
    let loop_ = chain("a", "goto b") + &chain("b", "goto a");
    let often: String = (0..30).map(|n| chain(&format!("c{n}"), &format!("jump c{0}\njump c{0}", n + 1))).collect();
    let often = often + &chain("c30", "counter");
    for (chains, first) in [(loop_, "a"), (often, "c0")] {
        let ends = ends(&(chains + &before(&format!("jump {first}"))), &from_pod("10.0.0.1:80"));
        assert!(matches!(ends.as_slice(), [end] if end.starts_with("unknown")), "{ends:?}");
    }
}

#[test]
fn comparisons_with_a_random_number_have_a_chance() {
    for (rule, chance) in [
        ("meta random & 2147483647 < 1073741824 drop", 0.5),
        ("meta random & 2147483647 >= 1610612736 drop", 0.25),
        ("meta random < 1073741824 drop", 0.25),
        ("meta random & 255 != 0-63 drop", 0.75),
    ] {
        let text = format!("table inet t {{\n{}\n}}\n", before(rule));
        let tables = script::parse(IpFamily::V4, &text, &script::Variables::default()).unwrap();
        let ruleset = Ruleset::from_nftables_table("inet t", &tables[0].table);
        let (host, packet) = (host(), from_pod("10.0.0.1:80"));
        let dropped = ruleset.leaves(&host, &packet).filter(|leaf| leaf.verdict == Verdict::Dropped);
        assert_eq!(dropped.map(|leaf| leaf.share).sum::<f64>(), chance, "{rule}");
    }
}

#[test]
fn random_numbers_that_are_too_many_to_try_are_not_tried() {
    for (rule, count) in [
        ("numgen random mod 4294967295 < 1000 drop", 2),
        ("meta mark set numgen random mod 1000000", 1),
        ("meta mark set jhash ip saddr mod 4000000000", 1),
    ] {
        let ends = ends(&before(rule), &from_pod("10.0.0.1:80"));
        assert_eq!(ends.len(), count, "{rule}: {ends:?}");
    }
}

#[test]
fn conditions_on_chains_without_effect_and_on_known_values_lead_to_no_branch() {
    let chains = "chain logs {\n counter log prefix \"x\"\n ip saddr 192.0.2.1 drop\n jump more\n return\n }
        chain more {\n limit rate 1/second return\n log\n }
        chain marks {\n log\n ip dscp set cs1\n }\n";
    let rules = |count: u32, rule: &dyn Fn(u32) -> String| (0..count).map(rule).collect::<String>();
    let limits = |chain| rules(25, &|n| format!("limit rate {}/minute jump {chain}\n", n + 1));
    let values = rules(18, &|n| format!("ip dscp {n} meta mark set {n}\n"));
    for (rules, count) in [
        (limits("logs"), 1),
        ("limit rate 1/second jump marks\n".to_owned(), 2),
        // One branch for each value, and one for others.
        (values.clone(), 19),
        (values + "ip dscp 3 meta mark 5 drop\nip dscp { 3, 4 } meta mark 5 drop\n", 19),
        ("ip dscp != 3 accept\nip dscp < 3 drop\nip dscp 4-9 drop\n".to_owned(), 2),
        ("ip ttl 3 accept\nip ttl 4 meta mark set 1\n".to_owned(), 3),
    ] {
        let text = format!("table inet t {{\n{chains}{}\n}}\n", before(&rules));
        let tables = script::parse(IpFamily::V4, &text, &script::Variables::default()).unwrap();
        let leaves = Ruleset::from_nftables_table("t", &tables[0].table).verdicts(&host(), &from_pod("10.0.0.1:80"));
        assert!(leaves.iter().all(|leaf| matches!(leaf.verdict, Verdict::Delivered { .. })), "{rules}: {leaves:?}");
        assert_eq!(leaves.len(), count, "{rules}");
    }
}

#[test]
fn rules_end_where_a_map_of_objects_has_no_key() {
    const MAPS: &str = "map objects {\n type ipv4_addr : counter\n elements = { 172.17.0.14 : \"c\" }\n }\n";
    for (rule, is_dropped) in [
        ("counter name ip saddr map { 192.0.2.1 : \"c\" } drop", false),
        ("counter name ip saddr map { 192.0.2.1 : \"c\", 172.17.0.14 : \"d\" } drop", true),
        ("counter name ip saddr map @objects drop", true),
        ("counter name ip daddr map @objects drop", false),
        ("ct helper set tcp dport map { 21 : \"ftp\" } drop", false),
        ("counter name \"c\" drop", true),
    ] {
        let end = if is_dropped { "dropped" } else { "not translated" };
        let ends = ends(&format!("{MAPS}{}", before(rule)), &from_pod("10.0.0.1:80"));
        assert!(ends.len() == 1 && ends[0].starts_with(end), "{rule}: {ends:?}");
    }
}

#[test]
fn packets_of_other_protocols_lack_options() {
    let udp = Packet { protocol: ferroute_core::Protocol::Udp, ..from_pod("10.0.0.1:80") };
    for (rule, is_dropped) in [
        ("tcp option window missing drop", true),
        ("tcp option window exists drop", false),
        ("sctp chunk data missing drop", true),
        ("tcp option maxseg size != 5 drop", false),
        ("exthdr hbh missing drop", false),
    ] {
        let end = if is_dropped { "dropped" } else { "not translated" };
        let ends = ends(&before(rule), &udp);
        assert!(ends.len() == 1 && ends[0].starts_with(end), "{rule}: {ends:?}");
    }
}
