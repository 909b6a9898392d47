//! Assigned fields of Services, and their EndpointSlices.

use ferroute_core::parse::parse_service;
use proptest::prelude::*;

use super::*;

fn only(plan: &ClusterPlan) -> &Service {
    assert_eq!(plan.services.len(), 1);
    &plan.services[0]
}

/// Returns the name, ports and addresses of every slice.
fn slices(plan: &ClusterPlan) -> Vec<String> {
    let show = |slice: EndpointSlice| {
        let ports: Vec<String> =
            slice.ports.iter().map(|port| format!("{}={:?}", port.name, port.port.unwrap())).collect();
        let endpoints: Vec<String> = slice.endpoints.iter().flat_map(|endpoint| endpoint.addresses.clone()).collect();
        format!("{}: {} at {}", slice.metadata.name, ports.join(","), endpoints.join(","))
    };
    plan.slices(|_| true).into_iter().map(show).collect()
}

#[test]
fn assigned_values_do_not_depend_on_other_services() {
    let a = service("a", "type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80}]");
    let alone = only(&plan(&a)).clone();
    let among =
        plan(&[service("z", "type: NodePort, ports: [{port: 1}]"), a, service("b", "ports: [{port: 2}]")].concat());
    assert_eq!(among.services[1], alone);
    assert!(alone.spec.health_check_node_port.is_some());
    assert_eq!(alone.status.load_balancer.ingress.len(), 1);
}

#[test]
fn values_in_the_yaml_are_kept() {
    let spec = "type: LoadBalancer, clusterIP: 10.111.175.78, externalTrafficPolicy: Local, healthCheckNodePort: 30001, \
                ports: [{port: 80, nodePort: 31628}]";
    let yaml = service("a", spec).replace("spec: {", "status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}, spec: {");
    let written = objects(&yaml).services.remove(0);
    let mut expected = written;
    expected.spec.cluster_ips = vec!["10.111.175.78".into()];
    expected.spec.ip_families = vec!["IPv4".into()];
    assert_eq!(*only(&plan(&yaml)), expected);
}

#[test]
fn node_ports_depend_on_the_service_type() {
    let node_port =
        |type_| only(&plan(&service("a", &format!("type: {type_}, ports: [{{port: 80}}]")))).spec.ports[0].node_port;
    assert_eq!(node_port("ClusterIP"), None);
    assert!((30_000..=32_767).contains(&node_port("NodePort").unwrap()));
    assert!((30_000..=32_767).contains(&node_port("LoadBalancer").unwrap()));
}

#[test]
fn headless_and_external_name_services_get_no_cluster_ip() {
    let headless = plan(&service("a", "clusterIP: None, ports: [{port: 80}]"));
    assert_eq!(only(&headless).spec.cluster_ips, ["None"]);
    let name = plan(&service("a", "type: ExternalName, externalName: example.com"));
    assert_eq!(only(&name).spec.cluster_ips, Vec::<String>::new());
}

#[test]
fn ip_families_follow_the_list_then_the_cluster_ips_then_the_policy() {
    let families =
        |spec: &str| only(&plan(&service("a", &format!("{spec} ports: [{{port: 80}}]")))).spec.ip_families.clone();
    assert_eq!(families(""), ["IPv4"]);
    assert_eq!(families("ipFamilies: [IPv6],"), ["IPv6"]);
    assert_eq!(families("clusterIP: 'fd00:10:96::7',"), ["IPv6"]);
    assert_eq!(families("clusterIPs: ['fd00:10:96::7', 10.96.0.7],"), ["IPv6", "IPv4"]);
    assert_eq!(families("ipFamilyPolicy: PreferDualStack,"), ["IPv4", "IPv6"]);
    assert_eq!(families("ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6],"), ["IPv6", "IPv4"]);
}

#[test]
fn prefer_dual_stack_falls_back_to_ipv4() {
    let yaml = service("a", "ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]");
    let plan = ClusterPlan::new(&objects(&yaml), None, false).unwrap();
    assert_eq!(only(&plan).spec.ip_families, ["IPv4"]);
    assert_eq!(only(&plan).spec.cluster_ips.len(), 1);
}

#[test]
fn named_target_port_is_resolved_per_pod() {
    let yaml = [
        deployment("web", 1, "{name: http, containerPort: 8080}"),
        deployment("new", 2, "{name: http, containerPort: 9090}").replace("app: new}", "app: web, v: new}"),
        deployment("old", 1, "{containerPort: 8080}").replace("app: old}", "app: web, v: old}"),
        service("web", "selector: {app: web}, ports: [{port: 80, targetPort: http}]"),
    ]
    .concat();
    assert_eq!(slices(&plan(&yaml)), ["web-ipv4: =8080 at 172.17.0.4", "web-ipv4-2: =9090 at 172.17.0.14,172.17.0.15"]);
}

