//! Rules of other programs that take packets to Services before the proxy: those that translate the destination, such as
//! of host ports, that exclude packets from connection tracking, so that nothing translates them, of transparent proxies, and
//! those that accept packets in table `nat`, so that no later rule translates them.
//!
//! In rules of iptables, conditions that do not depend on the destination are assumed to be true, because some client
//! satisfies them. If there are other tables of nf_tables with chains before the translation, a packet of a pod or from outside
//! and one of the host itself are also walked through all rules in the kernel, whose order depends on priorities and on when
//! the chains were registered.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{
    Frontend, FrontendKind, IpFamily, ModeTraits, NodePortMatch, Protocol, ServicePortName, TrafficPolicy,
};
use ferroute_iptables::{
    AddressMatch, AddressType, ChainName, Match, PortSide, ProtocolMatch, Rule, RuleSet, TableName, Target,
    plan::{chains, is_proxy_chain},
    text::Line,
};
use ferroute_modes::{REGISTRY, kernel_rules::KernelRules};
use ferroute_nftables::{
    TableOwner,
    kernel::{TableFamily, TableSnapshot},
    model::Hook,
};
use ferroute_trace::{Effect, Event, Hook as TraceHook, Host, IPVS_TABLE, Leaf, Packet, Ruleset, Verdict};

use super::{
    firewalls::{is_pod, local_pods},
    masquerading, order,
};
use crate::{
    desired::Desired,
    doctor::{EarlierEffect, EarlierRule, Reading},
    trace::kernel_host,
};

/// A frontend at one address.
pub(super) struct Destination {
    pub(super) address: IpAddr,
    pub(super) kind: FrontendKind,
    pub(super) policy: TrafficPolicy,
    /// Whether the kernel considers the address one of the host's.
    is_local: bool,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
    pub(super) service: String,
    /// Whether it is a cluster IP that another program has added to the host's addresses, as NodeLocal DNSCache does.
    is_bound: bool,
    /// Whether it is for clients outside of the cluster.
    pub(super) is_external: bool,
    pub(super) has_endpoints: bool,
    /// An endpoint that is a pod on this node.
    pub(super) own_pod: Option<IpAddr>,
}

impl Destination {
    pub(super) fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Returns the effect of a rule with this effect on connections to the destination; [`None`] if there is none.
    fn suffers(&self, effect: EarlierEffect, traits: &ModeTraits) -> Option<EarlierEffect> {
        match effect {
            // Virtual servers take packets without a connection as well, but these are not masqueraded.
            EarlierEffect::Untracked | EarlierEffect::TransparentProxy
                if traits.binds_service_addresses && !self.is_external =>
            {
                None
            }
            EarlierEffect::Untracked if self.is_bound => Some(EarlierEffect::LeftToProcess),
            effect => Some(effect),
        }
    }
}

/// Returns the rules of other programs that may take packets to Services before the proxy, each with one Service.
pub(super) fn earlier(desired: &Desired, rules: &KernelRules) -> Reading<Vec<EarlierRule>> {
    let traits = REGISTRY.active(desired.resolved.mode).traits();
    let destinations = destinations(desired, rules, traits);
    // In nftables mode, the proxy's chains come before those of table nat of iptables.
    let tables = if traits.accepts_in_firewalls { &TABLES[..] } else { &TABLES[..TABLES.len() - 1] };
    let first = &destinations[..destinations.len().min(MAX_DESTINATIONS)];
    let mut found = by_iptables(first, rules, tables, traits);
    let accepts =
        traits.accepts_in_firewalls && rules.iptables.iter().any(|backend| accepts_in_nat(&backend.saved.rules));
    let has_tables =
        |sees: fn(&TableSnapshot) -> bool| rules.nftables.iter().filter(|table| is_foreign(table)).any(sees);
    let may_take = accepts || has_tables(may_take_packets);
    let may_masquerade =
        has_tables(|_| true) || rules.iptables.iter().any(|backend| masquerading::may_decide(&backend.saved.rules));
    if !may_take && !may_masquerade {
        return Ok(found);
    }
    let host = kernel_host().map_err(|error| format!("{error:#}"))?;
    let walks = Walks {
        ruleset: &Ruleset::from_rules(rules),
        host: &host,
        family: rules.family,
        pod: local_pods(desired, rules.family).into_iter().next(),
        traits: may_take.then_some(traits),
        // If no proxy has rules, no translations precede them.
        has_proxy: !REGISTRY.active_proxies(rules).is_empty(),
        mark: may_masquerade.then(|| desired.resolved.settings.masquerade_mark()),
    };
    found.extend(walks.walk(&destinations, &found, MAX_RULES));
    Ok(found)
}

