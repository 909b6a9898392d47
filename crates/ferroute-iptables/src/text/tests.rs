use ferroute_core::{IpFamily, Protocol};
use proptest::prelude::*;

use super::*;
use crate::{
    AddressMatch, AddressType, ChainName, InterfaceMatch, MarkMatch, Match, PortRange, ProtocolMatch, Rule, RuleSet,
    Sense, TableName, Target,
};

/// Parses one rule of the filter table.
fn read(family: IpFamily, line: &str) -> (ChainName, Rule) {
    let mut parser = SaveParser::new(family);
    parser.line("*filter").unwrap();
    match parser.line(line).unwrap() {
        Some(SaveItem::Rule(chain, rule)) => (chain, rule),
        other => panic!("{line:?} is parsed as {other:?}"),
    }
}

/// Returns `line` as `iptables-save` prints its rule.
fn saved(line: &str) -> String {
    let (chain, rule) = read(IpFamily::V4, line);
    Line(chain, &rule).to_string()
}

#[track_caller]
fn assert_unchanged(line: &str) {
    assert_eq!(saved(line), line);
}

#[test]
fn rules_of_other_programs_are_kept_verbatim() {
    for line in [
        "-A INPUT",
        "-A INPUT -j LOG --log-prefix \"dropped: \" --log-level 4",
        "-A INPUT -j LOG --log-prefix -m",
        "-A INPUT -j TRACE",
        "-A INPUT ! -s 0.0.0.0/0 -j DROP",
        "-A INPUT -s 10.0.0.1/255.0.0.255 ! -i eth+ -o lo ! -p icmp -m icmp --icmp-type 8 -j ACCEPT",
        "-A INPUT -p ipv6 -f -j DROP",
        "-A INPUT ! -f -m comment --comment x -j DROP",
        "-A FORWARD -m set --match-set this src -m set ! --match-set that dst,dst -g ELSEWHERE",
        "-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
        "-A FORWARD -m string --string \"a \\\"b\\\" -j c\" --algo bm --to 65535 -j DROP",
        "-A FORWARD -p udp -m udp ! --sport 1000:2000 --dport 0:53 -m limit --limit 5/min -j RETURN",
        "-A FORWARD -m conntrack --ctstate NEW --ctdir ORIGINAL -j ACCEPT",
        "-A FORWARD -m addrtype --src-type LOCAL,BROADCAST -j ACCEPT",
        "-A FORWARD -m statistic --mode nth --every 3 --packet 0 -j ACCEPT",
        "-A FORWARD -m recent ! --rcheck --name X --mask 255.255.255.255 --rsource -j DROP",
        "-A FORWARD -m recent --update --seconds 60 --hitcount 4 --name X --mask 255.255.255.255 --rsource -j DROP",
        "-A FORWARD -m mark --mark 0x1 -j MARK --set-xmark 0x2/0xffffffff",
        "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
        "-A POSTROUTING -p tcp -j MASQUERADE --to-ports 1024-2048 --random",
        "-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80",
        "-A cali-x -m comment --comment \"cali:O3lYWMrLQYEMJtB5\" -m mark --mark 0x0/0x10000 -j cali-y",
        "-A X -m mac --mac-source 00:11:22:33:44:55  -m comment --comment -m -j RETURN",
        "-A X -m comment --comment \"\" -j Y",
        "-A X -p tcp -m multiport --dports 80,443,8000:8010 -j Y",
        "-A X -p udp -m multiport ! --ports 53 -m state --state NEW -j Y",
        "-A X -p udp -m multiport --sports 53 -m state ! --state RELATED,ESTABLISHED -j Y",
        "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j SNAT --to-source 192.168.0.1 --random-fully",
        "-A X -i \"a b\" -j Y",
        "-A X -m recent --set --name \"a b\" --mask 255.255.255.255 --rsource -j Y",
        "-A X -j REJECT --reject-with \"-x\"",
        "-A X -m comment --comment \"it\\'s \\\\ a \\\"quote\\\"\" -j Y",
        "-A X -m comment --comment one -m comment --comment two",
        "-A X nonsense without options -j",
        "-A X nonsense  without options -j DNAT --to-destination 10.0.0.1",
        "-A X -m policy --dir in --pol ipsec --reqid 1 --proto esp -j ACCEPT",
        "-A X -m mac --mac-source ! 00:11:22:33:44:55 -j Y",
        "-A X -m comment --comment \"say \u{201c}hi\u{201d} &quot;\" -j Y",
        "-A X -j DNAT --to-destination 10.0.0.1-10.0.0.9:80-90 --persistent",
        "-A X -j REJECT --reject-with icmp-host-prohibited",
    ] {
        assert_unchanged(line);
    }
}

