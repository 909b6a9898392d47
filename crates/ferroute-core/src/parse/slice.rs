use std::{collections::HashSet, fmt, net::IpAddr, sync::Arc};

use ferroute_api::{self as api, labels};

use super::{
    Errors, InvalidObject,
    balancing::{Weights, ignore_unknown},
    check_destination,
    name::{check_dns_subdomain, parse_name},
    parse_ip, parse_port, parse_protocol,
};
use crate::{
    Hints, IpFamily, NamespacedName,
    tracker::{EndpointView, SlicePort, SliceView},
};

/// The reason why proxies skip a valid `EndpointSlice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceSkipReason {
    /// The slice has the label [`labels::HEADLESS`].
    HeadlessByLabel,
    /// The slice has no label [`labels::SERVICE_NAME`].
    NoService,
    /// The addresses are host names.
    HostNames,
}

impl SliceSkipReason {
    /// Returns the first reason that applies to a slice; `None` if the proxy uses it.
    ///
    /// As in kube-proxy, the name of another proxy on the slice is no reason: the label on the Service decides.
    pub fn for_slice(slice: &api::EndpointSlice) -> Option<Self> {
        if slice.metadata.labels.contains_key(labels::HEADLESS) {
            return Some(Self::HeadlessByLabel);
        }
        if slice.service_name().is_none() {
            return Some(Self::NoService);
        }
        (slice.address_type == "FQDN").then_some(Self::HostNames)
    }
}

impl fmt::Display for SliceSkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeadlessByLabel => write!(f, "it is of a headless Service (label {})", labels::HEADLESS),
            Self::NoService => write!(f, "it has no label {}", labels::SERVICE_NAME),
            Self::HostNames => f.write_str("proxies do not use addresses of type \"FQDN\""),
        }
    }
}

/// Parses an `EndpointSlice`; its endpoints on the node called `node` are local. `None` if the slice is not for this
/// proxy; see [`SliceSkipReason`].
pub fn parse_slice(slice: &api::EndpointSlice, node: &str) -> Result<Option<SliceView>, InvalidObject> {
    let metadata = &slice.metadata;
    if SliceSkipReason::for_slice(slice).is_some() {
        return Ok(None);
    }
    let Some(service) = slice.service_name() else { return Ok(None) };
    let mut errors = Errors::default();
    let name = parse_name(&mut errors, metadata, check_dns_subdomain);
    let family = match slice.address_type.as_str() {
        "IPv4" => IpFamily::V4,
        "IPv6" => IpFamily::V6,
        other => {
            errors.add("addressType", format!("unsupported value {other:?} (want IPv4, IPv6 or FQDN)"));
            return errors.finish("EndpointSlice", metadata, None);
        }
    };
    let ports = parse_ports(&mut errors, "ports", &slice.ports);
    let mut hints = SharedHints::default();
    let mut zones = HashSet::new();
    ignore_unknown(&mut errors, "EndpointSlice", &labels::SLICE_ANNOTATIONS, &metadata.annotations);
    let weights = Weights::parse(&mut errors, &metadata.annotations);
    let mut endpoints = Vec::with_capacity(slice.endpoints.len());
    for (i, endpoint) in slice.endpoints.iter().enumerate() {
        // Kubernetes does not define a meaning of the other addresses; all proxies use the first.
        let Some(text) = endpoint.addresses.first() else {
            errors.add(format!("endpoints[{i}].addresses"), "at least one address is required");
            continue;
        };
        let Some(address) = errors.keep(format!("endpoints[{i}].addresses[0]"), parse_endpoint_ip(text, family)) else {
            continue;
        };
        if let Err(problem) = check_destination(address) {
            errors.ignore(format!("endpoints[{i}].addresses[0]"), problem);
            continue;
        }
        let node_name = endpoint.node_name.as_deref().filter(|name| !name.is_empty());
        endpoints.push(EndpointView {
            address,
            ready: endpoint.conditions.ready.unwrap_or(true),
            serving: endpoint.conditions.serving.unwrap_or(true),
            terminating: endpoint.conditions.terminating.unwrap_or(false),
            local: node_name == Some(node),
            node_unknown: node_name.is_none(),
            hints: endpoint.hints.as_ref().and_then(|given| hints.share(given)),
            weight: weights.of(address),
            zone: endpoint.zone.as_deref().and_then(|zone| share_zone(&mut zones, zone)),
        });
    }
    let service = NamespacedName::new(&metadata.namespace, service);
    let ignored = std::mem::take(&mut errors.ignored).into();
    errors.finish("EndpointSlice", metadata, Some(SliceView { service, name, family, ports, endpoints, ignored }))
}

/// Parses the ports in a field of a slice, or of `Endpoints`.
pub(super) fn parse_ports(errors: &mut Errors, field: &str, ports: &[api::EndpointPort]) -> Vec<SlicePort> {
    let mut parsed = Vec::with_capacity(ports.len());
    for (i, port) in ports.iter().enumerate() {
        // A port without a number means all ports, which proxies do not support. The API server accepts zero, which
        // kube-proxy treats the same.
        let Some(number) = port.port.filter(|number| *number != 0) else { continue };
        let number = errors.keep(format!("{field}[{i}].port"), parse_port(number));
        let protocol = errors.keep(format!("{field}[{i}].protocol"), parse_protocol(port.protocol.as_deref()));
        if let (Some(number), Some(protocol)) = (number, protocol) {
            parsed.push(SlicePort { name: port.name.as_str().into(), protocol, port: number.get() });
        }
    }
    parsed
}

fn parse_endpoint_ip(text: &str, family: IpFamily) -> Result<IpAddr, String> {
    let address = parse_ip(text)?;
    if IpFamily::of(address) != family {
        return Err(format!("{address} is not an {family} address"));
    }
    Ok(address)
}

/// Returns one allocation for all endpoints of a zone.
fn share_zone(zones: &mut HashSet<Arc<str>>, zone: &str) -> Option<Arc<str>> {
    if zone.is_empty() {
        return None;
    }
    if let Some(shared) = zones.get(zone) {
        return Some(shared.clone());
    }
    let shared: Arc<str> = zone.into();
    zones.insert(shared.clone());
    Some(shared)
}

/// The distinct hints of a slice. Most endpoints have the same hints, so these share one allocation.
#[derive(Default)]
struct SharedHints(HashSet<Arc<Hints>>);

impl SharedHints {
    fn share(&mut self, given: &api::EndpointHints) -> Option<Arc<Hints>> {
        let names = |refs: &[api::HintRef]| refs.iter().map(|hint| hint.name.as_str().into()).collect();
        let hints = Hints { zones: names(&given.for_zones), nodes: names(&given.for_nodes) };
        if hints == Hints::default() {
            return None;
        }
        if let Some(shared) = self.0.get(&hints) {
            return Some(shared.clone());
        }
        let hints = Arc::new(hints);
        self.0.insert(hints.clone());
        Some(hints)
    }
}
