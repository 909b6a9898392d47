//! What is refused, and in which words.

use super::*;

#[track_caller]
fn refused(yaml: &str) -> String {
    refused_with(yaml, true)
}

#[track_caller]
fn refused_with(yaml: &str, ipv6: bool) -> String {
    ClusterPlan::new(&objects(yaml), None, ipv6).unwrap_err().to_string()
}

#[test]
fn two_pods_with_one_name() {
    let yaml = [deployment("web", 2, ""), pod("web-2", "")].concat();
    assert_eq!(
        refused(&yaml),
        "Pod default/web-2: metadata.name: Pod default/web-2 is already taken by Deployment default/web"
    );
}

#[test]
fn a_pod_named_like_a_machine() {
    for name in ["node", "node2", "outside", "lan"] {
        assert_eq!(
            refused(&pod(name, "")),
            format!("Pod default/{name}: metadata.name: {name:?} is the name of one of the demo's own machines")
        );
    }
}

#[test]
fn names_that_would_lead_out_of_a_directory() {
    for name in ["../../x", "a/b", "..", "-a", "A"] {
        let text = refused(&pod(&format!("{name:?}"), ""));
        assert!(text.contains(": metadata.name: invalid name"), "{text}");
    }
    let text = refused("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: ../x}}");
    assert!(text.contains(": metadata.namespace: invalid name \"../x\""), "{text}");
}

#[test]
fn a_node_that_does_not_exist() {
    assert_eq!(
        refused(&pod("a", "nodeName: worker-7")),
        "Pod default/a: spec.nodeName: unsupported value \"worker-7\" (want node or node2)"
    );
}

#[test]
fn ports_of_containers_that_are_none() {
    assert_eq!(
        refused(&deployment("web", 1, "{containerPort: 80}, {containerPort: 70000}")),
        "Deployment default/web: spec.template.spec.containers[0].ports[1].containerPort: 70000 is out of range (want 1 \
         to 65535)"
    );
    assert_eq!(
        refused(&pod("a", "containers: [{ports: [{containerPort: 80, protocol: http}]}]")),
        "Pod default/a: spec.containers[0].ports[0].protocol: unsupported value \"http\" (want TCP, UDP or SCTP)"
    );
}

#[test]
fn deployments_that_would_not_own_their_pods() {
    let yaml = deployment("web", 1, "");
    assert_eq!(
        refused(&yaml.replace("labels: {app: web}", "labels: {app: other}")),
        "Deployment default/web: spec.selector.matchLabels: does not match the labels of spec.template"
    );
    assert_eq!(
        refused(&yaml.replace("matchLabels: {app: web}", "")),
        "Deployment default/web: spec.selector.matchLabels: is missing"
    );
}

#[test]
fn more_pods_than_there_is_room_for() {
    assert_eq!(
        refused(&deployment("web", 252, "")),
        "Deployment default/web: status.podIP: no pod address is left to assign"
    );
    assert_eq!(
        refused(&deployment("web", 1000, "")),
        "Deployment default/web: spec.replicas: 1000 is out of range (want 0 to 300)"
    );
}

#[test]
fn addresses_and_ports_that_another_has() {
    let a = service("a", "type: NodePort, clusterIP: 10.96.0.7, ports: [{port: 80, nodePort: 30080}]");
    assert_eq!(
        refused(&[a.clone(), service("b", "clusterIP: 10.96.0.7, ports: [{port: 80}]")].concat()),
        "Service default/b: spec.clusterIPs[0]: 10.96.0.7 is already taken by Service default/a"
    );
    assert_eq!(
        refused(&[a, service("b", "type: NodePort, ports: [{port: 80, nodePort: 30080}]")].concat()),
        "Service default/b: spec.ports[0].nodePort: 30080/tcp is already taken by Service default/a"
    );
    let with_ip = |name| pod(name, "").replace("spec: {}", "status: {podIP: 172.17.0.9}");
    assert_eq!(
        refused(&[with_ip("a"), with_ip("b")].concat()),
        "Pod default/b: status.podIP: 172.17.0.9 is already taken by Pod default/a"
    );
}

#[test]
fn node_ports_out_of_range() {
    assert_eq!(
        refused(&service("a", "type: NodePort, ports: [{port: 80, nodePort: 80}]")),
        "Service default/a: spec.ports[0].nodePort: 80 is out of range (want 30000 to 32767)"
    );
}

#[test]
fn target_ports_that_are_none() {
    for target in ["0", "70000", "-1", "true", "[80]"] {
        let text = refused(&service("a", &format!("ports: [{{port: 80, targetPort: {target}}}]")));
        assert!(text.starts_with("Service default/a: spec.ports[0].targetPort: unsupported value"), "{text}");
    }
}

#[test]
fn families_that_are_unknown_or_not_there() {
    assert_eq!(
        refused(&service("a", "ipFamilies: [IPv5], ports: [{port: 80}]")),
        "Service default/a: spec.ipFamilies[0]: unsupported value \"IPv5\" (want IPv4 or IPv6)"
    );
    assert_eq!(
        refused(&service("a", "ipFamilyPolicy: Both, ports: [{port: 80}]")),
        "Service default/a: spec.ipFamilyPolicy: unsupported value \"Both\" (want SingleStack, PreferDualStack or \
         RequireDualStack)"
    );
    for (spec, field) in [("ipFamilies: [IPv6]", "ipFamilies"), ("ipFamilyPolicy: RequireDualStack", "ipFamilyPolicy")]
    {
        assert_eq!(
            refused_with(&service("a", &format!("{spec}, ports: [{{port: 80}}]")), false),
            format!("Service default/a: spec.{field}: asks for IPv6, which this machine's kernel does not have")
        );
    }
}

#[test]
fn whatever_a_proxy_would_refuse() {
    let text = refused(&service("a", "type: Sometimes, clusterIP: none, ports: []"));
    for field in ["spec.type", "spec.clusterIP", "spec.ports"] {
        assert!(text.contains(field), "{text}");
    }
}

#[test]
fn text_that_holds_no_objects_is_refused_by_place_object_and_field() {
    let error =
        Objects::parse(&[pod("a", ""), deployment("b", 1, "").replace("replicas: 1", "replicas: some")].concat());
    assert_eq!(
        error.unwrap_err().to_string(),
        "document 2, line 8: Deployment default/b: spec.replicas: got the text \"some\", want a number"
    );
}