/// Walks of packets to Services through all rules.
struct Walks<'a> {
    ruleset: &'a Ruleset<'a>,
    host: &'a Host,
    family: IpFamily,
    /// A pod on this node.
    pod: Option<IpAddr>,
    /// Properties of the mode, if rules that take packets are searched.
    traits: Option<&'a ModeTraits>,
    has_proxy: bool,
    /// The proxy's mark, if rules that decide on masquerading are searched.
    mark: Option<u32>,
}

impl Walks<'_> {
    /// Walks packets to the destinations until this many rules have been evaluated. Returns the rules that are not `known`.
    fn walk(&self, destinations: &[Destination], known: &[EarlierRule], max_rules: usize) -> Vec<EarlierRule> {
        let (mut taking, mut masquerading, mut rules) = (Vec::new(), Vec::new(), 0);
        for destination in destinations {
            if rules >= max_rules {
                break;
            }
            for (packet, is_own) in packets(destination, self.host, self.pod, self.mark.is_some()) {
                let mut leaves = self.ruleset.matching_leaves(self.host, &packet);
                for leaf in leaves.by_ref().take(MAX_LEAVES) {
                    // What becomes of a pod's packets to itself, becomes of those of other pods.
                    let taken = self.traits.filter(|_| !is_own);
                    if let Some((effect, rule)) = taken.and_then(|traits| self.taking(&leaf, destination, traits)) {
                        // Rules of iptables have been searched before.
                        let is_new = |other: &EarlierRule| other.rule != rule && other.service != destination.service;
                        if known.iter().chain(&taking).all(is_new) {
                            taking.push(EarlierRule { effect, rule, service: destination.service.clone() });
                        }
                    }
                    let mark = self.mark.filter(|_| destination.has_endpoints);
                    let decides = |mark| masquerading::deciding_rule(&leaf, &packet, mark, self.family);
                    if let Some((effect, rule)) = mark.and_then(decides) {
                        let rule = rule.to_string();
                        if masquerading.iter().all(|other: &EarlierRule| other.rule != rule) {
                            masquerading.push(EarlierRule { effect, rule, service: destination.service.clone() });
                        }
                    }
                }
                rules += leaves.rules();
            }
        }
        taking.append(&mut masquerading);
        taking
    }

    /// Returns the rule that takes a packet before the proxy, and its effect.
    fn taking(&self, leaf: &Leaf, destination: &Destination, traits: &ModeTraits) -> Option<(EarlierEffect, String)> {
        let accepted = || accepting_rule(leaf, self.family).filter(|_| destination.has_endpoints);
        let effect = first_effect(&leaf.events, self.family);
        let (effect, rule) = effect.or_else(|| Some((EarlierEffect::Accepted, accepted()?)))?;
        let effect = destination.suffers(effect, traits)?;
        let follows_proxy = matches!(effect, EarlierEffect::Translated | EarlierEffect::Accepted);
        (self.has_proxy || !follows_proxy).then(|| (effect, rule.to_string()))
    }
}

/// Returns a packet of another client, one of the host itself and, `with_own`, one of a pod that connects to itself, each with
/// whether it is the last one. Clients of cluster IPs are pods.
fn packets(destination: &Destination, host: &Host, pod: Option<IpAddr>, with_own: bool) -> Vec<(Packet, bool)> {
    let outside = outside_address(IpFamily::of(destination.address));
    let client = pod.filter(|_| !destination.is_external).unwrap_or(outside);
    let own = destination.own_pod.filter(|_| with_own && destination.has_endpoints);
    let own = own.and_then(|pod| packet_from(pod, destination, host)).map(|packet| (packet, true));
    let others = [packet_from(client, destination, host), local_packet(destination, host)];
    others.into_iter().flatten().map(|packet| (packet, false)).chain(own).collect()
}

/// Returns a packet of another client.
pub(super) fn packet_from(client: IpAddr, destination: &Destination, host: &Host) -> Option<Packet> {
    let (to, protocol) = (destination.socket(), destination.protocol);
    let (interface, _) = host.path_to(client, Some((protocol, to.port(), CLIENT_PORT)))?;
    Some(Packet::arriving(protocol, SocketAddr::new(client, CLIENT_PORT), to, &interface))
}

