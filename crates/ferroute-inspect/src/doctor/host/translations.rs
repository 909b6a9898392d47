//! Rules of other programs, such as those of host ports, that translate the destination of packets to Services before the proxy.
//!
//! In rules of iptables, conditions that do not depend on the destination are assumed to be true, because some client
//! satisfies them. If there are other tables of nf_tables with translations, a packet from outside and one of the host
//! itself are also walked through all rules in the kernel, whose order depends on priorities and on when the chains
//! were registered.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{Frontend, FrontendKind, IpFamily, ModeTraits, NodePortMatch, Protocol, ServicePortName};
use ferroute_iptables::{
    AddressMatch, AddressType, ChainName, Match, ProtocolMatch, Rule, RuleSet, TableName, Target,
    plan::{chains, is_proxy_chain},
    text::Line,
};
use ferroute_modes::{REGISTRY, kernel_rules::KernelRules};
use ferroute_nftables::{
    TableOwner,
    kernel::{TableFamily, TableSnapshot},
    model::ChainType,
};
use ferroute_trace::{Effect, Event, Host, IPVS_TABLE, Packet, Ruleset};

use crate::{
    desired::Desired,
    doctor::{EarlierTranslation, Reading},
    trace::kernel_host,
};

/// A frontend at one address.
pub(super) struct Destination {
    pub(super) address: IpAddr,
    /// Whether the kernel considers the address one of the host's.
    is_local: bool,
    port: u16,
    pub(super) protocol: Protocol,
    pub(super) service: String,
    /// Whether it is for clients outside of the cluster.
    pub(super) is_external: bool,
    pub(super) has_endpoints: bool,
}

impl Destination {
    pub(super) fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// Returns the rules of other programs that may translate packets to Services before the proxy, each with one Service.
pub(super) fn earlier(desired: &Desired, rules: &KernelRules) -> Reading<Vec<EarlierTranslation>> {
    let traits = REGISTRY.active(desired.resolved.mode).traits();
    let destinations = destinations(desired, rules.family, traits);
    // In nftables mode, the proxy's chains come before those of iptables.
    let mut found = if traits.accepts_in_firewalls { by_iptables(&destinations, rules) } else { Vec::new() };
    // If no proxy has rules, no rules precede them.
    let has_proxy = !REGISTRY.active_proxies(rules).is_empty();
    if has_proxy && rules.nftables.iter().any(|snapshot| is_foreign(snapshot) && translates(snapshot)) {
        let host = kernel_host().map_err(|error| format!("{error:#}"))?;
        by_walks(&destinations, rules, &host, &mut found);
    }
    Ok(found)
}

/// Walks packets to the first destinations through all rules.
fn by_walks(destinations: &[Destination], rules: &KernelRules, host: &Host, found: &mut Vec<EarlierTranslation>) {
    let ruleset = Ruleset::from_rules(rules);
    for destination in destinations.iter().take(MAX_WALKS) {
        for packet in packets(destination, host) {
            for leaf in ruleset.leaves(host, &packet).take(MAX_LEAVES) {
                let Some(rule) = first_translation(&leaf.events).filter(|rule| !rule.is_ours(rules.family)) else {
                    continue;
                };
                let rule = format!("{} in chain {} of table {}", rule.text, rule.chain, rule.table);
                // Rules of iptables have been searched above.
                if found.iter().all(|other| other.rule != rule && other.service != destination.service) {
                    found.push(EarlierTranslation { rule, service: destination.service.clone() });
                }
            }
        }
    }
}

/// Returns a packet from outside, and one of the host itself.
fn packets(destination: &Destination, host: &Host) -> Vec<Packet> {
    let to = destination.socket();
    let outside = outside_address(IpFamily::of(to.ip()));
    let protocol = destination.protocol;
    let arriving = host.path_to(outside, Some((protocol, to.port(), CLIENT_PORT))).map(|(interface, _)| {
        Packet::arriving(destination.protocol, SocketAddr::new(outside, CLIENT_PORT), to, &interface)
    });
    let source = host.source_to(to.ip(), Some((protocol, CLIENT_PORT, to.port())));
    let local = source.map(|source| Packet::local(destination.protocol, SocketAddr::new(source, CLIENT_PORT), to));
    arriving.into_iter().chain(local).collect()
}

/// Returns an address outside of the cluster.
pub(super) fn outside_address(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::from([203, 0, 113, 7]),
        IpFamily::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7]),
    }
}

