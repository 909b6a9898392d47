//! What an API server and a cloud would fill in: families, cluster IPs, node ports, load-balancer addresses.

use ferroute_api::Service;
use ferroute_core::{IpFamily, parse::parse_service};

use super::{
    assign::{Assigner, Round},
    error::{ObjectName, PlanError, Problem},
};

/// Fills in what the YAML leaves out, so that a proxy can use every Service. What was assigned in `previous` stays.
///
/// In several passes, so that a Service never gets what a later one asks for by name, or had before.
pub(super) fn fill_in(services: &[Service], previous: &[Service], ipv6: bool) -> Result<Vec<Service>, PlanError> {
    let mut drafts: Vec<Draft<'_>> =
        services.iter().map(|service| Draft::new(service, previous, ipv6)).collect::<Result<_, _>>()?;
    let mut assigner = Assigner::new();
    for draft in &drafts {
        assigner.reserve(draft)?;
    }
    for round in [Round::Before, Round::Fresh] {
        for draft in &mut drafts {
            assigner.assign(round, draft)?;
        }
    }
    drafts.into_iter().map(Draft::finish).collect()
}

/// A Service on its way to being complete.
pub(super) struct Draft<'a> {
    pub(super) service: Service,
    pub(super) name: ObjectName,
    /// The families that it wants cluster IPs of; none when it wants no cluster IP.
    pub(super) families: Vec<IpFamily>,
    /// The YAML does not say what its load balancer has given, so the demo has to.
    pub(super) wants_load_balancer_ips: bool,
    /// The same Service in the plan before.
    pub(super) before: Option<&'a Service>,
}

impl<'a> Draft<'a> {
    fn new(service: &Service, previous: &'a [Service], ipv6: bool) -> Result<Self, PlanError> {
        let name = object_name(service);
        let before = previous.iter().find(|before| object_name(before) == name);
        let mut service = service.clone();
        let given = service.spec.cluster_ip.iter().filter(|ip| !ip.is_empty()).cloned();
        if service.spec.cluster_ips.is_empty() {
            service.spec.cluster_ips = given.collect();
        }
        if service.spec.type_.as_deref() == Some("ExternalName") {
            return Ok(Self { service, name, families: Vec::new(), wants_load_balancer_ips: false, before });
        }
        check_target_ports(&service, &name)?;
        let families = families(&service, &name, ipv6)?;
        service.spec.ip_families = families.iter().map(ToString::to_string).collect();
        let families = if is_headless(&service) { Vec::new() } else { families };
        let has_load_balancer = service.spec.type_.as_deref() == Some("LoadBalancer");
        let wants_load_balancer_ips = has_load_balancer && service.status.load_balancer.ingress.is_empty();
        Ok(Self { service, name, families, wants_load_balancer_ips, before })
    }

    /// The Service, once it has been through all rounds.
    fn finish(mut self) -> Result<Service, PlanError> {
        let spec = &mut self.service.spec;
        // The first address decides which family is the Service's own.
        let place = |ip: &String| {
            let family = ip.parse().ok().map(IpFamily::of);
            self.families.iter().position(|wanted| Some(*wanted) == family)
        };
        spec.cluster_ips.sort_by_key(place);
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

/// The name of a Service, for messages.
pub(super) fn object_name(service: &Service) -> ObjectName {
    let metadata = &service.metadata;
    ObjectName { kind: "Service", namespace: metadata.namespace.clone(), name: metadata.name.clone() }
}

/// Has no cluster IP by its own wish.
pub(super) fn is_headless(service: &Service) -> bool {
    service.spec.cluster_ips.first().is_some_and(|ip| ip == "None")
}

/// The families of a Service that [`fill_in`] has been through.
pub(super) fn families_of(service: &Service) -> impl Iterator<Item = IpFamily> + use<'_> {
    service.spec.ip_families.iter().filter_map(|name| family_named(name))
}

/// `ipFamilies`, or what the cluster IPs say, or IPv4; and the other one too where the policy asks for both.
fn families(service: &Service, name: &ObjectName, ipv6: bool) -> Result<Vec<IpFamily>, PlanError> {
    let spec = &service.spec;
    let mut families = Vec::new();
    for (i, family) in spec.ip_families.iter().enumerate() {
        let unsupported = Problem::Unsupported { got: family.clone(), want: "IPv4 or IPv6" };
        families.push(family_named(family).ok_or_else(|| name.unfit(format!("spec.ipFamilies[{i}]"), unsupported))?);
    }
    if families.is_empty() {
        families.extend(spec.cluster_ips.iter().filter_map(|ip| ip.parse().ok()).map(IpFamily::of));
    }
    if families.is_empty() {
        families.push(IpFamily::V4);
    }
    if !ipv6 && families.contains(&IpFamily::V6) {
        return Err(name.unfit("spec.ipFamilies", Problem::NoIpv6));
    }
    let both = match spec.ip_family_policy.as_deref() {
        None | Some("SingleStack") => false,
        Some("PreferDualStack") => ipv6,
        Some("RequireDualStack") if ipv6 => true,
        Some("RequireDualStack") => return Err(name.unfit("spec.ipFamilyPolicy", Problem::NoIpv6)),
        Some(other) => {
            let want = "SingleStack, PreferDualStack or RequireDualStack";
            return Err(name.unfit("spec.ipFamilyPolicy", Problem::Unsupported { got: other.to_owned(), want }));
        }
    };
    if both {
        families.extend(IpFamily::BOTH);
    }
    let mut seen = [false; 2];
    families.retain(|family| !std::mem::replace(&mut seen[family.index()], true));
    Ok(families)
}

/// Proxies do not read target ports, so the parser of Services does not look at them.
fn check_target_ports(service: &Service, name: &ObjectName) -> Result<(), PlanError> {
    let numbers = 1..=u64::from(u16::MAX);
    for (i, port) in service.spec.ports.iter().enumerate() {
        let is_fine = port.target_port.as_ref().is_none_or(|target| {
            target.as_str().map_or_else(|| target.as_u64().is_some_and(|number| numbers.contains(&number)), |_| true)
        });
        if !is_fine {
            let got = port.target_port.as_ref().map(ToString::to_string).unwrap_or_default();
            let want = "a port number, or the name of a container's port";
            return Err(name.unfit(format!("spec.ports[{i}].targetPort"), Problem::Unsupported { got, want }));
        }
    }
    Ok(())
}

fn family_named(name: &str) -> Option<IpFamily> {
    IpFamily::BOTH.into_iter().find(|family| family.as_str() == name)
}
