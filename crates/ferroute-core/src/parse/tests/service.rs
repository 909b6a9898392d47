use std::{
    num::{NonZeroU16, NonZeroU32},
    sync::Arc,
};

use ferroute_api::{Service, labels};

use super::{
    super::{SkipReason, parse_service, unrestricted_families},
    InvalidObject, assert_errors,
};
use crate::{
    Affinity, Balancing, BalancingDefaults, Ejection, IpFamily, Method, ModeTraits, OverLimit, Protocol, ServicePort,
    TableSize, TrafficPolicy,
    testing::{ServiceBuilder, namespaced_name, service, service_port},
    tracker::{NamedPort, ServiceView},
};

fn web() -> ServiceBuilder {
    service("shop/web").cluster_ip("10.96.0.1").port("http", 80)
}

fn view(service: ServiceBuilder) -> ServiceView {
    parse_service(&service.build()).unwrap().unwrap()
}

/// Returns the only port of a Service in a family.
#[track_caller]
fn port_in(family: IpFamily, service: ServiceBuilder) -> ServicePort {
    let [port] = <[NamedPort; 1]>::try_from(view(service).ports[family.index()].clone()).unwrap();
    Arc::unwrap_or_clone(port.port)
}

#[track_caller]
fn port(service: ServiceBuilder) -> ServicePort {
    port_in(IpFamily::V4, service)
}

fn parse_with(change: impl FnOnce(&mut Service)) -> Result<Option<ServiceView>, InvalidObject> {
    parse_service(&web().with(change).build())
}

fn ips(texts: &[&str]) -> Vec<std::net::IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn services_of_the_api_server_and_of_cluster_dns_are_urgent() {
    let is_urgent = |name, number| port(service(name).cluster_ip("10.96.0.1").port("p", number)).is_urgent;
    assert!(is_urgent("default/kubernetes", 443) && is_urgent("kube-system/kube-dns", 53));
    for (name, number) in [("kube-system/metrics", 443), ("default/web", 53), ("shop/kubernetes", 443)] {
        assert!(!is_urgent(name, number), "{name}");
    }
}

#[test]
fn missing_fields_get_the_defaults_of_the_api() {
    let bare = web().with(|service| {
        service.spec.type_ = None;
        service.spec.ports[0].protocol = None;
    });
    let http = NamedPort { name: "http".into(), protocol: Protocol::Tcp, port: service_port("10.96.0.1:80").into() };
    let expected =
        ServiceView { name: namespaced_name("shop/web"), ports: [vec![http], vec![]], ignored: Box::default() };
    assert_eq!(view(bare), expected);
    let explicit = web().with(|service| {
        service.spec.type_ = Some("ClusterIP".into());
        service.spec.session_affinity = Some("None".into());
        service.spec.internal_traffic_policy = Some("Cluster".into());
        service.spec.external_traffic_policy = Some("Cluster".into());
        service.spec.health_check_node_port = Some(0);
        service.spec.ports[0].node_port = Some(0);
    });
    assert_eq!(view(explicit), expected);
    let empty = web().with(|service| {
        let empty = || Some(String::new());
        service.spec.type_ = empty();
        service.spec.session_affinity = empty();
        service.spec.internal_traffic_policy = empty();
        service.spec.external_traffic_policy = empty();
        service.spec.ports[0].protocol = empty();
    });
    assert_eq!(view(empty), expected);
}

#[test]
fn services_for_others_are_skipped() {
    for service in [
        web().label(labels::SERVICE_PROXY_NAME, "other"),
        web().label(labels::SERVICE_PROXY_NAME, ""),
        service("shop/web").cluster_ip("None").port("http", 80),
        service("shop/web").port("http", 80).with(|service| service.spec.cluster_ip = Some("None".into())),
        service("shop/web").port("http", 80).with(|service| service.spec.cluster_ips = vec!["None".into()]),
        service("shop/web").port("http", 80).with(|service| {
            service.spec.cluster_ip = Some(String::new());
            service.spec.cluster_ips = vec!["None".into()];
        }),
        service("shop/web").with(|service| service.spec.type_ = Some("ExternalName".into())),
        web().with(|service| service.spec.type_ = Some("ExternalName".into())),
    ] {
        let service = service.build();
        assert_eq!(parse_service(&service), Ok(None));
        assert!(SkipReason::for_service(&service).is_some());
    }
}

