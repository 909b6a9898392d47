use super::*;

#[test]
fn dnat_decides_where_an_arriving_packet_goes() {
    let text = |to: &str| format!("*nat\n-A PREROUTING -j DNAT --to-destination {to}\n*filter\n-A FORWARD -j DROP");
    assert_eq!(ends(&text("172.17.0.4:8080"), &from_outside("192.168.49.2:80")), ["dropped"]);
    assert_eq!(
        ends(&text("192.168.49.2:8080"), &from_outside("198.51.100.1:80")),
        ["delivered to 192.168.49.2:8080 on this host, seen as from 203.0.113.7"]
    );
}

#[test]
fn dnat_in_output_sends_the_hosts_packet_another_way_but_leaves_its_source() {
    let text = "*nat
        -A OUTPUT -j DNAT --to-destination 172.17.0.4:8080
        *filter
        -A OUTPUT -o cni0 -j DROP";
    // Rules of the same hook still see the interface that the packet set out for.
    assert_eq!(
        ends(text, &from_node("10.0.0.1:80")),
        ["delivered to 172.17.0.4:8080 through cni0, seen as from 192.168.49.2"]
    );
}

#[test]
fn masquerading_gives_the_address_on_the_way_out() {
    let nat = "*nat\n-A POSTROUTING -j MASQUERADE --random-fully";
    assert_eq!(
        ends(nat, &from_pod("10.0.0.1:80")),
        ["not ours, goes on to 10.0.0.1:80 through eth0, seen as from 192.168.49.2"]
    );
    assert_eq!(
        ends(nat, &from_pod("172.17.0.14:80")),
        ["not ours, goes on to 172.17.0.14:80 through cni0, seen as from 172.17.0.1"]
    );
}

#[test]
fn masquerading_to_the_host_itself_differs_between_the_families() {
    let nat = "*nat\n-A POSTROUTING -j MASQUERADE";
    assert_eq!(
        ends(nat, &from_node("172.17.0.1:80")),
        ["not ours, goes on to 172.17.0.1:80 on this host, seen as from 192.168.49.2"]
    );
    assert_eq!(
        ends(nat, &from_node("[fd00:17::1]:80")),
        ["not ours, goes on to [fd00:17::1]:80 on this host, seen as from fd00:17::1"]
    );
    let nowhere = Host { addresses: vec![], ..host() };
    let packet = Packet::local(Protocol::Tcp, socket("127.0.0.1:4000"), socket("127.0.0.1:80"));
    assert_eq!(endings(&rules(IpFamily::V4, nat), &nowhere, &packet)[0].verdict, Verdict::Dropped);
}

#[test]
fn a_packet_to_the_host_itself_goes_through_loopback_but_not_through_nat_again() {
    let text = "*raw
        -A PREROUTING -i lo -j MARK --set-xmark 0x1/0x1
        *nat
        -A PREROUTING -j DNAT --to-destination 172.17.0.4
        -A INPUT -j DNAT --to-destination 172.17.0.5
        *filter
        -A INPUT -i lo -m mark --mark 0x1 -j DROP";
    assert_eq!(ends(text, &from_node("192.168.49.2:80")), ["dropped"]);
    let nat_only = text.split("*filter").next().unwrap();
    assert_eq!(
        ends(nat_only, &from_node("192.168.49.2:80")),
        ["not ours, goes on to 192.168.49.2:80 on this host, seen as from 192.168.49.2"]
    );
}

#[test]
fn without_a_way_nothing_is_sent_whatever_the_rules_would_do() {
    let lonely =
        Host { routes: host().routes.into_iter().filter(|route| route.interface == "cni0").collect(), ..host() };
    let text = "*nat
        -A OUTPUT -j DNAT --to-destination 172.17.0.4
        -A PREROUTING -d 10.0.0.1/32 -j DNAT --to-destination 172.17.0.4";
    let end = |packet: &Packet| endings(&rules(IpFamily::V4, text), &lonely, packet)[0].verdict.to_string();
    assert_eq!(end(&from_node("10.0.0.1:80")), "no route to its destination");
    assert_eq!(end(&from_pod("10.0.0.1:80")), "delivered to 172.17.0.4:80 through cni0, seen as from 172.17.0.14");
    assert_eq!(end(&from_pod("10.0.0.2:80")), "no route to its destination");
}

#[test]
fn packets_from_outside_with_the_hosts_own_source_are_dropped_in_ipv4_only() {
    let forged = |source: &str, to: &str| Packet { source: socket(source), ..from_outside(to) };
    assert_eq!(ends("*filter", &forged("172.17.0.1:4000", "192.168.49.2:80")), ["dropped"]);
    assert_eq!(ends("*filter", &forged("127.0.0.1:4000", "192.168.49.2:80")), ["dropped"]);
    let v6 = ends("*filter", &forged("[fd00:17::1]:4000", "[fd00:49::2]:80"));
    assert_eq!(v6, ["not ours, goes on to [fd00:49::2]:80 on this host, seen as from fd00:17::1"]);
    assert_eq!(ends("*filter", &forged("[::1]:4000", "[fd00:49::2]:80")), ["dropped"]);
}

#[test]
fn loopback_addresses_pass_the_hosts_border_only_with_route_localnet() {
    let closed = Host { route_localnet: false, ..host() };
    let text = rules(IpFamily::V4, "*nat\n-A OUTPUT -j DNAT --to-destination 172.17.0.4");
    let end = |host: &Host, packet: &Packet| endings(&text, host, packet)[0].verdict.clone();
    assert_eq!(end(&closed, &from_outside("127.0.0.1:80")), Verdict::Dropped);
    assert!(matches!(end(&host(), &from_outside("127.0.0.1:80")), Verdict::Delivered { translated: false, .. }));
    assert_eq!(end(&closed, &from_node("127.0.0.1:80")), Verdict::Dropped);
    assert!(matches!(end(&host(), &from_node("127.0.0.1:80")), Verdict::Delivered { translated: true, .. }));
    // IPv6 has no such setting.
    let v6 = rules(IpFamily::V6, "*nat\n-A OUTPUT -j DNAT --to-destination fd00:17::4");
    assert_eq!(endings(&v6, &host(), &from_node("[::1]:80"))[0].verdict, Verdict::Dropped);
}
