//! The plans of the examples.

use std::fmt::Write;

use super::*;

fn example(name: &str) -> ClusterPlan {
    let path = format!("{}/../../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let objects = objects(&text);
    assert_eq!(objects.ignored, Vec::<String>::new(), "{path}");
    ClusterPlan::new(&objects, None, true).unwrap()
}

/// Returns the pods, then all objects except these and Nodes, which are always the same.
fn show(plan: &ClusterPlan) -> String {
    let mut text = String::new();
    for PlannedPod { namespace, name, node, host_network, addresses, labels, ports } in &plan.pods {
        let ports: Vec<String> = ports.iter().map(|port| format!("{}/{}", port.number, port.protocol)).collect();
        writeln!(text, "{namespace}/{name} on {node}: {addresses} host_network={host_network} {labels:?} {ports:?}")
            .unwrap();
    }
    let mut objects = plan.objects(|_| true);
    objects.retain(|object| !matches!(object, Object::Node(_) | Object::Pod(_)));
    text + &to_yaml(&objects).unwrap()
}

#[test]
fn nginx() {
    let plan = example("nginx");
    assert_eq!(
        addresses(&plan),
        [
            "nginx-deployment-1 172.17.0.4",
            "nginx-deployment-2 172.17.0.5",
            "nginx-deployment-3 172.17.0.6",
            "web-server 172.17.0.14"
        ]
    );
    insta::assert_snapshot!(show(&plan));
}

#[test]
fn dual_stack() {
    insta::assert_snapshot!(show(&example("dual-stack")));
}

#[test]
fn session_affinity() {
    insta::assert_snapshot!(show(&example("session-affinity")));
}

#[test]
fn udp_dns() {
    insta::assert_snapshot!(show(&example("udp-dns")));
}

#[test]
fn all_clusters_have_the_same_nodes() {
    let nodes = |plan: &ClusterPlan| {
        let mut objects = plan.objects(|_| true);
        objects.retain(|object| matches!(object, Object::Node(_)));
        objects
    };
    let plan = example("nginx");
    insta::assert_snapshot!(to_yaml(&nodes(&plan)).unwrap());
    assert_eq!(nodes(&plan), nodes(&example("udp-dns")));
}

#[test]
fn ejection() {
    let plan = example("ejection");
    let names: Vec<&str> = plan.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["web-1", "web-2", "web-3", "client"]);
    assert!(show(&plan).contains("ferroute.io/passive-ejection"));
}
