mod examples;
mod faults;
mod pods;
mod services;

use ferroute_api::manifest::{self, Parsed};

use super::*;

fn objects(yaml: &str) -> Objects {
    Objects::parse(yaml).unwrap()
}

/// Plans a new cluster.
fn plan(yaml: &str) -> ClusterPlan {
    ClusterPlan::new(&objects(yaml), None, true).unwrap()
}

fn replan(yaml: &str, previous: &ClusterPlan) -> ClusterPlan {
    ClusterPlan::new(&objects(yaml), Some(previous), true).unwrap()
}

fn deployment(name: &str, replicas: u32, ports: &str) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec: {{containers: [{{name: c, ports: [{ports}]}}]}}
"
    )
}

fn pod(name: &str, spec: &str) -> String {
    format!("---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n")
}

fn service(name: &str, spec: &str) -> String {
    format!("---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n")
}

/// Returns `name address` of every pod.
fn addresses(plan: &ClusterPlan) -> Vec<String> {
    plan.pods.iter().map(|pod| format!("{} {}", pod.short_name(), pod.addresses.v4)).collect()
}

#[test]
fn written_manifests_are_parsed_to_same_objects() {
    let yaml = [
        deployment("web", 2, "{containerPort: 80}"),
        service("web", "type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]"),
        service("bare", "clusterIP: None, ports: [{port: 80}]"),
    ]
    .concat();
    let objects = plan(&yaml).objects(|_| true);
    let read = manifest::read(&to_yaml(&objects).unwrap()).into_iter().map(|document| match document.unwrap() {
        Parsed::Object(object) => *object,
        Parsed::Ignored(ignored) => panic!("{ignored:?}"),
    });
    assert_eq!(read.collect::<Vec<_>>(), objects);
}

#[test]
fn plan_is_serializable() {
    let plan = plan(&[pod("a", ""), service("a", "selector: {app: a}, ports: [{port: 53, protocol: UDP}]")].concat());
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<ClusterPlan>(&text).unwrap(), plan);
}

#[test]
fn ignored_objects_are_listed() {
    let objects = objects(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: mine}}\n",
    );
    assert_eq!(objects.ignored, ["ConfigMap c", "Node mine"]);
}

#[test]
fn users_own_slices_and_endpoints_are_passed_to_proxies() {
    let yaml = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: mine, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [192.168.49.100]}]
---
{apiVersion: v1, kind: Endpoints, metadata: {name: old}, subsets: [{addresses: [{ip: 192.168.49.100}], ports: [{port: 80}]}]}
";
    let parsed = objects(yaml);
    let objects = plan(yaml).objects(|_| true);
    assert!(objects.contains(&Object::EndpointSlice(parsed.slices[0].clone())));
    assert!(objects.contains(&Object::Endpoints(parsed.endpoints[0].clone())));
}
