//! Pods with their nodes and addresses.

use proptest::prelude::*;

use super::*;

#[test]
fn each_workload_has_a_block_of_ten_addresses() {
    let yaml = [deployment("a", 2, ""), pod("b", ""), deployment("c", 1, ""), pod("d", "")].concat();
    let expected = ["a-1 172.17.0.4", "a-2 172.17.0.5", "b 172.17.0.14", "c-1 172.17.0.24", "d 172.17.0.34"];
    assert_eq!(addresses(&plan(&yaml)), expected);
}

#[test]
fn replicas_of_one_workload_do_not_affect_addresses_of_another() {
    let yaml = |replicas| [deployment("a", replicas, ""), pod("b", "")].concat();
    for replicas in 0..=10 {
        assert!(addresses(&plan(&yaml(replicas))).contains(&"b 172.17.0.14".to_owned()), "{replicas}");
    }
}

#[test]
fn eleventh_pod_gets_any_free_address() {
    let plan = plan(&[deployment("a", 12, ""), pod("b", "")].concat());
    assert_eq!(addresses(&plan)[9..], ["a-10 172.17.0.13", "a-11 172.17.0.15", "a-12 172.17.0.16", "b 172.17.0.14"]);
}

#[test]
fn pod_keeps_its_address_when_another_is_added_before_it() {
    let first = plan(&[pod("b", ""), pod("c", "")].concat());
    let second = replan(&[pod("a", ""), pod("b", ""), pod("c", "")].concat(), &first);
    // The preferred address of "a" in a new cluster, .4, is in use.
    assert_eq!(addresses(&second), ["a 172.17.0.5", "b 172.17.0.4", "c 172.17.0.14"]);
}

#[test]
fn blocks_are_per_node() {
    let plan = plan(&[pod("a", ""), pod("b", "nodeName: node2"), pod("c", "nodeName: node")].concat());
    assert_eq!(addresses(&plan), ["a 172.17.0.4", "b 172.17.1.4", "c 172.17.0.14"]);
}

#[test]
fn pod_gets_new_address_on_another_node() {
    let first = plan(&pod("a", ""));
    assert_eq!(addresses(&replan(&pod("a", "nodeName: node2"), &first)), ["a 172.17.1.4"]);
}

#[test]
fn yaml_may_set_the_pod_address() {
    let with_ip = |ip: &str| pod("b", "").replace("spec: {}", &format!("spec: {{}}, status: {{podIP: {ip}}}"));
    assert_eq!(addresses(&plan(&[pod("a", ""), with_ip("172.17.0.4")].concat())), ["a 172.17.0.5", "b 172.17.0.4"]);
    // An address of another cluster.
    assert_eq!(addresses(&plan(&with_ip("10.244.1.7"))), ["b 172.17.0.4"]);
}

#[test]
fn host_network_pods_have_addresses_of_their_node() {
    let plan = plan(&[pod("a", "hostNetwork: true, nodeName: node2"), pod("b", "nodeName: node2")].concat());
    assert_eq!(plan.pods[0].addresses, NodeId::Node2.addresses(true));
    assert!(plan.pods[0].host_network);
    assert_eq!(addresses(&plan)[1], "b 172.17.1.4");
}

#[test]
fn pod_without_ports_listens_on_target_ports_of_its_services() {
    let ports = |yaml: &str| {
        let ports = plan(yaml).pods[0].ports.clone();
        ports.iter().map(|port| format!("{}/{}", port.number, port.protocol)).collect::<Vec<_>>()
    };
    let bare = deployment("web", 1, "");
    assert_eq!(ports(&bare), ["80/tcp"]);
    let services = [
        service("a", "selector: {app: web}, ports: [{port: 80, targetPort: 8080}]"),
        service("b", "selector: {app: web}, ports: [{port: 53, protocol: UDP, name: d}, {port: 8080, name: w}]"),
        service("c", "selector: {app: other}, ports: [{port: 99}]"),
    ]
    .concat();
    assert_eq!(ports(&[bare, services.clone()].concat()), ["8080/tcp", "53/udp"]);
    assert_eq!(ports(&[deployment("web", 1, "{containerPort: 1}"), services].concat()), ["1/tcp"]);
}

#[test]
fn short_names_include_other_namespaces() {
    let plan = plan("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}}");
    assert_eq!(addresses(&plan), ["a@shop 172.17.0.4"]);
}

#[test]
fn pods_have_no_ipv6_address_without_ipv6() {
    let plan = ClusterPlan::new(&objects(&pod("a", "")), None, false).unwrap();
    assert_eq!(plan.pods[0].addresses.to_string(), "172.17.0.4");
}

/// Generates workloads with replicas and nodes. Each name may be missing.
fn cluster() -> impl Strategy<Value = String> {
    let workload = (any::<bool>(), 0..15_u32, any::<bool>());
    proptest::collection::vec(proptest::option::of(workload), 0..8).prop_map(|workloads| {
        let yaml = workloads.iter().enumerate().filter_map(|(i, workload)| {
            let (is_deployment, replicas, second_node) = (*workload)?;
            let name = format!("w{i}");
            let node = if second_node { "node2" } else { "node" };
            let text = if is_deployment {
                deployment(&name, replicas, "")
                    .replace("spec: {containers", &format!("spec: {{nodeName: {node}, containers"))
            } else {
                pod(&name, &format!("nodeName: {node}"))
            };
            Some(text)
        });
        yaml.collect()
    })
}

proptest! {
    #[test]
    fn pod_addresses_are_unique_on_their_node_and_stable(before in cluster(), after in cluster()) {
        let (before, after) = (plan(&before), replan(&after, &plan(&before)));
        let mut seen = std::collections::BTreeSet::new();
        for pod in &after.pods {
            prop_assert!(seen.insert(pod.addresses));
            let host = pod.addresses.v4.octets()[3];
            prop_assert!((4..=254).contains(&host));
            prop_assert_eq!(pod.addresses, pod.node.pod_addresses(host, true));
            let old = before.pods.iter().find(|old| (&old.name, old.node) == (&pod.name, pod.node));
            prop_assert!(old.is_none_or(|old| old.addresses == pod.addresses));
        }
    }
}
