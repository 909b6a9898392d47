use std::fmt::Write;

use super::*;
use crate::plan::{ClusterPlan, Objects};

fn show(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Namespace(name) => writeln!(text, "ip netns add {name}").unwrap(),
            Step::Sysctls { namespace, values } => {
                for Sysctl { path, value, optional } in values {
                    let optional = if *optional { " (optional)" } else { "" };
                    writeln!(text, "{namespace}: {path} = {value}{optional}").unwrap();
                }
            }
            Step::Links { namespace, lines } => {
                lines.iter().for_each(|line| writeln!(text, "{namespace}: {line}").unwrap());
            }
        }
    }
    text
}

fn pods(ipv6: bool) -> Vec<PlannedPod> {
    let yaml = "
{apiVersion: v1, kind: Pod, metadata: {name: web}}
---
{apiVersion: v1, kind: Pod, metadata: {name: far, namespace: shop}, spec: {nodeName: node2}}
";
    ClusterPlan::new(&Objects::parse(yaml).unwrap(), None, ipv6).unwrap().pods
}

#[test]
fn network_between_machines() {
    insta::assert_snapshot!(show(&topology::machines(&Instance::default(), true)));
}

#[test]
fn pod_network() {
    let pods = pods(true);
    insta::assert_snapshot!(pods.iter().map(|pod| show(&topology::pod(&Instance::default(), pod))).collect::<String>());
}

#[test]
fn no_ipv6_steps_without_ipv6() {
    let instance = Instance::default();
    let mut steps = show(&topology::machines(&instance, false));
    pods(false).iter().for_each(|pod| steps.push_str(&show(&topology::pod(&instance, pod))));
    assert!(!steps.contains("fd00") && !steps.contains("ipv6") && !steps.contains("::"), "{steps}");
}

#[test]
fn steps_only_affect_namespaces_of_the_instance() {
    let instance: Instance = "test".parse().unwrap();
    let is_own = |name: &str| name.starts_with(&instance.prefix());
    let mut steps = topology::machines(&instance, true);
    steps.extend(pods(true).iter().flat_map(|pod| topology::pod(&instance, pod)));
    for step in &steps {
        match step {
            Step::Namespace(name) => assert!(is_own(name)),
            Step::Sysctls { namespace, .. } => assert!(is_own(namespace)),
            Step::Links { namespace, lines } => {
                assert!(is_own(namespace));
                // The namespace of the other end of a veth pair.
                let ends = lines.iter().filter_map(|line| line.split_once(" netns ")).map(|(_, end)| end);
                ends.for_each(|end| assert!(is_own(end), "{end}"));
            }
        }
    }
}

#[test]
fn device_names_are_shorter_than_ifnamsiz() {
    for host in 4..=254 {
        let mut pod = pods(true).remove(0);
        pod.addresses = pod.node.pod_addresses(host, true);
        assert!(topology::device(&pod).len() < 16);
    }
}
