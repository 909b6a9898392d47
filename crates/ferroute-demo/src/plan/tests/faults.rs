//! Errors of invalid objects.

use super::*;

#[track_caller]
fn error(yaml: &str) -> String {
    error_with(yaml, true)
}

#[track_caller]
fn error_with(yaml: &str, ipv6: bool) -> String {
    ClusterPlan::new(&objects(yaml), None, ipv6).unwrap_err().to_string()
}

#[test]
fn duplicate_pod_name() {
    let yaml = [deployment("web", 2, ""), pod("web-2", "")].concat();
    assert_eq!(
        error(&yaml),
        "Pod default/web-2: metadata.name: Pod default/web-2 is already taken by Deployment default/web"
    );
}

#[test]
fn pod_name_of_a_machine() {
    for name in ["node", "node2", "outside", "lan"] {
        assert_eq!(
            error(&pod(name, "")),
            format!("Pod default/{name}: metadata.name: {name:?} is the name of one of the demo's machines")
        );
    }
}

#[test]
fn names_with_path_separators() {
    for name in ["../../x", "a/b", "..", "-a", "A"] {
        let text = error(&pod(&format!("{name:?}"), ""));
        assert!(text.contains(": metadata.name: invalid name"), "{text}");
    }
    let text = error("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ../x}}");
    assert!(text.contains(": metadata.namespace: invalid name \"../x\""), "{text}");
}

#[test]
fn unknown_node() {
    assert_eq!(
        error(&pod("a", "nodeName: worker-7")),
        "Pod default/a: spec.nodeName: unsupported value \"worker-7\" (want node or node2)"
    );
}

#[test]
fn invalid_container_ports() {
    assert_eq!(
        error(&deployment("web", 1, "{containerPort: 80}, {containerPort: 70000}")),
        "Deployment default/web: spec.template.spec.containers[0].ports[1].containerPort: 70000 is out of range (want 1 \
         to 65535)"
    );
    assert_eq!(
        error(&pod("a", "containers: [{ports: [{containerPort: 80, protocol: http}]}]")),
        "Pod default/a: spec.containers[0].ports[0].protocol: unsupported value \"http\" (want TCP, UDP or SCTP)"
    );
}

#[test]
fn selector_that_does_not_match_the_template() {
    let yaml = deployment("web", 1, "");
    assert_eq!(
        error(&yaml.replace("labels: {app: web}", "labels: {app: other}")),
        "Deployment default/web: spec.selector.matchLabels: does not match the labels of spec.template"
    );
    assert_eq!(
        error(&yaml.replace("matchLabels: {app: web}", "")),
        "Deployment default/web: spec.selector.matchLabels: is missing"
    );
}

#[test]
fn too_many_pods() {
    assert_eq!(error(&deployment("web", 252, "")), "Deployment default/web: status.podIP: no free pod address");
    assert_eq!(
        error(&deployment("web", 1000, "")),
        "Deployment default/web: spec.replicas: 1000 is out of range (want 0 to 300)"
    );
}

#[test]
fn addresses_and_ports_in_use() {
    let a = service("a", "type: NodePort, clusterIP: 10.96.0.7, ports: [{port: 80, nodePort: 30080}]");
    assert_eq!(
        error(&[a.clone(), service("b", "clusterIP: 10.96.0.7, ports: [{port: 80}]")].concat()),
        "Service default/b: spec.clusterIPs[0]: 10.96.0.7 is already taken by Service default/a"
    );
    assert_eq!(
        error(&[a, service("b", "type: NodePort, ports: [{port: 80, nodePort: 30080}]")].concat()),
        "Service default/b: spec.ports[0].nodePort: 30080/tcp is already taken by Service default/a"
    );
    let with_ip = |name| pod(name, "").replace("spec: {}", "status: {podIP: 172.17.0.9}");
    assert_eq!(
        error(&[with_ip("a"), with_ip("b")].concat()),
        "Pod default/b: status.podIP: 172.17.0.9 is already taken by Pod default/a"
    );
}

#[test]
fn node_ports_out_of_range() {
    assert_eq!(
        error(&service("a", "type: NodePort, ports: [{port: 80, nodePort: 80}]")),
        "Service default/a: spec.ports[0].nodePort: 80 is out of range (want 30000 to 32767)"
    );
}

#[test]
fn invalid_target_ports() {
    for target in ["0", "70000", "-1", "true", "[80]"] {
        let text = error(&service("a", &format!("ports: [{{port: 80, targetPort: {target}}}]")));
        assert!(text.starts_with("Service default/a: spec.ports[0].targetPort: unsupported value"), "{text}");
    }
}

#[test]
fn unknown_or_unsupported_ip_families() {
    assert_eq!(
        error(&service("a", "ipFamilies: [IPv5], ports: [{port: 80}]")),
        "Service default/a: spec.ipFamilies[0]: unsupported value \"IPv5\" (want IPv4 or IPv6)"
    );
    assert_eq!(
        error(&service("a", "ipFamilyPolicy: Both, ports: [{port: 80}]")),
        "Service default/a: spec.ipFamilyPolicy: unsupported value \"Both\" (want SingleStack, PreferDualStack or \
         RequireDualStack)"
    );
    for (spec, field) in [("ipFamilies: [IPv6]", "ipFamilies"), ("ipFamilyPolicy: RequireDualStack", "ipFamilyPolicy")]
    {
        assert_eq!(
            error_with(&service("a", &format!("{spec}, ports: [{{port: 80}}]")), false),
            format!("Service default/a: spec.{field}: requires IPv6, which the kernel does not support")
        );
    }
}

#[test]
fn services_that_proxies_reject() {
    let text = error(&service("a", "type: Sometimes, clusterIP: none, ports: []"));
    for field in ["spec.type", "spec.clusterIP", "spec.ports"] {
        assert!(text.contains(field), "{text}");
    }
}

#[test]
fn parse_errors_have_position_object_and_field() {
    let result =
        Objects::parse(&[pod("a", ""), deployment("b", 1, "").replace("replicas: 1", "replicas: some")].concat());
    assert_eq!(
        result.unwrap_err().to_string(),
        "document 2, line 8: Deployment default/b: spec.replicas: got string \"some\", want a number"
    );
}