#[test]
fn restore_input_parses_like_saved_text() {
    for (written, expected) in [
        (
            "-A KUBE-SERVICES -m comment --comment \"a/b:c cluster IP\" -m tcp -p tcp -d 10.0.0.1 --dport 80 -j KUBE-SVC-X",
            "-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m comment --comment \"a/b:c cluster IP\" -m tcp --dport 80 \
             -j KUBE-SVC-X",
        ),
        (
            "-A KUBE-EXTERNAL-SERVICES -m comment --comment x -m addrtype --dst-type LOCAL -m udp -p udp --dport 1 -j REJECT",
            "-A KUBE-EXTERNAL-SERVICES -p udp -m comment --comment x -m addrtype --dst-type LOCAL -m udp --dport 1 \
             -j REJECT --reject-with icmp-port-unreachable",
        ),
        (
            "-A KUBE-FIREWALL -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate DNAT,ESTABLISHED,RELATED -j DROP",
            "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
        ),
        ("-A X -j MARK --or-mark 0x00004000", "-A X -j MARK --set-xmark 0x4000/0x4000"),
        ("-A X -j MARK --xor-mark 16384", "-A X -j MARK --set-xmark 0x4000/0x0"),
        ("-A X -j MARK --and-mark 010", "-A X -j MARK --set-xmark 0x0/0xfffffff7"),
        ("-A X -j MARK --set-mark 0x1/0x2", "-A X -j MARK --set-xmark 0x1/0x3"),
        ("-A X -m mark ! --mark 0x00004000/0x00004000 -j RETURN", "-A X -m mark ! --mark 0x4000/0x4000 -j RETURN"),
        (
            "-A X -m recent --name L --rcheck --seconds 10 --reap -j Y",
            "-A X -m recent --rcheck --seconds 10 --reap --name L --mask 255.255.255.255 --rsource -j Y",
        ),
        (
            "-A X -m statistic --mode random --probability 0.3333333333 -j Y",
            "-A X -m statistic --mode random --probability 0.33333333349 -j Y",
        ),
        ("-A X -p 6 --dport 80 -s 10.1.2.3/8 -j Y", "-A X -s 10.0.0.0/8 -p tcp -m tcp --dport 80 -j Y"),
        ("-A X -s 0.0.0.0/0 -d 10.0.0.0/255.255.0.0 -p all", "-A X -d 10.0.0.0/16"),
        ("-A X --protocol udp --match udp --destination-port 5: --jump Y", "-A X -p udp -m udp --dport 5:65535 -j Y"),
        ("[12:3456] -A X -j Y", "-A X -j Y"),
        // Before 1.4.3, the `!` followed the option.
        ("-A X -s ! 10.0.0.0/8 -i ! eth0 -p ! tcp -j Y", "-A X ! -s 10.0.0.0/8 ! -i eth0 ! -p tcp -j Y"),
        (
            "-A X -p tcp -m tcp --dport ! 80 -m mark --mark ! 0x1 -m state --state ! NEW -j Y",
            "-A X -p tcp -m tcp ! --dport 80 -m mark ! --mark 0x1 -m state ! --state NEW -j Y",
        ),
        ("-A X --src 10.0.0.1,10.1.0.0/16 -j Y", "-A X -s 10.0.0.1,10.1.0.0/16 -j Y"),
        ("-A X --proto tcp -m policy --dir in --pol none -j Y", "-A X -p tcp -m policy --dir in --pol none -j Y"),
        (
            "-A X -m policy --dir out --pol ipsec -m comment --comment x --proto esp -j ACCEPT",
            "-A X -m policy --dir out --pol ipsec --proto esp -m comment --comment x -j ACCEPT",
        ),
        // Text that was copied through programs that replace characters.
        ("-A X -m comment --comment \u{201c}a b\u{201c} -j Y", "-A X -m comment --comment \"a b\" -j Y"),
        ("-A X -m comment --comment \u{201e}a\u{201d} -j Y", "-A X -m comment --comment a -j Y"),
        ("-A X -m comment --comment &quot;a b&quot; -j Y", "-A X -m comment --comment \"a b\" -j Y"),
        ("-A X -p tcp \u{2013}m tcp \u{2014}dport 80 -j Y", "-A X -p tcp -m tcp --dport 80 -j Y"),
        ("-A X -m nfacct --nfacct-name n", "-A X -m nfacct --nfacct-name  n"),
    ] {
        assert_eq!(saved(written), expected, "{written}");
        assert_unchanged(expected);
    }
}

