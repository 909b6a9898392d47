//! The status of a cluster as text.

use ferroute_api::Service;
use ferroute_core::{IpFamily, Style};

use crate::{
    layout::{NodeId, OUTSIDE, outside_addresses},
    plan::{ClusterPlan, PlannedPod},
    state::{ProcessState, Status},
    text::columns,
};

/// Shows the cluster, its errors, and commands to try. `healthy` contains the health of the proxies that were checked.
pub(crate) fn all(status: &Status, healthy: &[(NodeId, bool)], style: Style) -> String {
    let mut text = format!("{}\n{}\n", machines(status, style), services(&status.plan, style));
    for (node, state) in &status.proxies {
        let healthy = healthy.iter().find(|(checked, _)| checked == node);
        let state = match (state, healthy) {
            (ProcessState::Down { reason }, _) => style.failure(&format!("down: {reason}")),
            (ProcessState::Running { .. }, Some((_, false))) => style.failure("not healthy"),
            (ProcessState::Running { pid }, _) => format!("{} (process {pid})", style.success("healthy")),
        };
        text.push_str(&format!("proxy on {node}: {state}\n"));
    }
    if !status.ignored.is_empty() {
        text.push_str(&format!("ignored objects: {}\n", status.ignored.join(", ")));
    }
    if let Some(problem) = &status.problem {
        text.push_str(&format!("{}\n", style.failure("invalid file, cluster unchanged:")));
        problem.lines().for_each(|line| text.push_str(&format!("  {}\n", style.failure(line))));
    }
    text.push_str(&format!("\nedit {} to change the cluster\n{}", status.yaml.display(), hints(&status.plan)));
    text
}

/// Returns commands to try.
pub(crate) fn hints(plan: &ClusterPlan) -> String {
    let client = plan.pods.last().map_or_else(|| NodeId::Node.name().to_owned(), PlannedPod::short_name);
    let service = plan.services.iter().find_map(|service| {
        let port = service.spec.ports.iter().find(|port| port.protocol.as_deref() != Some("UDP"))?;
        service.spec.cluster_ips.first().filter(|ip| *ip != "None")?;
        let host = match service.metadata.namespace.as_str() {
            "default" => service.metadata.name.clone(),
            namespace => format!("{}.{namespace}", service.metadata.name),
        };
        Some(if port.port == 80 { format!("http://{host}") } else { format!("http://{host}:{}", port.port) })
    });
    let exec = match service {
        Some(url) => format!("ferroute demo exec {client} -- curl -s {url}"),
        None => format!("ferroute demo exec {client} -- ip address"),
    };
    let rows = [
        (exec.as_str(), "in a pod, or on node or node2"),
        ("ferroute demo ui", "shows the cluster in a browser"),
        ("ferroute demo status", ""),
        ("ferroute demo down", ""),
    ];
    columns("  ", &rows.map(|(command, description)| vec![command.to_owned(), description.to_owned()]))
}

/// Shows the machines with their pods.
pub(crate) fn machines(status: &Status, style: Style) -> String {
    let plan = &status.plan;
    let mut rows = vec![vec![style.bold(OUTSIDE), outside_addresses(plan.ipv6).to_string()]];
    for node in NodeId::ALL {
        let network = format!("pods on {}", node.pod_network(IpFamily::V4));
        rows.push(vec![style.bold(node.name()), node.addresses(plan.ipv6).to_string(), network]);
        let pods = plan.pods.iter().filter(|pod| pod.node == node);
        rows.extend(pods.map(|pod| {
            vec![format!("  {}", pod.short_name()), pod.addresses.to_string(), ports(pod), state(status, pod, style)]
        }));
    }
    columns("", &rows)
}

/// Shows the Services with their endpoints.
pub(crate) fn services(plan: &ClusterPlan, style: Style) -> String {
    columns("", &plan.services.iter().flat_map(|service| rows(plan, service, style)).collect::<Vec<_>>())
}

