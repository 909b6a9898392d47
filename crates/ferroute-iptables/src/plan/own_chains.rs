use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroute_core::{Affinity, Endpoint, IpFamily};

use super::{ServicePlan, service::mark_masquerade};
use crate::{AddressType, ChainName, Match, Probability, Recent, RecentAction, Rule, Sense, Target, spelling};

/// An endpoint and its chain.
#[derive(Clone, Copy)]
struct Placed<'a> {
    endpoint: &'a Endpoint,
    chain: ChainName,
}

impl ServicePlan<'_> {
    /// Makes the chains that belong to the service port alone, all in table nat.
    pub fn own_chains(&self, each: &mut dyn FnMut(ChainName, &[Rule])) {
        if self.has_external_chain() {
            each(self.names.external, &self.external_chain());
        }
        if self.has_firewall() {
            each(self.names.firewall, &self.firewall_chain());
        }
        let place = |endpoint| Placed { endpoint, chain: self.names.endpoint(endpoint.address, endpoint.port) };
        let reachable: Vec<Placed<'_>> = self.routes.reachable.iter().copied().map(place).collect();
        for (chain, endpoints) in [(self.names.cluster, &self.routes.cluster), (self.names.local, &self.routes.local)] {
            if !endpoints.is_empty() {
                each(chain, &self.choice(chain, &placed(&reachable, endpoints)));
            }
        }
        for endpoint in &reachable {
            each(endpoint.chain, &self.endpoint_chain(endpoint));
        }
    }

    /// Where traffic to all addresses but the cluster IP comes along.
    fn external_chain(&self) -> Vec<Rule> {
        let mut rules = Vec::with_capacity(4);
        let about = |what: &str| Rule::new().comment(format!("{what} {} external destinations", self.name));
        if self.service.external_local() {
            let from_host = || Match::AddrType { source: Some(Sense::Is(AddressType::Local)), destination: None };
            let cluster = Target::Jump(self.names.cluster);
            // Pods of this node and the node itself are not bound by the policy: it is as if they went out to a load
            // balancer, which could send them to any node.
            let from_pods = self.context.of_local_pods(about("pod traffic for"), true);
            rules.extend(from_pods.map(|rule| rule.then(cluster.clone())));
            // The node may use the external address, which is its own too, as its source.
            rules.push(about("masquerade LOCAL traffic for").and(from_host()).then(mark_masquerade()));
            rules.push(about("route LOCAL traffic for").and(from_host()).then(cluster));
        } else {
            // Answers must come back this way if the endpoint is on another node.
            rules.push(about("masquerade traffic for").then(mark_masquerade()));
        }
        if self.serves_external() {
            let chain = if self.service.external_local() { self.names.local } else { self.names.cluster };
            rules.push(Rule::new().then(Target::Jump(chain)));
        }
        rules
    }

    /// Lets the allowed sources on. What comes to the end is not rewritten, and so meets `KUBE-PROXY-FIREWALL`.
    fn firewall_chain(&self) -> Vec<Rule> {
        let allow = |source: ipnet::IpNet| {
            self.commented("loadbalancer IP").source(source).then(Target::Jump(self.names.external))
        };
        let ranges = &self.service.load_balancer_source_ranges;
        let mut rules: Vec<Rule> = ranges.iter().copied().map(allow).collect();
        // What the node sends to the balancer's address comes back with that address as source, if it is the node's own
        // as well.
        if ranges.iter().any(|range| range.contains(&self.context.node_ip)) {
            rules.extend(self.service.load_balancer_vips.iter().map(|vip| allow((*vip).into())));
        }
        let end = format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.name);
        rules.push(Rule::new().comment(end));
        rules
    }

    /// Chooses one of several endpoints.
    fn choice(&self, chain: ChainName, endpoints: &[Placed<'_>]) -> Vec<Rule> {
        let affinity = self.service.affinity;
        let mut rules = Vec::with_capacity(1 + endpoints.len() * (1 + usize::from(affinity.is_some())));
        if self.serves_internal() && self.internal_chain() == chain {
            rules.extend(self.masquerade_internal());
        }
        if let Some(Affinity { timeout_seconds }) = affinity {
            rules.extend(endpoints.iter().map(|to| {
                let recent = self.recent(to.chain, RecentAction::Check, Some(timeout_seconds));
                self.towards(to).and(recent).then(Target::Jump(to.chain))
            }));
        }
        rules.extend(endpoints.iter().enumerate().map(|(n, to)| {
            // Each of the remaining ones with the same chance; the last one takes what is left.
            let remaining = endpoints.len() - n;
            let mut rule = self.towards(to);
            if remaining > 1 {
                rule = rule.and(Match::Statistic(Sense::Is(Probability::one_in(remaining))));
            }
            rule.then(Target::Jump(to.chain))
        }));
        rules
    }

    /// Traffic to the cluster IP that may come from outside of the cluster is masqueraded: the endpoint that is chosen
    /// may be on another node, and its answers must come back this way.
    fn masquerade_internal(&self) -> Option<Rule> {
        let rule = self.to_address(self.commented("cluster IP"), self.service.cluster_ip);
        let rule = if self.context.masquerade_all { Some(rule) } else { self.context.of_local_pods(rule, false) };
        rule.map(|rule| rule.then(mark_masquerade()))
    }

    /// A rule with a comment that names the endpoint, except in large clusters.
    fn towards(&self, to: &Placed<'_>) -> Rule {
        match self.context.large_cluster {
            true => Rule::new(),
            false => Rule::new().comment(format!(
                "{} -> {}",
                self.name,
                spelling::socket(to.endpoint.address, to.endpoint.port)
            )),
        }
    }

    /// Leads to one endpoint.
    fn endpoint_chain(&self, of: &Placed<'_>) -> [Rule; 2] {
        let Endpoint { address, port, .. } = *of.endpoint;
        let rule = || match self.context.large_cluster {
            true => Rule::new(),
            false => Rule::new().comment(self.name.clone()),
        };
        // A packet from the endpoint to itself needs another source, or the answer would never pass here.
        let hairpin = rule().source(address).then(mark_masquerade());
        let mut dnat = rule();
        if self.service.affinity.is_some() {
            dnat = dnat.and(self.recent(of.chain, RecentAction::Set, None));
        }
        let dnat = dnat.protocol(self.protocol).then(Target::Dnat { address, port: Some(port) });
        [hairpin, dnat]
    }

    fn recent(&self, chain: ChainName, action: RecentAction, seconds: Option<u32>) -> Match {
        let mask = match self.context.family {
            IpFamily::V4 => IpAddr::V4(Ipv4Addr::BROADCAST),
            IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(u128::MAX)),
        };
        Match::Recent(Recent { action, seconds, reap: seconds.is_some(), name: chain.as_str().into(), mask })
    }
}

/// Finds the chains of `wanted`, which are some of the endpoints in `all` and in the same order.
fn placed<'a>(all: &[Placed<'a>], wanted: &[&Endpoint]) -> Vec<Placed<'a>> {
    let mut wanted = wanted.iter().peekable();
    let is_next = |placed: &&Placed<'_>| wanted.next_if(|next| std::ptr::eq(**next, placed.endpoint)).is_some();
    all.iter().filter(is_next).copied().collect()
}