#[test]
fn first_skip_reason_is_returned() {
    let reason = |service: ServiceBuilder| SkipReason::for_service(&service.build());
    assert_eq!(reason(web()), None);
    let other = web().label(labels::SERVICE_PROXY_NAME, "cilium");
    assert_eq!(reason(other), Some(SkipReason::OtherProxy("cilium".to_owned())));
    assert_eq!(reason(web().label(labels::HEADLESS, "")), None);
    assert_eq!(reason(service("shop/web").cluster_ip("None").port("http", 80)), Some(SkipReason::Headless));
    let alias = web().with(|service| service.spec.type_ = Some("ExternalName".into()));
    assert_eq!(reason(alias), Some(SkipReason::ExternalName));
    // A Service without a cluster IP is invalid.
    assert_eq!(reason(service("shop/web").port("http", 80)), None);
}

#[test]
fn each_family_has_its_own_addresses() {
    let both = || {
        web()
            .cluster_ip("fd00:96::1")
            .node_port(30080)
            .external_ip("203.0.113.1")
            .external_ip("2001:db8::1")
            .external_ip("203.0.113.2")
            .load_balancer("198.51.100.1")
            .load_balancer("2001:db8::2")
            .source_range("10.0.0.0/8")
            .source_range("2001:db8::/32")
    };
    let common = |cluster: &str| ServicePort { node_port: NonZeroU16::new(30080), ..service_port(cluster) };
    assert_eq!(
        port_in(IpFamily::V4, both()),
        ServicePort {
            external_ips: ips(&["203.0.113.1", "203.0.113.2"]),
            load_balancer_vips: ips(&["198.51.100.1"]),
            load_balancer_source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
            ..common("10.96.0.1:80")
        }
    );
    assert_eq!(
        port_in(IpFamily::V6, both()),
        ServicePort {
            external_ips: ips(&["2001:db8::1"]),
            load_balancer_vips: ips(&["2001:db8::2"]),
            load_balancer_source_ranges: vec!["2001:db8::/32".parse().unwrap()],
            ..common("[fd00:96::1]:80")
        }
    );
}

#[test]
fn family_without_cluster_ip_has_no_ports() {
    let v6 = service("shop/web").cluster_ip("fd00:96::1").port("http", 80).external_ip("203.0.113.1");
    let [v4, v6] = view(v6).ports;
    assert_eq!((v4.len(), v6.len()), (0, 1));
    assert_eq!(*v6[0].port, service_port("[fd00:96::1]:80"));
}

#[test]
fn either_cluster_ip_field_suffices() {
    let single =
        service("shop/web").port("http", 80).with(|service| service.spec.cluster_ip = Some("10.96.0.1".into()));
    assert_eq!(port(single), service_port("10.96.0.1:80"));
    let listed =
        service("shop/web").port("http", 80).with(|service| service.spec.cluster_ips = vec!["10.96.0.1".into()]);
    assert_eq!(port(listed), service_port("10.96.0.1:80"));
}

#[test]
fn invalid_cluster_ips_are_rejected() {
    let with = |first: Option<&str>, all: &[&str]| {
        parse_with(|service| {
            service.spec.cluster_ip = first.map(str::to_owned);
            service.spec.cluster_ips = all.iter().map(|ip| (*ip).to_owned()).collect();
        })
    };
    assert_errors(with(None, &[]), &[("spec.clusterIP", "required")]);
    assert_errors(with(Some(""), &[]), &[("spec.clusterIP", "required")]);
    assert_errors(with(Some("x"), &[]), &[("spec.clusterIP", "invalid IP address \"x\"")]);
    assert_errors(with(Some("10.96.0.1"), &["10.96.0.2"]), &[("spec.clusterIPs[0]", "differs from spec.clusterIP")]);
    let twice = ("spec.clusterIPs", "more than one address of an IP family");
    assert_errors(with(Some("10.96.0.1"), &["10.96.0.1", "10.96.0.2"]), &[twice]);
    assert_errors(with(None, &["10.96.0.1", "fd00::1", "10.96.0.2"]), &[twice]);
    assert_errors(with(None, &["10.96.0.1", "x"]), &[("spec.clusterIPs[1]", "invalid IP address \"x\"")]);
}

#[test]
fn affinity_timeout_defaults_to_three_hours() {
    let seconds = |service: ServiceBuilder| port(service).affinity.map(|Affinity { timeout_seconds }| timeout_seconds);
    assert_eq!(seconds(web()), None);
    assert_eq!(seconds(web().affinity(1)), Some(1));
    assert_eq!(seconds(web().affinity(86_400)), Some(86_400));
    let without_timeout = || web().affinity(1).with(|service| service.spec.session_affinity_config = None);
    assert_eq!(seconds(without_timeout()), Some(10_800));
    let without_client =
        web().affinity(1).with(|service| service.spec.session_affinity_config = Some(Default::default()));
    assert_eq!(seconds(without_client), Some(10_800));
    let config_only = web().affinity(7).with(|service| service.spec.session_affinity = None);
    assert_eq!(seconds(config_only), None);
}

