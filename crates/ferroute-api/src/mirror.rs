use std::{collections::HashMap, fmt, net::IpAddr};

use crate::{
    EndpointAddress, EndpointConditions, EndpointPort, EndpointSlice, Endpoints, ObjectMeta, SliceEndpoint, labels,
};

/// The reason why [`Endpoints`] are not mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorSkipReason {
    /// The object has the label [`labels::SKIP_MIRROR`].
    Label,
    /// The object is a leader election lock ([`labels::LEADER`]).
    LeaderElection,
}

impl MirrorSkipReason {
    /// Returns the first reason that applies to an object; `None` if it is mirrored.
    pub fn for_endpoints(endpoints: &Endpoints) -> Option<Self> {
        let metadata = &endpoints.metadata;
        if metadata.labels.get(labels::SKIP_MIRROR).is_some_and(|value| value == "true") {
            return Some(Self::Label);
        }
        metadata.annotations.contains_key(labels::LEADER).then_some(Self::LeaderElection)
    }
}

impl fmt::Display for MirrorSkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label => write!(f, "it has the label {}", labels::SKIP_MIRROR),
            Self::LeaderElection => write!(f, "it is a leader election lock (annotation {})", labels::LEADER),
        }
    }
}

/// Converts an [`Endpoints`] object to EndpointSlices, like the EndpointSliceMirroring controller of a cluster.
///
/// Returns one slice for each IP family and set of ports, with the object's labels and [`labels::SERVICE_NAME`]. Returns
/// none if there is a [`MirrorSkipReason`], or the object contains no addresses.
///
/// Unlike the controller, this function does not limit a slice to 1,000 endpoints, because there is no API server to
/// protect. The caller removes invalid addresses, as the controller does.
///
/// A Service that already has EndpointSlices must not be mirrored. The caller has to check that.
pub fn mirror(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let metadata = &endpoints.metadata;
    if MirrorSkipReason::for_endpoints(endpoints).is_some() {
        return Vec::new();
    }
    let mut slices: Vec<EndpointSlice> = Vec::new();
    // The indexes of the slices of each family, by their ports.
    let mut indexes: HashMap<&str, HashMap<Vec<EndpointPort>, usize>> = HashMap::new();
    for subset in &endpoints.subsets {
        let ports = sorted(&subset.ports);
        let ready = subset.addresses.iter().map(|address| (address, true));
        let not_ready = subset.not_ready_addresses.iter().map(|address| (address, false));
        for (address, ready) in ready.chain(not_ready) {
            let (family, endpoint) = slice_endpoint(address, ready);
            let of_family = indexes.entry(family).or_default();
            let index = of_family.get(&ports).copied().unwrap_or_else(|| {
                slices.push(empty_slice(metadata, family, of_family.len() + 1, &ports));
                of_family.insert(ports.clone(), slices.len() - 1);
                slices.len() - 1
            });
            slices[index].endpoints.push(endpoint);
        }
    }
    slices
}

/// Sorts the ports: slices are grouped by the set of ports, regardless of their order.
fn sorted(ports: &[EndpointPort]) -> Vec<EndpointPort> {
    let mut ports = ports.to_vec();
    ports.sort_by(|a, b| (&a.name, &a.protocol, a.port).cmp(&(&b.name, &b.protocol, b.port)));
    ports
}

fn slice_endpoint(address: &EndpointAddress, ready: bool) -> (&'static str, SliceEndpoint) {
    // An IPv4-mapped IPv6 address is an IPv4 address.
    let parsed = address.ip.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let v6 = parsed.map_or_else(|| address.ip.contains(':'), |ip| ip.is_ipv6());
    let endpoint = SliceEndpoint {
        addresses: vec![parsed.map_or_else(|| address.ip.clone(), |ip| ip.to_string())],
        conditions: EndpointConditions { ready: Some(ready), ..EndpointConditions::default() },
        node_name: address.node_name.clone(),
        hints: None,
        zone: None,
        target_ref: None,
    };
    (if v6 { "IPv6" } else { "IPv4" }, endpoint)
}

/// Creates a slice named `NAME-mirrored-ipv4`, `NAME-mirrored-ipv4-2` and so on; names are stable across reads.
fn empty_slice(metadata: &ObjectMeta, family: &str, nth: usize, ports: &[EndpointPort]) -> EndpointSlice {
    let service = metadata.name.clone();
    let number = if nth == 1 { String::new() } else { format!("-{nth}") };
    let name = format!("{service}-mirrored-{}{number}", family.to_ascii_lowercase());
    let mut slice_labels = metadata.labels.clone();
    slice_labels.insert(labels::SERVICE_NAME.to_owned(), service);
    EndpointSlice {
        metadata: ObjectMeta {
            name,
            namespace: metadata.namespace.clone(),
            labels: slice_labels,
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        ports: ports.to_vec(),
        endpoints: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
