use super::*;

const HERE: &str = "not translated, delivered to 172.17.0.1:80 on this host, with source 172.17.0.14";

fn to_host(text: &str) -> Vec<String> {
    verdicts(text, &from_pod("172.17.0.1:80"))
}

#[test]
fn accept_ends_only_its_table_at_the_hook() {
    assert_eq!(to_host("*filter\n-A INPUT -j ACCEPT\n-A INPUT -j DROP"), [HERE]);
    assert_eq!(to_host("*mangle\n-A INPUT -j ACCEPT\n*filter\n-A INPUT -j DROP"), ["dropped"]);
    assert_eq!(to_host("*raw\n-A PREROUTING -j ACCEPT\n*filter\n-A INPUT -j DROP"), ["dropped"]);
}

#[test]
fn reject_shows_the_reply() {
    assert_eq!(to_host("*filter\n-A INPUT -j REJECT --reject-with tcp-reset"), ["rejected with tcp-reset"]);
}

#[test]
fn return_continues_in_the_calling_chain_or_with_the_policy() {
    let jumps = "*filter
        :INPUT DROP [0:0]
        :A - [0:0]
        -A INPUT -j A";
    assert_eq!(to_host(&format!("{jumps}\n-A INPUT -j ACCEPT\n-A A -j RETURN\n-A A -j REJECT")), [HERE]);
    assert_eq!(to_host(&format!("{jumps}\n-A INPUT -j RETURN\n-A INPUT -j ACCEPT")), ["dropped"]);
}

#[test]
fn end_of_goto_chain_also_leaves_its_caller() {
    let text = "*filter
        :A - [0:0]
        :B - [0:0]
        -A INPUT -j A
        -A INPUT -j ACCEPT
        -A A -g B
        -A A -j DROP
        -A B -j RETURN";
    assert_eq!(to_host(text), [HERE]);
    // A goto from a built-in chain continues with the policy.
    assert_eq!(to_host("*filter\n:INPUT DROP [0:0]\n:B - [0:0]\n-A INPUT -g B\n-A INPUT -j ACCEPT"), ["dropped"]);
}

#[test]
fn policy_decides_at_the_end_of_a_builtin_chain() {
    assert_eq!(to_host("*filter\n:INPUT DROP [0:0]"), ["dropped"]);
    assert_eq!(to_host("*filter\n:FORWARD DROP [0:0]"), [HERE]);
}

#[test]
fn chains_that_call_themselves_are_cut_off() {
    let text = "*filter\n:A - [0:0]\n:B - [0:0]\n-A INPUT -j A\n-A A -j B\n-A B -j A";
    assert_eq!(to_host(text), ["unknown: result of chain A, after 1024 calls of chains"]);
    let twice = |n: usize| format!("-A C{n} -j C{0}\n-A C{n} -j C{0}\n", n + 1);
    let chains: String = (0..40).map(|n| format!(":C{n} - [0:0]\n")).collect();
    let calls: String = (0..39).map(twice).collect();
    let text = format!("*filter\n{chains}-A INPUT -j C0\n{calls}");
    assert!(to_host(&text)[0].starts_with("unknown: result of chain C"));
}

#[test]
fn marks_are_cleared_and_flipped_and_persist() {
    let text = "*mangle
        -A PREROUTING -j MARK --set-xmark 0x3/0x0
        -A PREROUTING -j MARK --set-xmark 0x4/0x2
        *filter
        -A INPUT -m mark --mark 0x5 -j DROP";
    assert_eq!(to_host(text), ["dropped"]);
}

#[test]
fn log_has_no_effect_and_some_targets_are_unknown() {
    let text = "*filter
        -A INPUT -j LOG --log-prefix \"a b\"
        -A INPUT -j DROP";
    assert_eq!(to_host(text), ["dropped"]);
    assert_eq!(to_host("*filter\n-A INPUT -j SYNPROXY --mss 1460"), ["unknown: effect of `-j SYNPROXY --mss 1460`"]);
}

#[test]
fn missing_chains_and_unreadable_rules_may_have_any_effect() {
    for (rule, reason) in [
        ("-j KUBE-SERVICES", "effect of `-j KUBE-SERVICES`, which is no chain of table filter"),
        ("-g KUBE-SERVICES", "effect of `-j KUBE-SERVICES`, which is no chain of table filter"),
        ("-j DELUDE", "effect of `-j DELUDE`, which is no chain of table filter"),
        ("-p tcp -j ECHO --ttl 5", "effect of `-j ECHO --ttl 5`"),
        ("-j DROP it", "effect of `-j DROP it`"),
    ] {
        assert_eq!(to_host(&format!("*filter\n-A INPUT {rule}")), [format!("unknown: {reason}")], "{rule}");
        // The chain is not called, or the condition is not evaluated, for other packets.
        assert_eq!(to_host(&format!("*filter\n-A INPUT -p udp {rule}")).len(), 1);
        let both = to_host(&format!("*filter\n-A INPUT -m length --length 5 {rule}"));
        assert_eq!(both.len(), 2, "{rule}: {both:?}");
    }
    assert_eq!(
        to_host("*filter\n-A INPUT -s here -j DROP"),
        ["dropped (`-s here` matches)".to_owned(), format!("{HERE} (`-s here` does not match)")]
    );
    assert_eq!(
        to_host("*filter\n-A INPUT -s 10.0.0.1 DROP"),
        [
            "unknown: effect of a rule that cannot be read (`-s 10.0.0.1 DROP` matches)".to_owned(),
            format!("{HERE} (`-s 10.0.0.1 DROP` does not match)")
        ]
    );
}