#[test]
fn affinity_timeout_out_of_range_is_rejected() {
    let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    for seconds in [0, 86_401] {
        let problem = format!("invalid timeout {seconds} (want 1 to 86400 seconds)");
        assert_errors(parse_service(&web().affinity(seconds).build()), &[(field, &problem)]);
    }
    let negative = parse_with(|service| {
        *service = web().affinity(1).build();
        let config = service.spec.session_affinity_config.as_mut().unwrap();
        config.client_ip.as_mut().unwrap().timeout_seconds = Some(-1);
    });
    assert_errors(negative, &[(field, "invalid timeout -1")]);
}

#[test]
fn external_policy_applies_only_to_types_with_external_traffic() {
    let external = |service: ServiceBuilder| port(service.external_local()).external_policy;
    assert_eq!(external(web()), TrafficPolicy::Cluster);
    assert_eq!(external(web().node_port(30080)), TrafficPolicy::Local);
    assert_eq!(external(web().with(|service| service.spec.type_ = Some("NodePort".into()))), TrafficPolicy::Local);
    assert_eq!(external(web().load_balancer("198.51.100.1")), TrafficPolicy::Local);
    assert_eq!(external(web().with(|service| service.spec.type_ = Some("LoadBalancer".into()))), TrafficPolicy::Local);
    assert_eq!(external(web().external_ip("203.0.113.1")), TrafficPolicy::Local);
    // As in kube-proxy, the same applies if the address is of the other family.
    assert_eq!(external(web().external_ip("2001:db8::1")), TrafficPolicy::Local);
}

#[test]
fn internal_policy_always_applies() {
    assert_eq!(port(web()).internal_policy, TrafficPolicy::Cluster);
    assert_eq!(port(web().internal_local()).internal_policy, TrafficPolicy::Local);
    assert_eq!(port(web().external_local()).internal_policy, TrafficPolicy::Cluster);
}

#[test]
fn health_check_node_port_applies_only_to_load_balancers_with_policy_local() {
    let health = |service: ServiceBuilder| port(service.health_check_node_port(31000)).health_check_node_port;
    assert_eq!(health(web().load_balancer("198.51.100.1").external_local()), NonZeroU16::new(31000));
    assert_eq!(health(web().load_balancer("198.51.100.1")), None);
    assert_eq!(health(web().node_port(30080).external_local()), None);
    assert_eq!(health(web().external_ip("203.0.113.1").external_local()), None);
}

#[test]
fn load_balancer_addresses_without_a_range_of_their_family_are_reported() {
    let dual = || web().cluster_ip("fd00:10:96::1").load_balancer("198.51.100.1").load_balancer("2001:db8::1");
    let reported = |service: ServiceBuilder| {
        let service = service.build();
        let ignored = parse_service(&service).unwrap().unwrap().ignored;
        let fields: Vec<&str> = ignored.iter().map(|error| error.field.as_str()).collect();
        let families = unrestricted_families(&service);
        assert_eq!(fields, vec!["spec.loadBalancerSourceRanges"; families.len()], "{ignored:?}");
        families
    };
    assert_eq!(reported(dual()), []);
    assert_eq!(reported(dual().source_range("192.0.2.0/24")), [IpFamily::V6]);
    assert_eq!(reported(dual().source_range("2001:db8:1::/48")), [IpFamily::V4]);
    assert_eq!(reported(dual().source_range("192.0.2.0/24").source_range("2001:db8:1::/48")), []);
    // The Service has no IPv6 addresses that could be open.
    let ipv4 = || web().load_balancer("198.51.100.1");
    assert_eq!(reported(ipv4().source_range("192.0.2.0/24")), []);
    assert_eq!(reported(ipv4().source_range("2001:db8:1::/48")), [IpFamily::V4]);
    // An annotation extends ranges to other addresses.
    let scoped = |scope: &str| web().cluster_ip("fd00:10:96::1").annotation(labels::SOURCE_RANGES_SCOPE, scope);
    assert_eq!(reported(scoped("cluster-ip").source_range("192.0.2.0/24")), [IpFamily::V6]);
    let external = || scoped("external-ips").external_ip("198.51.100.1").source_range("2001:db8:1::/48");
    assert_eq!(reported(external()), [IpFamily::V4]);
    assert_eq!(reported(external().source_range("192.0.2.0/24")), []);
}

