use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ferroute_core::{
    Affinity, Endpoint, EndpointSets, IpFamily, NfacctCounters, Protocol, ServicePort, ServicePortName,
};

use super::{PlanContext, SharedChain, chains, context::count_packet, fixed::loopback, names::ServiceChainNames};
use crate::{
    AddressType, ChainName, Match, Probability, Recent, RecentAction, RejectWith, Rule, Sense, Target, address_text,
};

/// A plan of the rules of one service port, which are generated one after the other and not stored.
pub(crate) struct ServicePlan<'a> {
    context: &'a PlanContext,
    service: &'a ServicePort,
    protocol: Protocol,
    endpoints: EndpointSets,
    /// `namespace/name:port`.
    name: Arc<str>,
    chains: ServiceChainNames,
}

/// The reason why one kind of traffic reaches no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The Service has no endpoints; the traffic is rejected.
    NoEndpoints,
    /// Only other nodes have endpoints; the traffic is dropped, so that the client or a load balancer retries there.
    NoLocalEndpoints,
}

/// An endpoint and its chain.
#[derive(Clone, Copy)]
struct EndpointChain<'a> {
    endpoint: &'a Endpoint,
    name: ChainName,
}

impl<'a> ServicePlan<'a> {
    /// Creates the plan of a service port.
    pub(crate) fn new(
        name: &ServicePortName,
        service: &'a ServicePort,
        endpoints: EndpointSets,
        context: &'a PlanContext,
    ) -> Self {
        let text: Arc<str> = name.to_string().into();
        let chains = ServiceChainNames::new(name, &text);
        Self { context, service, protocol: name.protocol, endpoints, name: text, chains }
    }

    /// Generates the service port's rules in shared chains. Rules of one chain are generated in their order.
    pub(crate) fn shared_rules(&self, each: &mut dyn FnMut(SharedChain, Rule)) {
        self.cluster_ip(each);
        self.external_ips(each);
        self.load_balancer(each);
        self.node_port(each);
        if let Some(port) = self.service.health_check_node_port {
            let rule = self.commented("health check node port").port(Protocol::Tcp, port.get());
            each(SharedChain::FilterNodePorts, rule.then(Target::Accept));
        }
    }

    /// Generates the chains that belong to the service port, all in table nat.
    pub(crate) fn service_chains(&self, each: &mut dyn FnMut(ChainName, &[Rule])) {
        if self.has_external_chain() {
            each(self.chains.external, &self.external_chain());
        }
        if self.has_firewall() {
            each(self.chains.firewall, &self.firewall_chain());
        }
        let chain = |endpoint| EndpointChain { endpoint, name: self.chains.endpoint(endpoint.address, endpoint.port) };
        let reachable: Vec<EndpointChain<'_>> = self.endpoints.reachable.iter().map(chain).collect();
        for (chain, endpoints) in
            [(self.chains.cluster, &self.endpoints.cluster), (self.chains.local, &self.endpoints.local)]
        {
            if !endpoints.is_empty() {
                each(chain, &self.choice_chain(chain, &select(&reachable, endpoints)));
            }
        }
        for endpoint in &reachable {
            each(endpoint.name, &self.endpoint_chain(endpoint));
        }
    }

    fn cluster_ip(&self, each: &mut dyn FnMut(SharedChain, Rule)) {
        let Some(address) = self.service.cluster_ip else { return };
        match self.internal_refusal() {
            None => {
                let rule = self.to_address(self.commented("cluster IP"), address);
                each(SharedChain::NatServices, rule.then(Target::Jump(self.internal_chain())));
            }
            Some(refusal) => each(SharedChain::FilterServices, self.refuse_address(refusal, address)),
        }
    }

    fn external_ips(&self, each: &mut dyn FnMut(SharedChain, Rule)) {
        for address in self.service.external_ips.iter().copied() {
            if self.endpoints.has_any_endpoints {
                let rule = self.to_address(self.commented("external IP"), address);
                each(SharedChain::NatServices, rule.then(Target::Jump(self.chains.external)));
            }
            if let Some(refusal) = self.external_refusal() {
                each(SharedChain::FilterExternalServices, self.refuse_address(refusal, address));
            }
        }
    }

    fn load_balancer(&self, each: &mut dyn FnMut(SharedChain, Rule)) {
        let first_chain = if self.has_firewall() { self.chains.firewall } else { self.chains.external };
        for address in self.service.load_balancer_vips.iter().copied() {
            if self.endpoints.has_any_endpoints {
                let rule = self.to_address(self.commented("loadbalancer IP"), address);
                each(SharedChain::NatServices, rule.then(Target::Jump(first_chain)));
            }
            if self.has_firewall() {
                let comment = format!("traffic not accepted by {}", self.chains.firewall);
                let rule = self.to_address(self.commented(&comment), address);
                each(SharedChain::FilterProxyFirewall, rule.then(Target::Drop));
            }
            if let Some(refusal) = self.external_refusal() {
                each(SharedChain::FilterExternalServices, self.refuse_address(refusal, address));
            }
        }
    }

