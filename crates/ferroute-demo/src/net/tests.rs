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
                    let optional = if *optional { " (if there)" } else { "" };
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
fn machines_are_joined_by_a_switch() {
    insta::assert_snapshot!(show(&topology::machines(&Instance::default(), true)));
}

#[test]
fn a_pod_hangs_on_its_nodes_bridge() {
    let pods = pods(true);
    insta::assert_snapshot!(pods.iter().map(|pod| show(&topology::pod(&Instance::default(), pod))).collect::<String>());
}

#[test]
fn without_ipv6_nothing_is_done_about_it() {
    let instance = Instance::default();
    let mut steps = show(&topology::machines(&instance, false));
    pods(false).iter().for_each(|pod| steps.push_str(&show(&topology::pod(&instance, pod))));
    assert!(!steps.contains("fd00") && !steps.contains("ipv6") && !steps.contains("::"), "{steps}");
}

#[test]
fn nothing_is_done_outside_of_the_instances_own_namespaces() {
    let instance: Instance = "test".parse().unwrap();
    let own = |name: &str| name.starts_with(&instance.prefix());
    let mut steps = topology::machines(&instance, true);
    steps.extend(pods(true).iter().flat_map(|pod| topology::pod(&instance, pod)));
    for step in &steps {
        match step {
            Step::Namespace(name) => assert!(own(name)),
            Step::Sysctls { namespace, .. } => assert!(own(namespace)),
            Step::Links { namespace, lines } => {
                assert!(own(namespace));
                // The other end of a wire is named in the command.
                let ends = lines.iter().filter_map(|line| line.split_once(" netns ")).map(|(_, end)| end);
                ends.for_each(|end| assert!(own(end), "{end}"));
            }
        }
    }
}

#[test]
fn every_device_has_a_name_that_the_kernel_takes() {
    for host in 4..=254 {
        let mut pod = pods(true).remove(0);
        pod.addresses = pod.node.pod_addresses(host, true);
        assert!(topology::device(&pod).len() < 16);
    }
}
