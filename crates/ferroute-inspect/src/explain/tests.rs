use std::net::IpAddr;

use ferroute_core::{
    IpFamily, LocalTrafficDetector, NodePortAddresses, ProxySettings,
    testing::{Cluster, HOSTILE, assert_visible, pod, service, slice},
};
use insta::assert_snapshot;

use super::*;

fn explained(cluster: &Cluster, settings: &ProxySettings) -> Explanation {
    explained_in(&ModeTraits::IPTABLES, cluster, settings)
}

fn explained_in(traits: &'static ModeTraits, cluster: &Cluster, settings: &ProxySettings) -> Explanation {
    let tracker = cluster.tracker();
    let addresses: Vec<IpAddr> = ["127.0.0.1", "192.168.0.1"].map(|ip| ip.parse().unwrap()).into();
    let pod = |address: IpAddr| (address.to_string() == "10.244.0.2").then(|| "web-1".to_owned());
    let checks = IpFamily::BOTH.map(|family| HealthCheck::from_table(&cluster.table(family)));
    let health_check = HealthCheck::merge(&checks).into_values().next();
    explain(
        &cluster.services[0],
        &Inputs {
            tracker: &tracker,
            settings,
            traits,
            addresses: &addresses,
            pod: &pod,
            node: &|_| None,
            health_check,
        },
    )
}

fn text(cluster: &Cluster, settings: &ProxySettings) -> String {
    let mut text = String::new();
    write_explanation_into(&mut text, &explained(cluster, settings)).unwrap();
    text
}

fn detecting_pods() -> ProxySettings {
    let networks = vec!["10.244.0.0/16".parse().unwrap()];
    ProxySettings { detector: LocalTrafficDetector::ClusterCidr(networks), ..ProxySettings::default() }
}

#[test]
fn frontends_and_endpoints_are_explained() {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("", 80).node_port(30080))
        .slice(slice("shop/web-a", "web").port("", 8080).pod(pod("10.244.0.2").on("node-1")).pod("10.244.1.2"));
    assert_snapshot!(text(&cluster, &ProxySettings::default()), @"
    Service shop/web, type NodePort, on node node-1

    policies
      internal traffic      Cluster
      external traffic      Cluster

    port 80/tcp, IPv4
      frontends
        cluster IP  10.96.0.1:80                 2 endpoints (policy Cluster), source address kept
        node port   30080 on all node addresses  2 endpoints (policy Cluster), masqueraded
      endpoints
        10.244.0.2:8080  web-1  ready, this node   used
        10.244.1.2:8080         ready, other node  used
    ");
}

/// Explains a Service with both policies Local and an endpoint on another node.
fn in_mode(traits: &'static ModeTraits, protocol: &str) -> String {
    let cluster = Cluster::new("node-1")
        .service(
            service("shop/web")
                .cluster_ip("10.96.0.1")
                .port("", 80)
                .with(|service| service.spec.ports[0].protocol = Some(protocol.to_owned()))
                .node_port(30080)
                .load_balancer("198.51.100.1")
                .external_local()
                .with(|service| service.spec.internal_traffic_policy = Some("Local".to_owned())),
        )
        .slice(
            slice("shop/web-a", "web")
                .port("", 8080)
                .with(|slice| slice.ports[0].protocol = Some(protocol.to_owned()))
                .pod("10.244.1.2"),
        );
    let mut text = String::new();
    write_explanation_into(&mut text, &explained_in(traits, &cluster, &detecting_pods())).unwrap();
    text
}

/// Returns the lines of [`in_mode`] for the frontends.
fn frontends_in(traits: &'static ModeTraits, protocol: &str) -> String {
    let text = in_mode(traits, protocol);
    let frontends = text.split("  frontends\n").nth(1).unwrap().split("  endpoints\n").next().unwrap();
    frontends.to_owned()
}