#[test]
fn named_target_port_requires_the_same_protocol() {
    let yaml = [
        deployment("dns", 1, "{name: dns, containerPort: 53, protocol: UDP}"),
        service("dns", "selector: {app: dns}, ports: [{port: 53, targetPort: dns}]"),
    ];
    assert_eq!(slices(&plan(&yaml.concat())), Vec::<String>::new());
}

#[test]
fn slices_contain_only_pods_of_the_namespace() {
    let elsewhere = deployment("web", 1, "").replace("name: web}", "name: web, namespace: shop}");
    let yaml = [elsewhere, service("web", "selector: {app: web}, ports: [{port: 80}]")].concat();
    assert_eq!(slices(&plan(&yaml)), Vec::<String>::new());
}

#[test]
fn services_without_selector_have_no_slices() {
    assert_eq!(slices(&plan(&[pod("a", ""), service("a", "ports: [{port: 80}]")].concat())), Vec::<String>::new());
}

#[test]
fn pods_that_are_not_ready_are_in_slices() {
    let yaml = [deployment("web", 2, ""), service("web", "selector: {app: web}, ports: [{port: 80}]")].concat();
    let slices = plan(&yaml).slices(|pod| pod.name == "web-2");
    let ready: Vec<_> = slices[0].endpoints.iter().map(|endpoint| endpoint.conditions.ready).collect();
    assert_eq!(ready, [Some(false), Some(true)]);
}

#[test]
fn slices_of_headless_services_are_labelled() {
    let yaml = [deployment("web", 1, ""), service("web", "clusterIP: None, selector: {app: web}, ports: [{port: 80}]")];
    let slices = plan(&yaml.concat()).slices(|_| true);
    assert!(slices[0].metadata.labels.contains_key(ferroute_api::labels::HEADLESS));
}

/// Generates Services of all types with one to three ports. Each name may be missing.
fn cluster() -> impl Strategy<Value = String> {
    let type_ = prop_oneof![Just("ClusterIP"), Just("NodePort"), Just("LoadBalancer")];
    let policy = prop_oneof![Just("SingleStack"), Just("PreferDualStack")];
    let generated = (type_, policy, 1..4_u16, any::<bool>());
    proptest::collection::vec(proptest::option::of(generated), 0..60).prop_map(|services| {
        let yaml = services.iter().enumerate().filter_map(|(i, generated)| {
            let (type_, policy, ports, local) = (*generated)?;
            let ports: Vec<String> = (1..=ports).map(|port| format!("{{name: p{port}, port: {port}}}")).collect();
            let local = if local && type_ != "ClusterIP" { "externalTrafficPolicy: Local," } else { "" };
            let spec = format!("type: {type_}, {local} ipFamilyPolicy: {policy}, ports: [{}]", ports.join(", "));
            Some(service(&format!("s{i}"), &spec))
        });
        yaml.collect()
    })
}

/// Returns all assigned values of a Service.
fn assigned(service: &Service) -> Vec<String> {
    let ips = service.spec.cluster_ips.iter().map(|ip| format!("ip {ip}"));
    let vips = service.status.load_balancer.ingress.iter().map(|point| format!("ip {}", point.ip));
    let ports = service.spec.ports.iter().filter_map(|port| port.node_port).chain(service.spec.health_check_node_port);
    ips.chain(vips).chain(ports.map(|port| format!("port {port}"))).collect()
}

proptest! {
    #[test]
    fn assigned_values_are_complete_unique_and_stable(before in cluster(), after in cluster()) {
        let before = plan(&before);
        let after = replan(&after, &before);
        let mut seen = std::collections::BTreeSet::new();
        for service in &after.services {
            prop_assert!(parse_service(service).is_ok());
            for value in assigned(service) {
                prop_assert!(seen.insert(value.clone()), "{} twice", value);
            }
            let old = before.services.iter().find(|old| old.metadata == service.metadata);
            if let Some(old) = old {
                let both = old.spec.cluster_ips.iter().zip(&service.spec.cluster_ips);
                prop_assert!(both.clone().all(|(old, new)| old == new));
                let ports = old.spec.ports.iter().zip(&service.spec.ports);
                for (old, new) in ports {
                    prop_assert!(old.node_port.is_none() || new.node_port.is_none() || old.node_port == new.node_port);
                }
            }
        }
    }
}
