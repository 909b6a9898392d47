use std::{num::NonZeroU16, sync::Arc};

use ipnet::IpNet;

use super::*;
use crate::{
    IpFamily, LocalTrafficDetector, NodeView, ProxySettings,
    testing::{endpoint, port_name, service_port},
};

const MODES: [&ModeTraits; 4] =
    [&ModeTraits::IPTABLES, &ModeTraits::NFTABLES, &ModeTraits::IPVS, &ModeTraits::USERSPACE];

/// Both policies Local, all kinds of frontends, source ranges.
fn local_service() -> ServicePort {
    ServicePort {
        node_port: NonZeroU16::new(30080),
        external_ips: vec!["198.51.100.1".parse().unwrap()],
        load_balancer_vips: vec!["203.0.113.1".parse().unwrap()],
        load_balancer_source_ranges: vec!["192.0.2.0/24".parse().unwrap()],
        internal_policy: TrafficPolicy::Local,
        external_policy: TrafficPolicy::Local,
        ..service_port("10.96.0.1:80")
    }
}

fn entry(service: ServicePort, endpoints: impl IntoIterator<Item = Endpoint>) -> ServicePortEntry {
    ServicePortEntry { service: Arc::new(service), endpoints: endpoints.into_iter().collect() }
}

fn remote() -> Endpoint {
    endpoint("10.244.1.2:8080")
}

fn local() -> Endpoint {
    Endpoint { local: true, ..endpoint("10.244.0.2:8080") }
}

/// Returns the outcomes for pods, the node and other clients at the cluster IP, an external IP and the node port.
fn outcomes(entry: &ServicePortEntry, name: &str, traits: &'static ModeTraits, pods: bool) -> [[Outcome; 3]; 3] {
    let table = ServiceTable::new(IpFamily::V4, Arc::new(NodeView::default()));
    let detector = LocalTrafficDetector::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let detector = if pods { detector } else { LocalTrafficDetector::None };
    let settings = FamilySettings::new(&ProxySettings { detector, ..ProxySettings::default() }, &table, traits, &[]);
    let forwarding = forwarding(&table, &port_name(name), entry, &settings, traits);
    [FrontendKind::ClusterIp, FrontendKind::ExternalIp, FrontendKind::NodePort]
        .map(|kind| Client::ALL.map(|client| forwarding.outcome(kind, client)))
}

fn to(list: TrafficPolicy, source: SourceAddress) -> Outcome {
    Outcome::Forward(Route { list, source })
}

#[test]
fn policy_local_without_local_endpoints_differs_by_mode() {
    use {SourceAddress::*, TrafficPolicy::*};
    let entry = entry(local_service(), [remote()]);
    let dropped = Outcome::Drop(Refusal::NoLocalEndpoints);
    for traits in [&ModeTraits::IPTABLES, &ModeTraits::NFTABLES] {
        let external = [to(Cluster, Kept), to(Cluster, Node), dropped];
        assert_eq!(outcomes(&entry, "shop/web", traits, true), [[dropped; 3], external, external]);
    }
    let external = [to(Cluster, Kept), to(Cluster, Node), to(Cluster, Kept)];
    let internal = [to(Cluster, Kept), to(Cluster, Node), to(Cluster, Node)];
    assert_eq!(outcomes(&entry, "shop/web", &ModeTraits::IPVS, true), [internal, external, external]);
    let external = [to(Cluster, Node), to(Cluster, Node), dropped];
    assert_eq!(outcomes(&entry, "shop/web", &ModeTraits::USERSPACE, true), [[dropped; 3], external, external]);
}

#[test]
fn without_endpoints_connections_are_rejected_but_the_nodes_own_may_leave_it() {
    let entry = entry(local_service(), []);
    let rejected = Outcome::Reject(Refusal::NoEndpoints);
    for traits in MODES {
        let own = if traits.rejects_own_external_connections { rejected } else { Outcome::NotOurs };
        let expected = [[rejected; 3], [rejected, own, rejected], [rejected; 3]];
        assert_eq!(outcomes(&entry, "shop/web", traits, false), expected, "{traits:?}");
    }
}