/// A rule that translates a packet.
struct Translation<'a> {
    table: &'a str,
    path: &'a [String],
    chain: &'a str,
    text: &'a str,
}

impl Translation<'_> {
    /// Reports whether the rule belongs to a service proxy.
    fn is_ours(&self, family: IpFamily) -> bool {
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

/// Returns the rule that translates the destination first.
fn first_translation(events: &[Event]) -> Option<Translation<'_>> {
    let is_translation = |event: &Event| matches!(event, Event::Effect { effect: Effect::Dnat { .. }, .. });
    let at = events.iter().position(is_translation)?;
    let Event::Effect { table, path, .. } = &events[at] else { return None };
    let rule = events[..at].iter().rev().find_map(|event| match event {
        Event::Rule { chain, text, .. } => Some((chain, text)),
        _ => None,
    });
    let (chain, text) = rule?;
    Some(Translation { table, path, chain, text })
}

/// Reports whether a table is that of no service proxy.
pub(super) fn is_foreign(snapshot: &TableSnapshot) -> bool {
    let is_of = |owner: TableOwner| match snapshot.family {
        TableFamily::Ip(family) => snapshot.name == owner.table(family).name,
        TableFamily::Inet => false,
    };
    !OWNERS.into_iter().any(is_of)
}

fn translates(snapshot: &TableSnapshot) -> bool {
    snapshot.table.chains().any(|chain| chain.chain.base.is_some_and(|base| base.kind == ChainType::Nat))
}

/// Proxies with separate tables.
const OWNERS: [TableOwner; 2] = [TableOwner::Ferroute, TableOwner::KubeProxy];
/// The maximum number of destinations to which packets are walked.
const MAX_WALKS: usize = 500;
/// The maximum number of branches of a walk that are examined.
pub(super) const MAX_LEAVES: usize = 64;
/// A port of a client.
pub(super) const CLIENT_PORT: u16 = 50000;

fn by_iptables(destinations: &[Destination], rules: &KernelRules) -> Vec<EarlierTranslation> {
    let mut found: Vec<EarlierTranslation> = Vec::new();
    let program = if rules.family == IpFamily::V4 { "iptables" } else { "ip6tables" };
    for backend in &rules.iptables {
        for destination in destinations {
            for chain in [ChainName::PREROUTING, ChainName::OUTPUT] {
                let walk = Walk { rules: &backend.saved.rules, destination };
                let Some(rule) = walk.translation(chain, 0) else { continue };
                let rule = format!("{program} {rule}");
                if found.iter().all(|other| other.rule != rule) {
                    found.push(EarlierTranslation { rule, service: destination.service.clone() });
                }
            }
        }
    }
    found
}

/// Returns the first frontends of all service ports.
pub(super) fn destinations(desired: &Desired, family: IpFamily, traits: &ModeTraits) -> Vec<Destination> {
    let table = desired.table(family);
    let host = &desired.host.addresses;
    let is_own = |address: &&IpAddr| IpFamily::of(**address) == family && !address.is_loopback();
    let node_port_address = match desired.resolved.settings.node_ports(family, &table.node, host) {
        NodePortMatch::AnyLocal => host.iter().find(is_own).copied(),
        NodePortMatch::Addresses(addresses) => addresses.first().copied(),
    };
    let frontends = table.entries.iter().flat_map(|(name, entry)| {
        let frontends = entry.service.frontends(name.protocol);
        frontends.map(move |(kind, frontend)| (name, !entry.endpoints.is_empty(), kind, frontend))
    });
    let destination = |(name, has_endpoints, kind, frontend): (&ServicePortName, bool, FrontendKind, Frontend)| {
        let address = frontend.address.or(node_port_address)?;
        let is_local = host.contains(&address) || traits.binds_service_addresses;
        let is_external = kind != FrontendKind::ClusterIp;
        let (port, protocol, service) = (frontend.port, name.protocol, name.to_string());
        Some(Destination { address, is_local, port, protocol, service, is_external, has_endpoints })
    };
    frontends.filter_map(destination).take(MAX_DESTINATIONS).collect()
}