#[test]
fn source_ranges_without_a_load_balancer_are_reported() {
    let reported = |service: ServiceBuilder| {
        let ignored = parse_service(&service.build()).unwrap().unwrap().ignored;
        ignored.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
    };
    let ranges = || web().source_range("192.0.2.0/24");
    let of_type =
        |type_: &str, service: ServiceBuilder| service.with(|service| service.spec.type_ = Some(type_.into()));
    assert_eq!(reported(ranges().node_port(30080)), ["spec.loadBalancerSourceRanges"]);
    assert_eq!(reported(of_type("ClusterIP", ranges().external_ip("203.0.113.1"))), ["spec.loadBalancerSourceRanges"]);
    let by_annotation = web().node_port(30080).with(|service| {
        service.metadata.annotations.insert(ferroute_api::labels::SOURCE_RANGES.into(), "192.0.2.0/24".into());
    });
    assert_eq!(reported(by_annotation), ["metadata.annotations[ferroute.io/source-ranges]"]);
    // The controller has not assigned an address yet.
    assert_eq!(reported(of_type("LoadBalancer", ranges())), [""; 0]);
    assert_eq!(reported(ranges().load_balancer("198.51.100.1")), [""; 0]);
    // An annotation extends them to other addresses.
    let scope = |service: &mut ferroute_api::Service| {
        service.metadata.annotations.insert(ferroute_api::labels::SOURCE_RANGES_SCOPE.into(), "node-ports".into());
    };
    assert_eq!(reported(ranges().node_port(30080).with(scope)), [""; 0]);
}

#[test]
fn load_balancer_addresses_in_proxy_mode_are_ignored() {
    let vips = |service: ServiceBuilder| port(service).load_balancer_vips;
    let mixed =
        web().load_balancer("198.51.100.1").proxying_load_balancer("198.51.100.2").load_balancer("198.51.100.3");
    assert_eq!(vips(mixed), ips(&["198.51.100.1", "198.51.100.3"]));
    let explicit = web().load_balancer("198.51.100.1").with(|service| {
        service.status.load_balancer.ingress[0].ip_mode = Some("VIP".into());
    });
    assert_eq!(vips(explicit), ips(&["198.51.100.1"]));
    // The ingress has a host name instead of an address.
    assert_eq!(vips(web().load_balancer("")), ips(&[]));
    // As in kube-proxy, the type does not matter.
    let former_load_balancer =
        web().load_balancer("198.51.100.1").with(|service| service.spec.type_ = Some("NodePort".into()));
    assert_eq!(vips(former_load_balancer), ips(&["198.51.100.1"]));
}

