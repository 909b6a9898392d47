use ferroute_iptables::{Match, Target};

use super::*;

/// Returns all unknown effects of a rule on a packet.
fn unknown(rule: &str, packet: &Packet) -> Vec<String> {
    let verdicts = leaves(&rules(packet.family(), &format!("*raw\n-A PREROUTING {rule}")), &host(), packet).into_iter();
    let unknown = verdicts.flat_map(|leaf| {
        let reason = match leaf.verdict {
            Verdict::Unknown { reason } => Some(reason),
            _ => None,
        };
        leaf.assumptions.into_iter().map(|assumption| assumption.to_string()).chain(reason)
    });
    unknown.collect()
}

/// Packets to which the samples are applied, one of each family.
fn packets() -> [Packet; 2] {
    ["10.0.0.1:80", "[fd00:96::1]:80"].map(from_pod)
}

#[test]
fn effect_of_every_match_of_the_table_is_known() {
    for (sample, packet) in Match::samples().flat_map(|sample| packets().map(|packet| (sample, packet))) {
        let unknown = unknown(&format!("{sample} -j DROP"), &packet);
        // This is how verbatim text is printed.
        assert!(unknown.iter().all(|condition| !condition.contains('`')), "{sample}: {unknown:?}");
    }
    assert_eq!(unknown("-m other -j DROP", &packets()[0]).len(), 2, "one for each result of the condition");
}

#[test]
fn effect_of_every_target_of_the_table_is_known() {
    for (sample, packet) in Target::samples().flat_map(|sample| packets().map(|packet| (sample, packet))) {
        let unknown = unknown(sample, &packet);
        assert!(unknown.iter().all(|reason| !reason.starts_with("effect of")), "{sample}: {unknown:?}");
    }
    assert_eq!(unknown("-j SYNPROXY", &packets()[0]), ["effect of `-j SYNPROXY`"]);
}

/// Returns the constructs of `docs/tracing.md` in the syntax of `iptables-save`, each with its result.
fn documented() -> Vec<(&'static str, &'static str)> {
    let rows = include_str!("../../../../../docs/tracing.md").lines().filter_map(|line| line.strip_prefix("| `-"));
    let rows =
        rows.filter_map(|line| line.split_once("` | ")).map(|(text, result)| (text, result.trim_end_matches(" |")));
    rows.filter(|(text, _)| text.starts_with("m ") || text.starts_with("j ")).collect()
}

#[test]
fn constructs_have_their_documented_results() {
    let rows = documented();
    assert!(rows.len() > 30, "{rows:?}");
    for (text, result) in rows {
        let (table, chain) = match text.split(' ').nth(1).unwrap() {
            "MASQUERADE" | "SNAT" => ("nat", "POSTROUTING"),
            "REDIRECT" | "DNAT" | "NETMAP" => ("nat", "PREROUTING"),
            "set" => continue,
            _ => ("mangle", "PREROUTING"),
        };
        let target = if text.starts_with("m ") { " -j DROP" } else { "" };
        let rules = rules(IpFamily::V4, &format!("*{table}\n-A {chain} -p tcp -{text}{target}"));
        let leaves = leaves(&rules, &host(), &from_pod("10.0.0.1:80"));
        let is_unknown = leaves.iter().any(|leaf| matches!(leaf.verdict, Verdict::Unknown { .. }));
        let is_assumed = leaves.iter().any(|leaf| !leaf.assumptions.is_empty());
        let expected = match result.split([':', ' ']).next().unwrap() {
            "decided" | "no" => (false, false),
            "both" => (false, true),
            "unknown" => (true, false),
            other => panic!("{text}: {other}"),
        };
        assert_eq!((is_unknown, is_assumed), expected, "{text}: {leaves:?}");
    }
}