/// Returns the rows of a Service: addresses, ports and endpoints, with its name in the first row.
fn rows(plan: &ClusterPlan, service: &Service, style: Style) -> Vec<Vec<String>> {
    let (metadata, spec) = (&service.metadata, &service.spec);
    let name = match metadata.namespace.as_str() {
        "default" => metadata.name.clone(),
        namespace => format!("{}@{namespace}", metadata.name),
    };
    let ingress: Vec<String> = service.status.load_balancer.ingress.iter().map(|point| point.ip.clone()).collect();
    let ports = spec.ports.iter().map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
        let node_port = port.node_port.filter(|number| *number != 0).map(|number| format!(" (node port {number})"));
        format!("{}/{protocol}{}", port.port, node_port.unwrap_or_default())
    });
    let properties = [
        ("cluster IP", spec.cluster_ips.join(", ")),
        ("load balancer", ingress.join(", ")),
        ("external IP", spec.external_ips.join(", ")),
        ("ports", ports.collect::<Vec<_>>().join(", ")),
        ("endpoints", endpoints(plan, service)),
    ];
    let properties = properties.into_iter().filter(|(_, value)| !value.is_empty());
    let names = std::iter::once(style.bold(&name)).chain(std::iter::repeat(String::new()));
    names.zip(properties).map(|(name, (property, value))| vec![name, property.to_owned(), value]).collect()
}

fn endpoints(plan: &ClusterPlan, service: &Service) -> String {
    let labels: Vec<String> = service.spec.selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let count = plan.pods.iter().filter(|pod| pod.is_selected_by(service)).count();
    match (labels.as_slice(), count) {
        ([], _) => String::new(),
        (labels, 1) => format!("1 pod with {}", labels.join(", ")),
        (labels, count) => format!("{count} pods with {}", labels.join(", ")),
    }
}

fn ports(pod: &PlannedPod) -> String {
    pod.ports.iter().map(|port| format!("{}/{}", port.number, port.protocol)).collect::<Vec<_>>().join(" ")
}

fn state(status: &Status, pod: &PlannedPod, style: Style) -> String {
    match status.pods.get(&pod.short_name()) {
        Some(ProcessState::Running { pid }) => style.dim(&format!("process {pid}")),
        Some(ProcessState::Down { reason }) => style.failure(&format!("down: {reason}")),
        None => style.failure("down"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::Objects;

    fn status() -> Status {
        let yaml = include_str!("../../../examples/dual-stack.yaml");
        let plan = ClusterPlan::new(&Objects::parse(yaml).unwrap(), None, true).unwrap();
        let mut pods: BTreeMap<String, ProcessState> =
            plan.pods.iter().zip(100..).map(|(pod, pid)| (pod.short_name(), ProcessState::Running { pid })).collect();
        pods.insert("web-2".into(), ProcessState::Down { reason: "exit status: 1".into() });
        let proxies = BTreeMap::from(NodeId::ALL.map(|node| (node, ProcessState::Running { pid: 200 })));
        let yaml = "/home/me/web.yaml".into();
        Status { yaml, plan, pods, proxies, ignored: Vec::new(), problem: None }
    }

    #[test]
    fn shows_machines_pods_services_and_proxies() {
        insta::assert_snapshot!(all(&status(), &[(NodeId::Node, true), (NodeId::Node2, true)], Style::Plain));
    }

    #[test]
    fn shows_errors() {
        let mut status = status();
        status.proxies.insert(NodeId::Node, ProcessState::Down { reason: "exit status: 1".into() });
        status.ignored = vec!["ConfigMap default/c".into(), "Ingress default/i".into()];
        status.problem = Some("document 1, line 3: Service default/a: spec.ports\ndocument 2: no kind".into());
        let text = all(&status, &[(NodeId::Node2, false)], Style::Plain);
        let start = text.find("proxy on").unwrap();
        insta::assert_snapshot!(&text[start..]);
    }

    #[test]
    fn shows_empty_cluster() {
        let plan = ClusterPlan::new(&Objects::default(), None, false).unwrap();
        let status = Status { plan, pods: BTreeMap::new(), ..status() };
        insta::assert_snapshot!(all(&status, &[], Style::Plain));
    }
}
