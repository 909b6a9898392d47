use proptest::prelude::*;

use super::*;

/// Returns the rules of the only table as they are printed.
fn rules(family: IpFamily, text: &str) -> Vec<String> {
    let tables = parse(family, text, &Variables::default()).unwrap();
    let table = &tables[0].table;
    table.chains().flat_map(|chain| &chain.rules).map(|rule| table.rule_text(rule, family)).collect()
}

#[test]
fn scripts_define_variables_and_add_to_tables() {
    let text = "#!/usr/sbin/nft -f
flush ruleset
define WAN = eth0
define PODS={ 10.42.0.0/16, 10.43.0.0/16 }
define ALL = { $PODS,
    192.168.0.0/24 } # and the nodes
define LOW = 8000
table inet fw
delete table inet fw
table inet fw { set own { type ipv4_addr; elements = { 10.0.0.1 }; } chain c { } }
table inet fw {
    chain c {
        type filter hook input priority filter; policy drop;
        iifname $WAN tcp dport { 22, $LOW-9000 } \\
            accept
        ip saddr $ALL jump { ip daddr $PODS drop; }
        iifname $LAN drop
    }
}
nft add chain ip old c '{ type nat hook prerouting priority -100 \\; }'
sudo nft add rule old c tcp dport $LOW dnat to 10.0.0.1:80
nft insert rule old c ip daddr @own return
add element inet fw own { 10.0.0.2 }
add set ip old own { type ipv4_addr; }
add table bridge x { chain c { drop } }
";
    let tables = parse(IpFamily::V4, text, &Variables::default()).unwrap();
    let texts: Vec<Vec<String>> = tables
        .iter()
        .map(|TableSnapshot { table, .. }| {
            table.chains().flat_map(|chain| &chain.rules).map(|rule| table.rule_text(rule, IpFamily::V4)).collect()
        })
        .collect();
    assert_eq!(
        texts,
        [
            vec![
                "meta nfproto ipv4 ip daddr { 10.42.0.0/16, 10.43.0.0/16 } drop",
                "iifname \"eth0\" meta l4proto tcp th dport { 22, 8000-9000 } accept",
                "meta nfproto ipv4 ip saddr { 10.42.0.0/16, 10.43.0.0/16, 192.168.0.0/24 } jump __chain0",
                "iifname $LAN drop",
            ],
            vec!["ip daddr @own return", "meta l4proto tcp th dport 8000 dnat to 10.0.0.1:80"],
        ]
    );
    let chain = tables[0].table.chains().find(|chain| chain.chain.base.is_some()).unwrap();
    assert_eq!(chain.chain.base.unwrap().policy, Policy::Drop);
    assert_eq!(tables[0].table.elements(&Name::from("own")).count(), 2);
    assert_eq!(tables[1].table.chains().next().unwrap().chain.base.unwrap().priority, -100);

    let mut variables = Variables::default();
    variables.add("define LAN = { eth1, eth2 }\n");
    let tables = parse(IpFamily::V4, text, &variables).unwrap();
    let table = &tables[0].table;
    let last = table.chains().flat_map(|chain| &chain.rules).last().unwrap();
    assert_eq!(table.rule_text(last, IpFamily::V4), "iifname { \"eth1\", \"eth2\" } drop");
}

#[test]
fn commands_with_unknown_results_are_errors() {
    for command in ["delete rule ip t c handle 5", "flush chain t c", "add rule t c position 4 drop"] {
        let text = format!("add table ip t\n{command}\n");
        assert!(is_head(command), "{command}");
        assert_eq!(parse(IpFamily::V4, &text, &Variables::default()).unwrap_err().line, 2, "{command}");
    }
    for line in ["table 200", "default via 10.0.0.1", "add pods 10.0.0.1", "include the output of ip route"] {
        assert!(!is_head(line), "{line}");
    }
}

