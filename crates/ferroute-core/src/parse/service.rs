use std::{collections::BTreeSet, fmt, net::IpAddr, num::NonZeroU16, sync::Arc};

use ferroute_api::{self as api, labels};
use ipnet::IpNet;

use super::{
    Errors, InvalidObject,
    balancing::{annotation, ignore_unknown, parse_balancing, parse_limits, parse_scope, parse_source_ranges},
    check_destination,
    name::{check_dns_label, parse_name},
    parse_ip, parse_network, parse_port, parse_protocol,
};
use crate::{
    Affinity, Balancing, ConnectionLimits, CreationTime, IpFamily, NamespacedName, Protocol, ServicePort,
    SourceRangesScope, TrafficPolicy,
    limits::{MAX_FRONTENDS, MAX_SOURCE_RANGES},
    tracker::{NamedPort, ServiceView},
};

/// The reason why this proxy skips a valid Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The label [`labels::SERVICE_PROXY_NAME`] assigns the Service to the proxy of this name.
    OtherProxy(String),
    /// The type is `ExternalName`: the Service is an alias for a DNS name and has no address.
    ExternalName,
    /// The cluster IP is `None`: DNS returns the addresses of the endpoints.
    Headless,
}

impl SkipReason {
    /// Returns the first reason that applies to a Service; `None` if the proxy serves it.
    ///
    /// As in kube-proxy, the label [`labels::HEADLESS`] is none: controllers set it on Endpoints and slices.
    pub fn for_service(service: &api::Service) -> Option<Self> {
        let labels = &service.metadata.labels;
        if let Some(proxy) = labels.get(labels::SERVICE_PROXY_NAME) {
            return Some(Self::OtherProxy(proxy.clone()));
        }
        if service.spec.type_.as_deref() == Some("ExternalName") {
            return Some(Self::ExternalName);
        }
        is_headless(&service.spec).then_some(Self::Headless)
    }

    /// Returns the reason as a word, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::OtherProxy(_) => "otherProxy",
            Self::ExternalName => "externalName",
            Self::Headless => "headless",
        }
    }

    /// Reports whether the reason is a label. The other fields of the Service are then not validated.
    fn is_label(&self) -> bool {
        matches!(self, Self::OtherProxy(_))
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherProxy(name) => {
                write!(f, "the label {} assigns it to proxy {name:?}", labels::SERVICE_PROXY_NAME)
            }
            Self::ExternalName => f.write_str("its type is ExternalName: an alias without an address"),
            Self::Headless => f.write_str("it is headless (clusterIP None): DNS returns its endpoints' addresses"),
        }
    }
}

fn is_headless(spec: &api::ServiceSpec) -> bool {
    let first = spec.cluster_ip.as_deref().filter(|text| !text.is_empty());
    first.or(spec.cluster_ips.first().map(String::as_str)) == Some("None")
}