/// Returns a packet of the host itself.
pub(super) fn local_packet(destination: &Destination, host: &Host) -> Option<Packet> {
    let (to, protocol) = (destination.socket(), destination.protocol);
    let source = host.source_to(to.ip(), Some((protocol, CLIENT_PORT, to.port())))?;
    Some(Packet::local(protocol, SocketAddr::new(source, CLIENT_PORT), to))
}

/// Returns an address outside of the cluster.
pub(super) fn outside_address(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::from([203, 0, 113, 7]),
        IpFamily::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7]),
    }
}

/// A rule with an effect on a packet.
pub(super) struct EffectiveRule<'a> {
    pub(super) table: &'a str,
    pub(super) path: &'a [String],
    pub(super) chain: &'a str,
    pub(super) text: &'a str,
}

impl fmt::Display for EffectiveRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in chain {} of table {}", self.text, self.chain, self.table)
    }
}

impl EffectiveRule<'_> {
    /// Reports whether the rule belongs to a service proxy.
    pub(super) fn is_ours(&self, family: IpFamily) -> bool {
        let is_proxy_table = |owner: TableOwner| {
            let name = owner.table(family).name;
            self.table == format!("{} {name}", TableFamily::Ip(family)) || self.table == name.as_str()
        };
        let is_proxy_chain =
            |name: &String| ChainName::new(name).is_ok_and(|chain| is_proxy_chain(TableName::Nat, chain));
        // The kernel's tables have an IP family in their names.
        let is_virtual_server = self.table == IPVS_TABLE;
        is_virtual_server || OWNERS.into_iter().any(is_proxy_table) || self.path.iter().any(is_proxy_chain)
    }
}

/// Returns the first rule that takes a packet before the proxy's rules translate it.
fn first_effect(events: &[Event], family: IpFamily) -> Option<(EarlierEffect, EffectiveRule<'_>)> {
    let (mut table, mut last, mut taken) = ("", None, None);
    for event in events {
        match event {
            Event::Hook { table: entered, .. } => table = entered.as_ref(),
            Event::Rule { chain, text, mismatch: None, .. } => {
                last = Some((chain, text));
                let rule = EffectiveRule { table, path: std::slice::from_ref(chain), chain, text };
                if taken.is_none() && !rule.is_ours(family) {
                    taken = effect_of(text).map(|effect| (effect, rule));
                }
            }
            Event::Effect { effect: Effect::Dnat { .. } | Effect::Connect { .. }, table, path, .. } => {
                // Where rules translate a packet in spite of this, it has a connection.
                let taken = taken.filter(|(effect, _)| *effect == EarlierEffect::TransparentProxy);
                let (chain, text) = last?;
                let rule = EffectiveRule { table, path, chain, text };
                return taken.or_else(|| (!rule.is_ours(family)).then_some((EarlierEffect::Translated, rule)));
            }
            _ => {}
        }
    }
    taken
}

/// Returns the rule of `iptables` that accepts a packet in table `nat`, if nothing translates it.
fn accepting_rule(leaf: &Leaf, family: IpFamily) -> Option<EffectiveRule<'_>> {
    if !matches!(leaf.verdict, Verdict::Delivered { translated: false, .. }) || !leaf.assumptions.is_empty() {
        return None;
    }
    let nat = TableName::Nat.as_str();
    let (mut last, mut found) = (None, None);
    for event in &leaf.events {
        match event {
            Event::Rule { chain, text, mismatch: None, .. } => last = Some((chain, text)),
            Event::Effect { effect: Effect::Accept, hook, table, path }
                if table == nat && matches!(hook, TraceHook::Prerouting | TraceHook::Output) =>
            {
                let (chain, text) = last?;
                found = Some(EffectiveRule { table: nat, path, chain, text });
            }
            _ => {}
        }
    }
    found.filter(|rule| !rule.is_ours(family))
}

/// Reports whether rules of other programs accept packets in table `nat` before their source is translated.
fn accepts_in_nat(rules: &RuleSet) -> bool {
    let Some(table) = rules.tables.get(&TableName::Nat) else { return false };
    let others = table.chains.iter().filter(|(name, _)| {
        **name != ChainName::POSTROUTING && **name != ChainName::INPUT && !is_proxy_chain(TableName::Nat, **name)
    });
    others.flat_map(|(_, chain)| &chain.rules).any(|rule| matches!(rule.target, Some(Target::Accept)))
}

