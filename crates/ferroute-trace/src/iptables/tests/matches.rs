use super::*;

/// Returns the reason why a rule with these conditions does not match; `None` if it does.
fn mismatch(conditions: &str, packet: &Packet) -> Option<String> {
    let hook = if packet.origin == Origin::Local { "OUTPUT" } else { "PREROUTING" };
    let rules = rules(packet.family(), &format!("*mangle\n-A {hook} {conditions} -j DROP"));
    let leaves: Vec<Leaf> = Ruleset::from_rules(&rules).leaves(&host(), packet).collect();
    assert_eq!(leaves.len(), 1, "{conditions}");
    let mismatch = leaves[0].events.iter().find_map(|event| match event {
        Event::Rule { mismatch, .. } => Some(mismatch.clone()),
        _ => None,
    });
    let mismatch = mismatch.expect("the packet meets the rule");
    assert_eq!(leaves[0].verdict == Verdict::Dropped, mismatch.is_none(), "{conditions}");
    mismatch
}

#[track_caller]
fn assert_matches(conditions: &str, packet: &Packet) {
    assert_eq!(mismatch(conditions, packet), None, "{conditions}");
}

#[track_caller]
fn assert_fails(conditions: &str, packet: &Packet, why: &str) {
    assert_eq!(mismatch(conditions, packet).as_deref(), Some(why), "{conditions}");
}

#[test]
fn condition_and_its_opposite_are_one_assumption() {
    let text = "*nat
-A OUTPUT -p tcp -m owner --uid-owner 1337 -j REDIRECT --to-ports 15006
-A OUTPUT -m owner ! --uid-owner 1337 -j RETURN
-A OUTPUT -p tcp -j REDIRECT --to-ports 15001";
    let rules = rules(IpFamily::V4, text);
    let host = host();
    let packet = from_node("10.0.0.1:80");
    let leaves = Ruleset::from_rules(&rules);
    let verdicts: Vec<String> = leaves.leaves(&host, &packet).map(|leaf| leaf.verdict.to_string()).collect();
    assert_eq!(verdicts.len(), 2, "{verdicts:?}");
    assert!(!verdicts.iter().any(|verdict| verdict.contains("15001")), "{verdicts:?}");
}

#[test]
fn rule_without_conditions_matches() {
    assert_matches("-m comment --comment \"for people\"", &from_pod("10.0.0.1:80"));
}

#[test]
fn addresses_match_networks_and_negated_networks() {
    let packet = from_pod("10.0.0.1:80");
    for matching in
        ["-s 172.17.0.0/24", "-s 172.17.0.14/32", "! -s 10.0.0.0/8", "-d 10.0.0.1/32", "! -d 172.17.0.14/32"]
    {
        assert_matches(matching, &packet);
    }
    assert_fails("-s 172.17.1.0/24", &packet, "source is 172.17.0.14, not 172.17.1.0/24");
    assert_fails("! -s 172.17.0.0/24", &packet, "source is 172.17.0.14, and 172.17.0.0/24 is excluded");
    assert_fails("-s 172.17.0.14/32 -d 10.0.0.2/32", &packet, "destination is 10.0.0.1, not 10.0.0.2/32");
    assert_matches("-d fd00:96::/64", &from_pod("[fd00:96::1]:80"));
    assert_fails("-d fd00:97::/64", &from_pod("[fd00:96::1]:80"), "destination is fd00:96::1, not fd00:97::/64");
}

#[test]
fn interfaces_match_names_and_prefixes() {
    let packet = from_pod("10.0.0.1:80");
    for matching in ["-i cni0", "-i cni+", "! -i eth0", "! -i eth+"] {
        assert_matches(matching, &packet);
    }
    assert_fails("-i cni", &packet, "input interface is cni0, not cni");
    assert_fails("! -i cni+", &packet, "input interface is cni0, and cni+ is excluded");
    assert_matches("-o eth0", &from_node("10.0.0.1:80"));
    assert_matches("-o lo", &from_node("192.168.49.2:80"));
    assert_matches("! -i cni0", &from_node("10.0.0.1:80"));
    assert_fails("-i eth0", &from_node("10.0.0.1:80"), "input interface is none, not eth0");
}

#[test]
fn protocols_and_ports_match() {
    let packet = from_pod("10.0.0.1:80");
    for matching in
        ["-p tcp", "! -p udp", "-p tcp -m tcp --dport 80", "-p tcp -m tcp --dport 79:81", "-p tcp -m tcp ! --sport 80"]
    {
        assert_matches(matching, &packet);
    }
    assert_fails("-p udp", &packet, "protocol is tcp, not udp");
    assert_fails("-p icmp", &packet, "protocol is tcp, not icmp");
    assert_fails("-p tcp -m tcp --dport 81", &packet, "destination port is 80, not 81");
    assert_fails("-p tcp -m tcp --sport 1:1023", &packet, "source port is 40000, not 1:1023");
    assert_fails("-p udp -m udp --dport 80", &packet, "protocol is tcp, not udp");
    for matching in
        ["--dports 79,80", "--dports 1:100", "! --dports 81", "--sports 40000", "--ports 80", "--ports 40000"]
    {
        assert_matches(&format!("-p tcp -m multiport {matching}"), &packet);
    }
    assert_fails("-p tcp -m multiport --dports 81,90:99", &packet, "destination port is 80, not 81,90:99");
    assert_fails(
        "-p tcp -m multiport ! --ports 40000",
        &packet,
        "source and destination port is 40000 and 80, and 40000 is excluded",
    );
    assert_matches("-p sctp -m sctp --dport 80", &Packet { protocol: Protocol::Sctp, ..packet });
}

