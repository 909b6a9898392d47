use std::{net::IpAddr, sync::Arc};

use ferroute_core::{IpFamily, Protocol, Routes, ServicePort, ServicePortName};

use super::{Dispatch, NfacctCounters, PlanContext, base::loopback, chains, names::OwnNames};
use crate::{AddressType, ChainName, Match, RejectWith, Rule, Sense, Target};

/// One service port's rules, made one after the other for whoever wants to see them.
pub struct ServicePlan<'a> {
    pub(super) context: &'a PlanContext,
    pub(super) service: &'a ServicePort,
    pub(super) protocol: Protocol,
    pub(super) routes: Routes<'a>,
    /// `namespace/name:port`.
    pub(super) name: Arc<str>,
    pub(super) names: OwnNames,
}

/// Why traffic of one kind is let through to no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Nobody could serve it anywhere; the client shall know.
    NoEndpoints,
    /// Another node could; it is dropped so that the client, or a load balancer, tries again there.
    NoLocalEndpoints,
}

impl<'a> ServicePlan<'a> {
    /// Plans a service port whose traffic uses `routes`.
    pub fn new(name: &ServicePortName, service: &'a ServicePort, routes: Routes<'a>, context: &'a PlanContext) -> Self {
        let text: Arc<str> = name.to_string().into();
        let names = OwnNames::new(name, &text);
        Self { context, service, protocol: name.protocol, routes, name: text, names }
    }

    /// Traffic to the cluster IP is dropped here although other nodes could serve it.
    pub fn lacks_local_internal(&self) -> bool {
        self.internal_refusal() == Some(Refusal::NoLocalEndpoints)
    }

    /// The same for traffic from outside.
    pub fn lacks_local_external(&self) -> bool {
        self.external_refusal() == Some(Refusal::NoLocalEndpoints)
    }

    /// Makes the rules that the service port contributes to shared chains. Rules of one chain come in their order.
    pub fn contribute(&self, each: &mut dyn FnMut(Dispatch, Rule)) {
        self.cluster_ip(each);
        self.external_ips(each);
        self.load_balancer(each);
        self.node_port(each);
        if let Some(port) = self.service.health_check_node_port {
            let rule = self.commented("health check node port").port(Protocol::Tcp, port.get());
            each(Dispatch::HealthChecks, rule.then(Target::Accept));
        }
    }

    fn cluster_ip(&self, each: &mut dyn FnMut(Dispatch, Rule)) {
        let address = self.service.cluster_ip;
        match self.internal_refusal() {
            None => {
                let rule = self.to_address(self.commented("cluster IP"), address);
                each(Dispatch::Services, rule.then(Target::Jump(self.internal_chain())));
            }
            Some(refusal) => each(Dispatch::RefusedInternal, self.refuse_address(refusal, address)),
        }
    }

    fn external_ips(&self, each: &mut dyn FnMut(Dispatch, Rule)) {
        for address in self.service.external_ips.iter().copied() {
            if self.routes.any_anywhere {
                let rule = self.to_address(self.commented("external IP"), address);
                each(Dispatch::Services, rule.then(Target::Jump(self.names.external)));
            }
            if let Some(refusal) = self.external_refusal() {
                each(Dispatch::RefusedExternal, self.refuse_address(refusal, address));
            }
        }
    }

    fn load_balancer(&self, each: &mut dyn FnMut(Dispatch, Rule)) {
        let first_chain = if self.has_firewall() { self.names.firewall } else { self.names.external };
        for address in self.service.load_balancer_vips.iter().copied() {
            if self.routes.any_anywhere {
                let rule = self.to_address(self.commented("loadbalancer IP"), address);
                each(Dispatch::Services, rule.then(Target::Jump(first_chain)));
            }
            if self.has_firewall() {
                let comment = format!("traffic not accepted by {}", self.names.firewall);
                each(Dispatch::Firewall, self.to_address(self.commented(&comment), address).then(Target::Drop));
            }
            if let Some(refusal) = self.external_refusal() {
                each(Dispatch::RefusedExternal, self.refuse_address(refusal, address));
            }
        }
    }