#[test]
fn constructs_of_other_programs_decide_as_the_kernel_does() {
    let dropped = |text: &str| verdicts(&format!("*mangle\n{text}"), &from_pod("10.0.0.1:80")) == ["dropped"];
    for (rule, expected) in [
        ("-m tcp --tcp-flags FIN,SYN,RST,ACK SYN", true),
        ("-m tcp --tcp-flags ALL SYN,ACK", false),
        ("-m tcp ! --syn", false),
        ("-m tcp --dport 80 --syn", true),
        ("-m tcp --dport 81 --syn", false),
        ("-m iprange --src-range 172.17.0.1-172.17.0.20", true),
        ("-m iprange --src-range 172.17.0.15-172.17.0.20", false),
        ("-m iprange ! --dst-range 10.0.0.1-10.0.0.1", false),
        ("-m connmark --mark 0x1/0x1", false),
        ("-m connmark ! --mark 0x1/0x1", true),
        ("-m physdev --physdev-in eth0", false),
        ("-m physdev ! --physdev-is-bridged", true),
        ("-m conntrack --ctorigdst 10.0.0.0/8", true),
        ("-m conntrack --ctorigdstport 443", false),
        ("-m conntrack --ctstate NEW --ctdir REPLY", false),
        ("-m pkttype --pkt-type multicast", false),
        ("-m owner ! --uid-owner 1337", true),
        ("-m rpfilter --invert", false),
        ("-m rpfilter", true),
    ] {
        assert_eq!(dropped(&format!("-A PREROUTING -p tcp {rule} -j DROP")), expected, "{rule}");
    }
    let marks = "-A PREROUTING -j CONNMARK --set-xmark 0x12/0xff
        -A PREROUTING -j CONNMARK --restore-mark --nfmask 0xf0 --ctmask 0xff
        -A PREROUTING -m connmark --mark 0x12 -m mark --mark 0x12 -j DROP";
    assert!(dropped(marks));
    let saved = "-A PREROUTING -j MARK --set-xmark 0x5/0xf\n-A PREROUTING -j CONNMARK --save-mark
        -A PREROUTING -j TOS --set-tos 0x10/0x3f\n-A PREROUTING -m connmark --mark 0x5 -j DROP";
    assert!(dropped(saved));
}

#[test]
fn translations_of_other_programs_are_followed() {
    for (chain, target, expected) in [
        (
            "PREROUTING",
            "REDIRECT --to-ports 15001",
            "delivered to 172.17.0.1:15001 on this host, with source 172.17.0.14",
        ),
        (
            "PREROUTING",
            "DNAT --to-destination :8080",
            "delivered to 10.0.0.1:8080 through eth0, with source 172.17.0.14",
        ),
        ("PREROUTING", "NETMAP --to 192.0.2.0/24", "delivered to 192.0.2.1:80 through eth0, with source 172.17.0.14"),
        (
            "POSTROUTING",
            "NETMAP --to 192.0.2.0/24",
            "not translated, delivered to 10.0.0.1:80 through eth0, with source 192.0.2.14",
        ),
        (
            "POSTROUTING",
            "MASQUERADE --to-ports 1024-65535",
            "not translated, delivered to 10.0.0.1:80 through eth0, with source 192.168.49.2",
        ),
        (
            "POSTROUTING",
            "SNAT --to-source :1024-2048",
            "not translated, delivered to 10.0.0.1:80 through eth0, with source 172.17.0.14",
        ),
    ] {
        let text = format!("*nat\n-A {chain} -p tcp -j {target}");
        assert_eq!(verdicts(&text, &from_pod("10.0.0.1:80")), [expected], "{target}");
    }
    let local = verdicts("*nat\n-A OUTPUT -p tcp -j REDIRECT --to-ports 15001", &from_node("10.0.0.1:80"));
    assert_eq!(local, ["delivered to 127.0.0.1:15001 on this host, with source 192.168.49.2"]);
}

#[test]
fn assumption_holds_for_the_rest_of_its_branch_and_equal_ends_are_merged() {
    let text = "*filter
        :P - [0:0]
        -A FORWARD -j P
        -A P -m set --match-set X src -m set --match-set Y dst -j MARK --set-xmark 0x10000/0x10000
        -A P -m set --match-set X src -m set --match-set Y dst -m mark --mark 0x10000/0x10000 -j RETURN
        -A P -m mark ! --mark 0x10000/0x10000 -j REJECT";
    let rules = rules(IpFamily::V4, text);
    let trace = Ruleset::from_rules(&rules).trace(&host(), &from_pod("10.0.0.1:80"));
    let ends: Vec<(String, usize, usize)> = trace
        .branches
        .iter()
        .map(|branch| (branch.verdict.to_string(), branch.assumptions.len(), branch.alternatives.len()))
        .collect();
    assert_eq!(
        ends,
        [
            ("not translated, delivered to 10.0.0.1:80 through eth0, with source 172.17.0.14".to_owned(), 2, 0),
            ("rejected with icmp-port-unreachable".to_owned(), 2, 1),
        ]
    );
    let mut text = String::new();
    crate::write_summary_into(&mut text, &trace).unwrap();
    assert!(!text.contains(" % of all cases") && text.contains("or assuming: packet is not"), "{text}");
}