#[test]
fn ipvs_mode_uses_other_nodes_endpoints_where_the_policy_is_local() {
    assert_snapshot!(frontends_in(&ModeTraits::IPVS, "TCP"), @"
    cluster IP        10.96.0.1:80                                  1 endpoint (policy Cluster), masqueraded except from pods
    load balancer IP  198.51.100.1:80                               from pods and the node: 1 endpoint (policy Cluster), masqueraded except from pods
                                                                    from other clients: 1 endpoint (policy Cluster), source address kept
    node port         30080 on all node addresses except localhost  from pods and the node: 1 endpoint (policy Cluster), masqueraded except from pods
                                                                    from other clients: 1 endpoint (policy Cluster), source address kept
    ");
}

#[test]
fn userspace_mode_relays_from_the_node_and_rejects_sctp() {
    assert_snapshot!(frontends_in(&ModeTraits::USERSPACE, "TCP"), @"
    cluster IP        10.96.0.1:80                 dropped: policy Local, and no endpoint on this node
    load balancer IP  198.51.100.1:80              from pods and the node: 1 endpoint (policy Cluster), masqueraded
                                                   from other clients: dropped: policy Local, and no endpoint on this node
    node port         30080 on all node addresses  from pods and the node: 1 endpoint (policy Cluster), masqueraded
                                                   from other clients: dropped: policy Local, and no endpoint on this node
    ");
    assert_snapshot!(frontends_in(&ModeTraits::USERSPACE, "SCTP"), @"
    cluster IP        10.96.0.1:80                 rejected: the proxy mode does not support the protocol
    load balancer IP  198.51.100.1:80              rejected: the proxy mode does not support the protocol
    node port         30080 on all node addresses  rejected: the proxy mode does not support the protocol
    ");
    let text = in_mode(&ModeTraits::USERSPACE, "SCTP");
    let endpoint = text.split("  endpoints\n").nth(1).unwrap();
    assert_eq!(
        endpoint.trim(),
        "10.244.1.2:8080  ready, other node  not used: the proxy mode does not support the protocol"
    );
}

#[test]
fn endpoints_beyond_the_limit_are_explained() {
    let pods = |first: usize| (first..first + 1_000).map(|i| format!("10.244.{}.{}", i / 250, 1 + i % 250));
    let slices = (0..5).map(|k| {
        let start = slice(&format!("shop/web-{k}"), "web").port("", 8080);
        pods(k * 1_000).fold(start, |slice, address| slice.pod(&*address))
    });
    let web = service("shop/web").cluster_ip("10.96.0.1").port("", 80).affinity(60);
    let cluster = slices.fold(Cluster::new("node-1").service(web), Cluster::slice);
    let text = text(&cluster, &ProxySettings::default());
    assert!(text.contains("905 endpoints more not used: the limit is 4095 endpoints"), "{}", &text[text.len() - 500..]);
}

#[test]
fn names_in_objects_and_rules_control_no_terminal() {
    let mut cluster = Cluster::new("node-1")
        .zone(HOSTILE)
        .service(service("shop/web").cluster_ip("10.96.0.1").port("", 80))
        .slice(slice("shop/web-a", "web").port("", 8080).pod("10.244.0.2"));
    assert_visible(&text(&cluster, &ProxySettings::default()));

    cluster.node.metadata.labels.clear();
    let mut explanation = explained(&cluster, &ProxySettings::default());
    let Handling::Served { ports, .. } = &mut explanation.handling else { panic!("{explanation:?}") };
    let rule = ServiceRule { location: HOSTILE.to_owned(), text: HOSTILE.to_owned(), packets: None, bytes: None };
    ports[0].kernel = Some(KernelState { rules: Some(vec![rule]), connections: None });
    ports[0].endpoints[0].pod = Some(HOSTILE.to_owned());
    let mut text = String::new();
    write_explanation_into(&mut text, &explanation).unwrap();
    assert_visible(&text);
    let json = serde_json::to_value(&explanation).unwrap().to_string();
    assert!(json.contains(&serde_json::to_string(HOSTILE).unwrap()), "{json}");
}

#[test]
fn all_policies_and_frontends_are_explained() {
    let cluster = Cluster::new("node-1")
        .zone("zone-a")
        .service(
            service("shop/web")
                .cluster_ip("10.96.0.1")
                .port("http", 80)
                .node_port(30080)
                .load_balancer("198.51.100.1")
                .external_ip("203.0.113.1")
                .source_range("192.0.2.0/24")
                .affinity(600)
                .external_local()
                .health_check_node_port(32000)
                .with(|service| service.spec.traffic_distribution = Some("PreferSameZone".to_owned())),
        )
        .slice(
            slice("shop/web-a", "web")
                .port("http", 8080)
                .pod(pod("10.244.0.2").on("node-1").for_zone("zone-a"))
                .pod(pod("10.244.1.2").for_zone("zone-b"))
                .pod(pod("10.244.1.3").for_zone("zone-a").for_node("node-2"))
                .pod(pod("10.244.0.3").on("node-1").unready())
                .pod(pod("10.244.0.4").on("node-1").terminating())
                .pod(pod("10.244.0.5").on("node-1").terminated())
                .pod(pod("10.244.0.6").on("node-1").conditions(true, false, true).for_zone("zone-a")),
        );
    let settings = ProxySettings {
        node_port_addresses: NodePortAddresses::Within(vec!["192.168.0.0/24".parse().unwrap()]),
        ..detecting_pods()
    };
    assert_snapshot!(text(&cluster, &settings), @"
    Service shop/web, type LoadBalancer, on node node-1 in zone zone-a

    policies
      internal traffic      Cluster
      external traffic      Local
      session affinity      by client address, for 600 s
      source ranges         192.0.2.0/24 (load balancer IPs only)
      traffic distribution  PreferSameZone (by EndpointSlice hints)
      health check          port 32000 answers 200: 2 ready endpoints on this node
                            at all IPv6 addresses of the node, 192.168.0.1
                            and at 198.51.100.1, where the load balancer makes it an address of the node

    port http 80/tcp, IPv4
      frontends
        cluster IP        10.96.0.1:80       3 endpoints (policy Cluster), masqueraded except from pods
        external IP       203.0.113.1:80     from pods and the node: 3 endpoints (policy Cluster), masqueraded except from pods
                                             from other clients: 2 endpoints (policy Local), source address kept
        load balancer IP  198.51.100.1:80    from pods and the node: 3 endpoints (policy Cluster), masqueraded except from pods
                                             from other clients: 2 endpoints (policy Local), source address kept
                                             from outside of the source ranges: dropped: not in the source ranges
        node port         192.168.0.1:30080  from pods and the node: 3 endpoints (policy Cluster), masqueraded except from pods
                                             from other clients: 2 endpoints (policy Local), source address kept
      endpoints
        10.244.0.2:8080  web-1  ready, this node, for zone zone-a                    used
        10.244.0.3:8080         not ready, this node                                 not used: not ready
        10.244.0.4:8080         terminating, still serving, this node                not used: terminating, and other endpoints are ready
        10.244.0.5:8080         terminating, this node                               not used: terminating and not serving
        10.244.0.6:8080         ready, terminating, this node, for zone zone-a       used
        10.244.1.2:8080         ready, other node, for zone zone-b                   Cluster: not used: hints name other zones
                                                                                     Local: not used: on another node
        10.244.1.3:8080         ready, other node, for zone zone-a, for node node-2  Cluster: used
                                                                                     Local: not used: on another node
    ");
}

#[test]
fn terminating_endpoints_are_used_if_none_is_ready() {
    let local = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).internal_local();
    let terminating = Cluster::new("node-1")
        .service(local.external_local())
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.1.2").on("node-2").terminating()));
    assert_snapshot!(text(&terminating, &ProxySettings::default()), @"
    Service shop/web, type NodePort, on node node-1

    policies
      internal traffic      Local
      external traffic      Local

    port http 80/tcp, IPv4
      frontends
        cluster IP  10.96.0.1:80                 dropped: policy Local, and no endpoint on this node
        node port   30080 on all node addresses  from the node: 1 endpoint (policy Cluster), masqueraded
                                                 from other clients: dropped: policy Local, and no endpoint on this node
      endpoints
        10.244.1.2:8080  terminating, still serving, other node  Cluster: used: terminating, but no endpoint is ready
                                                                 Local: not used: on another node
    ");
    let nothing = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.1.2").unready()));
    assert_snapshot!(text(&nothing, &ProxySettings::default()), @"
    Service shop/web, type NodePort, on node node-1

    policies
      internal traffic      Cluster
      external traffic      Cluster

    port http 80/tcp, IPv4
      frontends
        cluster IP  10.96.0.1:80                 rejected: no usable endpoints
        node port   30080 on all node addresses  rejected: no usable endpoints
      endpoints
        10.244.1.2:8080  not ready, other node  not used: not ready
    ");
}

#[test]
fn unused_slices_are_reported_with_reason() {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).udp("dns", 53))
        .slice(slice("shop/web-a", "web").port("metrics", 9090).udp("http", 80).pod("10.244.0.2").pod("10.244.0.3"))
        .slice(slice("shop/web-b", "web").port("http", 8080).pod("fd00:244::2"));
    assert_snapshot!(text(&cluster, &ProxySettings::default()), @"
    Service shop/web, type ClusterIP, on node node-1

    policies
      internal traffic      Cluster

    port dns 53/udp, IPv4
      frontends
        cluster IP  10.96.0.1:53  rejected: no usable endpoints
      no endpoints in any EndpointSlice
      unused EndpointSlice shop/web-a (2 endpoints): it has no port dns/udp, only metrics/tcp, http/udp

    port http 80/tcp, IPv4
      frontends
        cluster IP  10.96.0.1:80  rejected: no usable endpoints
      no endpoints in any EndpointSlice
      unused EndpointSlice shop/web-a (2 endpoints): it has no port http/tcp, only metrics/tcp, http/udp

    unused EndpointSlice shop/web-b (1 endpoint): the Service has no IPv6 cluster IP
    ");
}

#[test]
fn skipped_and_invalid_services_are_reported_with_reason() {
    let only = |service: ferroute_core::testing::ServiceBuilder| Cluster::new("node-1").service(service);
    let headless = only(service("shop/web").cluster_ip("None").port("http", 80));
    assert_snapshot!(text(&headless, &ProxySettings::default()), @"
    Service shop/web, type ClusterIP, on node node-1

    skipped: it is headless (clusterIP None): DNS returns its endpoints' addresses
    ");
    let mut invalid = only(service("shop/web").port("http", 80));
    invalid.services[0].spec.ports[0].port = 70_000;
    let empty = Cluster::new("node-1").tracker();
    let settings = ProxySettings::default();
    let inputs = Inputs {
        tracker: &empty,
        settings: &settings,
        traits: &ModeTraits::IPTABLES,
        addresses: &[],
        pod: &|_| None,
        node: &|_| None,
        health_check: None,
    };
    let mut text = String::new();
    write_explanation_into(&mut text, &explain(&invalid.services[0], &inputs)).unwrap();
    assert_snapshot!(text, @"
    Service shop/web, type ClusterIP, on node node-1

    invalid, so the proxy ignores it:
      spec.clusterIP: required: only the API server can assign an address
      spec.ports[0].port: invalid port 70000 (want 1 to 65535)
    ");
}

#[test]
fn json_uses_api_names() {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2"));
    let json = serde_json::to_string_pretty(&explained(&cluster, &ProxySettings::default())).unwrap();
    assert_snapshot!(json, @r#"
    {
      "service": "shop/web",
      "type": "ClusterIP",
      "node": "node-1",
      "handling": "served",
      "policies": {
        "internalTraffic": "Cluster"
      },
      "ports": [
        {
          "name": "http",
          "family": "IPv4",
          "protocol": "tcp",
          "frontends": [
            {
              "kind": "clusterIp",
              "addresses": [
                "10.96.0.1"
              ],
              "port": 80,
              "answers": [
                {
                  "clients": "all",
                  "outcome": "served",
                  "policy": "Cluster",
                  "endpoints": 1,
                  "source": "client"
                }
              ]
            }
          ],
          "endpoints": [
            {
              "address": "10.244.0.2:8080",
              "pod": "web-1",
              "state": "ready",
              "local": false,
              "cluster": {
                "used": true,
                "reason": "ready"
              }
            }
          ]
        }
      ]
    }
    "#);
}

#[test]
fn json_of_skipped_and_rejected_is_stable() {
    let headless = Cluster::new("node-1").service(service("shop/web").cluster_ip("None").port("http", 80));
    let json = serde_json::to_value(explained(&headless, &ProxySettings::default())).unwrap();
    assert_eq!(json["handling"], "notServed");
    assert!(json["reason"].is_string(), "{json:#}");
    let idle = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80))
        .slice(slice("shop/web-b", "web").port("http", 8080).pod("fd00:244::2"));
    let json = serde_json::to_value(explained(&idle, &ProxySettings::default())).unwrap();
    assert_eq!(json["ports"][0]["frontends"][0]["answers"][0]["outcome"], "rejected");
    assert_eq!(json["ports"][0]["frontends"][0]["answers"][0]["reason"], "noEndpoints");
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json["unexpectedSlices"][0]), ["code", "endpoints", "reason", "slice"]);
}

#[test]
fn owner_of_a_claimed_address_is_named() {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).external_ip("10.96.0.10"))
        .service(service("kube-system/dns").cluster_ip("10.96.0.10").port("metrics", 80));
    assert_snapshot!(text(&cluster, &ProxySettings::default()), @"
    Service shop/web, type ClusterIP, on node node-1

    policies
      internal traffic      Cluster

    port http 80/tcp, IPv4
      frontends
        cluster IP   10.96.0.1:80   rejected: no usable endpoints
        external IP  10.96.0.10:80  not served: it belongs to kube-system/dns:metrics (cluster IP)
      no endpoints in any EndpointSlice
    ");
}

#[test]
fn node_ports_without_address_and_open_families_are_explained() {
    let cluster = Cluster::new("node-1")
        .service(
            service("shop/web")
                .cluster_ip("10.96.0.1")
                .cluster_ip("fd00:10:96::1")
                .port("http", 80)
                .node_port(30080)
                .load_balancer("198.51.100.1")
                .load_balancer("2001:db8::1")
                .source_range("192.0.2.0/24"),
        )
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")));
    let settings = ProxySettings {
        node_port_addresses: NodePortAddresses::Within(vec!["172.16.0.0/12".parse().unwrap()]),
        ..ProxySettings::default()
    };
    let explanation = explained(&cluster, &settings);
    let Handling::Served { policies, ports, ignored, .. } = &explanation.handling else { panic!("{explanation:?}") };
    assert_eq!(policies.unrestricted_families, [IpFamily::V6]);
    assert_eq!(ignored.len(), 1, "{ignored:?}");
    let unserved = |port: &ExplainedPort| port.frontends.iter().map(|frontend| frontend.unserved).collect::<Vec<_>>();
    // The setting has no IPv6 network, so that it does not restrict IPv6.
    assert_eq!(ports.iter().map(unserved).collect::<Vec<_>>(), [[false, false, true], [false; 3]]);
    let text = text(&cluster, &settings);
    assert!(text.contains("IPv6: open to all clients, no IPv6 range"), "{text}");
    assert!(text.contains("not served: no address of this node is in nodePortAddresses"), "{text}");
}

#[test]
fn endpoint_without_node_name_may_be_on_this_node() {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).internal_local())
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").without_node()));
    let text = text(&cluster, &ProxySettings::default());
    assert!(text.contains("ready, unknown node  not used: its node is unknown (no nodeName)"), "{text}");
}
