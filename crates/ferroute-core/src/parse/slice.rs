use std::{net::IpAddr, sync::Arc};

use ferroute_api::{self as api, labels};

use super::{
    Faults, InvalidObject,
    name::{check_subdomain, parse_name},
    parse_ip, parse_port, parse_protocol,
};
use crate::{
    Hints, IpFamily, NamespacedName,
    tracker::{EndpointView, SlicePort, SliceView},
};

/// Reads an `EndpointSlice` from the point of view of the node called `node`. `None`: there is nothing for this proxy in
/// it, because it belongs to no Service, holds host names, or is another proxy's or a headless Service's.
pub fn parse_slice(slice: &api::EndpointSlice, node: &str) -> Result<Option<SliceView>, InvalidObject> {
    let metadata = &slice.metadata;
    let foreign =
        [labels::SERVICE_PROXY_NAME, labels::HEADLESS].iter().any(|label| metadata.labels.contains_key(*label));
    let Some(service) = slice.service_name().filter(|_| !foreign) else { return Ok(None) };
    let mut faults = Faults::default();
    let name = parse_name(&mut faults, metadata, check_subdomain);
    let family = match slice.address_type.as_str() {
        "IPv4" => IpFamily::V4,
        "IPv6" => IpFamily::V6,
        "FQDN" => return Ok(None),
        other => {
            faults.add("addressType", format!("unsupported value {other:?} (want IPv4, IPv6 or FQDN)"));
            return faults.finish("EndpointSlice", metadata, None);
        }
    };
    let ports = parse_ports(&mut faults, &slice.ports);
    let mut hints = SharedHints::default();
    let mut endpoints = Vec::with_capacity(slice.endpoints.len());
    for (i, endpoint) in slice.endpoints.iter().enumerate() {
        // Kubernetes promises nothing about further addresses; every proxy uses the first.
        let Some(text) = endpoint.addresses.first() else {
            faults.add(format!("endpoints[{i}].addresses"), "at least one address is needed");
            continue;
        };
        let Some(address) = faults.keep(format!("endpoints[{i}].addresses[0]"), parse_endpoint_ip(text, family)) else {
            continue;
        };
        endpoints.push(EndpointView {
            address,
            ready: endpoint.conditions.ready.unwrap_or(true),
            serving: endpoint.conditions.serving.unwrap_or(true),
            terminating: endpoint.conditions.terminating.unwrap_or(false),
            local: endpoint.node_name.as_deref().is_some_and(|name| !name.is_empty() && name == node),
            hints: endpoint.hints.as_ref().and_then(|given| hints.share(given)),
        });
    }
    let view = SliceView { service: NamespacedName::new(&metadata.namespace, service), name, family, ports, endpoints };
    faults.finish("EndpointSlice", metadata, Some(view))
}

fn parse_ports(faults: &mut Faults, ports: &[api::EndpointPort]) -> Vec<SlicePort> {
    let mut parsed = Vec::with_capacity(ports.len());
    for (i, port) in ports.iter().enumerate() {
        // A port without a number means «all ports», which no proxy can serve. The API server lets a zero pass; as in
        // kube-proxy it means the same.
        let Some(number) = port.port.filter(|number| *number != 0) else { continue };
        let number = faults.keep(format!("ports[{i}].port"), parse_port(number));
        let protocol = faults.keep(format!("ports[{i}].protocol"), parse_protocol(port.protocol.as_deref()));
        if let (Some(number), Some(protocol)) = (number, protocol) {
            parsed.push(SlicePort { name: port.name.as_str().into(), protocol, port: number.get() });
        }
    }
    parsed
}

fn parse_endpoint_ip(text: &str, family: IpFamily) -> Result<IpAddr, String> {
    let address = parse_ip(text)?;
    if IpFamily::of(address) != family {
        return Err(format!("{address} in a slice of {family} addresses"));
    }
    Ok(address)
}

/// Most endpoints of a slice have the same hints or one of a few; each is kept once.
#[derive(Default)]
struct SharedHints(Vec<Arc<Hints>>);

impl SharedHints {
    fn share(&mut self, given: &api::EndpointHints) -> Option<Arc<Hints>> {
        let names = |refs: &[api::HintRef]| refs.iter().map(|hint| hint.name.as_str().into()).collect();
        let hints = Hints { zones: names(&given.for_zones), nodes: names(&given.for_nodes) };
        if hints == Hints::default() {
            return None;
        }
        if let Some(known) = self.0.iter().find(|known| ***known == hints) {
            return Some(known.clone());
        }
        self.0.push(Arc::new(hints));
        self.0.last().cloned()
    }
}
