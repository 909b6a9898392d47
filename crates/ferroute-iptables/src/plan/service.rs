use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ferroute_core::{
    Affinity, Client, Endpoint, FrontendKind, IpFamily, ModeTraits, NfacctCounters, Outcome, PortForwarding, Protocol,
    Routes, ServicePortEntry, ServicePortName, ServiceTable, SourceAddress, TrafficPolicy, forwarding,
};

use super::{IptablesContext, SharedChain, chains, context::count_packet, names::ServiceChainNames, refusal};
use crate::{AddressType, ChainName, Match, Probability, Recent, RecentAction, Rule, Sense, Target, address_text};

/// A plan of the rules of one service port, which are generated one after the other and not stored.
pub(crate) struct ServicePlan<'a> {
    context: &'a IptablesContext,
    forwarding: PortForwarding<'a>,
    /// `namespace/name:port`.
    name: Arc<str>,
    chains: ServiceChainNames,
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
        table: &ServiceTable,
        name: &ServicePortName,
        entry: &'a ServicePortEntry,
        context: &'a IptablesContext,
    ) -> Self {
        let forwarding = forwarding(table, name, entry, &context.settings, &ModeTraits::IPTABLES);
        let text: Arc<str> = name.to_string().into();
        let chains = ServiceChainNames::new(name, &text);
        Self { context, forwarding, name: text, chains }
    }

    /// Generates the service port's rules in shared chains. The rules of each chain are generated in order.
    pub(crate) fn shared_rules(&self, each: &mut dyn FnMut(SharedChain, Rule)) {
        let PortForwarding { service, protocol, .. } = self.forwarding;
        for (kind, frontend) in service.frontends(protocol) {
            match frontend.address {
                Some(address) => self.address(kind, address, each),
                None => self.node_port(frontend.port, each),
            }
        }
        if let Some(port) = service.health_check_node_port {
            let rule = self.commented("health check node port").port(Protocol::Tcp, port.get());
            each(SharedChain::FilterNodePorts, rule.then(Target::Accept));
        }
    }

    /// Generates the chains that belong to the service port, all in table nat.
    pub(crate) fn service_chains(&self, each: &mut dyn FnMut(ChainName, &[Rule])) {
        let PortForwarding { service, endpoints, .. } = &self.forwarding;
        if service.externally_accessible() && self.forwarding.is_served(FrontendKind::NodePort) {
            each(self.chains.external, &self.external_chain());
            if !service.load_balancer_vips.is_empty() && self.forwarding.has_source_ranges(FrontendKind::LoadBalancer) {
                each(self.chains.firewall, &self.firewall_chain());
            }
        }
        let chain = |endpoint| EndpointChain { endpoint, name: self.chains.endpoint(endpoint.address, endpoint.port) };
        let reachable: Vec<EndpointChain<'_>> = endpoints.reachable.iter().map(chain).collect();
        for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
            if let Ok(endpoints) = self.forwarding.list(policy) {
                each(self.list_chain(policy), &self.choice_chain(policy, &select(&reachable, endpoints)));
            }
        }
        for endpoint in &reachable {
            each(endpoint.name, &self.endpoint_chain(endpoint));
        }
    }

    /// Generates the rules of an address. If it is of two kinds, the rules of the first kind have effect.
    fn address(&self, kind: FrontendKind, address: IpAddr, each: &mut dyn FnMut(SharedChain, Rule)) {
        let rule = |text: &str| self.to_address(self.commented(text), address);
        let has_source_ranges = self.forwarding.has_source_ranges(kind);
        if self.forwarding.is_served(kind) {
            let (text, chain) = match kind {
                FrontendKind::ClusterIp => ("cluster IP", self.list_chain(self.forwarding.internal.outside.list)),
                FrontendKind::LoadBalancer if has_source_ranges => ("loadbalancer IP", self.chains.firewall),
                FrontendKind::LoadBalancer => ("loadbalancer IP", self.chains.external),
                FrontendKind::ExternalIp | FrontendKind::NodePort => ("external IP", self.chains.external),
            };
            each(SharedChain::NatServices, rule(text).then(Target::Jump(chain)));
        }
        if has_source_ranges
            && let Outcome::Drop(_) = self.forwarding.outcome_outside_source_ranges(kind, Client::Outside)
        {
            let comment = format!("traffic not accepted by {}", self.chains.firewall);
            each(SharedChain::FilterProxyFirewall, rule(&comment).then(Target::Drop));
        }
        if let Some((comment, target)) = self.refusal(kind) {
            let chain = match kind {
                FrontendKind::ClusterIp => SharedChain::FilterServices,
                _ => SharedChain::FilterExternalServices,
            };
            each(chain, rule(comment).then(target));
        }
    }

    fn node_port(&self, port: u16, each: &mut dyn FnMut(SharedChain, Rule)) {
        let PortForwarding { protocol, .. } = self.forwarding;
        if self.forwarding.is_served(FrontendKind::NodePort) {
            let external = Target::Jump(self.chains.external);
            let rule = || Rule::new().comment(self.name.clone()).port(protocol, port);
            if self.context.settings.localhost_node_ports && self.context.counters.localhost_accepted {
                let counted = rule().destination(self.context.settings.family.loopback());
                let counted = counted.and(count_packet(NfacctCounters::LOCALHOST_ACCEPTED));
                each(SharedChain::NatNodePorts, counted.then(external.clone()));
            }
            each(SharedChain::NatNodePorts, rule().then(external));
        }
        if let Some((comment, target)) = self.refusal(FrontendKind::NodePort) {
            let to_host = Match::AddrType { source: None, destination: Some(Sense::Is(AddressType::Local)) };
            let rule = self.commented(comment).and(to_host).port(protocol, port);
            each(SharedChain::FilterExternalServices, rule.then(target));
        }
    }

    /// Returns the comment and target of the rule for connections that reach no endpoint. It matches all clients: if
    /// the chains in table nat choose an endpoint for a connection, its destination in table filter is different.
    fn refusal(&self, kind: FrontendKind) -> Option<(&'static str, Target)> {
        refusal(self.forwarding.outcome(kind, Client::Outside), self.context.settings.family)
    }

    /// Returns the chain of external traffic, to all addresses except the cluster IP: first for each class of clients
    /// whose route differs from that of clients outside of the cluster, then for the latter.
    fn external_chain(&self) -> Vec<Rule> {
        let mut rules = Vec::with_capacity(4);
        let commented = |text: &str| Rule::new().comment(format!("{text} {} external destinations", self.name));
        let jump = |policy| Target::Jump(self.list_chain(policy));
        let Routes { pod, node, outside } = self.forwarding.external;
        if pod != outside
            && let Some(pods) = &self.context.settings.local_traffic
        {
            let from_pods = commented("pod traffic for").local_pods(Sense::Is(pods));
            rules.extend(from_pods.map(|rule| rule.then(jump(pod.list))));
        }
        if node != outside {
            // The source may be the external address, which is an address of the node too.
            let from_host = || Match::AddrType { source: Some(Sense::Is(AddressType::Local)), destination: None };
            if node.source == SourceAddress::Node {
                rules.push(commented("masquerade LOCAL traffic for").and(from_host()).then(mark_masquerade()));
            }
            rules.push(commented("route LOCAL traffic for").and(from_host()).then(jump(node.list)));
        }
        if outside.source == SourceAddress::Node {
            rules.push(commented("masquerade traffic for").then(mark_masquerade()));
        }
        if self.forwarding.list(outside.list).is_ok() {
            rules.push(Rule::new().then(jump(outside.list)));
        }
        rules
    }

    /// Returns the chain that sends traffic from the source ranges to the external chain. A packet that reaches its end
    /// keeps its destination, so that `KUBE-PROXY-FIREWALL` drops it.
    fn firewall_chain(&self) -> Vec<Rule> {
        let allow = |source: ipnet::IpNet| {
            self.commented("loadbalancer IP").source(source).then(Target::Jump(self.chains.external))
        };
        let sources = self.forwarding.permitted_sources(&self.forwarding.service.load_balancer_vips);
        let end = format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.name);
        sources.into_iter().map(allow).chain([Rule::new().comment(end)]).collect()
    }

    /// Returns the chain that chooses one of several endpoints.
    fn choice_chain(&self, policy: TrafficPolicy, endpoints: &[EndpointChain<'_>]) -> Vec<Rule> {
        let affinity = self.forwarding.service.affinity;
        let mut rules = Vec::with_capacity(1 + endpoints.len() * (1 + usize::from(affinity.is_some())));
        if policy == self.forwarding.internal.outside.list {
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

    /// The rule that masquerades traffic to the cluster IP, all or that from outside of the cluster.
    fn masquerade_internal(&self) -> Option<Rule> {
        let rule = self.to_address(self.commented("cluster IP"), self.forwarding.service.cluster_ip?);
        let Routes { pod, outside, .. } = self.forwarding.internal;
        let rule = match (pod.source, outside.source) {
            (_, SourceAddress::Kept) => return None,
            (SourceAddress::Kept, SourceAddress::Node) => {
                rule.local_pods(Sense::Not(self.context.settings.local_traffic.as_ref()?))?
            }
            (SourceAddress::Node, SourceAddress::Node) => rule,
        };
        Some(rule.then(mark_masquerade()))
    }

    /// Returns the chain of one endpoint.
    fn endpoint_chain(&self, chain: &EndpointChain<'_>) -> Vec<Rule> {
        let Endpoint { address, port, .. } = *chain.endpoint;
        let rule = || match self.context.large_cluster {
            true => Rule::new(),
            false => Rule::new().comment(self.name.clone()),
        };
        // Sources other than localhost are kept, regardless of the mark of the packet.
        let keep = self.forwarding.keeps_sources(chain.endpoint, false).then(|| {
            let not_marked = Target::and_mark(!self.context.settings.masquerade_mark);
            rule().source_not(self.context.settings.family.loopback()).then(not_marked)
        });
        // A packet from the endpoint to itself needs another source, or the reply would not return through this node.
        let hairpin = rule().source(address).then(mark_masquerade());
        let mut dnat = rule();
        if self.forwarding.service.affinity.is_some() {
            dnat = dnat.and(self.recent(chain.name, RecentAction::Set, None));
        }
        let dnat = dnat.protocol(self.forwarding.protocol).then(Target::Dnat { address, port: Some(port) });
        keep.into_iter().chain([hairpin, dnat]).collect()
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
        let mask = match self.context.settings.family {
            IpFamily::V4 => IpAddr::V4(Ipv4Addr::BROADCAST),
            IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(u128::MAX)),
        };
        Match::Recent(Recent { action, seconds, reap: seconds.is_some(), name: chain.as_str().into(), mask })
    }

    /// The chain that chooses an endpoint of a list.
    fn list_chain(&self, policy: TrafficPolicy) -> ChainName {
        match policy {
            TrafficPolicy::Cluster => self.chains.cluster,
            TrafficPolicy::Local => self.chains.local,
        }
    }

    /// Returns a rule whose comment is the service port's name and `text`.
    fn commented(&self, text: &str) -> Rule {
        Rule::new().comment(format!("{} {text}", self.name))
    }

    /// Restricts a rule to an address of the Service.
    fn to_address(&self, rule: Rule, address: IpAddr) -> Rule {
        rule.destination(address).port(self.forwarding.protocol, self.forwarding.service.port)
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
