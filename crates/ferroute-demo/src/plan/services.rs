//! Assigns the fields of Services that the API server and a cloud provider set: IP families, cluster IPs, node ports, load
//! balancer IPs.

use ferroute_api::Service;
use ferroute_core::{IpFamily, parse::parse_service};

use super::{
    assign::{Assigner, Round},
    error::{ObjectName, PlanError, Problem},
};

/// Assigns missing fields of Services. Services keep the values of the previous plan.
///
/// Values in the YAML and in the previous plan are reserved before any new value is assigned.
pub(super) fn complete(services: &[Service], previous: &[Service], ipv6: bool) -> Result<Vec<Service>, PlanError> {
    let mut drafts: Vec<Draft<'_>> =
        services.iter().map(|service| Draft::new(service, previous, ipv6)).collect::<Result<_, _>>()?;
    let mut assigner = Assigner::new();
    for draft in &drafts {
        assigner.reserve(draft)?;
    }
    for round in [Round::Previous, Round::New] {
        for draft in &mut drafts {
            assigner.assign(round, draft)?;
        }
    }
    drafts.into_iter().map(Draft::finish).collect()
}

/// A Service whose fields are to be assigned.
pub(super) struct Draft<'a> {
    pub(super) service: Service,
    pub(super) name: ObjectName,
    /// The IP families of its cluster IPs; empty without cluster IPs.
    pub(super) families: Vec<IpFamily>,
    /// Whether load balancer IPs are to be assigned.
    pub(super) needs_load_balancer_ips: bool,
    /// The Service in the previous plan.
    pub(super) previous: Option<&'a Service>,
}

impl<'a> Draft<'a> {
    fn new(service: &Service, previous: &'a [Service], ipv6: bool) -> Result<Self, PlanError> {
        let name = object_name(service);
        let previous = previous.iter().find(|previous| object_name(previous) == name);
        let mut service = service.clone();
        let cluster_ip = service.spec.cluster_ip.iter().filter(|ip| !ip.is_empty()).cloned();
        if service.spec.cluster_ips.is_empty() {
            service.spec.cluster_ips = cluster_ip.collect();
        }
        if service.spec.type_.as_deref() == Some("ExternalName") {
            return Ok(Self { service, name, families: Vec::new(), needs_load_balancer_ips: false, previous });
        }
        check_target_ports(&service, &name)?;
        let families = families(&service, &name, ipv6)?;
        service.spec.ip_families = families.iter().map(ToString::to_string).collect();
        let families = if is_headless(&service) { Vec::new() } else { families };
        let has_load_balancer = service.spec.type_.as_deref() == Some("LoadBalancer");
        let needs_load_balancer_ips = has_load_balancer && service.status.load_balancer.ingress.is_empty();
        Ok(Self { service, name, families, needs_load_balancer_ips, previous })
    }

    /// Returns the complete Service.
    fn finish(mut self) -> Result<Service, PlanError> {
        let spec = &mut self.service.spec;
        // The first cluster IP has the Service's primary IP family.
        let position = |ip: &String| {
            let family = ip.parse().ok().map(IpFamily::of);
            self.families.iter().position(|wanted| Some(*wanted) == family)
        };
        spec.cluster_ips.sort_by_key(position);
        spec.cluster_ip = spec.cluster_ips.first().cloned();
        parse_service(&self.service)?;
        Ok(self.service)
    }

    pub(super) fn has_node_ports(&self) -> bool {
        matches!(self.service.spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"))
    }

    pub(super) fn has_health_check(&self) -> bool {
        self.service.spec.type_.as_deref() == Some("LoadBalancer")
            && self.service.spec.external_traffic_policy.as_deref() == Some("Local")
    }
}

/// Returns the name of a Service for error messages.
pub(super) fn object_name(service: &Service) -> ObjectName {
    let metadata = &service.metadata;
    ObjectName { kind: "Service", namespace: metadata.namespace.clone(), name: metadata.name.clone() }
}

/// Reports whether `spec.clusterIP` is None.
pub(super) fn is_headless(service: &Service) -> bool {
    service.spec.cluster_ips.first().is_some_and(|ip| ip == "None")
}

/// Returns the IP families of a [complete](complete) Service.
pub(super) fn ip_families(service: &Service) -> impl Iterator<Item = IpFamily> + use<'_> {
    service.spec.ip_families.iter().filter_map(|name| parse_family(name))
}

/// Returns `ipFamilies`, otherwise the IP families of the cluster IPs, otherwise IPv4; with dual-stack policies, also
/// the other family.
fn families(service: &Service, name: &ObjectName, ipv6: bool) -> Result<Vec<IpFamily>, PlanError> {
    let spec = &service.spec;
    let mut families = Vec::new();
    for (i, family) in spec.ip_families.iter().enumerate() {
        let unsupported = Problem::Unsupported { got: family.clone(), want: "IPv4 or IPv6" };
        families
            .push(parse_family(family).ok_or_else(|| name.field_error(format!("spec.ipFamilies[{i}]"), unsupported))?);
    }
    if families.is_empty() {
        families.extend(spec.cluster_ips.iter().filter_map(|ip| ip.parse().ok()).map(IpFamily::of));
    }
    if families.is_empty() {
        families.push(IpFamily::V4);
    }
    if !ipv6 && families.contains(&IpFamily::V6) {
        return Err(name.field_error("spec.ipFamilies", Problem::NoIpv6));
    }
    let both = match spec.ip_family_policy.as_deref() {
        None | Some("SingleStack") => false,
        Some("PreferDualStack") => ipv6,
        Some("RequireDualStack") if ipv6 => true,
        Some("RequireDualStack") => return Err(name.field_error("spec.ipFamilyPolicy", Problem::NoIpv6)),
        Some(other) => {
            let want = "SingleStack, PreferDualStack or RequireDualStack";
            return Err(name.field_error("spec.ipFamilyPolicy", Problem::Unsupported { got: other.to_owned(), want }));
        }
    };
    if both {
        families.extend(IpFamily::BOTH);
    }
    let mut seen = [false; 2];
    families.retain(|family| !std::mem::replace(&mut seen[family.index()], true));
    Ok(families)
}

/// Checks target ports, which [`parse_service`] ignores because proxies do not need them.
fn check_target_ports(service: &Service, name: &ObjectName) -> Result<(), PlanError> {
    let numbers = 1..=u64::from(u16::MAX);
    for (i, port) in service.spec.ports.iter().enumerate() {
        let is_valid = port.target_port.as_ref().is_none_or(|target| {
            target.as_str().map_or_else(|| target.as_u64().is_some_and(|number| numbers.contains(&number)), |_| true)
        });
        if !is_valid {
            let got = port.target_port.as_ref().map(ToString::to_string).unwrap_or_default();
            let want = "a port number, or the name of a container's port";
            return Err(name.field_error(format!("spec.ports[{i}].targetPort"), Problem::Unsupported { got, want }));
        }
    }
    Ok(())
}

fn parse_family(name: &str) -> Option<IpFamily> {
    IpFamily::BOTH.into_iter().find(|family| family.as_str() == name)
}