/// Returns the effect on packets of a rule that excludes them from connection tracking, or assigns them to a transparent
/// proxy, in the syntax of `iptables-save` or `nft`.
fn effect_of(text: &str) -> Option<EarlierEffect> {
    // Without names and comments in quotes.
    let text = text.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let mut before = "";
    text.split_whitespace().find_map(|word| {
        let before = std::mem::replace(&mut before, word);
        match (before, word) {
            ("-j", "NOTRACK") | (_, "--notrack") => Some(EarlierEffect::Untracked),
            ("-j", "TPROXY") => Some(EarlierEffect::TransparentProxy),
            ("-j" | "-g" | "jump" | "goto", _) => None,
            (_, "notrack") => Some(EarlierEffect::Untracked),
            (_, "tproxy") => Some(EarlierEffect::TransparentProxy),
            _ => None,
        }
    })
}

/// Reports whether a table is that of no service proxy.
pub(super) fn is_foreign(snapshot: &TableSnapshot) -> bool {
    let is_of = |owner: TableOwner| match snapshot.family {
        TableFamily::Ip(family) => snapshot.name == owner.table(family).name,
        TableFamily::Inet => false,
    };
    !OWNERS.into_iter().any(is_of)
}

/// Reports whether rules of a table see packets before they are translated.
fn may_take_packets(snapshot: &TableSnapshot) -> bool {
    let hooks = [Hook::Prerouting, Hook::Output];
    snapshot.table.chains().any(|chain| chain.chain.base.is_some_and(|base| hooks.contains(&base.hook)))
}

/// Proxies with separate tables.
const OWNERS: [TableOwner; 2] = [TableOwner::Ferroute, TableOwner::KubeProxy];
/// The maximum number of rules that packets are walked through: half a second of work.
const MAX_RULES: usize = 1 << 22;
/// The maximum number of branches of a walk that are examined.
pub(super) const MAX_LEAVES: usize = 64;
/// A port of a client.
pub(super) const CLIENT_PORT: u16 = 50000;

fn by_iptables(
    destinations: &[Destination],
    rules: &KernelRules,
    tables: &[TableName],
    traits: &ModeTraits,
) -> Vec<EarlierRule> {
    let mut found: Vec<EarlierRule> = Vec::new();
    let program = if rules.family == IpFamily::V4 { "iptables" } else { "ip6tables" };
    let mut sets = Ruleset::new();
    sets.add_ipsets(&rules.ipsets);
    for backend in &rules.iptables {
        for destination in destinations {
            let walks = tables.iter().flat_map(|table| {
                let walk = Walk { rules: &backend.saved.rules, table: *table, sets: &sets, destination };
                [ChainName::PREROUTING, ChainName::OUTPUT].map(|chain| walk.first_effect(chain))
            });
            for (effect, rule) in walks.flatten() {
                let rule = format!("{program} {rule}");
                if let Some(effect) = destination.suffers(effect, traits)
                    && found.iter().all(|other| other.rule != rule)
                {
                    found.push(EarlierRule { effect, rule, service: destination.service.clone() });
                }
            }
        }
    }
    found
}

/// A frontend of a service port, the port's traffic policies, whether it has endpoints, and one that is a pod on this node.
type Claim<'a> = (&'a ServicePortName, [TrafficPolicy; 2], (bool, Option<IpAddr>), FrontendKind, Frontend);

