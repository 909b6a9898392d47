use super::*;

const HERE: &str = "not ours, goes on to 172.17.0.1:80 on this host, seen as from 172.17.0.14";

fn to_host(text: &str) -> Vec<String> {
    ends(text, &from_pod("172.17.0.1:80"))
}

#[test]
fn accept_ends_only_its_own_table_and_hook() {
    assert_eq!(to_host("*filter\n-A INPUT -j ACCEPT\n-A INPUT -j DROP"), [HERE]);
    assert_eq!(to_host("*mangle\n-A INPUT -j ACCEPT\n*filter\n-A INPUT -j DROP"), ["dropped"]);
    assert_eq!(to_host("*raw\n-A PREROUTING -j ACCEPT\n*filter\n-A INPUT -j DROP"), ["dropped"]);
}

#[test]
fn reject_tells_the_sender_how() {
    assert_eq!(to_host("*filter\n-A INPUT -j REJECT --reject-with tcp-reset"), ["rejected with tcp-reset"]);
}

#[test]
fn return_goes_back_to_the_calling_chain_and_from_a_builtin_one_to_the_policy() {
    let jumps = "*filter
        :INPUT DROP [0:0]
        :A - [0:0]
        -A INPUT -j A";
    assert_eq!(to_host(&format!("{jumps}\n-A INPUT -j ACCEPT\n-A A -j RETURN\n-A A -j REJECT")), [HERE]);
    assert_eq!(to_host(&format!("{jumps}\n-A INPUT -j RETURN\n-A INPUT -j ACCEPT")), ["dropped"]);
}

#[test]
fn a_chain_entered_by_goto_ends_for_its_caller_too() {
    let text = "*filter
        :A - [0:0]
        :B - [0:0]
        -A INPUT -j A
        -A INPUT -j ACCEPT
        -A A -g B
        -A A -j DROP
        -A B -j RETURN";
    assert_eq!(to_host(text), [HERE]);
    // From a builtin chain, what follows is its policy.
    assert_eq!(to_host("*filter\n:INPUT DROP [0:0]\n:B - [0:0]\n-A INPUT -g B\n-A INPUT -j ACCEPT"), ["dropped"]);
}

#[test]
fn a_policy_decides_for_what_no_rule_did() {
    assert_eq!(to_host("*filter\n:INPUT DROP [0:0]"), ["dropped"]);
    assert_eq!(to_host("*filter\n:FORWARD DROP [0:0]"), [HERE]);
}

#[test]
fn chains_that_call_each_other_for_ever_are_given_up() {
    let text = "*filter\n:A - [0:0]\n:B - [0:0]\n-A INPUT -j A\n-A A -j B\n-A B -j A";
    assert_eq!(to_host(text), ["cannot be told: where A ends, which calls itself"]);
}

#[test]
fn marks_are_cleared_and_flipped_and_stay_with_the_packet() {
    let text = "*mangle
        -A PREROUTING -j MARK --set-xmark 0x3/0x0
        -A PREROUTING -j MARK --set-xmark 0x4/0x2
        *filter
        -A INPUT -m mark --mark 0x5 -j DROP";
    assert_eq!(to_host(text), ["dropped"]);
}

#[test]
fn targets_that_only_look_let_the_packet_go_on() {
    let text = "*filter
        -A INPUT -j LOG --log-prefix \"a b\"
        -A INPUT -j DROP";
    assert_eq!(to_host(text), ["dropped"]);
    assert_eq!(
        to_host("*filter\n-A INPUT -j TEE --gateway 10.0.0.1"),
        ["cannot be told: what `-j TEE --gateway 10.0.0.1` does"]
    );
}

#[test]
fn snat_gives_the_connection_another_source() {
    let text = "*nat
        -A POSTROUTING -o eth0 -j SNAT --to-source 192.168.49.9
        *mangle
        -A POSTROUTING -m conntrack --ctstate SNAT -j DROP";
    assert_eq!(
        ends(text, &from_pod("10.0.0.1:80")),
        ["not ours, goes on to 10.0.0.1:80 through eth0, seen as from 192.168.49.9"]
    );
}

#[test]
fn packets_that_are_not_tracked_do_not_meet_nat() {
    let nat = "*nat\n-A PREROUTING -j DNAT --to-destination 172.17.0.4";
    assert_eq!(
        ends(nat, &from_outside("192.168.49.2:80")),
        ["delivered to 172.17.0.4:80 through cni0, seen as from 203.0.113.7"]
    );
    assert_eq!(
        ends(&format!("*raw\n-A PREROUTING -j CT --notrack\n{nat}"), &from_outside("192.168.49.2:80")),
        ["not ours, goes on to 192.168.49.2:80 on this host, seen as from 203.0.113.7"]
    );
}

#[test]
fn dnat_shows_in_the_connections_state_unless_it_changes_nothing() {
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