/// A walk of a packet to one destination through table nat, up to the proxy's rules.
struct Walk<'a> {
    rules: &'a RuleSet,
    destination: &'a Destination,
}

impl Walk<'_> {
    /// Returns the first rule that may translate the destination.
    fn translation(&self, name: ChainName, depth: usize) -> Option<String> {
        let chain = self.rules.chain(TableName::Nat, name)?;
        // ipvs mode translates packets later, and exempts them from the rules after its own rules.
        let ours = chain.rules.iter().position(is_entry);
        if depth == 0 && ours.is_none() {
            return None;
        }
        for rule in chain.rules.iter().take(ours.unwrap_or(usize::MAX)).filter(|rule| self.may_match(rule)) {
            match &rule.target {
                Some(Target::Dnat { .. }) => return Some(format!("-t nat {}", Line(name, rule))),
                Some(Target::Other(text)) if is_translation(text) => {
                    return Some(format!("-t nat {}", Line(name, rule)));
                }
                Some(Target::Jump(next) | Target::Goto(next))
                    if depth < MAX_DEPTH && !is_proxy_chain(TableName::Nat, *next) =>
                {
                    if let Some(found) = self.translation(*next, depth + 1) {
                        return Some(found);
                    }
                }
                _ => {}
            }
        }
        None
    }

    fn may_match(&self, rule: &Rule) -> bool {
        let Destination { address, is_local, port, protocol, .. } = self.destination;
        let is_protocol = |wanted: &ProtocolMatch| *wanted == ProtocolMatch::Transport(*protocol);
        let is_within = |wanted: &AddressMatch| match wanted {
            AddressMatch::Net(net) => net.contains(address),
            AddressMatch::Masked { .. } => true,
        };
        rule.protocol.as_ref().is_none_or(|wanted| wanted.allows(is_protocol))
            && rule.destination.as_ref().is_none_or(|wanted| wanted.allows(is_within))
            && rule.matches.iter().all(|module| match module {
                Match::Transport { protocol: wanted, destination, .. } => {
                    wanted == protocol
                        && destination.as_ref().is_none_or(|range| range.allows(|range| range.contains(*port)))
                }
                Match::AddrType { destination: Some(kind), .. } => {
                    kind.allows(|kind| (*kind == AddressType::Local) == *is_local)
                }
                Match::Multiport { side: ferroute_iptables::PortSide::Destination, ports } => {
                    ports.allows(|ports| ports.contains(*port))
                }
                _ => true,
            })
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

/// The maximum number of frontends that are examined.
const MAX_DESTINATIONS: usize = 5000;
/// The maximum depth of chains.
const MAX_DEPTH: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn translation(port: u16, rules: &str) -> Option<String> {
        let text =
            format!("*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:HOSTPORT - [0:0]\n{rules}COMMIT\n");
        let rules = RuleSet::parse_save(IpFamily::V4, &text).unwrap();
        let address = "192.0.2.1".parse().unwrap();
        let service = "shop/web:http".to_owned();
        let destination = Destination {
            address,
            is_local: true,
            port,
            protocol: Protocol::Tcp,
            service,
            is_external: true,
            has_endpoints: true,
        };
        Walk { rules: &rules, destination: &destination }.translation(ChainName::PREROUTING, 0)
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
        let is_ours = |events: &[Event]| first_translation(events).unwrap().is_ours(IpFamily::V4);
        let server = [rule("KUBE-SERVICES", "-j ACCEPT"), effect(IPVS_TABLE, "10.96.0.1:80/tcp")];
        assert!(is_ours(&server));
        let other = [rule("early", "dnat to 10.244.0.2:8080"), effect("ip ipvs", "early")];
        assert!(!is_ours(&other));
        assert!(!is_ours(&[&other[..], &server[..]].concat()));
    }

    #[test]
    fn rules_after_the_services_do_not_matter() {
        let rules = format!("{ENTRY}{HOST_PORT}{DNAT}");
        assert_eq!(translation(30080, &rules), None);
        assert_eq!(translation(30080, &format!("{HOST_PORT}{DNAT}")), None, "no proxy has rules");
    }
}