/// Returns the frontends of all service ports: first those of each kind, and those that rules of other programs name.
pub(super) fn destinations(desired: &Desired, rules: &KernelRules, traits: &ModeTraits) -> Vec<Destination> {
    let family = rules.family;
    let table = desired.table(family);
    let (host, node_port_address) = (&desired.host.addresses, node_port_address(desired, family));
    let frontends = table.entries.iter().flat_map(|(name, entry)| {
        let local = entry.endpoints.iter().filter(|endpoint| endpoint.local).map(|endpoint| endpoint.address);
        let own_pod = local.into_iter().find(|address| is_pod(desired, *address));
        let endpoints = (!entry.endpoints.is_empty(), own_pod);
        let frontends = entry.service.claims(name.protocol);
        let policies = [entry.service.internal_policy, entry.service.external_policy];
        frontends.map(move |(kind, frontend)| (name, policies, endpoints, kind, frontend))
    });
    let destination = |(name, policies, (has_endpoints, own_pod), kind, frontend): Claim<'_>| {
        let address = frontend.address.or(node_port_address)?;
        let is_local = host.contains(&address) || traits.binds_service_addresses;
        let is_external = kind != FrontendKind::ClusterIp;
        let is_bound = !is_external && host.contains(&address);
        let (port, protocol, service) = (frontend.port, name.protocol, name.to_string());
        let policy = policies[usize::from(is_external)];
        Some(Destination {
            address,
            is_local,
            port,
            protocol,
            service,
            kind,
            policy,
            is_bound,
            is_external,
            has_endpoints,
            own_pod,
        })
    };
    order::ordered(frontends.filter_map(destination).collect(), rules)
}

/// Returns an address that serves node ports: that of the node, if it is one of them.
pub(super) fn node_port_address(desired: &Desired, family: IpFamily) -> Option<IpAddr> {
    let (node, host) = (&desired.table(family).node, &desired.host.addresses);
    match desired.resolved.settings.node_ports(family, node, host) {
        NodePortMatch::AnyLocal => {
            let is_own = |address: &&IpAddr| IpFamily::of(**address) == family && !address.is_loopback();
            let primary = node.primary_address(family).filter(|address| host.contains(address));
            primary.or_else(|| host.iter().find(is_own).copied())
        }
        NodePortMatch::Addresses(addresses) => addresses.first().copied(),
    }
}

/// A walk of packets to one destination through a table, up to the proxy's rules.
#[derive(Clone, Copy)]
struct Walk<'a> {
    rules: &'a RuleSet,
    table: TableName,
    /// Evaluates conditions with ipsets and other modules.
    sets: &'a Ruleset<'a>,
    destination: &'a Destination,
}

/// Whether packets to a destination match a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    None,
    /// Those of some clients, or possibly.
    Some,
    All,
}

/// The result of a chain.
enum End {
    /// A rule that takes the packets.
    Taken(EarlierEffect, String),
    /// All packets leave the table.
    Left,
    /// Some packets reach the end of the chain.
    Reached,
}