#[test]
fn connection_state_is_new() {
    let packet = from_pod("10.0.0.1:80");
    assert_matches("-m conntrack --ctstate NEW", &packet);
    assert_matches("-m state --state NEW,RELATED", &packet);
    assert_fails("-m state --state RELATED", &packet, "connection state is NEW, not RELATED");
    assert_matches("-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT", &packet);
    assert_fails(
        "-m conntrack --ctstate RELATED,ESTABLISHED",
        &packet,
        "connection state is NEW, not RELATED,ESTABLISHED",
    );
    assert_fails("-m conntrack --ctstate INVALID", &packet, "connection state is NEW, not INVALID");
}

#[test]
fn marks_match_with_masks() {
    let packet = Packet { mark: 0x4001, ..from_pod("10.0.0.1:80") };
    assert_matches("-m mark --mark 0x4000/0x4000", &packet);
    assert_matches("-m mark ! --mark 0x2000/0x2000", &packet);
    assert_fails("-m mark --mark 0x4000", &packet, "mark is 0x4001, not 0x4000/0xffffffff");
    assert_fails("-m mark ! --mark 0x4000/0x4000", &packet, "mark is 0x4001, and 0x4000/0x4000 is excluded");
}

#[test]
fn addresses_of_the_host_are_of_type_local() {
    let local = "-m addrtype --dst-type LOCAL";
    assert_matches(local, &from_pod("172.17.0.1:80"));
    assert_matches(local, &from_node("127.0.0.9:80"));
    assert_matches(local, &from_pod("[fd00:49::2]:80"));
    assert_matches("-m addrtype ! --dst-type LOCAL", &from_pod("10.0.0.1:80"));
    assert_matches("-m addrtype --src-type LOCAL", &from_node("10.0.0.1:80"));
    assert_fails(
        "-m addrtype ! --dst-type LOCAL",
        &from_pod("172.17.0.1:80"),
        "destination 172.17.0.1 is of type LOCAL",
    );
    assert_fails(local, &from_pod("10.0.0.1:80"), "destination 10.0.0.1 is not of type LOCAL");
    assert_fails("-m addrtype --src-type LOCAL", &from_pod("172.17.0.1:80"), "source 172.17.0.14 is not of type LOCAL");
}

#[test]
fn recent_matches_list_entries_up_to_their_age_limit() {
    let check = "-m recent --rcheck --seconds 60 --reap --name KUBE-SEP-A --mask 255.255.255.255 --rsource";
    let remembered =
        |list: &str, age| Packet { remembered: [(list.to_owned(), age)].into(), ..from_pod("10.0.0.1:80") };
    assert_matches(check, &remembered("KUBE-SEP-A", 60));
    assert_matches("-m recent --set --name KUBE-SEP-A --mask 255.255.255.255 --rsource", &from_pod("10.0.0.1:80"));
    assert_fails(check, &from_pod("10.0.0.1:80"), "client is not in list KUBE-SEP-A");
    assert_fails(check, &remembered("KUBE-SEP-B", 1), "client is not in list KUBE-SEP-A");
    assert_fails(check, &remembered("KUBE-SEP-A", 61), "client is in list KUBE-SEP-A since 61 s, not at most 60 s");
}

#[test]
fn statistic_forks_with_the_kernels_31_bit_probability() {
    let statistic = "*filter\n-A INPUT -m statistic --mode random --probability 0.33333333349 -j DROP";
    let leaves = leaves(&rules(IpFamily::V4, statistic), &host(), &from_pod("172.17.0.1:80"));
    let share = 715_827_883.0 / f64::from(1_u32 << 31);
    assert_eq!((&leaves[0].verdict, leaves[0].share), (&Verdict::Dropped, share));
    assert!((leaves[1].share - (1.0 - share)).abs() < 1e-15 && leaves.len() == 2, "{leaves:?}");
}

#[test]
fn certain_and_impossible_statistic_does_not_fork() {
    let with = |chance| format!("*filter\n-A INPUT -m statistic --mode random --probability {chance} -j DROP");
    assert_eq!(verdicts(&with("1.0"), &from_pod("172.17.0.1:80")), ["dropped"]);
    assert_eq!(
        verdicts(&with("0.0"), &from_pod("172.17.0.1:80")),
        ["not translated, delivered to 172.17.0.1:80 on this host, with source 172.17.0.14"]
    );
}