#[test]
fn conditions_that_do_not_matter_are_not_mentioned() {
    let rules =
        (0..40).map(|n| format!("-A FORWARD -m strange{n} -j MARK --set-xmark {n:#x}/0xff\n")).collect::<String>();
    let text = format!("*filter\n{}", &rules[..rules.match_indices('\n').nth(5).unwrap().0]);
    let few = super::rules(IpFamily::V4, &text);
    let trace = Ruleset::from_rules(&few).trace(&host(), &from_pod("10.0.0.1:80"));
    assert_eq!(trace.branches.len(), 1, "{:?}", trace.branches.iter().map(|b| &b.assumptions).collect::<Vec<_>>());
    assert!(trace.branches[0].assumptions.is_empty());
    // 2^40 branches are not all followed.
    let many = super::rules(IpFamily::V4, &format!("*filter\n{rules}"));
    let trace = Ruleset::from_rules(&many).summary(&host(), &from_pod("10.0.0.1:80"));
    assert!(trace.branches.iter().any(|branch| matches!(branch.verdict, Verdict::Unknown { .. })));
    assert!(trace.branches.len() < 50, "{}", trace.branches.len());
}

#[test]
fn numbers_of_options_that_could_not_be_read_are_not_shown() {
    assert_eq!(crate::iptables::shown("-m bpf --undecoded 12ab34cd -j DROP"), "-m bpf … -j DROP");
    assert_eq!(crate::iptables::shown("-m bpf --undecoded 12ab34cd"), "-m bpf …");
    assert_eq!(unknown("-m bpf --undecoded 12ab34cd -j DROP", &packets()[0])[0], "`-m bpf …` matches");
}

#[test]
fn first_packet_of_sctp_has_the_chunk_init_alone() {
    let packet = Packet { protocol: Protocol::Sctp, ..from_pod("10.0.0.1:80") };
    for (condition, is_dropped) in [
        ("--chunk-types any INIT", true),
        ("--dport 80 --chunk-types any DATA:Be,INIT", true),
        ("--dport 81 --chunk-types any INIT", false),
        ("--chunk-types any DATA,INIT_ACK", false),
        ("--chunk-types any ALL", true),
        ("--chunk-types any NONE", false),
        ("! --chunk-types any DATA", true),
        ("--chunk-types all INIT", true),
        ("--chunk-types all INIT,DATA", false),
        ("--chunk-types all ALL", false),
        ("--chunk-types all NONE", true),
        ("--chunk-types only INIT,ABORT:T", true),
        ("--chunk-types only INIT_ACK", false),
        ("! --chunk-types only INIT", false),
    ] {
        let text = format!("*mangle\n-A PREROUTING -p sctp -m sctp {condition} -j DROP");
        assert_eq!(verdicts(&text, &packet) == ["dropped"], is_dropped, "{condition}: {:?}", verdicts(&text, &packet));
    }
}

#[test]
fn packets_without_a_connection_match_its_state_alone() {
    let end = |raw: &str, rule: &str| {
        let text = format!("*raw\n-A PREROUTING {raw}\n*filter\n-A FORWARD {rule} -j DROP");
        verdicts(&text, &from_pod("10.0.0.1:80"))[0] == "dropped"
    };
    // Before connection tracking.
    for (condition, is_dropped) in [
        ("-m conntrack --ctstate INVALID", true),
        ("-m conntrack ! --ctstate NEW", true),
        ("-m conntrack --ctstate NEW,UNTRACKED", false),
        ("-m conntrack ! --ctdir REPLY", false),
        ("-m conntrack --ctstate INVALID --ctproto 17", true),
        ("-m connmark ! --mark 0x1", false),
    ] {
        assert_eq!(end(&format!("{condition} -j DROP"), "-m comment --comment x -p udp"), is_dropped, "{condition}");
    }
    // Conditions on untracked packets.
    for (condition, is_dropped) in [
        ("-m conntrack --ctstate UNTRACKED", true),
        ("-m conntrack --ctstate NEW", false),
        ("-m connmark --mark 0x0", false),
        ("-m conntrack --ctorigdst 10.0.0.1", false),
    ] {
        assert_eq!(end("-j CT --notrack", condition), is_dropped, "{condition}");
    }
}