impl Walk<'_> {
    /// Returns the first rule that may take packets, from a built-in chain.
    fn first_effect(&self, chain: ChainName) -> Option<(EarlierEffect, String)> {
        match self.walk(chain, 0) {
            End::Taken(effect, rule) => Some((effect, rule)),
            End::Left | End::Reached => None,
        }
    }

    fn walk(&self, name: ChainName, depth: usize) -> End {
        let Some(chain) = self.rules.chain(self.table, name) else { return End::Reached };
        // ipvs mode translates packets later, and exempts them from the rules after its own rules.
        let ours = chain.rules.iter().position(is_entry);
        if self.table == TableName::Nat && depth == 0 && ours.is_none() {
            return End::Left;
        }
        for rule in chain.rules.iter().take(ours.unwrap_or(usize::MAX)) {
            let (fit, Some(target)) = (self.fit(rule), &rule.target) else { continue };
            if fit == Fit::None {
                continue;
            }
            let effect = match target {
                Target::Dnat { .. } => Some(EarlierEffect::Translated),
                Target::Other(text) if is_translation(text) => Some(EarlierEffect::Translated),
                Target::Other(text) => effect_of(&format!("-j {text}")),
                _ => None,
            };
            if let Some(effect) = effect {
                return End::Taken(effect, format!("-t {} {}", self.table, Line(name, rule)));
            }
            match target {
                Target::Jump(next) | Target::Goto(next) if depth < MAX_DEPTH && !is_proxy_chain(self.table, *next) => {
                    match self.walk(*next, depth + 1) {
                        End::Left if fit == Fit::Some => {}
                        End::Reached if fit == Fit::Some || matches!(target, Target::Jump(_)) => {}
                        end => return end,
                    }
                }
                Target::Return if fit == Fit::All => return End::Reached,
                Target::Accept | Target::Drop | Target::Reject(_) if fit == Fit::All => return End::Left,
                _ => {}
            }
        }
        End::Reached
    }

    fn fit(&self, rule: &Rule) -> Fit {
        let Destination { address, is_local, port, protocol, .. } = self.destination;
        let is_protocol = |wanted: &ProtocolMatch| *wanted == ProtocolMatch::Transport(*protocol);
        let all_if = |holds: bool| if holds { Fit::All } else { Fit::None };
        let by_protocol = all_if(rule.protocol.as_ref().is_none_or(|wanted| wanted.allows(is_protocol)));
        let by_destination = match &rule.destination {
            Some(wanted) if matches!(wanted.value(), AddressMatch::Masked { .. }) => Fit::Some,
            Some(wanted) => {
                all_if(wanted.allows(|wanted| matches!(wanted, AddressMatch::Net(net) if net.contains(address))))
            }
            None => Fit::All,
        };
        let has_others = rule.source.is_some() || rule.in_interface.is_some() || rule.out_interface.is_some();
        let by_others = if has_others { Fit::Some } else { Fit::All };
        let by_modules = rule.matches.iter().map(|module| match module {
            Match::Transport { protocol: wanted, source, destination } => {
                // Ports of clients are high.
                let from =
                    source.as_ref().map_or(Fit::All, |range| match range.allows(|range| range.contains(CLIENT_PORT)) {
                        true => Fit::Some,
                        false => Fit::None,
                    });
                let to = destination.as_ref().is_none_or(|range| range.allows(|range| range.contains(*port)));
                all_if(wanted == protocol && to).min(from)
            }
            Match::AddrType { source, destination } => {
                let to = destination
                    .as_ref()
                    .map_or(Fit::All, |kind| all_if(kind.allows(|kind| (*kind == AddressType::Local) == *is_local)));
                to.min(if source.is_some() { Fit::Some } else { Fit::All })
            }
            Match::Multiport { side: PortSide::Destination, ports } => {
                all_if(ports.allows(|ports| ports.contains(*port)))
            }
            Match::Multiport { side: PortSide::Source, ports } => {
                match ports.allows(|ports| ports.contains(CLIENT_PORT)) {
                    true => Fit::Some,
                    false => Fit::None,
                }
            }
            module => {
                let from = SocketAddr::new(outside_address(IpFamily::of(*address)), CLIENT_PORT);
                let packet = Packet::local(*protocol, from, self.destination.socket());
                self.sets.matches_destination(&packet, module).map_or(Fit::Some, all_if)
            }
        });
        [by_protocol, by_destination, by_others].into_iter().chain(by_modules).min().unwrap_or(Fit::All)
    }
}

/// Reports whether a rule leads to the proxy's rules for Services.
fn is_entry(rule: &Rule) -> bool {
    let entries = [chains::SERVICES, chains::PORTALS_HOST, chains::PORTALS_CONTAINER];
    rule.next_chain().is_some_and(|chain| entries.contains(&chain))
}

/// Reports whether an unsupported target translates the destination.
fn is_translation(target: &str) -> bool {
    let word = target.split_whitespace().next().unwrap_or_default();
    ["DNAT", "REDIRECT", "NETMAP"].contains(&word)
}

/// The tables whose chains see packets before they are translated, in the kernel's order.
const TABLES: [TableName; 3] = [TableName::Raw, TableName::Mangle, TableName::Nat];
/// The maximum number of frontends that are compared with rules of iptables.
const MAX_DESTINATIONS: usize = 5000;
/// The maximum depth of chains.
const MAX_DEPTH: usize = 8;

#[cfg(test)]
pub(super) mod tests {
    use ferroute_trace::Ipsets;

    use super::*;

    /// Returns a frontend with this address and port.
    pub(in super::super) fn destination_at(address: [u8; 4], port: u16) -> Destination {
        Destination { address: address.into(), ..destination(port) }
    }

    fn destination(port: u16) -> Destination {
        Destination {
            address: "192.0.2.1".parse().unwrap(),
            kind: FrontendKind::ExternalIp,
            policy: TrafficPolicy::Cluster,
            is_local: true,
            port,
            protocol: Protocol::Tcp,
            service: "shop/web:http".to_owned(),
            is_bound: false,
            is_external: true,
            has_endpoints: true,
            own_pod: None,
        }
    }

    fn first_effect(table: TableName, port: u16, rules: &str, sets: &str) -> Option<(EarlierEffect, String)> {
        let text =
            format!("*{table}\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:HOSTPORT - [0:0]\n{rules}COMMIT\n");
        let rules = RuleSet::parse_save(IpFamily::V4, &text).unwrap();
        let mut ipsets = Ipsets::default();
        ipsets.add_save(sets);
        let mut sets = Ruleset::new();
        sets.add_ipsets(&ipsets);
        let destination = destination(port);
        let walk = Walk { rules: &rules, table, sets: &sets, destination: &destination };
        walk.first_effect(ChainName::PREROUTING)
    }