fn rule(text: &str) -> String {
    let text = format!("table inet t {{\n\tchain c {{\n\t\t{text}\n\t}}\n}}\n");
    let rules = rules(IpFamily::V4, &text);
    assert_eq!(rules.len(), 1, "{rules:?}");
    rules[0].clone()
}

#[test]
fn chains_without_a_name_are_read_where_they_are_called() {
    let text = "table inet t {
        chain c {
            tcp dport 80 jump {
                ip saddr 10.0.0.1 drop
                udp dport 5 goto {
                    reject
                }
                accept
            }
            drop
        }
    }";
    let tables = parse(IpFamily::V4, text, &Variables::default()).unwrap();
    let table = &tables[0].table;
    let chains = table.chains().map(|chain| {
        let rules = chain.rules.iter().map(|rule| table.rule_text(rule, IpFamily::V4));
        (chain.chain.name.to_string(), rules.collect::<Vec<_>>())
    });
    let of = |name: &str, rules: &[&str]| (name.to_owned(), rules.iter().map(|rule| (*rule).to_owned()).collect());
    assert_eq!(
        chains.collect::<Vec<_>>(),
        [
            of(
                "__chain0",
                &["meta nfproto ipv4 ip saddr 10.0.0.1 drop", "meta l4proto udp th dport 5 goto __chain1", "accept",]
            ),
            of("__chain1", &["reject with icmpx port-unreachable"]),
            of("c", &["meta l4proto tcp th dport 80 jump __chain0", "drop"]),
        ]
    );
}