#[test]
fn one_address_of_a_range_is_selected() {
    let ends = |target: &str| {
        let rules = rules(IpFamily::V4, &format!("*nat\n-A PREROUTING -p tcp -j DNAT --to-destination {target}"));
        let trace = Ruleset::from_rules(&rules).trace(&host(), &from_pod("10.0.0.1:80"));
        let choices = trace.branches.iter().flat_map(|branch| &branch.choices);
        choices.map(|choice| (choice.to.to_string(), choice.share)).collect::<Vec<_>>()
    };
    assert_eq!(
        ends("172.17.0.4-172.17.0.5:8080 --persistent"),
        [("172.17.0.4:8080".to_owned(), 0.5), ("172.17.0.5:8080".to_owned(), 0.5)]
    );
    assert_eq!(ends("172.17.0.4:8080-8180/79"), [("172.17.0.4:8081".to_owned(), 1.0)]);
    assert_eq!(ends("172.17.0.4:79-90"), [("172.17.0.4:80".to_owned(), 1.0)]);
    let many = rules(IpFamily::V4, "*nat\n-A PREROUTING -p tcp -j DNAT --to-destination 10.0.0.0-10.0.9.9");
    let trace = Ruleset::from_rules(&many).trace(&host(), &from_pod("10.0.0.1:80"));
    assert!(matches!(trace.branches[0].verdict, Verdict::Unknown { .. }));
}

/// Returns the results of rules of table mangle, except for those of sets that were not read.
fn dropped_with(sets: &str, rules: &str) -> Vec<String> {
    let rules = super::rules(IpFamily::V4, &format!("*mangle\n{rules}"));
    let mut ipsets = crate::Ipsets::default();
    ipsets.add_save(sets);
    let mut ruleset = crate::Ruleset::from_rules(&rules);
    ruleset.add_ipsets(&ipsets);
    let mut ends: Vec<String> =
        ruleset.leaves(&host(), &from_pod("10.0.0.1:80")).map(|leaf| leaf.verdict.to_string()).collect();
    ends.dedup();
    ends
}