    fn translation(port: u16, rules: &str) -> Option<String> {
        first_effect(TableName::Nat, port, rules, "").map(|(effect, rule)| {
            assert_eq!(effect, EarlierEffect::Translated, "{rule}");
            rule
        })
    }

    const HOST_PORT: &str = "-A PREROUTING -m addrtype --dst-type LOCAL -j HOSTPORT\n";
    const DNAT: &str = "-A HOSTPORT -p tcp -m tcp --dport 30080 -j DNAT --to-destination 10.88.0.2:80\n";
    const ENTRY: &str = "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n";

    #[test]
    fn host_port_before_the_services_translates_the_same_port() {
        let found = translation(30080, &format!("{HOST_PORT}{ENTRY}{DNAT}")).unwrap();
        assert!(found.contains("HOSTPORT") && found.contains("--dport 30080"), "{found}");
        assert_eq!(translation(30081, &format!("{HOST_PORT}{ENTRY}{DNAT}")), None);
        let other =
            "-A HOSTPORT -d 198.51.100.1/32 -p tcp -m tcp --dport 30080 -j DNAT --to-destination 10.88.0.2:80\n";
        assert_eq!(translation(30080, &format!("{HOST_PORT}{ENTRY}{other}")), None);
        let redirect = "-A HOSTPORT -p tcp -j REDIRECT --to-ports 15001\n";
        assert!(translation(30080, &format!("{HOST_PORT}{ENTRY}{redirect}")).is_some());
    }