#[test]
fn source_range_of_all_addresses_is_no_restriction() {
    let ranges = |family, ranges: &[&str]| {
        let service = web().cluster_ip("fd00:96::1").load_balancer("198.51.100.1").load_balancer("2001:db8::1");
        port_in(family, ranges.iter().fold(service, |service, range| service.source_range(range)))
            .load_balancer_source_ranges
    };
    assert_eq!(ranges(IpFamily::V4, &[]), []);
    assert_eq!(ranges(IpFamily::V4, &["10.0.0.0/8", "0.0.0.0/0"]), []);
    // As in kube-proxy, a family without ranges is not restricted.
    let v6_unrestricted = ["10.1.2.3/8", "::/0", "2001:db8::/32"];
    assert_eq!(ranges(IpFamily::V4, &v6_unrestricted), ["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(ranges(IpFamily::V6, &v6_unrestricted), []);
    assert_eq!(ranges(IpFamily::V6, &["10.0.0.0/8"]), []);
    assert_eq!(ranges(IpFamily::V4, &[" 10.0.0.0/8\t"]), ["10.0.0.0/8".parse().unwrap()]);
}

/// Returns the ignored fields of a Service.
fn ignored(service: ServiceBuilder) -> Vec<String> {
    view(service).ignored.iter().map(ToString::to_string).collect()
}

#[test]
fn special_addresses_are_ignored_and_others_served() {
    for (special, reason) in [
        ("0.0.0.0", "0.0.0.0 is the unspecified address"),
        ("127.0.0.53", "127.0.0.53 is a loopback address"),
        ("169.254.169.254", "169.254.169.254 is a link-local address"),
        ("224.0.0.1", "224.0.0.1 is a multicast address"),
        ("239.1.2.3", "239.1.2.3 is a multicast address"),
        ("255.255.255.255", "255.255.255.255 is the broadcast address"),
        ("::ffff:127.0.0.1", "127.0.0.1 is a loopback address"),
        ("::", ":: is the unspecified address"),
        ("::1", "::1 is a loopback address"),
        ("fe80::1", "fe80::1 is a link-local address"),
        ("ff02::1", "ff02::1 is a multicast address"),
    ] {
        let service = web().external_ip(special).external_ip("203.0.113.1");
        let service = service.load_balancer(special).load_balancer("198.51.100.1");
        let expected = ["spec.externalIPs[0]", "status.loadBalancer.ingress[0].ip"];
        assert_eq!(ignored(service.clone()), expected.map(|field| format!("{field}: {reason}")));
        let port = port(service);
        assert_eq!(port.external_ips, ips(&["203.0.113.1"]));
        assert_eq!(port.load_balancer_vips, ips(&["198.51.100.1"]));
    }
}

#[test]
fn invalid_external_ips_are_ignored_as_in_kube_proxy() {
    let service = web().external_ip("Nonsense").external_ip("").external_ip(" ").external_ip("203.0.113.1");
    assert_eq!(ignored(service.clone()), ["spec.externalIPs[0]: invalid IP address \"Nonsense\""]);
    assert_eq!(port(service).external_ips, ips(&["203.0.113.1"]));
}

#[test]
fn special_cluster_ip_is_ignored_and_other_addresses_are_served() {
    let service =
        service("shop/web").cluster_ip("127.0.0.1").cluster_ip("fd00:96::1").port("http", 80).node_port(30080);
    assert_eq!(ignored(service.clone()), ["spec.clusterIPs[0]: 127.0.0.1 is a loopback address"]);
    let port = port_in(IpFamily::V4, service.clone());
    assert_eq!((port.cluster_ip, port.node_port), (None, NonZeroU16::new(30080)));
    assert_eq!(port_in(IpFamily::V6, service).cluster_ip, "fd00:96::1".parse().ok());
}

#[test]
fn errors_name_the_invalid_field() {
    let spec = |field: &'static str, change: fn(&mut Service, String)| {
        assert_errors(parse_with(|service| change(service, "Nonsense".into())), &[(field, "\"Nonsense\"")]);
    };
    spec("spec.type", |service, value| service.spec.type_ = Some(value));
    spec("spec.sessionAffinity", |service, value| service.spec.session_affinity = Some(value));
    spec("spec.internalTrafficPolicy", |service, value| service.spec.internal_traffic_policy = Some(value));
    spec("spec.externalTrafficPolicy", |service, value| service.spec.external_traffic_policy = Some(value));
    spec("spec.loadBalancerSourceRanges[0]", |service, value| service.spec.load_balancer_source_ranges.push(value));
    spec("spec.ports[0].protocol", |service, value| service.spec.ports[0].protocol = Some(value));
    let balanced = |change: fn(&mut Service)| {
        parse_service(&web().load_balancer("198.51.100.1").load_balancer("198.51.100.2").with(change).build())
    };
    assert_errors(
        balanced(|service| service.status.load_balancer.ingress[1].ip = "x".into()),
        &[("status.loadBalancer.ingress[1].ip", "invalid IP address \"x\"")],
    );
    assert_errors(
        balanced(|service| service.status.load_balancer.ingress[1].ip_mode = Some("Tunnel".into())),
        &[("status.loadBalancer.ingress[1].ipMode", "unsupported value \"Tunnel\" (want VIP or Proxy)")],
    );
    assert_errors(
        parse_with(|service| service.spec.health_check_node_port = Some(65_536)),
        &[("spec.healthCheckNodePort", "invalid port 65536")],
    );
}

#[test]
fn all_errors_are_returned_at_once() {
    let result = parse_with(|service| {
        service.metadata.name = "Web".into();
        service.spec.type_ = Some("x".into());
        service.spec.cluster_ips.clear();
        service.spec.cluster_ip = None;
        service.spec.session_affinity = Some("x".into());
        service.spec.ports[0].port = 0;
    });
    assert_errors(
        result,
        &[
            ("metadata.name", ""),
            ("spec.type", ""),
            ("spec.clusterIP", ""),
            ("spec.sessionAffinity", ""),
            ("spec.ports[0].port", ""),
        ],
    );
}

#[test]
fn addresses_beyond_the_limit_are_ignored_and_reported() {
    let address = |i: usize| std::net::Ipv4Addr::from(0xcb00_0000 + u32::try_from(i).unwrap()).to_string();
    let parsed = |ports: u16, addresses: usize| {
        let ports = (1..ports).fold(web(), |service, i| service.port(&format!("p{i}"), 1000 + i));
        view(ports.load_balancer("192.0.2.1").external_ip("2001:db8::1").with(|service| {
            service.spec.cluster_ips.push("fd00:96::1".to_owned());
            service.spec.external_ips.extend((0..addresses).map(address));
        }))
    };
    let many = parsed(2, 40_000);
    // The cluster IP and the node port of each port are always kept.
    let [v4, v6] = &many.ports;
    assert!(
        v4.iter().all(|port| port.port.external_ips.len() == 32_768 - 3 && port.port.load_balancer_vips.len() == 1)
    );
    assert!(v6.iter().all(|port| port.port.external_ips == ips(&["2001:db8::1"])), "families are counted separately");
    let [ignored] = &many.ignored[..] else { panic!("{:?}", many.ignored) };
    assert_eq!(
        ignored.to_string(),
        "spec.externalIPs: 7235 of 40001 addresses are ignored: addresses times ports of a Service may be 65536"
    );
    assert!(parsed(2, 32_765).ignored.is_empty());
    assert!(parsed(300, 1_000).ports[0].iter().all(|port| port.port.external_ips.len() == 65_536 / 300 - 3));
}

#[test]
fn clients_in_source_ranges_beyond_the_limit_have_no_access() {
    let range = |i: u32| format!("{}/32", std::net::Ipv4Addr::from(0x0a00_0000 + 2 * i));
    let many = web().load_balancer("192.0.2.1").port("https", 443).with(|service| {
        service.spec.load_balancer_source_ranges = (0..70_000).map(range).collect();
    });
    let many = view(many);
    assert!(many.ports[0].iter().all(|port| port.port.load_balancer_source_ranges.len() == 65_536));
    let [ignored] = &many.ignored[..] else { panic!("{:?}", many.ignored) };
    assert_eq!(ignored.field, "spec.loadBalancerSourceRanges");
}

#[test]
fn methods_are_read_from_the_annotations_of_several_proxies() {
    use Method::{LeastConnections, Random, RoundRobin, SourceHash, SourcePortHash};
    const OWN: &str = labels::LOAD_BALANCING;
    const CILIUM: &str = labels::CILIUM_ALGORITHM;
    const KUBE_ROUTER: &str = labels::KUBE_ROUTER_SCHEDULER;
    let method = |annotations: &[(&str, &str)]| {
        let service = annotations.iter().fold(web(), |service, (key, value)| service.annotation(key, value));
        port(service).balancing.method
    };
    assert_eq!(method(&[]), None);
    for of_all in Method::ALL {
        assert_eq!(method(&[(OWN, of_all.as_str())]), Some(of_all));
    }
    assert_eq!(method(&[(CILIUM, "maglev")]), Some(SourcePortHash));
    for (name, expected) in [("rr", RoundRobin), ("wlc", LeastConnections), ("sh", SourceHash), ("mh", SourcePortHash)]
    {
        assert_eq!(method(&[(KUBE_ROUTER, name)]), Some(expected), "{name}");
    }
    assert_eq!(method(&[(KUBE_ROUTER, "rr"), (CILIUM, "random"), (OWN, "source-hash")]), Some(SourceHash));
    assert_eq!(method(&[(KUBE_ROUTER, "rr"), (CILIUM, "random")]), Some(Random));
    assert_eq!(method(&[(KUBE_ROUTER, "rr"), (OWN, "round robin")]), None, "a typing error selects no other method");
}

#[test]
fn invalid_annotations_are_ignored_and_reported() {
    let service = web().annotation(labels::LOAD_BALANCING, "fastest").annotation(labels::HASH_TABLE_SIZE, "1000");
    let view = view(service.clone());
    assert_eq!(port(service).balancing, Balancing::default());
    let ignored: Vec<String> = view.ignored.iter().map(ToString::to_string).collect();
    assert_eq!(
        ignored,
        [
            "metadata.annotations[ferroute.io/load-balancing]: unsupported value \"fastest\" (want random, round-robin, \
             source-hash, source-port-hash, least-connections)",
            "metadata.annotations[ferroute.io/hash-table-size]: unsupported value \"1000\" (want 1024, 2048, 4096, 8192, \
             16384, 32768, 65536)",
        ]
    );
    let service = web().annotation(labels::HASH_TABLE_SIZE, "65536");
    assert_eq!(port(service).balancing, Balancing { table_size: TableSize::MAX, ..Balancing::default() });
    let ejecting = |value| port(web().annotation(labels::PASSIVE_EJECTION, value)).balancing.passive_ejection;
    let expected = [Some(Ejection::Unanswered), Some(Ejection::Refused), Some(Ejection::Off), None];
    assert_eq!(["true", "refused", "false", "yes"].map(ejecting), expected);
}

#[test]
fn unknown_annotations_of_ferroute_are_reported() {
    let service = web()
        .annotation("ferroute.io/load-balancer", "random")
        .annotation(labels::WEIGHT, "7")
        .annotation("ferroute.io/quux", "")
        .annotation("example.com/load-balancing", "random");
    let view = view(service);
    let ignored: Vec<String> = view.ignored.iter().map(ToString::to_string).collect();
    assert_eq!(
        ignored,
        [
            "metadata.annotations[ferroute.io/load-balancer]: unknown annotation (did you mean \
             \"ferroute.io/load-balancing\"?)",
            "metadata.annotations[ferroute.io/quux]: unknown annotation",
            "metadata.annotations[ferroute.io/weight]: Services do not have this annotation",
        ]
    );
}

#[test]
fn annotations_without_effect_are_reported() {
    let ignored = |service: ServiceBuilder| {
        let ignored = view(service).ignored.iter().map(|error| error.field.clone()).collect::<Vec<_>>();
        ignored.into_iter().filter_map(|field| Some(field.split_once('[')?.1.to_owned())).collect::<Vec<_>>()
    };
    let udp = || service("shop/dns").cluster_ip("10.96.0.10").udp("dns", 53);
    for (service, key, value, needed) in [
        (web(), labels::OVER_LIMIT, "drop", labels::MAX_CONNECTIONS),
        (web(), labels::SOURCE_RANGES_POLICY, "deny", labels::SOURCE_RANGES),
        (web(), labels::SOURCE_RANGES_SCOPE, "cluster-ip", labels::SOURCE_RANGES),
        (udp(), labels::PASSIVE_EJECTION, "true", ""),
    ] {
        let service = service.annotation(key, value);
        assert_eq!(ignored(service.clone()), [format!("{key}]")]);
        let mut unsupported = view(service.clone());
        unsupported.ignore_unsupported(&ModeTraits::IPTABLES);
        assert_eq!(unsupported.ignored.len(), 1, "{key}: reported once in a mode that does not support it");
        let service = match needed {
            labels::MAX_CONNECTIONS => service.annotation(needed, "5"),
            labels::SOURCE_RANGES => service.annotation(needed, "10.0.0.0/8").load_balancer("198.51.100.1"),
            _ => service.port("http", 80),
        };
        assert_eq!(ignored(service), [""; 0]);
    }
}

#[test]
fn slow_start_and_weights_of_zones_are_read_and_ignored_in_modes_without_weights() {
    let service = |start, zone| web().annotation(labels::SLOW_START, start).annotation(labels::ZONE_WEIGHT, zone);
    let balancing = port(service("2m", " 8")).balancing;
    let numbers = (balancing.slow_start.map(NonZeroU32::get), balancing.zone_weight.map(NonZeroU16::get));
    assert_eq!(numbers, (Some(120), Some(8)));
    for (start, zone) in [("25h", "0"), ("5", "65"), ("", "-1")] {
        let view = view(service(start, zone));
        let Balancing { slow_start, zone_weight, .. } = view.ports[0][0].port.balancing;
        assert_eq!((slow_start, zone_weight, view.ignored.len()), (None, None, 2));
    }
    for (traits, expected) in [(&ModeTraits::NFTABLES, 0), (&ModeTraits::IPVS, 0), (&ModeTraits::IPTABLES, 2)] {
        let mut view = view(service("30s", "8"));
        view.ignore_unsupported(traits);
        assert_eq!(view.ignored.len(), expected, "{:?}", view.ignored);
    }
}

#[test]
fn defaults_apply_where_annotations_request_nothing() {
    let defaults = BalancingDefaults { method: Some(Method::RoundRobin), passive_ejection: true };
    let with_defaults = |service| {
        let mut view = view(service);
        view.set_defaults(&defaults);
        let balancing = view.ports[0][0].port.balancing;
        (balancing.method, balancing.ejects())
    };
    assert_eq!(with_defaults(web()), (Some(Method::RoundRobin), true));
    let own = web().annotation(labels::LOAD_BALANCING, "random").annotation(labels::PASSIVE_EJECTION, "false");
    assert_eq!(with_defaults(own), (Some(Method::Random), false));
}

#[test]
fn methods_that_the_mode_does_not_have_are_reported() {
    let ignored = |method: Method, traits: &ModeTraits| {
        let mut view = view(web().annotation(labels::LOAD_BALANCING, method.as_str()));
        view.ignore_unsupported(traits);
        view.ignored.len()
    };
    assert_eq!(ignored(Method::SourceHash, &ModeTraits::NFTABLES), 0);
    assert_eq!(ignored(Method::SourceHash, &ModeTraits::IPTABLES), 1);
    assert_eq!(ignored(Method::Random, &ModeTraits::IPTABLES), 0);
}

#[test]
fn limits_are_read_and_ignored_in_modes_without_them() {
    let limited = || {
        let annotations = [
            (labels::MAX_CONNECTIONS, " 100"),
            (labels::MAX_CONNECTIONS_PER_CLIENT, "4"),
            (labels::MAX_NEW_CONNECTIONS, "50/second burst 100"),
            (labels::MAX_NEW_CONNECTIONS_PER_CLIENT, "5/m"),
            (labels::OVER_LIMIT, "drop"),
        ];
        annotations.into_iter().fold(web(), |service, (key, value)| service.annotation(key, value))
    };
    let limits = port(limited()).limits.unwrap();
    assert_eq!((limits.connections.unwrap().get(), limits.client_connections.unwrap().get()), (100, 4));
    let rates = [limits.rate, limits.client_rate].map(|rate| rate.unwrap().to_string());
    assert_eq!((rates, limits.over_limit), (["50/second burst 100", "5/minute"].map(str::to_owned), OverLimit::Drop));
    for (traits, expected) in [(&ModeTraits::NFTABLES, 0), (&ModeTraits::IPTABLES, 1)] {
        let mut view = view(limited());
        view.ignore_unsupported(traits);
        assert_eq!(view.ignored.len(), expected, "{:?}", view.ignored);
    }
    // Valid values apply.
    let partly = limited().annotation(labels::MAX_CONNECTIONS, "0").annotation(labels::OVER_LIMIT, "ignore");
    let view = view(partly);
    assert_eq!(view.ignored.len(), 2, "{:?}", view.ignored);
    let limits = view.ports[0][0].port.limits.as_deref().unwrap();
    assert_eq!((limits.connections, limits.over_limit), (None, OverLimit::Reject));
    assert_eq!(port(web().annotation(labels::OVER_LIMIT, "drop")).limits, None);
}

#[test]
fn denied_ranges_are_those_that_remain() {
    let ranges = |annotations: &[(&str, &str)]| {
        let service = annotations.iter().fold(web(), |service, (key, value)| service.annotation(key, value));
        port(service).load_balancer_source_ranges.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let (own, policy) = (labels::SOURCE_RANGES, labels::SOURCE_RANGES_POLICY);
    assert_eq!(ranges(&[(own, "10.0.0.0/8, 192.0.2.0/24")]), ["10.0.0.0/8", "192.0.2.0/24"]);
    assert_eq!(ranges(&[(own, "64.0.0.0/2"), (policy, "deny")]), ["0.0.0.0/2", "128.0.0.0/1"]);
    assert_eq!(ranges(&[(own, "0.0.0.0/0"), (policy, "deny")]), ["0.0.0.0/32"], "no client");
    let rest = ranges(&[(own, "192.0.2.1/32, 0.0.0.0/32 64.0.0.0/2, 64.0.0.7/32, 128.0.0.0/1"), (policy, "deny")]);
    assert_eq!((rest.len(), &*rest[0], &*rest[29]), (30, "0.0.0.1/32", "32.0.0.0/3"), "with both edges, and overlaps");
    assert_eq!(ranges(&[(own, "2001:db8::/32"), (policy, "deny")]), [""; 0], "all of the other family");
    assert_eq!(ranges(&[(own, "10/8")]), ["0.0.0.0/32"], "an error admits no client");
    for typing_error in ["10.0.0.0/8 192.0.2.0/33", "10.0.0.0/8 2001:db8::/129"] {
        assert_eq!(ranges(&[(own, typing_error), (policy, "deny")]), ["0.0.0.0/32"], "an error admits no client");
    }
    assert_eq!(ranges(&[(own, "10.0.0.0/8 192.0.2.0/33")]), ["10.0.0.0/8"]);
    assert_eq!(
        ranges(&[(own, "192.0.2.0/33\t2001:db8::/32")]),
        ["0.0.0.0/32"],
        "nor of a family without a valid range"
    );
    assert_eq!(ranges(&[(own, " , ")]), [""; 0], "an empty list");
    let both = [(own, "64.0.0.0/2"), (policy, "allow"), (labels::CILIUM_SOURCE_RANGES_POLICY, "deny")];
    assert_eq!(ranges(&both), ["64.0.0.0/2"], "Ferroute's own comes first");
    let scope = |text: &str| {
        let service = web().annotation(labels::SOURCE_RANGES_SCOPE, text).source_range("10.0.0.0/8");
        port(service).source_ranges_scope.names().collect::<Vec<_>>()
    };
    assert_eq!(scope("node-ports,cluster-ip"), ["cluster-ip", "node-ports"]);
    assert_eq!(scope("cluster-ips"), ["cluster-ip", "external-ips", "node-ports"], "an error restricts all addresses");
    assert_eq!(ranges(&[(own, "64.0.0.0/2"), (policy, "Deny")]), ["0.0.0.0/32"], "an error admits no client");
}

#[test]
fn drain_timeouts_have_a_unit() {
    let seconds =
        |text: &str| port(web().annotation(labels::DRAIN_TIMEOUT, text)).balancing.drain_timeout.map(u32::from);
    assert_eq!(["30s", "2m", "24h"].map(seconds), [Some(30), Some(120), Some(86_400)]);
    assert_eq!(["0s", "25h", "30", "s", "-1s", "99999999999h"].map(seconds), [None; 6]);
}
