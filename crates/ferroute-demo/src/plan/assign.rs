use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_api::{LoadBalancerIngress, Service, ServicePort};
use ferroute_core::{DEFAULT_NODE_PORTS, IpFamily, Protocol, parse::parse_ip};

use super::{
    error::{ObjectName, PlanError, Problem, Resource},
    pool::{Pool, numbers},
    services::Draft,
};

/// The assigned addresses and node ports of Services.
pub(super) struct Assigner {
    ips: Pool<IpAddr>,
    node_ports: Pool<NodePort>,
}

impl Assigner {
    pub(super) fn new() -> Self {
        Self { ips: Pool::new(), node_ports: Pool::new() }
    }

    /// Reserves the values in the YAML. Invalid values are reported by [`parse_service`](ferroute_core::parse::parse_service).
    pub(super) fn reserve(&mut self, draft: &Draft<'_>) -> Result<(), PlanError> {
        let (spec, owner) = (&draft.service.spec, &draft.name);
        for (i, ip) in spec.cluster_ips.iter().enumerate() {
            if let Ok(ip) = parse_ip(ip) {
                self.ips
                    .reserve(ip, owner)
                    .map_err(|problem| owner.field_error(format!("spec.clusterIPs[{i}]"), problem))?;
            }
        }
        for ip in ingress_ips(&draft.service) {
            // Several Services may share a load balancer IP.
            self.ips.assign([ip], owner);
        }
        for (i, port) in spec.ports.iter().enumerate() {
            let protocol = protocol(port.protocol.as_deref());
            self.reserve_node_port(protocol, port.node_port, &format!("spec.ports[{i}].nodePort"), owner)?;
        }
        self.reserve_node_port(Protocol::Tcp, spec.health_check_node_port, HEALTH_CHECK_FIELD, owner)
    }

    /// Assigns missing values of this round.
    pub(super) fn assign(&mut self, round: Round, draft: &mut Draft<'_>) -> Result<(), PlanError> {
        self.assign_cluster_ips(round, draft)?;
        if draft.has_node_ports() {
            self.assign_node_ports(round, draft)?;
        }
        if draft.needs_load_balancer_ips {
            self.assign_load_balancer_ips(round, draft)?;
        }
        if draft.has_health_check() && !is_given(draft.service.spec.health_check_node_port) {
            let previous = draft.previous.and_then(|previous| previous.spec.health_check_node_port);
            let port =
                PortRequest { protocol: Protocol::Tcp, previous, seed: "health check", field: HEALTH_CHECK_FIELD };
            draft.service.spec.health_check_node_port = self.node_port(round, &port, &draft.name)?;
        }
        Ok(())
    }

    fn assign_cluster_ips(&mut self, round: Round, draft: &mut Draft<'_>) -> Result<(), PlanError> {
        let previous = draft.previous.map_or_else(Vec::new, |previous| parse_ips(&previous.spec.cluster_ips));
        for family in &draft.families {
            let spec = &mut draft.service.spec;
            if find(&parse_ips(&spec.cluster_ips), *family).is_some() {
                continue;
            }
            let fresh = CLUSTER_IPS[family.index()].candidates(&draft.name.to_string());
            let ip = self.ips.assign(round.candidates(find(&previous, *family), fresh), &draft.name);
            let ip = round
                .check(ip, Resource::ClusterIp(*family))
                .map_err(|problem| draft.name.field_error("spec.clusterIP", problem))?;
            spec.cluster_ips.extend(ip.as_ref().map(ToString::to_string));
        }
        Ok(())
    }

    fn assign_node_ports(&mut self, round: Round, draft: &mut Draft<'_>) -> Result<(), PlanError> {
        for (i, port) in draft.service.spec.ports.iter_mut().enumerate().filter(|(_, port)| !is_given(port.node_port)) {
            let same = |old: &&ServicePort| old.port == port.port && old.protocol == port.protocol;
            let request = PortRequest {
                protocol: protocol(port.protocol.as_deref()),
                previous: draft.previous.and_then(|previous| previous.spec.ports.iter().find(same)?.node_port),
                seed: &format!("port {}", port.port),
                field: &format!("spec.ports[{i}].nodePort"),
            };
            port.node_port = self.node_port(round, &request, &draft.name)?;
        }
        Ok(())
    }

    /// Assigns load balancer IPs, as a cloud provider does.
    fn assign_load_balancer_ips(&mut self, round: Round, draft: &mut Draft<'_>) -> Result<(), PlanError> {
        let previous = draft.previous.map_or_else(Vec::new, ingress_ips);
        for family in &draft.families {
            if find(&ingress_ips(&draft.service), *family).is_some() {
                continue;
            }
            let fresh = LOAD_BALANCER_IPS[family.index()].candidates(&format!("{} load balancer", draft.name));
            let ip = self.ips.assign(round.candidates(find(&previous, *family), fresh), &draft.name);
            let ip = round
                .check(ip, Resource::LoadBalancerIp(*family))
                .map_err(|problem| draft.name.field_error("status.loadBalancer.ingress", problem))?;
            let ingress = ip.map(|ip| LoadBalancerIngress { ip: ip.to_string(), ip_mode: None });
            draft.service.status.load_balancer.ingress.extend(ingress);
        }
        Ok(())
    }