#[test]
fn unsupported_protocols_are_rejected_for_all_clients() {
    let name = crate::ServicePortName { protocol: Protocol::Sctp, ..port_name("shop/web") };
    let table = ServiceTable::new(IpFamily::V4, Arc::new(NodeView::default()));
    let entry = entry(local_service(), [local()]);
    for traits in MODES {
        let settings = FamilySettings::new(&ProxySettings::default(), &table, traits, &[]);
        let forwarding = forwarding(&table, &name, &entry, &settings, traits);
        let is_rejected = |client| {
            forwarding.outcome(FrontendKind::ExternalIp, client) == Outcome::Reject(Refusal::UnsupportedProtocol)
        };
        let all = Client::ALL.into_iter().all(is_rejected);
        assert_eq!(all, traits == &ModeTraits::USERSPACE);
    }
}

#[test]
fn sources_are_kept_only_where_replies_return() {
    use {SourceAddress::*, TrafficPolicy::*};
    let service = ServicePort { external_policy: Cluster, internal_policy: Cluster, ..local_service() };
    let entry = entry(service, [local(), remote()]);
    let node = to(Cluster, Node);
    for (traits, pods, internal) in [
        (&ModeTraits::IPTABLES, true, [Kept, Node, Node]),
        (&ModeTraits::IPTABLES, false, [Kept, Kept, Kept]),
        (&ModeTraits::IPVS, false, [Kept, Node, Kept]),
        (&ModeTraits::USERSPACE, true, [Node, Node, Node]),
    ] {
        let internal = internal.map(|source| to(Cluster, source));
        assert_eq!(outcomes(&entry, "shop/web", traits, pods), [internal, [node; 3], [node; 3]], "{traits:?}");
    }
}

#[test]
fn node_sends_from_the_address_of_the_service_if_it_is_its_own() {
    let table = ServiceTable::new(IpFamily::V4, Arc::new(NodeView::default()));
    for (endpoint, expected) in [(local(), true), (remote(), false)] {
        let entry = entry(local_service(), [endpoint]);
        for traits in MODES {
            let settings = FamilySettings::new(&ProxySettings::default(), &table, traits, &[]);
            let forwarding = forwarding(&table, &port_name("shop/web"), &entry, &settings, traits);
            let has_service_source = |kind, client| match forwarding.outcome(kind, client) {
                Outcome::Forward(route) => forwarding.has_service_source(route, kind, client),
                _ => false,
            };
            let of_node = has_service_source(FrontendKind::LoadBalancer, Client::Node);
            assert_eq!(of_node, expected && traits == &ModeTraits::IPVS, "{traits:?}");
            assert!(!has_service_source(FrontendKind::NodePort, Client::Node));
            assert!(!has_service_source(FrontendKind::LoadBalancer, Client::Outside));
        }
    }
}

#[test]
fn endpoints_in_no_masquerade_cidrs_see_their_clients_unless_they_could_not_answer() {
    use SourceAddress::{Kept, Node};
    let table = ServiceTable::new(IpFamily::V4, Arc::new(NodeView::default()));
    let service = ServicePort { external_policy: TrafficPolicy::Cluster, ..local_service() };
    let entry = entry(service, [local(), remote()]);
    for (traits, of_pod, of_node) in [
        (&ModeTraits::IPTABLES, Kept, Kept),
        (&ModeTraits::NFTABLES, Kept, Kept),
        // Its source may be the Service's address.
        (&ModeTraits::IPVS, Kept, Node),
        // The process connects.
        (&ModeTraits::USERSPACE, Node, Node),
    ] {
        let outcome = |networks: &[IpAddr], client| {
            let no_masquerade_cidrs = networks.iter().copied().map(IpNet::from).collect();
            let settings = ProxySettings { no_masquerade_cidrs, ..ProxySettings::default() };
            let settings = FamilySettings::new(&settings, &table, traits, &[]);
            let forwarding = forwarding(&table, &port_name("shop/web"), &entry, &settings, traits);
            let outcome = forwarding.outcome(FrontendKind::NodePort, client);
            let seen = forwarding.as_seen(outcome, client);
            let (Outcome::Forward(route), Outcome::Forward(seen)) = (outcome, seen) else { panic!("{outcome:?}") };
            let source = |endpoint: &Endpoint, from: IpAddr| {
                forwarding.source_address(route, endpoint, from, client == Client::Node)
            };
            let far = "198.51.100.7".parse().unwrap();
            let [one, other] = [local(), remote()];
            let unanswered = [source(&one, one.address), source(&one, "127.0.0.1".parse().unwrap())];
            // An endpoint is never the client with its own address, and localhost is the endpoint's own.
            assert_eq!(unanswered, [Node; 2], "{traits:?}");
            (seen.source, [source(&one, far), source(&other, far)])
        };
        let both = [local().address, remote().address];
        for (client, kept) in [(Client::Outside, of_pod), (Client::Pod, of_pod), (Client::Node, of_node)] {
            assert_eq!(outcome(&[], client), (Node, [Node, Node]), "{traits:?}");
            assert_eq!(outcome(&both[..1], client), (Node, [kept, Node]), "{traits:?}");
            assert_eq!(outcome(&both, client), (kept, [kept, kept]), "{traits:?}");
        }
    }
}

