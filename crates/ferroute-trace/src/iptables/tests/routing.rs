use std::{net::IpAddr, sync::Arc};

use super::*;
use crate::{AddressKind, RouteDecision, RoutedPacket, Router, testing::ip};

#[test]
fn dnat_of_received_packet_changes_its_route() {
    let text = |to: &str| format!("*nat\n-A PREROUTING -j DNAT --to-destination {to}\n*filter\n-A FORWARD -j DROP");
    assert_eq!(verdicts(&text("172.17.0.4:8080"), &from_outside("192.168.49.2:80")), ["dropped"]);
    assert_eq!(
        verdicts(&text("192.168.49.2:8080"), &from_outside("198.51.100.1:80")),
        ["delivered to 192.168.49.2:8080 on this host, with source 203.0.113.7"]
    );
}

#[test]
fn dnat_of_local_packet_changes_its_route_but_not_its_source() {
    let text = "*nat
        -A OUTPUT -j DNAT --to-destination 172.17.0.4:8080
        *filter
        -A OUTPUT -o cni0 -j DROP";
    // Rules of the same hook still match the original output interface.
    assert_eq!(
        verdicts(text, &from_node("10.0.0.1:80")),
        ["delivered to 172.17.0.4:8080 through cni0, with source 192.168.49.2"]
    );
}

#[test]
fn masquerade_uses_the_address_of_the_output_interface() {
    let nat = "*nat\n-A POSTROUTING -j MASQUERADE --random-fully";
    assert_eq!(
        verdicts(nat, &from_pod("10.0.0.1:80")),
        ["not translated, delivered to 10.0.0.1:80 through eth0, with source 192.168.49.2"]
    );
    assert_eq!(
        verdicts(nat, &from_pod("172.17.0.14:80")),
        ["not translated, delivered to 172.17.0.14:80 through cni0, with source 172.17.0.1"]
    );
}

#[test]
fn masquerade_to_the_host_itself_differs_between_ip_families() {
    let nat = "*nat\n-A POSTROUTING -j MASQUERADE";
    assert_eq!(
        verdicts(nat, &from_node("172.17.0.1:80")),
        ["not translated, delivered to 172.17.0.1:80 on this host, with source 192.168.49.2"]
    );
    assert_eq!(
        verdicts(nat, &from_node("[fd00:17::1]:80")),
        ["not translated, delivered to [fd00:17::1]:80 on this host, with source fd00:17::1"]
    );
    let without_addresses = Host { addresses: vec![], ..host() };
    let packet = Packet::local(Protocol::Tcp, socket("127.0.0.1:4000"), socket("127.0.0.1:80"));
    assert_eq!(leaves(&rules(IpFamily::V4, nat), &without_addresses, &packet)[0].verdict, Verdict::Dropped);
}

#[test]
fn looped_packet_does_not_see_nat_again() {
    let text = "*raw
        -A PREROUTING -i lo -j MARK --set-xmark 0x1/0x1
        *nat
        -A PREROUTING -j DNAT --to-destination 172.17.0.4
        -A INPUT -j DNAT --to-destination 172.17.0.5
        *filter
        -A INPUT -i lo -m mark --mark 0x1 -j DROP";
    assert_eq!(verdicts(text, &from_node("192.168.49.2:80")), ["dropped"]);
    let nat_only = text.split("*filter").next().unwrap();
    assert_eq!(
        verdicts(nat_only, &from_node("192.168.49.2:80")),
        ["not translated, delivered to 192.168.49.2:80 on this host, with source 192.168.49.2"]
    );
}

#[test]
fn local_packet_without_route_is_not_sent() {
    let isolated =
        Host { routes: host().routes.into_iter().filter(|route| route.interface == "cni0").collect(), ..host() };
    let text = "*nat
        -A OUTPUT -j DNAT --to-destination 172.17.0.4
        -A PREROUTING -d 10.0.0.1/32 -j DNAT --to-destination 172.17.0.4";
    let verdict = |packet: &Packet| leaves(&rules(IpFamily::V4, text), &isolated, packet)[0].verdict.to_string();
    assert_eq!(verdict(&from_node("10.0.0.1:80")), "no route to the destination");
    assert_eq!(verdict(&from_pod("10.0.0.1:80")), "delivered to 172.17.0.4:80 through cni0, with source 172.17.0.14");
    assert_eq!(verdict(&from_pod("10.0.0.2:80")), "no route to the destination");
}

#[test]
fn martian_sources_are_dropped_for_ipv4_only() {
    let martian = |source: &str, to: &str| Packet { source: socket(source), ..from_outside(to) };
    assert_eq!(verdicts("*filter", &martian("172.17.0.1:4000", "192.168.49.2:80")), ["dropped"]);
    assert_eq!(verdicts("*filter", &martian("127.0.0.1:4000", "192.168.49.2:80")), ["dropped"]);
    let v6 = verdicts("*filter", &martian("[fd00:17::1]:4000", "[fd00:49::2]:80"));
    assert_eq!(v6, ["not translated, delivered to [fd00:49::2]:80 on this host, with source fd00:17::1"]);
    assert_eq!(verdicts("*filter", &martian("[::1]:4000", "[fd00:49::2]:80")), ["dropped"]);
}