    #[test]
    fn virtual_servers_are_not_another_programs_translation() {
        let socket = |text: &str| text.parse().unwrap();
        let effect = |table: &'static str, chain: &str| Event::Effect {
            hook: ferroute_trace::Hook::Input,
            table: table.into(),
            path: vec![chain.to_owned()],
            effect: Effect::Dnat { before: socket("10.96.0.1:80"), after: socket("10.244.0.2:8080") },
        };
        let rule = |chain: &str, text: &str| Event::Rule {
            chain: chain.to_owned(),
            number: 1,
            text: text.to_owned(),
            depth: 0,
            mismatch: None,
            chance: None,
        };
        let is_ours = |events: &[Event]| super::first_effect(events, IpFamily::V4).is_none();
        let server = [rule("KUBE-SERVICES", "-j ACCEPT"), effect(IPVS_TABLE, "10.96.0.1:80/tcp")];
        assert!(is_ours(&server));
        let other = [rule("early", "dnat to 10.244.0.2:8080"), effect("ip ipvs", "early")];
        assert!(!is_ours(&other));
        assert!(!is_ours(&[&other[..], &server[..]].concat()));
    }

    #[test]
    fn rules_that_take_packets_before_they_are_translated_are_found_by_their_destination() {
        use EarlierEffect::{Translated, TransparentProxy, Untracked};
        let sets = "create services hash:ip family inet\nadd services 192.0.2.1\n\
                    create ports hash:ip,port family inet\nadd ports 192.0.2.1,tcp:80\n\
                    create others hash:net family inet\nadd others 198.51.100.0/24\n";
        for (table, rules, expected) in [
            ("raw", "-A PREROUTING -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -d 192.0.0.0/16 -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -d 198.51.100.0/24 -j NOTRACK", None),
            ("raw", "-A PREROUTING -p tcp -m tcp --dport 81 -j NOTRACK", None),
            ("raw", "-A PREROUTING -p udp -m udp --dport 80 -j NOTRACK", None),
            // Replies of a process.
            ("raw", "-A PREROUTING -p tcp -m tcp --sport 53 -j NOTRACK", None),
            ("raw", "-A PREROUTING -i eth1 -s 10.0.0.0/8 -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -j CT --zone 5", None),
            ("raw", "-A PREROUTING -m set --match-set services dst -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -m set ! --match-set services dst -j CT --notrack", None),
            ("raw", "-A PREROUTING -m set --match-set others dst -j CT --notrack", None),
            ("raw", "-A PREROUTING -m set --match-set ports dst,dst -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -m set --match-set others src -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -m set --match-set unread dst -j CT --notrack", Some(Untracked)),
            ("raw", "-A PREROUTING -m iprange --dst-range 192.0.2.0-192.0.2.9 -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -m iprange --dst-range 192.0.2.2-192.0.2.9 -j NOTRACK", None),
            // Chains and exceptions.
            ("raw", "-A PREROUTING -j HOSTPORT\n-A HOSTPORT -d 192.0.2.1/32 -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -d 192.0.2.0/24 -j ACCEPT\n-A PREROUTING -j NOTRACK", None),
            ("raw", "-A PREROUTING -i lo -d 192.0.2.0/24 -j ACCEPT\n-A PREROUTING -j NOTRACK", Some(Untracked)),
            ("raw", "-A PREROUTING -j HOSTPORT\n-A HOSTPORT -d 192.0.2.1/32 -j RETURN\n-A HOSTPORT -j NOTRACK", None),
            ("raw", "-A PREROUTING -g HOSTPORT\n-A PREROUTING -j NOTRACK", None),
            (
                "mangle",
                "-A PREROUTING -p tcp -j TPROXY --on-port 15006 --on-ip 127.0.0.1 --tproxy-mark 0x1/0xff",
                Some(TransparentProxy),
            ),
            ("mangle", "-A PREROUTING -d 198.51.100.1/32 -p tcp -j TPROXY --on-port 15006", None),
            ("mangle", "-A PREROUTING -m set --match-set services dst -j TPROXY --on-port 1", Some(TransparentProxy)),
            ("mangle", "-A PREROUTING -j MARK --set-xmark 0x1/0x1", None),
            (
                "nat",
                "-A PREROUTING -m set --match-set others dst -p tcp -j REDIRECT --to-ports 1\n-A PREROUTING -j KUBE-SERVICES",
                None,
            ),
            (
                "nat",
                "-A PREROUTING -p tcp -m set --match-set services dst -j REDIRECT --to-ports 1\n-A PREROUTING -j KUBE-SERVICES",
                Some(Translated),
            ),
        ] {
            let table = TableName::from_word(table).unwrap();
            let found = first_effect(table, 80, &format!("{rules}\n"), sets).map(|(effect, _)| effect);
            assert_eq!(found, expected, "{rules}");
        }
    }

    #[test]
    fn packets_without_a_connection_are_left_to_some_processes_and_virtual_servers() {
        use EarlierEffect::{LeftToProcess, Translated, TransparentProxy, Untracked};
        let external = destination(80);
        let internal = || Destination { is_external: false, is_local: false, ..destination(80) };
        let bound = Destination { is_bound: true, ..internal() };
        let internal = internal();
        let (rules, servers) = (&ModeTraits::IPTABLES, &ModeTraits::IPVS);
        for (destination, traits, effect, expected) in [
            (&external, rules, Untracked, Some(Untracked)),
            (&internal, rules, Untracked, Some(Untracked)),
            (&bound, rules, Untracked, Some(LeftToProcess)),
            (&bound, rules, TransparentProxy, Some(TransparentProxy)),
            (&external, servers, Untracked, Some(Untracked)),
            (&internal, servers, Untracked, None),
            (&internal, servers, Translated, Some(Translated)),
        ] {
            assert_eq!(destination.suffers(effect, traits), expected, "{effect:?} {}", destination.is_external);
        }
    }

    #[test]
    fn names_and_comments_are_not_effects() {
        for (text, expected) in [
            ("ip daddr 10.96.0.10 udp dport 53 notrack", Some(EarlierEffect::Untracked)),
            ("meta l4proto tcp tproxy ip to 127.0.0.1:15006 accept", Some(EarlierEffect::TransparentProxy)),
            ("ip daddr @notrack accept", None),
            ("jump notrack", None),
            ("tcp dport 80 accept comment \"no notrack here\"", None),
            ("-m comment --comment \"use -j NOTRACK \" -j ACCEPT", None),
            ("-p tcp -j notrack", None),
        ] {
            assert_eq!(effect_of(text), expected, "{text}");
        }
    }

    #[test]
    fn rules_after_the_services_do_not_matter() {
        let rules = format!("{ENTRY}{HOST_PORT}{DNAT}");
        assert_eq!(translation(30080, &rules), None);
        assert_eq!(translation(30080, &format!("{HOST_PORT}{DNAT}")), None, "no proxy has rules");
    }
}