#[test]
fn source_ranges_apply_before_or_after_rejection() {
    let table = ServiceTable::new(IpFamily::V4, Arc::new(NodeView::default()));
    for traits in MODES {
        let settings = FamilySettings::new(&ProxySettings::default(), &table, traits, &[]);
        let outcome = |endpoints: Vec<Endpoint>| {
            let entry = entry(local_service(), endpoints);
            let forwarding = forwarding(&table, &port_name("shop/web"), &entry, &settings, traits);
            forwarding.outcome_outside_source_ranges(FrontendKind::LoadBalancer, Client::Outside)
        };
        assert_eq!(outcome(vec![remote()]), Outcome::Drop(Refusal::SourceRanges));
        let rejected = Outcome::Reject(Refusal::NoEndpoints);
        let before = traits.source_ranges_before_rejection.contains(&Client::Outside);
        assert_eq!(outcome(vec![]), if before { Outcome::Drop(Refusal::SourceRanges) } else { rejected });
    }
}

#[test]
fn restricted_addresses_are_permitted_with_the_node() {
    let table = ServiceTable::new(IpFamily::V4, Arc::new(NodeView::default()));
    let traits = &ModeTraits::IPTABLES;
    let entry = entry(local_service(), []);
    let sources = |node: &str| {
        let settings = FamilySettings::new(&ProxySettings::default(), &table, traits, &[]);
        let settings = FamilySettings { node_ip: Some(node.parse().unwrap()), ..settings };
        let forwarding = forwarding(&table, &port_name("shop/web"), &entry, &settings, traits);
        let sources = forwarding.permitted_sources(&entry.service.load_balancer_vips);
        sources.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(sources("192.0.2.7"), ["192.0.2.0/24", "203.0.113.1/32"]);
    assert_eq!(sources("10.0.0.1"), ["192.0.2.0/24"]);
}

#[test]
fn address_that_is_also_an_external_ip_is_restricted_or_not() {
    let service = ServicePort { external_ips: vec!["203.0.113.1".parse().unwrap()], ..local_service() };
    let table = ServiceTable::new(IpFamily::V4, Arc::new(NodeView::default()));
    let name = port_name("shop/web");
    for (service, expected) in [
        (local_service(), [[false, false, true, false]; 2]),
        (service, [[false, false, false, false], [false, true, true, false]]),
    ] {
        let entry = entry(service, []);
        for traits in MODES {
            let settings = FamilySettings::new(&ProxySettings::default(), &table, traits, &[]);
            let forwarding = forwarding(&table, &name, &entry, &settings, traits);
            let frontends = entry.service.frontends(name.protocol);
            let restricted: Vec<_> = frontends.map(|(kind, it)| forwarding.is_restricted(kind, it)).collect();
            assert_eq!(restricted, expected[usize::from(traits.source_ranges_on_external_ips)], "{traits:?}");
        }
    }
}

#[test]
fn kind_of_frontend_is_served_if_any_client_is() {
    let table = ServiceTable::new(IpFamily::V4, Arc::new(NodeView::default()));
    let is_served = |traits, endpoints: Vec<Endpoint>| {
        let entry = entry(local_service(), endpoints);
        let settings = FamilySettings::new(&ProxySettings::default(), &table, traits, &[]);
        let forwarding = forwarding(&table, &port_name("shop/web"), &entry, &settings, traits);
        [FrontendKind::ClusterIp, FrontendKind::NodePort].map(|kind| forwarding.is_served(kind))
    };
    assert_eq!(is_served(&ModeTraits::IPTABLES, vec![]), [false, false]);
    assert_eq!(is_served(&ModeTraits::IPTABLES, vec![local()]), [true, true]);
    // The node itself may use endpoints on other nodes.
    assert_eq!(is_served(&ModeTraits::IPTABLES, vec![remote()]), [false, true]);
    assert_eq!(is_served(&ModeTraits::IPVS, vec![remote()]), [true, true]);
}