#[test]
fn rule_that_cannot_be_read_keeps_its_target_or_has_an_unknown_one() {
    let unreadable = |conditions: &str, target: Target| {
        let rule = if conditions.is_empty() { Rule::new() } else { Rule::new().and(Match::Other(conditions.into())) };
        rule.then(target)
    };
    let jump = Target::Jump("KUBE-SVC".parse().unwrap());
    let tcp = Some(Sense::Is(ProtocolMatch::Transport(Protocol::Tcp)));
    for (line, expected) in [
        ("-s here -j DROP", unreadable("-s here", Target::Drop)),
        (
            "! -s 10.0.0.1,10.0.0.2 -g KUBE-SVC",
            unreadable("! -s 10.0.0.1,10.0.0.2", Target::Goto("KUBE-SVC".parse().unwrap())),
        ),
        (
            "-m comment --comment kubernetes service portals -j KUBE-SVC",
            unreadable("-m comment --comment kubernetes service portals", jump),
        ),
        ("-s 10.0.0.1 DROP", unreadable("-s 10.0.0.1 DROP", Target::Other("".into()))),
        ("-p tcp -j", unreadable("-p tcp -j", Target::Other("".into()))),
        ("-j DROP it -s 10.0.0.1", unreadable("", Target::Other("DROP it -s 10.0.0.1".into()))),
        (
            "-m limit --limit 5/min -j DROP -s here",
            unreadable("-m limit --limit 5/min", Target::Other("DROP -s here".into())),
        ),
        ("-p tcp -j DROP it", Rule { protocol: tcp, target: Some(Target::Other("DROP it".into())), ..Rule::new() }),
    ] {
        assert_eq!(Rule::parse(IpFamily::V4, line), expected, "{line}");
        assert_eq!(expected.to_string(), line);
    }
}

#[test]
fn ipv6_addresses_are_formatted_as_by_iptables() {
    for line in [
        "-A X -s ::1/128 -d ::ffff:10.0.0.1/128",
        "-A X -s ::10.0.0.1/128 -j DNAT --to-destination [::10.0.0.1]:80",
        "-A X -s fd00::/8 -d 2001:db8:0:1::/64 -j DNAT --to-destination fd00:0:0:1::",
        "-A X -s ::0.1.0.0/112 -d ::/0",
    ] {
        let (chain, rule) = read(IpFamily::V6, line);
        assert_eq!(Line(chain, &rule).to_string(), line.trim_end_matches(" -d ::/0"));
    }
}

