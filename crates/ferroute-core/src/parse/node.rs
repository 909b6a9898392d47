use ferroute_api::{self as api, labels};
use ipnet::IpNet;

use super::{Errors, InvalidObject, parse_ip, parse_network};
use crate::NodeView;

/// Parses a Node.
pub fn parse_node(node: &api::Node) -> Result<NodeView, InvalidObject> {
    let mut errors = Errors::default();
    let mut addresses = Vec::new();
    // Internal addresses come first, as in kube-proxy: external ones may be behind a NAT, unknown to this host.
    for type_ in ["InternalIP", "ExternalIP"] {
        // Some cloud providers list an empty external address for nodes without one.
        let is_wanted = |address: &api::NodeAddress| address.type_ == type_ && !address.address.is_empty();
        for (i, address) in node.status.addresses.iter().enumerate().filter(|(_, address)| is_wanted(address)) {
            addresses.extend(errors.keep(format!("status.addresses[{i}].address"), parse_ip(&address.address)));
        }
    }
    let view = NodeView {
        name: node.metadata.name.clone(),
        zone: node.metadata.labels.get(labels::ZONE).filter(|zone| !zone.is_empty()).cloned(),
        addresses,
        pod_cidrs: parse_pod_cidrs(&mut errors, &node.spec),
        to_be_deleted: is_to_be_deleted(node),
    };
    errors.finish("Node", &node.metadata, view)
}

fn is_to_be_deleted(node: &api::Node) -> bool {
    let is_announced = |taint: &api::Taint| taint.key == labels::TO_BE_DELETED_TAINT;
    node.metadata.deletion_timestamp.is_some() || node.spec.taints.iter().any(is_announced)
}

fn parse_pod_cidrs(errors: &mut Errors, spec: &api::NodeSpec) -> Vec<IpNet> {
    if spec.pod_cidrs.is_empty() {
        let single = spec.pod_cidr.as_deref().filter(|cidr| !cidr.is_empty());
        return single.and_then(|cidr| errors.keep("spec.podCIDR", parse_network(cidr))).into_iter().collect();
    }
    errors.parse_list("spec.podCIDRs", &spec.pod_cidrs, parse_network)
}