    fn reserve_node_port(
        &mut self,
        protocol: Protocol,
        number: Option<i32>,
        field: &str,
        owner: &ObjectName,
    ) -> Result<(), PlanError> {
        let Some(number) = number.filter(|number| *number != 0) else { return Ok(()) };
        let (min, max) = (i64::from(*DEFAULT_NODE_PORTS.start()), i64::from(*DEFAULT_NODE_PORTS.end()));
        let in_range = u16::try_from(number).ok().filter(|number| DEFAULT_NODE_PORTS.contains(number));
        in_range
            .ok_or(Problem::OutOfRange { got: number.into(), min, max })
            .and_then(|number| self.node_ports.reserve(NodePort { number, protocol }, owner))
            .map_err(|problem| owner.field_error(field, problem))
    }

    fn node_port(
        &mut self,
        round: Round,
        request: &PortRequest<'_>,
        owner: &ObjectName,
    ) -> Result<Option<i32>, PlanError> {
        let PortRequest { protocol, previous, seed, field } = *request;
        let previous =
            previous.and_then(|number| u16::try_from(number).ok()).filter(|number| DEFAULT_NODE_PORTS.contains(number));
        let size = DEFAULT_NODE_PORTS.end() - DEFAULT_NODE_PORTS.start() + 1;
        let fresh = numbers(&format!("{owner} {seed}"), size.into()).filter_map(|n| u16::try_from(n).ok());
        let candidates = round.candidates(previous, fresh.map(|n| DEFAULT_NODE_PORTS.start() + n));
        let port = self.node_ports.assign(candidates.map(|number| NodePort { number, protocol }), owner);
        let port =
            round.check(port, Resource::NodePort(protocol)).map_err(|problem| owner.field_error(field, problem))?;
        Ok(port.map(|port| port.number.into()))
    }
}

/// A round of assignment. The first round has precedence for all Services.
#[derive(Clone, Copy)]
pub(super) enum Round {
    /// Values of the previous plan.
    Previous,
    /// New values.
    New,
}

impl Round {
    fn candidates<T>(self, previous: Option<T>, new: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        let (previous, new) = match self {
            Self::Previous => (previous, None),
            Self::New => (None, Some(new)),
        };
        previous.into_iter().chain(new.into_iter().flatten())
    }

    /// Returns an error if the last round has not assigned a value.
    fn check<T>(self, value: Option<T>, resource: Resource) -> Result<Option<T>, Problem> {
        match (self, value) {
            (Self::New, None) => Err(Problem::Exhausted { resource }),
            (_, value) => Ok(value),
        }
    }
}

/// A node port to be assigned.
struct PortRequest<'a> {
    protocol: Protocol,
    /// The number in the previous plan.
    previous: Option<i32>,
    seed: &'a str,
    field: &'a str,
}

/// A node port. Each protocol has its own numbers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NodePort {
    number: u16,
    protocol: Protocol,
}

impl fmt::Display for NodePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.protocol)
    }
}

/// A range of addresses.
struct AddressRange {
    first: IpAddr,
    size: u32,
}

impl AddressRange {
    /// Returns all addresses, starting from one that depends on `seed`.
    fn candidates(&self, seed: &str) -> impl Iterator<Item = IpAddr> + use<> {
        let first = self.first;
        numbers(seed, self.size).map(move |n| match first {
            IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() + n)),
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(first.to_bits() + u128::from(n))),
        })
    }
}

fn parse_ips(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| parse_ip(text).ok()).collect()
}

fn ingress_ips(service: &Service) -> Vec<IpAddr> {
    service.status.load_balancer.ingress.iter().filter_map(|point| parse_ip(&point.ip).ok()).collect()
}

fn find(ips: &[IpAddr], family: IpFamily) -> Option<IpAddr> {
    ips.iter().copied().find(|ip| IpFamily::of(*ip) == family)
}

/// Reports whether a port number is set; 0 means unset in the API.
fn is_given(number: Option<i32>) -> bool {
    number.is_some_and(|number| number != 0)
}

/// Returns the protocol; TCP for an invalid one, which is reported elsewhere.
fn protocol(name: Option<&str>) -> Protocol {
    name.and_then(|name| name.parse().ok()).unwrap_or(Protocol::Tcp)
}

const HEALTH_CHECK_FIELD: &str = "spec.healthCheckNodePort";

/// kubeadm's default range for IPv4, 10.96.0.0/12, and the usual one for IPv6, `fd00:10:96::/112`, without the first and the
/// last address.
const CLUSTER_IPS: [AddressRange; 2] = [
    AddressRange { first: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), size: (1 << 20) - 2 },
    AddressRange { first: IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 1)), size: (1 << 16) - 2 },
];

/// Networks reserved for documentation (RFC 5737, RFC 3849).
const LOAD_BALANCER_IPS: [AddressRange; 2] = [
    AddressRange { first: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), size: 254 },
    AddressRange { first: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 1)), size: 254 },
];