#[test]
fn later_rules_see_entries_that_a_packet_adds_to_sets_and_lists() {
    let sets = "create seen hash:ip family inet\ncreate ends hash:ip,port family inet\nadd ends 10.0.0.1,tcp:80\n\
                create all list:set size 8\nadd all seen\ncreate nets hash:net family inet\nadd nets 192.0.2.0/24\n";
    let drop = "-A PREROUTING";
    for (rules, is_dropped) in [
        ("-j SET --add-set seen src\n{} -m set --match-set seen src -j DROP", true),
        ("-j SET --add-set seen src\n{} -m set --match-set all src -j DROP", true),
        ("-j SET --add-set all src\n{} -m set --match-set seen src -j DROP", true),
        ("-j SET --add-set seen dst\n{} -m set --match-set seen src -j DROP", false),
        ("-j SET --add-set seen dst --exist --timeout 60\n{} -m set --match-set seen dst -j DROP", true),
        ("-j SET --del-set ends dst,dst\n{} -m set --match-set ends dst,dst -j DROP", false),
        ("-j SET --del-set ends src,dst\n{} -m set --match-set ends dst,dst -j DROP", true),
        // With the prefix length of the set, whose network contains the packet's source.
        ("-j SET --add-set nets src\n{} -m set --match-set nets src -j DROP", true),
        ("-j SET --add-set seen src\n{} -j SET --del-set seen src\n{} -m set --match-set seen src -j DROP", false),
        // Of a set that was not read.
        ("-j SET --add-set other src\n{} -m set --match-set other src -j DROP", true),
        ("-j SET --add-set other src\n{} -j SET --del-set other src\n{} -m set --match-set other src -j DROP", false),
        ("-m recent --set --name x --rsource\n{} -m recent --rcheck --seconds 60 --name x --rsource -j DROP", true),
        ("-m recent --set --name x --rsource\n{} -m recent --update --hitcount 1 --name x --rsource -j DROP", true),
        ("-m recent --set --name x --rsource\n{} -m recent ! --rcheck --name x --rsource -j DROP", false),
        (
            "-m recent --set --name x --rdest\n{} -m recent --set --name x --rsource -m recent --remove --name x --rsource\n\
          {} -m recent --rcheck --name x --rsource -j DROP",
            false,
        ),
        // Numbers of times.
        ("-m recent --remove --name x --rsource\n{} -m recent --rcheck --name x --rsource -j DROP", false),
        (
            "-m recent --set --name x --rsource\n{} -m recent --remove --name x --rsource\n{} -m recent --set --name x --rsource\n\
             {} -m recent --update --seconds 60 --hitcount 2 --name x --rsource -j DROP",
            false,
        ),
        (
            "-m recent --set --name x --rsource\n{} -m recent --update --name x --rsource\n\
             {} -m recent --rcheck --seconds 60 --hitcount 2 --name x --rsource -j DROP",
            true,
        ),
        // Labels of the connection.
        ("-m connlabel --label 3 -j DROP", false),
        ("-m connlabel ! --label 3 -j DROP", true),
        ("-m connlabel --label 3 --set\n{} -m connlabel --label 3 -j DROP", true),
        ("-m connlabel --label 3 --set\n{} -m connlabel --label 4 -j DROP", false),
        // The list is changed although the rule does not match.
        (
            "-m recent --set --name x --rsource -p tcp -m tcp --dport 81 -j DROP\n\
          {} -m recent --rcheck --name x --rsource -j DROP",
            true,
        ),
    ] {
        let rules = format!("{drop} {}", rules.replace("{}", drop));
        let expected = if is_dropped { "dropped" } else { "not translated" };
        let ends = dropped_with(sets, &rules);
        assert!(matches!(ends.as_slice(), [end] if end.starts_with(expected)), "{rules}: {ends:?}");
    }
    let unknown = [
        "-j SET --add-set other src\n-A PREROUTING -m set --match-set other dst -j DROP",
        "-m recent --set --name x --rsource\n-A PREROUTING -m recent --update --hitcount 4 --name x --rsource -j DROP",
        "-m limit --limit 5/min -j SET --add-set seen src\n-A PREROUTING -m set --match-set seen src -j DROP",
    ];
    for rules in unknown {
        assert_eq!(dropped_with(sets, &format!("-A PREROUTING {rules}")).len(), 2, "{rules}");
    }
}

#[test]
fn conditions_on_the_same_list_agree_in_each_branch() {
    for (first, second, expected) in [
        ("--rcheck --seconds 60 --hitcount 4", "--rcheck", 3),
        ("--rcheck --seconds 60 --hitcount 4", "--rcheck --seconds 90 --hitcount 3", 3),
        ("--rcheck", "--rcheck --seconds 60 --hitcount 4", 3),
        ("--rcheck", "! --rcheck", 2),
        ("--rcheck --seconds 60", "--rcheck --hitcount 4", 4),
        ("--rcheck --name y", "--rcheck", 4),
    ] {
        let name = |options: &str| if options.contains("--name") { "" } else { " --name x" };
        let rules = rules(
            IpFamily::V4,
            &format!(
                "*mangle\n-A PREROUTING -m recent {first}{} --rsource -j MARK --set-xmark 0x1/0x1\n\
                 -A PREROUTING -m recent {second}{} --rsource -j DROP\n-A PREROUTING -m mark --mark 0x1/0x1 -j REJECT",
                name(first),
                name(second)
            ),
        );
        let leaves = leaves(&rules, &host(), &from_pod("10.0.0.1:80"));
        assert_eq!(leaves.len(), expected, "{first} / {second}: {leaves:#?}");
    }
}

#[test]
fn marks_of_entries_are_given_to_packets() {
    let sets = "create marks hash:ip family inet skbinfo\nadd marks 172.17.0.14 skbmark 0x80/0xff\n";
    for (mark, is_dropped) in [("0x80/0xff", true), ("0x81/0xff", false)] {
        let rules = format!(
            "-A PREROUTING -j MARK --set-xmark 0x101/0xffffffff\n\
             -A PREROUTING -j SET --map-set marks src --map-mark\n-A PREROUTING -m mark --mark {mark} -j DROP"
        );
        assert_eq!(dropped_with(sets, &rules)[0] == "dropped", is_dropped, "{mark}");
    }
}