/// Parses a Service. `None` if this proxy skips it; see [`SkipReason`].
///
/// Missing fields get the defaults of the API: type, protocol, traffic policies, affinity and its timeout. A Service
/// without a cluster IP is invalid, because only the API server can assign one.
pub fn parse_service(service: &api::Service) -> Result<Option<ServiceView>, InvalidObject> {
    let metadata = &service.metadata;
    let skip_reason = SkipReason::for_service(service);
    if skip_reason.as_ref().is_some_and(SkipReason::is_label) {
        return Ok(None);
    }
    let mut errors = Errors::default();
    let name = parse_name(&mut errors, metadata, check_dns_label);
    ignore_unknown(&mut errors, "Service", &labels::SERVICE_ANNOTATIONS, &metadata.annotations);
    let type_ = errors.keep("spec.type", Type::parse(service.spec.type_.as_deref())).unwrap_or(Type::ClusterIp);
    if skip_reason.is_some() {
        return errors.finish("Service", metadata, None);
    }
    let mut common = Common::parse(&mut errors, service, type_);
    let ports = parse_ports(&mut errors, &service.spec.ports, type_);
    common.limit(&mut errors, ports.len());
    let ranges_field = match service.spec.load_balancer_source_ranges.is_empty() {
        true => annotation(labels::SOURCE_RANGES),
        false => SOURCE_RANGES.to_owned(),
    };
    for family in common.unrestricted_families() {
        let problem = format!("no {family} range, so the {family} addresses are open to all clients");
        errors.ignore(&*ranges_field, problem);
    }
    if common.has_unused_ranges(type_) {
        let problem = "only load balancer addresses have source ranges, and the type is not LoadBalancer, so all clients may use \
                       the Service";
        errors.ignore(ranges_field, problem);
    }
    let has_any = |protocols: &[Protocol]| ports.iter().any(|port| protocols.contains(&port.protocol));
    if common.balancing.ejects() && !has_any(&[Protocol::Tcp]) {
        errors.ignore(annotation(labels::PASSIVE_EJECTION), "no effect, because no port is TCP");
    }
    if common.balancing.drain_timeout.is_some() && !has_any(&[Protocol::Tcp, Protocol::Udp]) {
        common.balancing.drain_timeout = None;
        errors.ignore(annotation(labels::DRAIN_TIMEOUT), "no effect, because no port is TCP or UDP");
    }
    let ignored = std::mem::take(&mut errors.ignored).into();
    let mut view = ServiceView { name, ports: Default::default(), ignored };
    for family in IpFamily::BOTH {
        let Some(cluster_ip) = common.cluster_ips.iter().copied().find(|ip| IpFamily::of(*ip) == family) else {
            continue;
        };
        let cluster_ip = check_destination(cluster_ip).ok();
        view.ports[family.index()] =
            ports.iter().map(|port| port.named(common.service_port(&view.name, family, cluster_ip, port))).collect();
    }
    errors.finish("Service", metadata, Some(view))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// The fields that all ports of a Service share, in both families.
struct Common {
    cluster_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    load_balancer_vips: Vec<IpAddr>,
    source_ranges: Vec<IpNet>,
    source_ranges_scope: SourceRangesScope,
    health_check_node_port: Option<NonZeroU16>,
    affinity: Option<Affinity>,
    internal_policy: TrafficPolicy,
    external_policy: TrafficPolicy,
    balancing: Balancing,
    limits: Option<ConnectionLimits>,
    created: CreationTime,
}

/// The fields of one port.
struct PortFields {
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

/// Returns the IP families whose load balancer addresses are open to all clients because all source ranges of the
/// Service are of the other family. As in kube-proxy, ranges restrict addresses of their own family only.
pub fn unrestricted_families(service: &api::Service) -> Vec<IpFamily> {
    let has_ranges = !service.spec.load_balancer_source_ranges.is_empty()
        || service.metadata.annotations.contains_key(labels::SOURCE_RANGES);
    if SkipReason::for_service(service).is_some() || !has_ranges {
        return Vec::new();
    }
    // The type has no influence on these fields, and errors are those of `parse_service`.
    Common::parse(&mut Errors::default(), service, Type::LoadBalancer).unrestricted_families()
}

impl Common {
    fn parse(errors: &mut Errors, service: &api::Service, type_: Type) -> Self {
        let spec = &service.spec;
        let external_ips = external_ips(errors, spec);
        // As in kube-proxy, the external policy applies only if the type accepts external traffic.
        let accepts_external = type_.has_node_ports() || !external_ips.is_empty();
        let external_policy =
            errors.keep("spec.externalTrafficPolicy", parse_policy(spec.external_traffic_policy.as_deref()));
        let external_policy = external_policy.filter(|_| accepts_external).unwrap_or_default();
        let has_health_check = type_ == Type::LoadBalancer && external_policy == TrafficPolicy::Local;
        let health_check_node_port = optional_port(errors, "spec.healthCheckNodePort", spec.health_check_node_port);
        let cluster_ips = cluster_ips(errors, spec);
        let load_balancer_vips = load_balancer_vips(errors, &service.status);
        let ranges = errors.parse_list(SOURCE_RANGES, &spec.load_balancer_source_ranges, parse_network);
        let source_ranges = parse_source_ranges(errors, ranges, &service.metadata.annotations);
        let scope = parse_scope(errors, &service.metadata.annotations);
        Self {
            cluster_ips,
            external_ips,
            load_balancer_vips,
            // Without ranges it has no effect, in any mode.
            source_ranges_scope: if source_ranges.is_empty() { SourceRangesScope::default() } else { scope },
            source_ranges,
            health_check_node_port: health_check_node_port.filter(|_| has_health_check),
            affinity: affinity(errors, spec),
            internal_policy: errors
                .keep("spec.internalTrafficPolicy", parse_policy(spec.internal_traffic_policy.as_deref()))
                .unwrap_or_default(),
            external_policy,
            balancing: parse_balancing(errors, &service.metadata.annotations),
            limits: parse_limits(errors, &service.metadata.annotations),
            created: CreationTime::from_metadata(&service.metadata),
        }
    }

    /// Removes addresses and source ranges beyond the [`limits`] of a Service with this number of ports.
    fn limit(&mut self, errors: &mut Errors, ports: usize) {
        let ports = ports.max(1);
        // The cluster IP and the node port of each port are not counted: they are as many as the ports.
        let mut left = [(MAX_FRONTENDS / ports).saturating_sub(2); 2];
        let mut limit = |field: &str, addresses: &mut Vec<IpAddr>| {
            let ignored = keep_first(addresses, |address| IpFamily::of(*address), &mut left);
            if ignored > 0 {
                let problem = format!(
                    "{ignored} of {} addresses are ignored: addresses times ports of a Service may be {MAX_FRONTENDS}",
                    addresses.len() + ignored
                );
                errors.ignore(field, problem);
            }
        };
        limit("status.loadBalancer.ingress", &mut self.load_balancer_vips);
        limit(EXTERNAL_IPS, &mut self.external_ips);
        // At least one range is kept, because no ranges would mean that all clients have access.
        let mut left = [(MAX_SOURCE_RANGES / ports).max(1); 2];
        let ignored = keep_first(&mut self.source_ranges, |net| IpFamily::of(net.addr()), &mut left);
        if ignored > 0 {
            let problem = format!(
                "ranges after the first {} have no access: ranges times ports of a Service may be {MAX_SOURCE_RANGES}",
                self.source_ranges.len()
            );
            errors.ignore(SOURCE_RANGES, problem);
        }
    }

    /// Returns the IP families with a cluster IP and addresses to which source ranges apply, but without any of the
    /// source ranges.
    fn unrestricted_families(&self) -> Vec<IpFamily> {
        let has = |addresses: &[IpAddr], family| addresses.iter().any(|address| IpFamily::of(*address) == family);
        let SourceRangesScope { cluster_ip, external_ips, node_ports } = self.source_ranges_scope;
        let is_unrestricted = |family: &IpFamily| {
            !self.source_ranges.is_empty()
                && has(&self.cluster_ips, *family)
                && (cluster_ip
                    || node_ports
                    || has(&self.load_balancer_vips, *family)
                    || (external_ips && has(&self.external_ips, *family)))
                && !self.source_ranges.iter().any(|net| IpFamily::of(net.addr()) == *family)
        };
        IpFamily::BOTH.into_iter().filter(is_unrestricted).collect()
    }

    /// Reports whether the source ranges restrict no clients, because the Service has no load balancer.
    fn has_unused_ranges(&self, type_: Type) -> bool {
        type_ != Type::LoadBalancer
            && !self.source_ranges.is_empty()
            && self.load_balancer_vips.is_empty()
            && self.source_ranges_scope == SourceRangesScope::default()
    }

    fn service_port(
        &self,
        name: &NamespacedName,
        family: IpFamily,
        cluster_ip: Option<IpAddr>,
        port: &PortFields,
    ) -> ServicePort {
        let in_family = |ips: &[IpAddr]| ips.iter().copied().filter(|ip| IpFamily::of(*ip) == family).collect();
        ServicePort {
            cluster_ip,
            port: port.port,
            node_port: port.node_port,
            external_ips: in_family(&self.external_ips),
            load_balancer_vips: in_family(&self.load_balancer_vips),
            load_balancer_source_ranges: self.source_ranges(family),
            source_ranges_scope: self.source_ranges_scope,
            health_check_node_port: self.health_check_node_port,
            affinity: self.affinity,
            internal_policy: self.internal_policy,
            external_policy: self.external_policy,
            balancing: self.balancing,
            limits: self.limits.map(Box::new),
            created: self.created,
            is_urgent: name.as_str() == API_SERVER || (name.namespace(), port.port) == (SYSTEM_NAMESPACE, DNS_PORT),
        }
    }

    /// Returns the source ranges of a family; empty if one of them contains all addresses.
    fn source_ranges(&self, family: IpFamily) -> Vec<IpNet> {
        let ranges: Vec<IpNet> =
            self.source_ranges.iter().copied().filter(|net| IpFamily::of(net.addr()) == family).collect();
        if ranges.iter().any(|net| net.prefix_len() == 0) { Vec::new() } else { ranges }
    }
}

impl PortFields {
    fn named(&self, port: ServicePort) -> NamedPort {
        NamedPort { name: self.name.clone(), protocol: self.protocol, port: Arc::new(port) }
    }
}

/// Keeps the first values of each IP family, up to the number in `left`, and subtracts them from it. Returns the number
/// of removed values.
fn keep_first<T>(values: &mut Vec<T>, family: impl Fn(&T) -> IpFamily, left: &mut [usize; 2]) -> usize {
    let before = values.len();
    values.retain(|value| {
        let left = &mut left[family(value).index()];
        let is_kept = *left > 0;
        *left = left.saturating_sub(1);
        is_kept
    });
    before - values.len()
}

fn cluster_ips(errors: &mut Errors, spec: &api::ServiceSpec) -> Vec<IpAddr> {
    let first = spec.cluster_ip.as_deref().filter(|text| !text.is_empty());
    let ips = match (first, spec.cluster_ips.as_slice()) {
        (None, []) => {
            errors.add("spec.clusterIP", "required: only the API server can assign an address");
            return Vec::new();
        }
        (Some(first), []) => errors.keep("spec.clusterIP", parse_ip(first)).into_iter().collect(),
        (first, all) => {
            if first.is_some_and(|first| first != all[0]) {
                errors.add("spec.clusterIPs[0]", format!("{:?} differs from spec.clusterIP", all[0]));
            }
            errors.parse_list("spec.clusterIPs", all, parse_ip)
        }
    };
    for (i, ip) in ips.iter().enumerate() {
        errors.keep_or_ignore(format!("spec.clusterIPs[{i}]"), check_destination(*ip));
    }
    if let [a, b, ..] = ips.as_slice()
        && (ips.len() > 2 || IpFamily::of(*a) == IpFamily::of(*b))
    {
        errors.add("spec.clusterIPs", "more than one address of an IP family");
    }
    ips
}

/// Parses the external IPs. As in kube-proxy, an invalid address is ignored: old API servers did not validate the
/// field.
fn external_ips(errors: &mut Errors, spec: &api::ServiceSpec) -> Vec<IpAddr> {
    let texts = spec.external_ips.iter().enumerate().filter(|(_, text)| !text.trim().is_empty());
    let parse = |(i, text): (usize, &String)| {
        let address = parse_ip(text).and_then(check_destination);
        errors.keep_or_ignore(format!("{EXTERNAL_IPS}[{i}]"), address)
    };
    texts.filter_map(parse).collect()
}

/// As in kube-proxy, the type of the Service does not matter.
fn load_balancer_vips(errors: &mut Errors, status: &api::ServiceStatus) -> Vec<IpAddr> {
    let ingress = status.load_balancer.ingress.iter().enumerate();
    ingress
        .filter(|(_, point)| !point.ip.is_empty())
        .filter_map(|(i, point)| {
            let field = format!("status.loadBalancer.ingress[{i}]");
            let ip = errors.keep(format!("{field}.ip"), parse_ip(&point.ip));
            match point.ip_mode.as_deref() {
                None | Some("VIP") => errors.keep_or_ignore(format!("{field}.ip"), check_destination(ip?)),
                Some("Proxy") => None,
                Some(other) => {
                    errors.add(format!("{field}.ipMode"), format!("unsupported value {other:?} (want VIP or Proxy)"));
                    None
                }
            }
        })
        .collect()
}

fn affinity(errors: &mut Errors, spec: &api::ServiceSpec) -> Option<Affinity> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            errors.add("spec.sessionAffinity", format!("unsupported value {other:?} (want None or ClientIP)"));
            return None;
        }
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = client_ip.and_then(|config| config.timeout_seconds).unwrap_or(DEFAULT_AFFINITY_SECONDS);
    match u32::try_from(seconds) {
        Ok(timeout_seconds @ 1..=MAX_AFFINITY_SECONDS) => Some(Affinity { timeout_seconds }),
        _ => {
            errors.add(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                format!("invalid timeout {seconds} (want 1 to {MAX_AFFINITY_SECONDS} seconds)"),
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

fn parse_ports(errors: &mut Errors, ports: &[api::ServicePort], type_: Type) -> Vec<PortFields> {
    if ports.is_empty() {
        errors.add("spec.ports", "at least one port is required");
    }
    let (mut names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut parsed = Vec::with_capacity(ports.len());
    for (i, port) in ports.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{i}].{name}");
        // Only a single port may have no name.
        if ports.len() > 1 || !port.name.is_empty() {
            errors.keep(field("name"), check_dns_label(&port.name));
        }
        let number = errors.keep(field("port"), parse_port(port.port));
        let node_port = optional_port(errors, field("nodePort"), port.node_port);
        if node_port.is_some() && !type_.has_node_ports() {
            errors.add(field("nodePort"), "may not be used with type ClusterIP");
        }
        let protocol = errors.keep(field("protocol"), parse_protocol(port.protocol.as_deref()));
        let (Some(number), Some(protocol)) = (number, protocol) else { continue };
        if !names.insert(port.name.as_str()) && !port.name.is_empty() {
            errors.add(field("name"), format!("duplicate name {:?}", port.name));
        }
        if !numbers.insert((number, protocol)) {
            errors.add(field("port"), format!("duplicate port {number}/{protocol}"));
        }
        if let Some(node_port) = node_port.filter(|node_port| !node_ports.insert((*node_port, protocol))) {
            errors.add(field("nodePort"), format!("duplicate node port {node_port}/{protocol}"));
        }
        parsed.push(PortFields { name: port.name.as_str().into(), protocol, port: number.get(), node_port });
    }
    parsed
}

fn optional_port(errors: &mut Errors, field: impl Into<String>, number: Option<i32>) -> Option<NonZeroU16> {
    let number = number.filter(|number| *number != 0)?;
    errors.keep(field, parse_port(number))
}

/// The field of source ranges.
const SOURCE_RANGES: &str = "spec.loadBalancerSourceRanges";

/// The field of external IPs.
pub const EXTERNAL_IPS: &str = "spec.externalIPs";

/// Default of `sessionAffinityConfig.clientIP.timeoutSeconds`: three hours.
const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;

/// Maximum of `sessionAffinityConfig.clientIP.timeoutSeconds`: one day.
const MAX_AFFINITY_SECONDS: u32 = 86_400;

const API_SERVER: &str = "default/kubernetes";
const SYSTEM_NAMESPACE: &str = "kube-system";
const DNS_PORT: u16 = 53;