#[test]
fn defaults_depend_on_the_family() {
    let (chain, rule) = read(IpFamily::V6, "-A X -p icmpv6 -m recent --set --name L -j REJECT");
    assert_eq!(
        Line(chain, &rule).to_string(),
        "-A X -p ipv6-icmp -m recent --set --name L --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource \
         -j REJECT --reject-with icmp6-port-unreachable"
    );
}

#[test]
fn saved_text_with_builtin_chains_prints_unchanged() {
    let text = "*nat\n:PREROUTING ACCEPT [3:180]\n:INPUT ACCEPT [0:0]\n:OUTPUT DROP [1:60]\n:MINE - [0:0]\n\
                -A OUTPUT -j MINE\n-A MINE -j RETURN\nCOMMIT\n*raw\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n";
    let with_comments = format!("# Generated by iptables-save v1.8.9 (nf_tables)\n{text}# Completed\n\n");
    let rules = RuleSet::parse_save(IpFamily::V4, &with_comments).unwrap();
    assert_eq!(rules.to_string(), text);
    assert_eq!(rules.rules(TableName::Nat, ChainName::OUTPUT).len(), 1);
    assert_eq!(rules.rules(TableName::Filter, ChainName::OUTPUT), []);
}

#[test]
fn a_comment_may_contain_a_newline() {
    let text = "*filter\n-A INPUT -m comment --comment \"two\n-A INPUT lines\" -j DROP\nCOMMIT\n";
    let rules = RuleSet::parse_save(IpFamily::V4, text).unwrap();
    assert_eq!(
        rules.rules(TableName::Filter, ChainName::INPUT),
        [Rule::new().and(Match::Comment("two\n-A INPUT lines".into())).then(Target::Drop)]
    );
    assert_eq!(rules.to_string(), text);
}