    fn node_port(&self, each: &mut dyn FnMut(Dispatch, Rule)) {
        let Some(port) = self.service.node_port else { return };
        let external = Target::Jump(self.names.external);
        if self.routes.any_anywhere {
            let rule = || Rule::new().comment(self.name.clone()).port(self.protocol, port.get());
            if self.context.localhost_node_ports && self.context.counters.localhost_accepted {
                let counted = rule().destination(loopback(self.context.family));
                let counted = counted.and(NfacctCounters::count(NfacctCounters::LOCALHOST_ACCEPTED));
                each(Dispatch::NodePorts, counted.then(external.clone()));
            }
            each(Dispatch::NodePorts, rule().then(external));
        }
        if let Some(refusal) = self.external_refusal() {
            let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
            let rule = self.commented(refusal.comment()).and(to_host).port(self.protocol, port.get());
            each(Dispatch::RefusedExternal, rule.then(refusal.target(self.context.family)));
        }
    }

    fn internal_refusal(&self) -> Option<Refusal> {
        self.refusal(self.service.internal_local())
    }

    fn external_refusal(&self) -> Option<Refusal> {
        self.refusal(self.service.external_local())
    }

    /// Why traffic is refused that may (`local`) go to local endpoints only.
    fn refusal(&self, local: bool) -> Option<Refusal> {
        if !self.routes.any_anywhere {
            Some(Refusal::NoEndpoints)
        } else if local && self.routes.local.is_empty() {
            Some(Refusal::NoLocalEndpoints)
        } else {
            None
        }
    }

    /// Traffic to the cluster IP reaches endpoints.
    pub(super) fn serves_internal(&self) -> bool {
        self.internal_refusal().is_none()
    }

    /// Traffic from outside reaches endpoints.
    pub(super) fn serves_external(&self) -> bool {
        self.external_refusal().is_none()
    }

    /// There is a chain for traffic from outside. It is there even if this node has no endpoint for it, because pods
    /// and the node itself may use those of other nodes.
    pub(super) fn has_external_chain(&self) -> bool {
        self.routes.any_anywhere && self.service.externally_accessible()
    }

    /// There is a chain that applies the source ranges.
    pub(super) fn has_firewall(&self) -> bool {
        self.routes.any_anywhere
            && !self.service.load_balancer_vips.is_empty()
            && !self.service.load_balancer_source_ranges.is_empty()
    }

    /// The chain that chooses an endpoint for traffic to the cluster IP.
    pub(super) fn internal_chain(&self) -> ChainName {
        if self.service.internal_local() { self.names.local } else { self.names.cluster }
    }

    /// A rule with the service port's name and `what` as its comment.
    pub(super) fn commented(&self, what: &str) -> Rule {
        Rule::new().comment(format!("{} {what}", self.name))
    }

    /// Narrows a rule down to an address of the Service.
    pub(super) fn to_address(&self, rule: Rule, address: IpAddr) -> Rule {
        rule.destination(address).port(self.protocol, self.service.port)
    }

    fn refuse_address(&self, refusal: Refusal, address: IpAddr) -> Rule {
        self.to_address(self.commented(refusal.comment()), address).then(refusal.target(self.context.family))
    }
}

impl Refusal {
    fn comment(self) -> &'static str {
        match self {
            Self::NoEndpoints => "has no endpoints",
            Self::NoLocalEndpoints => "has no local endpoints",
        }
    }

    fn target(self, family: IpFamily) -> Target {
        match (self, family) {
            (Self::NoEndpoints, IpFamily::V4) => Target::Reject(RejectWith::IcmpPortUnreachable),
            (Self::NoEndpoints, IpFamily::V6) => Target::Reject(RejectWith::Icmp6PortUnreachable),
            (Self::NoLocalEndpoints, _) => Target::Drop,
        }
    }
}

/// Marks packets to be masqueraded.
pub(super) fn mark_masquerade() -> Target {
    Target::Jump(chains::MARK_MASQ)
}