#[test]
fn loopback_addresses_are_routed_only_with_route_localnet() {
    let closed = Host { route_localnet: false, ..host() };
    let text = rules(IpFamily::V4, "*nat\n-A OUTPUT -j DNAT --to-destination 172.17.0.4");
    let verdict = |host: &Host, packet: &Packet| leaves(&text, host, packet)[0].verdict.clone();
    assert_eq!(verdict(&closed, &from_outside("127.0.0.1:80")), Verdict::Dropped);
    assert!(matches!(verdict(&host(), &from_outside("127.0.0.1:80")), Verdict::Delivered { translated: false, .. }));
    assert_eq!(verdict(&closed, &from_node("127.0.0.1:80")), Verdict::Dropped);
    assert!(matches!(verdict(&host(), &from_node("127.0.0.1:80")), Verdict::Delivered { translated: true, .. }));
    // IPv6 has no such setting.
    let v6 = rules(IpFamily::V6, "*nat\n-A OUTPUT -j DNAT --to-destination fd00:17::4");
    assert_eq!(leaves(&v6, &host(), &from_node("[::1]:80"))[0].verdict, Verdict::Dropped);
}

/// A kernel that routes all packets through one interface.
#[derive(Debug)]
struct Kernel {
    /// Expected input interface of the packets that are looked up.
    input: &'static str,
    output: &'static str,
    /// The address of the output interface.
    address: &'static str,
    /// A port and its VRF.
    vrf: Option<(&'static str, &'static str)>,
    /// A bridge without hairpin mode.
    one_way: Option<&'static str>,
}

impl Router for Kernel {
    fn route(&self, packet: &RoutedPacket<'_>) -> RouteDecision {
        assert_eq!(packet.input, Some(self.input));
        RouteDecision::Unicast { interface: self.output.into(), gateway: None, source: None }
    }

    fn address_type_on(&self, _: IpAddr, _: &str) -> Option<AddressKind> {
        None
    }

    fn address_type(&self, _: IpAddr) -> Option<AddressKind> {
        Some(AddressKind::Unicast)
    }

    fn masquerade_source(&self, _: IpAddr, interface: &str, _: Option<IpAddr>) -> Option<IpAddr> {
        (interface == self.output).then(|| ip(self.address))
    }

    fn address_of(&self, _: &str, _: IpFamily) -> Option<IpAddr> {
        None
    }

    fn vrf(&self, interface: &str) -> Option<Arc<str>> {
        self.vrf.filter(|(port, _)| interface == *port).map(|(_, vrf)| vrf.into())
    }

    fn returns_packets(&self, interface: &str, _: IpFamily) -> bool {
        self.one_way != Some(interface)
    }
}

#[test]
fn packets_of_pods_to_themselves_need_hairpin_mode() {
    let kernel = Kernel { input: "cni0", output: "cni0", address: "172.17.0.1", vrf: None, one_way: Some("cni0") };
    let host = Host { router: Some(Arc::new(kernel)), ..Host::default() };
    let packet = from_pod("10.96.0.1:80");
    let to = |endpoint: &str| {
        let text = format!("*nat\n-A PREROUTING -j DNAT --to-destination {endpoint}\n-A POSTROUTING -j MASQUERADE");
        leaves(&rules(IpFamily::V4, &text), &host, &packet)[0].verdict.to_string()
    };
    assert_eq!(to(&packet.source.ip().to_string()), "dropped");
    assert_eq!(to("172.17.0.99"), "delivered to 172.17.0.99:80 through cni0, with source 172.17.0.1");
}

#[test]
fn packets_to_ports_of_vrfs_are_received_twice() {
    let vrf = Some(("cni0", "blue"));
    let kernel = Kernel { input: "blue", output: "eth1", address: "192.0.2.1", vrf, one_way: None };
    let host = Host { router: Some(Arc::new(kernel)), ..Host::default() };
    let text = "*mangle
        -A PREROUTING -i cni0 -j MARK --set-xmark 0x1/0x1
        -A PREROUTING -i blue -j MARK --set-xmark 0x2/0x2
        *nat
        -A PREROUTING -i blue -j DNAT --to-destination 192.0.2.9
        -A POSTROUTING -j MASQUERADE
        *filter
        -A FORWARD -i blue -o eth1 -m mark --mark 0x3 -j ACCEPT
        -A FORWARD -j DROP";
    assert_eq!(
        leaves(&rules(IpFamily::V4, text), &host, &from_pod("198.51.100.1:80"))[0].verdict.to_string(),
        "not translated, delivered to 198.51.100.1:80 through eth1, with source 192.0.2.1"
    );
}