#[test]
fn errors_contain_the_line() {
    let errors: Vec<String> = [
        "-A INPUT -j DROP\n",
        "*filter\n:INPUT ACCEPT [0:0]\n",
        "*filter\n:INPUT MAYBE [0:0]\nCOMMIT\n",
        "*filter\n:INPUT ACCEPT [0]\nCOMMIT\n",
        "*broute\nCOMMIT\n",
        "*filter\n-X INPUT\nCOMMIT\n",
        "*filter\n-A -j DROP\nCOMMIT\n",
        "*filter\n-A INPUT -m comment --comment \"open\nCOMMIT\n",
    ]
    .map(|text| {
        let error = RuleSet::parse_save(IpFamily::V4, text).unwrap_err();
        format!("{error}: {}", error.kind)
    })
    .into();
    insta::assert_snapshot!(errors.join("\n"), @r#"
    cannot parse line 1 of the rules, "-A INPUT -j DROP": line outside of a table
    cannot parse line 2 of the rules, "*filter": text ends before the COMMIT of the table
    cannot parse line 2 of the rules, ":INPUT MAYBE [0:0]": invalid policy or counters
    cannot parse line 2 of the rules, ":INPUT ACCEPT [0]": invalid policy or counters
    cannot parse line 1 of the rules, "*broute": unknown table
    cannot parse line 2 of the rules, "-X INPUT": not a table, chain, rule or COMMIT
    cannot parse line 2 of the rules, "-A -j DROP": invalid chain name "-j" (want 1 to 28 bytes, no blanks, no '-' or '!' at the start)
    cannot parse line 3 of the rules, "-A INPUT -m comment --comment \"open\nCOMMIT": unterminated quote
    "#);
}

/// Words and fragments of rules, and some that no rule contains.
fn any_piece() -> impl Strategy<Value = String> {
    let fragments = prop::sample::select(vec![
        "-A",
        "-s",
        "-d",
        "-i",
        "-o",
        "-p",
        "-m",
        "-j",
        "-g",
        "!",
        "--dport",
        "--sport",
        "--ctstate",
        "--mark",
        "--name",
        "--comment",
        "--probability",
        "--mode",
        "--set",
        "--rcheck",
        "--seconds",
        "--mask",
        "--to-destination",
        "--reject-with",
        "--set-xmark",
        "--nfacct-name",
        "--dst-type",
        "tcp",
        "udp",
        "comment",
        "conntrack",
        "mark",
        "recent",
        "statistic",
        "addrtype",
        "nfacct",
        "random",
        "10.0.0.1",
        "10.0.0.0/8",
        "fd00::/8",
        "0.0.0.0/0",
        "80",
        "1:2",
        "0x4000/0x4000",
        "NEW",
        "LOCAL",
        "DNAT",
        "MARK",
        "REJECT",
        "LOG",
        "KUBE-X",
        "\"a b\"",
        "\"",
        "\\",
        "  ",
        "-",
        "--",
    ]);
    prop_oneof![9 => fragments.prop_map(str::to_owned), 1 => any::<String>()]
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = RuleSet::parse_save(IpFamily::V4, &text);
        let _ = RuleSet::parse_save(IpFamily::V6, &format!("*nat\n{text}\nCOMMIT\n"));
    }

    #[test]
    fn parsing_a_printed_rule_returns_the_same_rule(pieces in prop::collection::vec(any_piece(), 0..14)) {
        let mut parser = SaveParser::new(IpFamily::V4);
        parser.line("*filter").unwrap();
        let line = format!("-A CHAIN {}", pieces.join(" "));
        if let Ok(Some(SaveItem::Rule(chain, rule))) = parser.line(&line) {
            let printed = Line(chain, &rule).to_string();
            let (parsed_chain, parsed) = read(IpFamily::V4, &printed);
            prop_assert_eq!((parsed_chain, &parsed), (chain, &rule), "{}", printed);
        }
    }

    #[test]
    fn any_comment_survives_printing_and_parsing(text in "[^\u{0}]{0,60}") {
        let rule = Rule::new().and(Match::Comment(text.into()));
        let mut printed = String::from("*filter\n");
        write_rule(&mut printed, "-A", ChainName::INPUT, &rule).unwrap();
        printed.push_str("COMMIT\n");
        let rules = RuleSet::parse_save(IpFamily::V4, &printed).unwrap();
        prop_assert_eq!(rules.rules(TableName::Filter, ChainName::INPUT), [rule]);
    }
}

#[test]
fn supported_parts_of_a_rule_of_another_program_are_parsed() {
    let (chain, rule) = read(
        IpFamily::V4,
        "-A X ! -s 10.0.0.0/8 -d 1.2.3.4/255.0.255.0 ! -i eth+ -o lo -p tcp -m limit --limit 5/min -m tcp ! --sport 5:9 \
         --dport 80 -m addrtype ! --src-type LOCAL -m mark ! --mark 0x1/0x3 -g ELSEWHERE",
    );
    assert_eq!(chain.as_str(), "X");
    let expected = Rule {
        source: Some(Sense::Not(AddressMatch::Net("10.0.0.0/8".parse().unwrap()))),
        destination: Some(Sense::Is(AddressMatch::Masked {
            address: "1.0.3.0".parse().unwrap(),
            mask: "255.0.255.0".parse().unwrap(),
        })),
        in_interface: Some(Sense::Not(InterfaceMatch::Prefix("eth".into()))),
        out_interface: Some(Sense::Is(InterfaceMatch::Name("lo".into()))),
        protocol: Some(Sense::Is(ProtocolMatch::Transport(Protocol::Tcp))),
        matches: vec![
            Match::Other("-m limit --limit 5/min".into()),
            Match::Transport {
                protocol: Protocol::Tcp,
                source: Some(Sense::Not(PortRange { first: 5, last: 9 })),
                destination: Some(Sense::Is(PortRange::one(80))),
            },
            Match::AddrType { source: Some(Sense::Not(AddressType::Local)), destination: None },
            Match::Mark(Sense::Not(MarkMatch { value: 1, mask: 3 })),
        ],
        target: Some(Target::Goto("ELSEWHERE".parse().unwrap())),
    };
    assert_eq!(rule, expected);
}