    fn node_port(&self, each: &mut dyn FnMut(SharedChain, Rule)) {
        let Some(port) = self.service.node_port else { return };
        let external = Target::Jump(self.chains.external);
        if self.endpoints.has_any_endpoints {
            let rule = || Rule::new().comment(self.name.clone()).port(self.protocol, port.get());
            if self.context.localhost_node_ports && self.context.counters.localhost_accepted {
                let counted = rule().destination(loopback(self.context.family));
                let counted = counted.and(count_packet(NfacctCounters::LOCALHOST_ACCEPTED));
                each(SharedChain::NatNodePorts, counted.then(external.clone()));
            }
            each(SharedChain::NatNodePorts, rule().then(external));
        }
        if let Some(refusal) = self.external_refusal() {
            let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
            let rule = self.commented(refusal.comment()).and(to_host).port(self.protocol, port.get());
            each(SharedChain::FilterExternalServices, rule.then(refusal.target(self.context.family)));
        }
    }

    /// The chain of external traffic, to all addresses but the cluster IP.
    fn external_chain(&self) -> Vec<Rule> {
        let mut rules = Vec::with_capacity(4);
        let commented = |text: &str| Rule::new().comment(format!("{text} {} external destinations", self.name));
        if self.service.external_local() {
            let from_host = || Match::AddrType { source: Some(Sense::Is(AddressType::Local)), destination: None };
            let cluster = Target::Jump(self.chains.cluster);
            // The policy does not apply to pods of this node and to the node itself: their traffic is treated as if it
            // left the cluster and came back through a load balancer, which could send it to any node.
            let from_pods = self.context.restrict_to_pods(commented("pod traffic for"), true);
            rules.extend(from_pods.map(|rule| rule.then(cluster.clone())));
            // The source may be the external address, which is an address of the node too.
            rules.push(commented("masquerade LOCAL traffic for").and(from_host()).then(mark_masquerade()));
            rules.push(commented("route LOCAL traffic for").and(from_host()).then(cluster));
        } else {
            // Replies must return through this node if the endpoint is on another one.
            rules.push(commented("masquerade traffic for").then(mark_masquerade()));
        }
        if self.serves_external() {
            let chain = if self.service.external_local() { self.chains.local } else { self.chains.cluster };
            rules.push(Rule::new().then(Target::Jump(chain)));
        }
        rules
    }

