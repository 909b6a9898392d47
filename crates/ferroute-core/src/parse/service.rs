use std::{collections::BTreeSet, net::IpAddr, num::NonZeroU16, sync::Arc};

use ferroute_api as api;
use ipnet::IpNet;

use super::{
    Faults, InvalidObject, SkipReason,
    name::{check_label, parse_name},
    parse_ip, parse_network, parse_port, parse_protocol,
};
use crate::{
    Affinity, IpFamily, Protocol, ServicePort, TrafficPolicy,
    tracker::{NamedPort, ServiceView},
};

/// Reads a Service. `None`: there is nothing for this proxy to do, because the Service is headless, is just a name
/// (`ExternalName`), or is another proxy's.
///
/// What the API server would have filled in is filled in here: type, protocol, policies, affinity and its timeout. It
/// alone can assign a cluster IP, so a Service without one is at fault.
pub fn parse_service(service: &api::Service) -> Result<Option<ServiceView>, InvalidObject> {
    let metadata = &service.metadata;
    let unproxied = SkipReason::for_service(service);
    if unproxied.as_ref().is_some_and(SkipReason::is_by_label) {
        return Ok(None);
    }
    let mut faults = Faults::default();
    let name = parse_name(&mut faults, metadata, check_label);
    let type_ = faults.keep("spec.type", Type::parse(service.spec.type_.as_deref())).unwrap_or(Type::ClusterIp);
    if unproxied.is_some() {
        return faults.finish("Service", metadata, None);
    }
    let common = Common::parse(&mut faults, service, type_);
    let ports = parse_ports(&mut faults, &service.spec.ports, type_);
    let mut view = ServiceView { name, ports: Default::default() };
    for family in IpFamily::BOTH {
        let Some(cluster_ip) = common.cluster_ips.iter().copied().find(|ip| IpFamily::of(*ip) == family) else {
            continue;
        };
        view.ports[family.index()] =
            ports.iter().map(|port| port.with(common.service_port(family, cluster_ip, port))).collect();
    }
    faults.finish("Service", metadata, Some(view))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// What all ports of a Service share, both families together.
struct Common {
    cluster_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    load_balancer_vips: Vec<IpAddr>,
    source_ranges: Vec<IpNet>,
    health_check_node_port: Option<NonZeroU16>,
    affinity: Option<Affinity>,
    internal_policy: TrafficPolicy,
    external_policy: TrafficPolicy,
}

/// What belongs to one port alone.
struct OwnPort {
    name: Arc<str>,
    protocol: Protocol,
    port: u16,
    node_port: Option<NonZeroU16>,
}

impl Type {
    fn parse(text: Option<&str>) -> Result<Self, String> {
        match text.unwrap_or_default() {
            "" | "ClusterIP" => Ok(Self::ClusterIp),
            "NodePort" => Ok(Self::NodePort),
            "LoadBalancer" => Ok(Self::LoadBalancer),
            "ExternalName" => Ok(Self::ExternalName),
            other => {
                Err(format!("unsupported type {other:?} (want ClusterIP, NodePort, LoadBalancer or ExternalName)"))
            }
        }
    }

    fn has_node_ports(self) -> bool {
        matches!(self, Self::NodePort | Self::LoadBalancer)
    }
}

impl Common {
    fn parse(faults: &mut Faults, service: &api::Service, type_: Type) -> Self {
        let spec = &service.spec;
        let external_ips = list(faults, "spec.externalIPs", &spec.external_ips, parse_ip);
        // As in kube-proxy, the policy for outside traffic counts only where the type lets such traffic in.
        let takes_external = type_.has_node_ports() || !external_ips.is_empty();
        let external_policy =
            faults.keep("spec.externalTrafficPolicy", parse_policy(spec.external_traffic_policy.as_deref()));
        let external_policy = external_policy.filter(|_| takes_external).unwrap_or_default();
        let wants_health_check = type_ == Type::LoadBalancer && external_policy == TrafficPolicy::Local;
        let health_check_node_port = optional_port(faults, "spec.healthCheckNodePort", spec.health_check_node_port);
        Self {
            cluster_ips: cluster_ips(faults, spec),
            external_ips,
            load_balancer_vips: load_balancer_vips(faults, &service.status, type_),
            source_ranges: list(
                faults,
                "spec.loadBalancerSourceRanges",
                &spec.load_balancer_source_ranges,
                parse_network,
            ),
            health_check_node_port: health_check_node_port.filter(|_| wants_health_check),
            affinity: affinity(faults, spec),
            internal_policy: faults
                .keep("spec.internalTrafficPolicy", parse_policy(spec.internal_traffic_policy.as_deref()))
                .unwrap_or_default(),
            external_policy,
        }
    }

    fn service_port(&self, family: IpFamily, cluster_ip: IpAddr, port: &OwnPort) -> ServicePort {
        let of_family = |ips: &[IpAddr]| ips.iter().copied().filter(|ip| IpFamily::of(*ip) == family).collect();
        ServicePort {
            cluster_ip,
            port: port.port,
            node_port: port.node_port,
            external_ips: of_family(&self.external_ips),
            load_balancer_vips: of_family(&self.load_balancer_vips),
            load_balancer_source_ranges: self.source_ranges_of(family),
            health_check_node_port: self.health_check_node_port,
            affinity: self.affinity,
            internal_policy: self.internal_policy,
            external_policy: self.external_policy,
        }
    }

    /// A range that holds every address means the same as no range at all.
    fn source_ranges_of(&self, family: IpFamily) -> Vec<IpNet> {
        let ranges: Vec<IpNet> =
            self.source_ranges.iter().copied().filter(|net| IpFamily::of(net.addr()) == family).collect();
        if ranges.iter().any(|net| net.prefix_len() == 0) { Vec::new() } else { ranges }
    }
}

impl OwnPort {
    fn with(&self, port: ServicePort) -> NamedPort {
        NamedPort { name: self.name.clone(), protocol: self.protocol, port: Arc::new(port) }
    }
}

fn cluster_ips(faults: &mut Faults, spec: &api::ServiceSpec) -> Vec<IpAddr> {
    let first = spec.cluster_ip.as_deref().filter(|text| !text.is_empty());
    let ips = match (first, spec.cluster_ips.as_slice()) {
        (None, []) => {
            faults.add("spec.clusterIP", "no address given, and only an API server can assign one");
            return Vec::new();
        }
        (Some(first), []) => faults.keep("spec.clusterIP", parse_ip(first)).into_iter().collect(),
        (first, all) => {
            if first.is_some_and(|first| first != all[0]) {
                faults.add("spec.clusterIPs[0]", format!("{:?} differs from spec.clusterIP", all[0]));
            }
            list(faults, "spec.clusterIPs", all, parse_ip)
        }
    };
    if let [a, b, ..] = ips.as_slice()
        && (ips.len() > 2 || IpFamily::of(*a) == IpFamily::of(*b))
    {
        faults.add("spec.clusterIPs", "more than one address of an IP family");
    }
    ips
}

fn load_balancer_vips(faults: &mut Faults, status: &api::ServiceStatus, type_: Type) -> Vec<IpAddr> {
    if type_ != Type::LoadBalancer {
        return Vec::new();
    }
    let ingress = status.load_balancer.ingress.iter().enumerate();
    ingress
        .filter(|(_, point)| !point.ip.is_empty())
        .filter_map(|(i, point)| {
            let field = format!("status.loadBalancer.ingress[{i}]");
            let ip = faults.keep(format!("{field}.ip"), parse_ip(&point.ip));
            match point.ip_mode.as_deref() {
                None | Some("VIP") => ip,
                Some("Proxy") => None,
                Some(other) => {
                    faults.add(format!("{field}.ipMode"), format!("unsupported value {other:?} (want VIP or Proxy)"));
                    None
                }
            }
        })
        .collect()
}

fn affinity(faults: &mut Faults, spec: &api::ServiceSpec) -> Option<Affinity> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            faults.add("spec.sessionAffinity", format!("unsupported value {other:?} (want None or ClientIP)"));
            return None;
        }
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = client_ip.and_then(|config| config.timeout_seconds).unwrap_or(DEFAULT_AFFINITY_SECONDS);
    match u32::try_from(seconds) {
        Ok(timeout_seconds @ 1..=MAX_AFFINITY_SECONDS) => Some(Affinity { timeout_seconds }),
        _ => {
            faults.add(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                format!("invalid time of {seconds} s (want 1 to {MAX_AFFINITY_SECONDS})"),
            );
            None
        }
    }
}