#[test]
fn unknown_condition_forks_only_if_it_matters() {
    let text = "*filter
        -A INPUT -p tcp -m set --match-set friends src -m statistic --mode random --probability 0.25 -j DROP";
    assert_eq!(
        verdicts(text, &from_pod("172.17.0.1:80")),
        [
            "0.250 dropped (packet is in set friends src)",
            "0.750 not translated, delivered to 172.17.0.1:80 on this host, with source 172.17.0.14 (packet is in set \
             friends src)",
            "not translated, delivered to 172.17.0.1:80 on this host, with source 172.17.0.14 (packet is not in set \
             friends src)",
        ]
    );
    // The rule has no effect, or another condition does not match.
    let quiet = "*filter
        -A INPUT -m set --match-set friends src
        -A INPUT -m set --match-set friends src -j LOG
        -A INPUT -p udp -m set --match-set friends src -j DROP";
    assert_eq!(verdicts(quiet, &from_pod("172.17.0.1:80")).len(), 1);
}

#[test]
fn walk_with_many_unknown_conditions_is_cut_off() {
    let mark = |set| {
        format!(
            "-A INPUT -m set --match-set friends{set} src -j MARK --set-xmark {bit:#x}/{bit:#x}\n",
            bit = 1_u64 << (set % 32)
        )
    };
    let marks: String = (0..40).map(mark).collect();
    let verdicts = verdicts(&format!("*filter\n{marks}"), &from_pod("172.17.0.1:80"));
    assert!(verdicts.len() < 1 << 15, "{}", verdicts.len());
    assert!(verdicts.last().unwrap().contains("unknown: there are too many branches"));
}

#[test]
fn traces_with_many_different_branches_end() {
    let rules_of = |count: u32, rule: &dyn Fn(u32) -> String| (0..count).map(rule).collect::<String>();
    let random = |count, target: &str| {
        rules_of(count, &|n| {
            format!("-A INPUT -m statistic --mode random --probability 0.5 -j {target} {:#x}\n", 1 << n)
        })
    };
    let limited = |count| rules_of(count, &|n| format!("-A INPUT -m limit --limit {n}/sec -j MARK --set-xmark {n}\n"));
    let others = rules_of(1000, &|n| format!("-A INPUT -p udp -m udp --dport {n} -j DROP\n"));
    let branches = |text: &str| {
        let rules = rules(IpFamily::V4, &format!("*filter\n{text}"));
        let trace = Ruleset::from_rules(&rules).trace(&host(), &from_pod("172.17.0.1:80"));
        assert!(trace.branches.len() <= 1024);
        let unknown = trace.branches.iter().filter(|branch| matches!(branch.verdict, Verdict::Unknown { .. })).count();
        (trace.branches.len(), unknown)
    };
    for marks in [random(20, "MARK --or-mark"), random(20, "CONNMARK --or-mark"), limited(3000)] {
        assert_eq!(branches(&marks).1, 1);
    }
    assert_eq!(branches(&(random(20, "MARK --or-mark") + &others)).1, 1);
    // The marks have no effect on the result.
    assert_eq!(branches(&(limited(9) + &others)), (1, 0));
}

#[test]
fn conditions_on_chains_without_effect_and_on_known_values_lead_to_no_branch() {
    let chains = "*filter
        -A logs -j LOG --log-prefix x
        -A logs -s 192.0.2.1 -j DROP
        -A logs -j more
        -A logs -j RETURN
        -A more -m limit --limit 1/sec -j RETURN
        -A marks -j LOG
        -A marks -j MARK --set-xmark 0x1
        -A lists -m recent --set --name x\n";
    let rules = |count: u32, rule: &dyn Fn(u32) -> String| (0..count).map(rule).collect::<String>();
    let limits = rules(25, &|n| format!("-A INPUT -m limit --limit {}/min -j logs\n", n + 1));
    let random = rules(25, &|_| "-A INPUT -m statistic --mode random --probability 0.5 -j logs\n".to_owned());
    let values = rules(18, &|n| format!("-A INPUT -m dscp --dscp {n:#04x} -j MARK --set-xmark {n:#x}\n"));
    for (rules, count) in [
        (limits, 1),
        (random, 1),
        ("-A INPUT -m limit --limit 1/sec -j marks\n".to_owned(), 2),
        ("-A INPUT -m limit --limit 1/sec -j lists\n".to_owned(), 2),
        // The chain is left. The limit in the other chain is another one.
        ("-A INPUT -m limit --limit 1/sec -g logs\n".to_owned(), 3),
        (values, 19),
        ("-A INPUT -m ttl --ttl-eq 3 -j MARK --set-xmark 1\n-A INPUT -m ttl --ttl-eq 4 -j ACCEPT\n".to_owned(), 4),
    ] {
        assert_eq!(verdicts(&format!("{chains}{rules}"), &from_pod("172.17.0.1:80")).len(), count, "{rules}");
    }
}