#[test]
fn a_jump_target_is_a_chain_unless_it_names_a_target_extension() {
    let target = |line| read(IpFamily::V4, line).1.target;
    assert_eq!(target("-A X -j CNI-DN"), Some(Target::Jump("CNI-DN".parse().unwrap())));
    assert_eq!(target("-A X -j LOG"), Some(Target::Other("LOG".into())));
    let snat = |random_fully| Some(Target::Snat { address: "10.0.0.1".parse().unwrap(), random_fully });
    assert_eq!(target("-A X -j SNAT --to-source 10.0.0.1"), snat(false));
    assert_eq!(target("-A X -j SNAT --to-source 10.0.0.1 --random-fully"), snat(true));
    let range = "SNAT --to-source 10.0.0.1-10.0.0.9";
    assert_eq!(target("-A X -j SNAT --to-source 10.0.0.1-10.0.0.9"), Some(Target::Other(range.into())));
    let dnat = |port| Some(Target::Dnat { address: "10.0.0.1".parse().unwrap(), port });
    assert_eq!(target("-A X -j DNAT --to-destination 10.0.0.1"), dnat(None));
    assert_eq!(target("-A X -j DNAT --to-destination 10.0.0.1:80"), dnat(Some(80)));
}

#[test]
fn a_module_with_an_unsupported_option_is_kept_verbatim() {
    let (_, rule) = read(IpFamily::V4, "-A X -m conntrack --ctproto 6 --ctstate NEW -j Y");
    assert_eq!(rule.matches, [Match::Other("-m conntrack --ctproto 6 --ctstate NEW".into())]);
}

#[test]
fn unsupported_parts_are_kept_whatever_separates_the_words() {
    let (_, rule) = read(IpFamily::V4, "-A X\t-j\tTPROXY --on-port\t80");
    assert_eq!(rule.target, Some(Target::Other("TPROXY --on-port\t80".into())));
    let (_, rule) = read(IpFamily::V4, "-A X -m strange --x \"a\"-m comment --comment b -j Y");
    assert_eq!(rule.matches, [Match::Other("-m strange --x \"a\"".into()), Match::Comment("b".into())]);
}

#[test]
fn option_of_several_modules_belongs_to_the_last_of_them() {
    for line in [
        "-A X -m mark --mark 0x0/0x5 -m connmark --mark 0x5/0xf -j DROP",
        "-A X -m connmark --mark 0x5/0xf -m mark --mark 0x0/0x5 -j DROP",
        "-A X -m statistic --mode random --probability 0.50000000000 -m policy --dir in --pol ipsec --mode tunnel -j DROP",
        "-A X -m policy --dir in --pol ipsec --mode tunnel -m statistic --mode random --probability 0.50000000000 -j DROP",
        "-A X -p dccp -m dccp --sport 1:2 --dport 5 -j DROP",
    ] {
        assert_unchanged(line);
        let (_, rule) = read(IpFamily::V4, line);
        let modules = line.matches(" -m ").count();
        assert_eq!(rule.matches.len(), modules, "{line}: {rule:?}");
        let others = rule.matches.iter().filter(|module| matches!(module, Match::Other(_))).count();
        assert_eq!(others, 1, "{line}: {rule:?}");
    }
    let (_, rule) = read(IpFamily::V4, "-A X -p tcp -m limit --limit 1/sec --dport 80 -j DROP");
    assert!(rule.matches.iter().any(|module| matches!(module, Match::Transport { .. })), "{rule:?}");
}