fn parse_policy(text: Option<&str>) -> Result<TrafficPolicy, String> {
    match text.unwrap_or_default() {
        "" | "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        other => Err(format!("unsupported value {other:?} (want Cluster or Local)")),
    }
}

fn parse_ports(faults: &mut Faults, ports: &[api::ServicePort], type_: Type) -> Vec<OwnPort> {
    if ports.is_empty() {
        faults.add("spec.ports", "at least one port is needed");
    }
    let (mut names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut parsed = Vec::with_capacity(ports.len());
    for (i, port) in ports.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{i}].{name}");
        // A port may go without a name only where there is no other.
        if ports.len() > 1 || !port.name.is_empty() {
            faults.keep(field("name"), check_label(&port.name));
        }
        let number = faults.keep(field("port"), parse_port(port.port));
        let node_port = optional_port(faults, field("nodePort"), port.node_port);
        if node_port.is_some() && !type_.has_node_ports() {
            faults.add(field("nodePort"), "may not be used with type ClusterIP");
        }
        let protocol = faults.keep(field("protocol"), parse_protocol(port.protocol.as_deref()));
        let (Some(number), Some(protocol)) = (number, protocol) else { continue };
        if !names.insert(port.name.as_str()) && !port.name.is_empty() {
            faults.add(field("name"), format!("another port is called {:?} too", port.name));
        }
        if !numbers.insert((number, protocol)) {
            faults.add(field("port"), format!("another port has {number}/{protocol} too"));
        }
        if let Some(node_port) = node_port.filter(|node_port| !node_ports.insert((*node_port, protocol))) {
            faults.add(field("nodePort"), format!("another port has {node_port}/{protocol} too"));
        }
        parsed.push(OwnPort { name: port.name.as_str().into(), protocol, port: number.get(), node_port });
    }
    parsed
}

fn optional_port(faults: &mut Faults, field: impl Into<String>, number: Option<i32>) -> Option<NonZeroU16> {
    let number = number.filter(|number| *number != 0)?;
    faults.keep(field, parse_port(number))
}

fn list<T>(faults: &mut Faults, field: &str, texts: &[String], parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
    let each = texts.iter().enumerate();
    each.filter_map(|(i, text)| faults.keep(format!("{field}[{i}]"), parse(text))).collect()
}

/// The API's default: three hours.
const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;

/// The API's limit: one day.
const MAX_AFFINITY_SECONDS: u32 = 86_400;