#[test]
fn rules_are_printed_as_nft_prints_those_of_the_kernel() {
    for (text, expected) in [
        ("ct state established,related accept", "ct state established,related accept"),
        (
            "ct state vmap { established : accept, invalid : drop }",
            "ct state vmap { invalid : drop, established : accept }",
        ),
        ("tcp dport 80 drop", "meta l4proto tcp th dport 80 drop"),
        (
            "tcp dport { 80, 443, 8000-8100 } counter packets 5 bytes 6 drop",
            "meta l4proto tcp th dport { 80, 443, 8000-8100 } counter packets 5 bytes 6 drop",
        ),
        (
            "ip saddr 10.0.0.0/8 oifname \"cali*\" accept",
            "meta nfproto ipv4 ip saddr 10.0.0.0/8 oifname \"cali*\" accept",
        ),
        ("iifname != \"eth0\" drop", "iifname != \"eth0\" drop"),
        ("meta mark & 0x000000ff == 0x00000010 drop", "meta mark & 0x000000ff == 0x00000010 drop"),
        ("meta mark set meta mark | 0x00004000", "meta mark set meta mark | 0x00004000"),
        ("meta mark set mark and 0xfffffff0 xor 0x1", "meta mark set meta mark & 0xfffffff0 ^ 0x00000001"),
        ("ct mark set ct mark xor 0x10 and 0xffffff00", "ct mark set ct mark & 0xffffff00 ^ 0x00000010"),
        ("ct mark set meta mark & 0x000000ff", "ct mark set meta mark & 0x000000ff"),
        (
            "meta mark set jhash ip saddr . tcp sport mod 4 seed 0x1",
            "meta nfproto ipv4 meta l4proto tcp meta mark set jhash ip saddr . th sport mod 4 seed 0x1",
        ),
        (
            "tcp flags & (fin | syn | rst | ack) == syn drop",
            "meta l4proto tcp tcp flags & (fin | syn | rst | ack) == syn drop",
        ),
        (
            "tcp flags & (fin|syn|rst|ack) != syn ct state new drop",
            "meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn ct state new drop",
        ),
        ("tcp flags & (fin|syn) == fin|syn drop", "meta l4proto tcp tcp flags & (fin | syn) == fin | syn drop"),
        ("tcp flags syn / fin,syn,rst,ack drop", "meta l4proto tcp tcp flags & (fin | syn | rst | ack) == syn drop"),
        ("fib daddr type local accept", "fib daddr type local accept"),
        ("fib saddr . iif oif missing drop", "fib saddr . iif oif missing drop"),
        ("ip dscp ef drop", "meta nfproto ipv4 ip dscp ef drop"),
        ("limit rate 5/minute burst 5 packets accept", "limit rate 5/minute burst 5 packets accept"),
        ("log prefix \"a b\" level debug flags all drop", "log prefix \"a b\" level debug flags all drop"),
        ("reject with icmpx admin-prohibited", "reject with icmpx admin-prohibited"),
        ("reject with icmp type host-unreachable", "meta nfproto ipv4 reject with icmp host-unreachable"),
        ("masquerade fully-random", "masquerade fully-random"),
        ("masquerade persistent,random", "masquerade random,persistent"),
        ("snat to 10.0.0.9 persistent drop", "meta nfproto ipv4 snat to 10.0.0.9 persistent drop"),
        ("snat prefix to 10.9.9.0/24 random", "snat prefix to 10.9.9.0/24 random"),
        ("redirect random", "redirect random"),
        (
            "dnat to ip saddr map { 10.0.0.1 : 10.9.9.9 } fully-random",
            "meta nfproto ipv4 dnat ip to ip saddr map { 10.0.0.1 : 10.9.9.9 } fully-random",
        ),
        ("ip protocol tcp dnat to 10.0.0.9:8080", "meta nfproto ipv4 meta l4proto tcp dnat to 10.0.0.9:8080"),
        (
            "dnat ip to numgen random mod 2 map { 0 : 10.0.0.1 . 80, 1 : 10.0.0.2 . 80 }",
            "meta nfproto ipv4 dnat ip to numgen random mod 2 map { 0 : 10.0.0.1 . 80, 1 : 10.0.0.2 . 80 }",
        ),
        ("tcp dport 80 redirect to :15001", "meta l4proto tcp th dport 80 redirect to :15001"),
        (
            "add @clients { ip saddr timeout 5m } accept",
            "meta nfproto ipv4 add @clients { ip saddr timeout 5m } accept",
        ),
        (
            "update @pairs { ip saddr . tcp dport limit rate 5/second : ip daddr } accept",
            "meta nfproto ipv4 meta l4proto tcp update @pairs { ip saddr . th dport limit rate 5/second : ip daddr } accept",
        ),
        ("meta priority set 1:2", "meta priority set 1:2"),
        ("ip daddr set 10.0.0.1", "meta nfproto ipv4 ip daddr set 10.0.0.1"),
        (
            "dnat ip to 10.0.0.9:numgen inc mod 2 map { 0 : 80, 1 : 81 }",
            "meta nfproto ipv4 dnat ip to 10.0.0.9:numgen inc mod 2 map { 0 : 80, 1 : 81 }",
        ),
        ("dnat ip to ip saddr map @backs:8080", "meta nfproto ipv4 dnat ip to ip saddr map @backs:8080"),
        (
            "ip saddr . tcp dport @both jump other comment \"x y\"",
            "meta nfproto ipv4 meta l4proto tcp ip saddr . th dport @both jump other comment \"x y\"",
        ),
        ("frobnicate 7 drop", "frobnicate 7 drop"),
        ("dup to 192.168.2.1 device \"lo\" drop", "dup to 192.168.2.1 device \"lo\" drop"),
        ("reset tcp option 30 drop", "reset tcp option 30 drop"),
        ("icmp mtu 33 drop", "meta nfproto ipv4 meta l4proto icmp icmp mtu 33 drop"),
        ("@nh,0,0 | 0x5 == 0x5 drop", "@nh,0,0 & 0x0 == 0x0 drop"),
        ("meta mark 0xffffff00/24 drop", "meta mark & 0xffffff00 == 0xffffff00 drop"),
        ("osf ttl skip version \"Linux:3.0\" drop", "osf name \"Linux:3.0\" drop"),
        (
            "ct mark set meta mark map { 1 : 0x0000000a } accept",
            "ct mark set meta mark map { 0x00000001 : 0x0000000a } accept",
        ),
        (
            "meta priority set (@nh,8,8 & 0xfc) >> 2 map @priomap accept",
            "meta priority set ( @nh,8,8 & 0xfc ) >> 2 map @priomap accept",
        ),
        ("exthdr frag missing rt type 0 drop", "meta nfproto ipv6 exthdr frag missing rt type 0 drop"),
        ("rt classid 5 ip option lsrr exists drop", "rt classid 5 meta nfproto ipv4 ip option lsrr exists drop"),
        ("mh type home-test-init hbh nexthdr tcp", "meta nfproto ipv6 mh type home-test-init hbh nexthdr tcp"),
        ("tcp option mptcp exists sctp chunk init exists", "tcp option mptcp exists sctp chunk init exists"),
        (
            "ah spi 3 igmp type leave-group",
            "meta l4proto ah ah spi 3 meta nfproto ipv4 meta l4proto igmp igmp type leave-group",
        ),
        ("ipsec in reqid 5 fib daddr . oif type local", "ipsec in reqid 5 fib daddr . oif type local"),
        (
            "meta mark | 0x5 == 0x5 meta mark ^ 0x1 != 0x3",
            "meta mark & 0xfffffffa == 0x00000000 meta mark != 0x00000002",
        ),
        (
            "xt match \"set\" counter packets 0 bytes 0 xt target \"MARK\"",
            "xt match \"set\" counter packets 0 bytes 0 -j MARK …",
        ),
        ("meta skuid 1337 return", "meta skuid 1337 return"),
        (
            "socket transparent 1 meta mark set 0x00000001 accept",
            "socket transparent 1 meta mark set 0x00000001 accept",
        ),
        (
            "ip saddr != 10.0.0.0/8  # match-set pods dst,dst tcp dport 80 counter packets 3 bytes 180 jump a # handle 7",
            "meta nfproto ipv4 ip saddr != 10.0.0.0/8 # match-set pods dst,dst tcp dport 80 counter packets 3 bytes 180 jump a",
        ),
        (
            "# u32 \"0x0=0x1\" # #conn src/32 > 5 counter packets 0 bytes 0",
            "# u32 \"0x0=0x1\" # #conn src/32 > 5 counter packets 0 bytes 0",
        ),
        (
            "udp dport 68 counter packets 1 bytes 2 # CHECKSUM fill # handle 4",
            "meta l4proto udp th dport 68 counter packets 1 bytes 2 -j CHECKSUM fill",
        ),
        ("ct state new counter packets 1 bytes 2 # handle 4", "ct state new counter packets 1 bytes 2"),
        (
            "tcp dport 22 counter packets 1 bytes 2 accept # ssh",
            "meta l4proto tcp th dport 22 counter packets 1 bytes 2 accept",
        ),
        ("jump chain-a # handle 7", "jump chain-a"),
        (
            "tcp dport 80 tproxy ip to 127.0.0.1:8080 meta mark set 0x1 accept",
            "meta l4proto tcp th dport 80 tproxy ip to 127.0.0.1:8080 meta mark set 0x00000001 accept",
        ),
        (
            "ip saddr & 255.255.255.0 == @nets ip daddr & 0.0.0.3 != { 0.0.0.1, 0.0.0.2 } drop",
            "meta nfproto ipv4 ip saddr & 255.255.255.0 @nets ip daddr & 0.0.0.3 != { 0.0.0.1, 0.0.0.2 } drop",
        ),
        ("queue flags bypass to 1-3", "queue flags bypass to 1-3"),
        (
            "ip saddr 10.0.0.1 meta mark set 0x5 ct mark set meta mark drop",
            "meta nfproto ipv4 ip saddr 10.0.0.1 meta mark set 0x00000005 ct mark set meta mark drop",
        ),
        (
            "ip saddr 10.0.0.1 ip dscp set cs1 tcp dport 80 drop",
            "meta nfproto ipv4 ip saddr 10.0.0.1 ip dscp set cs1 meta l4proto tcp th dport 80 drop",
        ),
        (
            "ct event set new,destroy tcp option maxseg size set rt mtu udp dport 53 accept",
            "ct event set new, destroy meta l4proto tcp tcp option maxseg size set rt mtu meta l4proto udp th dport 53 \
             accept",
        ),
        (
            "ip dscp set ip daddr map { 10.0.0.1 : cs1 } tcp dport 80 accept",
            "meta nfproto ipv4 ip dscp set ip daddr map { 10.0.0.1 : cs1 } meta l4proto tcp th dport 80 accept",
        ),
        (
            "counter name ip saddr map @counters limit name \"l\" quota name tcp dport map { 80 : \"q\" } drop",
            "meta nfproto ipv4 ip saddr @counters counter name ip saddr map @counters limit name \"l\" meta l4proto tcp \
             th dport { 80 } quota name tcp dport map { 80 : \"q\" } drop",
        ),
        ("ip daddr 10.0.0.1 snat to 10.0.0.9/32", "meta nfproto ipv4 ip daddr 10.0.0.1 snat to 10.0.0.9"),
        ("tcp flags ! syn,rst drop", "meta l4proto tcp tcp flags & (syn | rst) == 0x0 drop"),
        ("tcp flags syn,rst drop", "meta l4proto tcp tcp flags syn,rst drop"),
    ] {
        assert_eq!(rule(text), expected, "{text}");
    }
}