    /// The chain that sends traffic from the source ranges to the external chain. A packet that reaches the end keeps its
    /// destination, so `KUBE-PROXY-FIREWALL` drops it.
    fn firewall_chain(&self) -> Vec<Rule> {
        let allow = |source: ipnet::IpNet| {
            self.commented("loadbalancer IP").source(source).then(Target::Jump(self.chains.external))
        };
        let ranges = &self.service.load_balancer_source_ranges;
        let mut rules: Vec<Rule> = ranges.iter().copied().map(allow).collect();
        // A packet from the node to the load balancer's address has that address as source, if the node has it too.
        if ranges.iter().any(|range| range.contains(&self.context.node_ip)) {
            rules.extend(self.service.load_balancer_vips.iter().map(|vip| allow((*vip).into())));
        }
        let end = format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.name);
        rules.push(Rule::new().comment(end));
        rules
    }

    /// The chain that chooses one of several endpoints.
    fn choice_chain(&self, chain: ChainName, endpoints: &[EndpointChain<'_>]) -> Vec<Rule> {
        let affinity = self.service.affinity;
        let mut rules = Vec::with_capacity(1 + endpoints.len() * (1 + usize::from(affinity.is_some())));
        if self.serves_internal() && self.internal_chain() == chain {
            rules.extend(self.masquerade_internal());
        }
        if let Some(Affinity { timeout_seconds }) = affinity {
            rules.extend(endpoints.iter().map(|to| {
                let recent = self.recent(to.name, RecentAction::Check, Some(timeout_seconds));
                self.to_endpoint(to).and(recent).then(Target::Jump(to.name))
            }));
        }
        rules.extend(endpoints.iter().enumerate().map(|(n, to)| {
            // All remaining endpoints have the same probability; the last rule matches every packet.
            let remaining = endpoints.len() - n;
            let mut rule = self.to_endpoint(to);
            if remaining > 1 {
                rule = rule.and(Match::Statistic(Sense::Is(Probability::one_in(remaining))));
            }
            rule.then(Target::Jump(to.name))
        }));
        rules
    }

    /// The rule that masquerades traffic to the cluster IP from outside of the cluster: the endpoint may be on another
    /// node, and its replies must return through this one.
    fn masquerade_internal(&self) -> Option<Rule> {
        let rule = self.to_address(self.commented("cluster IP"), self.service.cluster_ip?);
        let rule = if self.context.masquerade_all { Some(rule) } else { self.context.restrict_to_pods(rule, false) };
        rule.map(|rule| rule.then(mark_masquerade()))
    }

    /// The chain of one endpoint.
    fn endpoint_chain(&self, chain: &EndpointChain<'_>) -> [Rule; 2] {
        let Endpoint { address, port, .. } = *chain.endpoint;
        let rule = || match self.context.large_cluster {
            true => Rule::new(),
            false => Rule::new().comment(self.name.clone()),
        };
        // A packet from the endpoint to itself needs another source, or the reply would not return through this node.
        let hairpin = rule().source(address).then(mark_masquerade());
        let mut dnat = rule();
        if self.service.affinity.is_some() {
            dnat = dnat.and(self.recent(chain.name, RecentAction::Set, None));
        }
        let dnat = dnat.protocol(self.protocol).then(Target::Dnat { address, port: Some(port) });
        [hairpin, dnat]
    }

    /// A rule with a comment that names the endpoint, except in large clusters.
    fn to_endpoint(&self, to: &EndpointChain<'_>) -> Rule {
        match self.context.large_cluster {
            true => Rule::new(),
            false => Rule::new().comment(format!(
                "{} -> {}",
                self.name,
                address_text::socket(to.endpoint.address, to.endpoint.port)
            )),
        }
    }

    fn recent(&self, chain: ChainName, action: RecentAction, seconds: Option<u32>) -> Match {
        let mask = match self.context.family {
            IpFamily::V4 => IpAddr::V4(Ipv4Addr::BROADCAST),
            IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(u128::MAX)),
        };
        Match::Recent(Recent { action, seconds, reap: seconds.is_some(), name: chain.as_str().into(), mask })
    }

    fn internal_refusal(&self) -> Option<Refusal> {
        self.refusal(self.service.internal_local())
    }

    fn external_refusal(&self) -> Option<Refusal> {
        self.refusal(self.service.external_local())
    }

    /// Returns the reason why traffic is refused, if it is; `local` restricts it to local endpoints.
    fn refusal(&self, local: bool) -> Option<Refusal> {
        if !self.endpoints.has_any_endpoints {
            Some(Refusal::NoEndpoints)
        } else if local && self.endpoints.local.is_empty() {
            Some(Refusal::NoLocalEndpoints)
        } else {
            None
        }
    }

    /// Reports whether traffic to the cluster IP reaches endpoints.
    fn serves_internal(&self) -> bool {
        self.internal_refusal().is_none()
    }

    /// Reports whether external traffic reaches endpoints.
    fn serves_external(&self) -> bool {
        self.external_refusal().is_none()
    }

    /// Reports whether there is a chain for external traffic. It exists even if this node has no endpoint for such
    /// traffic, because pods and the node itself may use endpoints on other nodes.
    fn has_external_chain(&self) -> bool {
        self.endpoints.has_any_endpoints && self.service.externally_accessible()
    }

    /// Reports whether there is a chain that applies the source ranges.
    fn has_firewall(&self) -> bool {
        self.endpoints.has_any_endpoints
            && !self.service.load_balancer_vips.is_empty()
            && !self.service.load_balancer_source_ranges.is_empty()
    }

    /// The chain that chooses an endpoint for traffic to the cluster IP.
    fn internal_chain(&self) -> ChainName {
        if self.service.internal_local() { self.chains.local } else { self.chains.cluster }
    }

    /// A rule whose comment is the service port's name and `text`.
    fn commented(&self, text: &str) -> Rule {
        Rule::new().comment(format!("{} {text}", self.name))
    }

    /// Restricts a rule to an address of the Service.
    fn to_address(&self, rule: Rule, address: IpAddr) -> Rule {
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

/// The target that marks packets to be masqueraded.
fn mark_masquerade() -> Target {
    Target::Jump(chains::MARK_MASQ)
}

/// Returns the chains of `endpoints`, which are a subsequence of the endpoints in `all`.
fn select<'a>(all: &[EndpointChain<'a>], endpoints: &[Endpoint]) -> Vec<EndpointChain<'a>> {
    let mut remaining = endpoints.iter().peekable();
    let is_next =
        |chain: &&EndpointChain<'_>| remaining.next_if(|next| next.socket() == chain.endpoint.socket()).is_some();
    all.iter().filter(is_next).copied().collect()
}
