use std::net::IpAddr;

use crate::{
    EndpointAddress, EndpointConditions, EndpointPort, EndpointSlice, Endpoints, ObjectMeta, SliceEndpoint, labels,
};

/// Makes slices of an [`Endpoints`] object, the way the cluster's mirroring controller does: one for each IP family and
/// set of ports, with the object's labels and that of its Service. None where the object asks not to be mirrored
/// ([`labels::SKIP_MIRROR`]), is only a lock ([`labels::LEADER`]), or holds no addresses.
///
/// Two things differ. The controller limits each slice to 1,000 endpoints; that limit protects the API server, which is
/// not there, so nothing is left out. And an address that is none stays in, so that who reads the slice can say so.
///
/// A Service that has slices of its own must not get these too. Only the caller knows all slices, so that is its task.
pub fn mirror(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let metadata = &endpoints.metadata;
    let skipped = metadata.labels.get(labels::SKIP_MIRROR).is_some_and(|value| value == "true");
    if skipped || metadata.annotations.contains_key(labels::LEADER) {
        return Vec::new();
    }
    let mut slices: Vec<EndpointSlice> = Vec::new();
    for subset in &endpoints.subsets {
        let ports = sorted(&subset.ports);
        let ready = subset.addresses.iter().map(|address| (address, true));
        let not_ready = subset.not_ready_addresses.iter().map(|address| (address, false));
        for (address, ready) in ready.chain(not_ready) {
            let (family, endpoint) = slice_endpoint(address, ready);
            let known = slices.iter().position(|slice| slice.address_type == family && slice.ports == ports);
            let index = known.unwrap_or_else(|| {
                let nth = slices.iter().filter(|slice| slice.address_type == family).count() + 1;
                slices.push(empty_slice(metadata, family, nth, &ports));
                slices.len() - 1
            });
            slices[index].endpoints.push(endpoint);
        }
    }
    slices
}

/// The same ports in another order are the same set.
fn sorted(ports: &[EndpointPort]) -> Vec<EndpointPort> {
    let mut ports = ports.to_vec();
    ports.sort_by(|a, b| (&a.name, &a.protocol, a.port).cmp(&(&b.name, &b.protocol, b.port)));
    ports
}

fn slice_endpoint(address: &EndpointAddress, ready: bool) -> (&'static str, SliceEndpoint) {
    // An IPv4 address written as IPv6 is an IPv4 address.
    let parsed = address.ip.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let v6 = parsed.map_or_else(|| address.ip.contains(':'), |ip| ip.is_ipv6());
    let endpoint = SliceEndpoint {
        addresses: vec![parsed.map_or_else(|| address.ip.clone(), |ip| ip.to_string())],
        conditions: EndpointConditions { ready: Some(ready), ..EndpointConditions::default() },
        node_name: address.node_name.clone(),
        hints: None,
        target_ref: None,
    };
    (if v6 { "IPv6" } else { "IPv4" }, endpoint)
}

/// Named `NAME-mirrored-ipv4`, `NAME-mirrored-ipv4-2` and so on, the same at each reading.
fn empty_slice(metadata: &ObjectMeta, family: &str, nth: usize, ports: &[EndpointPort]) -> EndpointSlice {
    let service = metadata.name.clone();
    let number = if nth == 1 { String::new() } else { format!("-{nth}") };
    let name = format!("{service}-mirrored-{}{number}", family.to_ascii_lowercase());
    let mut all_labels = metadata.labels.clone();
    all_labels.insert(labels::SERVICE_NAME.to_owned(), service);
    EndpointSlice {
        metadata: ObjectMeta {
            name,
            namespace: metadata.namespace.clone(),
            labels: all_labels,
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        ports: ports.to_vec(),
        endpoints: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