#[test]
fn unsupported_assignments_have_an_unknown_effect() {
    use crate::model::{Opaque, Outcome, Statement};
    for (text, is_effect) in [
        ("meta mark set meta mark << 4", true),
        ("meta mark set meta mark << 4 counter", true),
        ("meta mark set meta mark | ct mark accept", true),
        ("ct mark set ct mark >> 1 accept", true),
        ("dnat to 10.0.0.1-foo accept", true),
        ("tcp option foo 5 accept", false),
    ] {
        let script = format!("table inet t {{\n\tchain c {{\n\t\t{text}\n\t}}\n}}\n");
        let tables = parse(IpFamily::V4, &script, &Variables::default()).unwrap();
        let mut statements = tables[0].table.chains().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.statements);
        let is = |wanted: Outcome| move |it: &Statement| matches!(it, Statement::Opaque(Opaque { outcome, .. }) if *outcome == wanted);
        let expected = if is_effect { Outcome::Anything } else { Outcome::Condition };
        assert!(statements.any(is(expected)), "{text}");
    }
}

#[test]
fn tables_chains_and_sets_are_read() {
    let text = "# Warning: table ip nat is managed by iptables-nft, do not touch!
table ip nat {
	set pods {
		type ipv4_addr
		flags interval
		counter
		elements = { 10.0.0.0/8 counter packets 1 bytes 2, 192.168.0.1-192.168.0.9,
			     172.16.0.1 timeout 5m expires 4m30s comment \"a, b\" }
	}

	map services {
		type ipv4_addr . inet_service : verdict
		elements = { 10.96.0.1 . 443 comment \"x\" : goto svc, * : drop }
	}

	chain svc {
	}

	chain PREROUTING {
		type nat hook prerouting priority dstnat - 1; policy drop;
		ip daddr . tcp dport vmap @services
	}
}
table arp filter {
	chain x {
		type filter hook input priority filter; policy accept;
	}
}
table inet idle {
	flags dormant
	chain x { type filter hook input priority 0; policy drop; }
}
table ip6 filter {
}
";
    assert!(is_script(text));
    let tables = parse(IpFamily::V4, text, &Variables::default()).unwrap();
    assert_eq!(tables.iter().map(|table| table.name.as_str()).collect::<Vec<_>>(), ["nat"]);
    let table = &tables[0].table;
    let base = table.chain(&Name::from("PREROUTING")).unwrap().chain.base.unwrap();
    assert_eq!(
        (base.kind, base.hook, base.priority, base.policy),
        (ChainType::Nat, Hook::Prerouting, -101, Policy::Drop)
    );
    let elements = |name: &str| table.elements(&Name::from(name)).count();
    assert_eq!((elements("pods"), table.undecoded(&Name::from("pods"))), (3, 0));
    assert_eq!((elements("services"), table.undecoded(&Name::from("services"))), (2, 0));
    assert_eq!(parse(IpFamily::V6, text, &Variables::default()).unwrap().len(), 1);
}

#[test]
fn characters_that_copying_replaces_are_read() {
    let printed = "table inet fw {\n chain f {\n type filter hook forward priority filter; policy drop;\n\
                   iifname \"eth0\" ct mark & 0x1 == 0x0 tcp dport 80-90 accept comment \"a <b>\"\n\
                   tcp dport > 1024 drop\n }\n}\n";
    let read = |text: &str| parse(IpFamily::V4, text, &Variables::default()).unwrap();
    let html = printed.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let dashes = printed.replace("80-90", "80\u{2013}90").replace(" \"", " \u{201c}").replace('"', "\u{201d}");
    let blanks = printed.replace("\n ", "\n\u{a0}\u{a0}");
    for pasted in [html, dashes, blanks] {
        assert_eq!(read(&pasted), read(printed), "{pasted}");
    }
    // Quoted text may have any characters.
    let quoted = |comment: &str| read(&format!("table ip t {{\nchain c {{\ndrop comment \"{comment}\"\n}}\n}}\n"));
    assert_ne!(quoted("\u{201c}x\u{201d} &amp;"), quoted("x &"));
}

#[test]
fn truncated_text_is_an_error() {
    let error = parse(IpFamily::V4, "table ip nat {\n chain x {\n", &Variables::default()).unwrap_err();
    assert_eq!(error.to_string(), "line 1: the table has no end");
}

/// Generates words of `nft` text, in any order.
fn any_words() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "table",
        "ip",
        "inet",
        "x",
        "{",
        "}",
        "\n",
        ";",
        "chain",
        "set",
        "map",
        "type",
        "ipv4_addr",
        "elements",
        "=",
        "10.0.0.1",
        "10.0.0.0/8",
        "80-90",
        ":",
        ".",
        ",",
        "accept",
        "jump",
        "counter",
        "packets",
        "limit",
        "rate",
        "5/second",
        "log",
        "prefix",
        "\"a",
        "\"a b\"",
        "tcp",
        "dport",
        "flags",
        "&",
        "(",
        "|",
        ")",
        "==",
        "!=",
        "ct",
        "state",
        "mark",
        "meta",
        "set",
        "vmap",
        "@s",
        "@nh,8,8",
        "dnat",
        "to",
        "numgen",
        "random",
        "mod",
        "0",
        "2",
        "fib",
        "saddr",
        "oif",
        "missing",
        "update",
        "xt",
        "match",
        "#",
        "handle",
        "priority",
        "hook",
        "forward",
        "policy",
        "reject",
        "with",
        "comment",
        "[::1]:80",
    ]);
    prop::collection::vec(words, 0..40).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(text in any_words()) {
        for family in IpFamily::BOTH {
            let _ = parse(family, &text, &Variables::default());
            let _ = parse(family, &format!("table inet t {{\nchain c {{\n{text}\n}}\n}}\n"), &Variables::default());
        }
    }
}

#[test]
fn handles_and_comments_are_no_rules() {
    let text =
        "table ip t { # handle 3\n\tchain c { # handle 1\n\t\t# tcp dport 22 accept\n\t\tdrop # handle 2\n\t}\n}\n";
    assert_eq!(rules(IpFamily::V4, text), ["drop"]);
}