#[test]
fn old_negations_and_lists_of_addresses_are_decided() {
    for (rule, is_dropped) in [
        ("-s ! 10.0.0.0/8", true),
        ("-s ! 172.17.0.0/16", false),
        ("-i ! eth0", true),
        ("-p tcp -m tcp --dport ! 80", false),
        ("-p tcp -m iprange --src-range ! 10.0.0.1-10.0.0.9", true),
        ("-s 10.0.0.0/8,172.17.0.14", true),
        ("-d 172.17.0.0/24,10.0.0.1 -p tcp", true),
        ("-s 10.0.0.0/8,172.17.0.15", false),
    ] {
        let expected = if is_dropped { "dropped" } else { HERE };
        assert_eq!(to_host(&format!("*filter\n-A INPUT {rule} -j DROP")), [expected], "{rule}");
    }
}

#[test]
fn program_of_a_queue_accepts_or_drops_packets_for_all_later_rules_of_the_hook() {
    let queued = "*mangle
        -A PREROUTING -j NFQUEUE --queue-num 1 --queue-bypass
        -A PREROUTING -j DROP
        *filter
        -A INPUT -p tcp -j NFQUEUE --queue-num 1 --queue-bypass
        -A INPUT -j ACCEPT";
    let accepts = "the program of `-j NFQUEUE --queue-num 1 --queue-bypass` accepts the packet";
    assert_eq!(
        to_host(queued),
        [
            format!("not translated, delivered to 172.17.0.1:80 on this host, with source 172.17.0.14 ({accepts})"),
            format!("dropped ({})", accepts.replace("accepts", "does not accept"))
        ]
    );
}

#[test]
fn transparent_proxy_marks_the_packets_of_its_socket_and_others_are_dropped() {
    let marked = "*mangle
        -A PREROUTING -p tcp -j TPROXY --on-port 15006 --tproxy-mark 0x1/0xff
        *filter
        -A INPUT -m mark --mark 0x1 -j REJECT
        *nat
        -A PREROUTING -m mark ! --mark 0x1 -j DNAT --to-destination 172.17.0.4";
    let socket = "`-j TPROXY --on-port 15006 --tproxy-mark 0x1/0xff` finds a socket";
    assert_eq!(
        to_host(marked),
        [
            format!("rejected with icmp-port-unreachable ({socket})"),
            format!("dropped ({})", socket.replace("finds a", "finds no"))
        ]
    );
}

#[test]
fn marks_of_hashes_are_equally_likely() {
    let text = "*mangle
        -A PREROUTING -j HMARK --hmark-tuple src --hmark-mod 4 --hmark-offset 0x10 --hmark-rnd 1
        -A PREROUTING -m mark --mark 0x10/0xfffffffe -j DROP";
    let leaves = leaves(&rules(IpFamily::V4, text), &host(), &from_outside("192.168.49.2:80"));
    let dropped: f64 = leaves.iter().filter(|leaf| leaf.verdict == Verdict::Dropped).map(|leaf| leaf.share).sum();
    assert_eq!(dropped, 0.5);
}

#[test]
fn snat_changes_the_source() {
    let text = "*nat
        -A POSTROUTING -o eth0 -j SNAT --to-source 192.168.49.9
        *mangle
        -A POSTROUTING -m conntrack --ctstate SNAT -j DROP";
    assert_eq!(
        verdicts(text, &from_pod("10.0.0.1:80")),
        ["not translated, delivered to 10.0.0.1:80 through eth0, with source 192.168.49.9"]
    );
}

#[test]
fn untracked_packets_skip_nat() {
    let nat = "*nat\n-A PREROUTING -j DNAT --to-destination 172.17.0.4";
    assert_eq!(
        verdicts(nat, &from_outside("192.168.49.2:80")),
        ["delivered to 172.17.0.4:80 through cni0, with source 203.0.113.7"]
    );
    assert_eq!(
        verdicts(&format!("*raw\n-A PREROUTING -j CT --notrack\n{nat}"), &from_outside("192.168.49.2:80")),
        ["not translated, delivered to 192.168.49.2:80 on this host, with source 203.0.113.7"]
    );
}

#[test]
fn dnat_sets_the_connection_state_if_the_destination_changes() {
    let with = |address: &str| {
        format!(
            "*nat
            -A PREROUTING -j DNAT --to-destination {address}:80
            *filter
            -A INPUT -m conntrack --ctstate DNAT -j DROP"
        )
    };
    assert_eq!(to_host(&with("192.168.49.2")), ["dropped"]);
    assert_eq!(to_host(&with("172.17.0.1")), [HERE]);
}
