use ferroute_api as api;
use ipnet::IpNet;

use super::{Faults, InvalidObject, parse_network};

/// Reads a ServiceCIDR: the networks that it names. As in kube-proxy its conditions do not matter: addresses that were
/// given out of a network stay in use while it is being deleted.
pub fn parse_service_cidr(cidr: &api::ServiceCidr) -> Result<Vec<IpNet>, InvalidObject> {
    let mut faults = Faults::default();
    let each = cidr.spec.cidrs.iter().enumerate();
    let networks = each.filter_map(|(i, text)| faults.keep(format!("spec.cidrs[{i}]"), parse_network(text))).collect();
    faults.finish("ServiceCIDR", &cidr.metadata, networks)
}
