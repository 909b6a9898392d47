//! The chains that exist without any Service.

use std::time::Duration;

use ferroute_core::{IpFamily, ModeTraits, NodePortMatch, Routes, SourceAddress, TrafficPolicy};

use super::{
    Context, FLOWTABLE, MapName, SetId,
    elements::SetElement,
    frontend::{FRONTEND, NODE_PORT, PROTOCOLS},
    kind::{ADMIT, CLIENT, Class, REFUSE, REMEMBER, dispatch_frontend, restricted, send},
    limits::{LIMITS, limit_chains, outside_source_ranges},
    list::LIST,
};
use crate::model::{Chain, ChainType, ChainWithRules, Element, Field, Hook, Match, Name, Rule, Statement, Verdict};

/// Returns these chains, targets of jumps first. `sets` are the sets of timeouts and source ranges that exist.
pub(super) fn fixed_chains(context: &Context, sets: impl Iterator<Item = SetId> + Clone) -> Vec<ChainWithRules> {
    let has_source_ranges = sets.clone().any(SetId::is_source_ranges);
    let has_limits = sets.clone().any(|set| set == SetId::Limited);
    let mut chains = vec![
        Chain::new(REFUSE).comment("services without endpoints").rules([Rule::new([Statement::REJECT])]),
        remember(sets.clone()),
        admit(sets.clone()),
    ];
    if has_limits {
        chains.extend(limit_chains(sets.clone()));
    }
    chains.extend([
        Chain::new(SERVICES).comment("the choice of an endpoint").rules(services(context, has_limits)),
        Chain::new(SOURCE_RANGES)
            .comment("the priority is the list of a load balancer with source ranges")
            .rules(source_ranges(context.settings.family, sets.clone())),
        Chain::new(FIREWALL).comment("source ranges of load balancers").rules(firewall(context, sets)),
        Chain::new(CLUSTER_IPS)
            .comment("what no service has answered although it has the address")
            .rules(cluster_ips(context)),
        Chain::new(MASQUERADING).comment("sources that endpoints could not answer to").rules(masquerading(context)),
    ]);
    if context.flowtable_packets.is_some() {
        chains.push(
            Chain::new(OFFLOAD).comment("connections whose packets may skip the hooks from now on").rules(offload()),
        );
    }
    if has_source_ranges {
        chains.extend(firewall_chains());
    }
    chains.extend(base_chains(context));
    chains
}

/// Returns the base chains that exist while a load balancer has source ranges. Without them, packets pass one hook less.
pub(super) fn firewall_chains() -> [ChainWithRules; 2] {
    let chain = |name, hook| base(name, ChainType::Filter, hook, BEFORE_DNAT, [new(FIREWALL)]);
    [chain("filter-prerouting-pre-dnat", Hook::Prerouting), chain("filter-output-pre-dnat", Hook::Output)]
}

/// Returns the elements of verdict maps that exist without any Service.
pub(super) fn fixed_elements() -> impl Iterator<Item = SetElement> {
    let maps = [SetId::Dispatch, SetId::LocalDispatch];
    maps.into_iter().flat_map(|map| {
        [Class::Reject, Class::Drop].map(|class| (map, Element::new([class.key().into()]).verdict(class.verdict())))
    })
}

/// Reports whether this is a base chain that only some Services need.
pub(crate) fn is_optional(chain: &Chain) -> bool {
    firewall_chains().iter().any(|optional| optional.chain == *chain)
}

fn base_chains(context: &Context) -> Vec<ChainWithRules> {
    use ChainType::{Filter, Nat};
    let jump = |chain: Name| Rule::new([Verdict::Jump(chain).into()]);
    let clear_first = || Rule::new([vec![Match::CtStateNew.into()], clear_priority()].concat()).comment(PRIORITY);
    // The kernel itself sets the priority of IPv4 packets that it forwards, according to their type of service.
    let clear_forwarded = (context.settings.family == IpFamily::V6).then(clear_first);
    let established = context.flowtable_packets.map(established);
    let forwarded: Vec<Rule> = clear_forwarded.into_iter().chain([new(CLUSTER_IPS)]).chain(established).collect();
    let mut chains = vec![
        base("nat-prerouting", Nat, Hook::Prerouting, DNAT, [jump(SERVICES)]),
        base("nat-output", Nat, Hook::Output, DNAT, [jump(SERVICES)]),
    ];
    // The kernel itself drops packets to and from `::1` that arrive from other hosts (`ip6_rcv_core`).
    if context.settings.localhost_node_ports && context.settings.family == IpFamily::V4 {
        chains.push(base("filter-input", Filter, Hook::Input, FILTER, [protect_localhost(context.settings.family)]));
    }
    chains.extend([
        base("filter-forward", Filter, Hook::Forward, FILTER, forwarded),
        base("filter-output", Filter, Hook::Output, FILTER, [clear_first(), new(CLUSTER_IPS)]),
        base("nat-input", Nat, Hook::Input, SNAT, [Rule::new(clear_priority()).comment(PRIORITY)]),
        base("nat-postrouting", Nat, Hook::Postrouting, SNAT, [jump(MASQUERADING)]),
    ]);
    chains
}

fn base(name: &'static str, kind: ChainType, hook: Hook, priority: i32, rules: impl Into<Vec<Rule>>) -> ChainWithRules {
    Chain::new(Name::fixed(name)).base(kind, hook, priority).rules(rules)
}

fn firewall(context: &Context, mut sets: impl Iterator<Item = SetId>) -> Vec<Rule> {
    let check = || Verdict::Goto(SOURCE_RANGES).into();
    let node_ports = sets.any(|set| set == SetId::RestrictedNodePorts).then(|| {
        let list = Statement::MetaPriorityMap { key: NODE_PORT.to_vec(), map: MapName::RESTRICTED_NODE_PORTS };
        Rule::new([serves_node_ports(context), vec![list, check()]].concat())
    });
    [Rule::new([restricted(), check()])].into_iter().chain(node_ports).collect()
}

fn new(chain: Name) -> Rule {
    Rule::new([Match::CtStateNew.into(), Verdict::Jump(chain).into()])
}

fn services(context: &Context, has_limits: bool) -> Vec<Rule> {
    let cluster_ip = || in_set(&[Field::Daddr], SetId::ClusterIps, true);
    let masquerade = Statement::MetaMarkOr(context.settings.masquerade_mark);
    // The source address does not depend on the policy.
    let Routes { pod, outside, .. } =
        Routes::internal(TrafficPolicy::Cluster, &context.settings, &ModeTraits::NFTABLES);
    let masqueraded = match (pod.source, outside.source) {
        (_, SourceAddress::Kept) => None,
        (SourceAddress::Kept, SourceAddress::Node) => context.match_local_pods(false).map(|not_from_pods| {
            Rule::new([not_from_pods.into(), cluster_ip(), masquerade])
                .comment("endpoints may not know the way to others than pods")
        }),
        (SourceAddress::Node, SourceAddress::Node) => {
            Some(Rule::new([cluster_ip(), masquerade]).comment("masquerade all"))
        }
    };
    let frontends = Rule::new(dispatch_frontend(&FRONTEND, MapName::SERVICES));
    let node_ports = [serves_node_ports(context), dispatch_frontend(&NODE_PORT, MapName::NODE_PORTS)].concat();
    let node_ports = Rule::new(node_ports).comment("node ports");
    // Map `lists` does not contain the requests of service ports with limits, so only their packets and those for no
    // Service reach these rules.
    let limited = has_limits.then(|| {
        let request = Statement::MetaPriorityMap { key: vec![Field::MetaPriority], map: MapName::LIMITED };
        Rule::new([request, Verdict::Goto(LIMITS).into()]).comment("services with limits")
    });
    let lookups = [Some(frontends), limited.clone(), Some(node_ports), limited];
    masqueraded.into_iter().chain(lookups.into_iter().flatten()).collect()
}

/// Returns the conditions for packets to addresses that serve node ports.
fn serves_node_ports(context: &Context) -> Vec<Statement> {
    match &context.settings.node_ports {
        NodePortMatch::Addresses(_) => vec![in_set(&[Field::Daddr], SetId::NodePortAddresses, true)],
        NodePortMatch::AnyLocal => {
            let loopback = Match::Daddr { net: context.settings.family.loopback(), eq: false };
            let not_loopback = (!context.settings.localhost_node_ports).then_some(loopback);
            [Match::FibDaddrLocal].into_iter().chain(not_loopback).map(Statement::from).collect()
        }
    }
}

/// There is one lookup per prefix length, because hash tables of any size are changed in constant time, whereas a set
/// of intervals is copied at each change.
fn source_ranges(family: IpFamily, sets: impl Iterator<Item = SetId> + Clone) -> Vec<Rule> {
    let refused = sets.clone().any(|set| set == SetId::Refusals).then(|| Rule::new(outside_source_ranges()));
    let full = if family == IpFamily::V4 { 32 } else { 128 };
    let allowed = sets.filter_map(|set| match set {
        SetId::SourceRanges(length) => {
            let source = if length == full { Field::Saddr } else { Field::SaddrNetwork(length) };
            let contains = in_set(&[source, Field::MetaPriority], set, true);
            Some(Rule::new([contains, Statement::MetaPriorityNone, Verdict::Return.into()]))
        }
        _ => None,
    });
    allowed.chain(refused).chain([Rule::new([Verdict::Drop.into()])]).collect()
}

fn cluster_ips(context: &Context) -> Vec<Rule> {
    let unknown_port = Rule::new([in_set(&[Field::Daddr], SetId::ClusterIps, true), Statement::REJECT])
        .comment("a port that the service has not");
    let unknown_address = context.service_networks.iter().map(|net| {
        Rule::new([Match::Daddr { net: *net, eq: true }.into(), Verdict::Drop.into()])
            .comment("an address that no service has")
    });
    [unknown_port].into_iter().chain(unknown_address).collect()
}

fn masquerading(context: &Context) -> Vec<Rule> {
    let mark = context.settings.masquerade_mark;
    let hairpin = [Field::Saddr, Field::Daddr, Field::L4proto, Field::Dport];
    let keep = context.settings.no_masquerade_cidrs.iter().map(|net| {
        let to = Match::Daddr { net: *net, eq: true };
        let not_from_localhost = Match::Saddr { net: context.settings.family.loopback(), eq: false };
        let marked = [Match::MetaMark(mark), to, not_from_localhost].map(Statement::from);
        Rule::new(marked.into_iter().chain([Statement::MetaMarkXor(mark)]).collect::<Vec<_>>())
            .comment("these see the addresses of their clients")
    });
    let others = [
        Rule::new([Match::MetaMark(mark).into(), Statement::MetaMarkXor(mark), Statement::MASQUERADE]),
        Rule::new([Match::CtStatusDnat.into(), in_set(&hairpin, SetId::Hairpin, true), Statement::MASQUERADE]),
    ];
    keep.chain(others).collect()
}

/// Requires that both directions of a connection have been seen, and that it is not short, because short connections do
/// not benefit.
fn established(packets: u32) -> Rule {
    let conditions = [Match::CtStatusDnat, Match::CtPacketsAbove(packets.into())];
    Rule::new(conditions.into_iter().map(Statement::from).chain([Verdict::Jump(OFFLOAD).into()]).collect::<Vec<_>>())
}

fn offload() -> [Rule; 2] {
    let add = |frontend: &[Field], set| Rule::new([in_set(frontend, set, true), Statement::FlowAdd(FLOWTABLE)]);
    [
        add(&[Field::CtOriginalDaddr, Field::L4proto, Field::CtOriginalDport], SetId::FlowServices),
        add(&[Field::L4proto, Field::CtOriginalDport], SetId::FlowNodePorts),
    ]
}

/// Updates the clients of the affinity map.
fn remember(sets: impl Iterator<Item = SetId>) -> ChainWithRules {
    let timeout = |set| if let SetId::Sticky(seconds) = set { Some(seconds) } else { None };
    Chain::new(REMEMBER).comment("the endpoint whose slot is the priority").rules(to_slot(sets, timeout))
}

/// Adds clients to the affinity map, up to the maximum for their list. Further clients have no affinity.
fn admit(sets: impl Iterator<Item = SetId>) -> ChainWithRules {
    let timeout = |set| if let SetId::NewClients { seconds, .. } = set { Some(seconds) } else { None };
    Chain::new(ADMIT).comment("the same for clients that are new").rules(to_slot(sets, timeout))
}

/// Returns no rules while no Service has session affinity: given these rules as text, versions of `nft` before 1.0.9
/// load a client's IPv6 address and its slot into the same register.
fn to_slot(sets: impl Iterator<Item = SetId>, timeout: impl Fn(SetId) -> Option<u32>) -> Vec<Rule> {
    let client = CLIENT.to_vec();
    let mut rules: Vec<Rule> = sets
        .filter_map(|set| {
            let timeout = Duration::from_secs(timeout(set)?.into());
            let update = Statement::UpdateMap { key: client.clone(), map: MapName::AFFINITY, timeout };
            Some(Rule::new([in_set(&[Field::PriorityBits(LIST)], set, true), update]))
        })
        .collect();
    if !rules.is_empty() {
        let slot = vec![Field::MetaPriority, Field::NumgenRandom { count: 1, first: 0 }];
        rules.extend(PROTOCOLS.map(|protocol| send(protocol, slot.clone())));
        let delete = Rule::new([Statement::DeleteFromMap { key: client, map: MapName::AFFINITY }]);
        rules.push(delete.comment("the endpoint is gone"));
    }
    rules
}

/// Drops packets from other hosts to localhost. Node ports on localhost require `route_localnet`, which would give
/// neighbouring hosts access to all services that listen on localhost (CVE-2020-8558). Only new connections are
/// dropped, because replies to the node's own requests can have a localhost destination, too.
fn protect_localhost(family: IpFamily) -> Rule {
    let net = family.loopback();
    let (to, from_elsewhere) = (Match::Daddr { net, eq: true }, Match::Saddr { net, eq: false });
    Rule::new([Match::CtStateNew.into(), to.into(), from_elsewhere.into(), Verdict::Drop.into()])
        .comment("localhost is not for others")
}

/// Clears the priority of a connection's first packet after the endpoint was chosen, before queueing interprets it.
fn clear_priority() -> Vec<Statement> {
    vec![Match::CtStatusDnat.into(), Statement::MetaPriorityNone]
}

pub(super) fn in_set(key: &[Field], set: SetId, eq: bool) -> Statement {
    Match::InSet { key: key.to_vec(), set: set.name(), eq }.into()
}

const PRIORITY: &str = "it has carried class:list";
const SERVICES: Name = Name::fixed("services");
const FIREWALL: Name = Name::fixed("firewall");
const SOURCE_RANGES: Name = Name::fixed("source-ranges");
const CLUSTER_IPS: Name = Name::fixed("cluster-ips");
const OFFLOAD: Name = Name::fixed("offload");
const MASQUERADING: Name = Name::fixed("masquerading");

/// Before the nat rules of other programs (`NF_IP_PRI_NAT_DST`, `dstnat` in `nft`). Among chains of equal priority, the
/// kernel calls the one first that was registered last, and the first translation applies. Whether a Service or a host
/// port gets a connection would then depend on the order in which programs start.
const DNAT: i32 = -101;
/// Before endpoints are chosen; the priority that kube-proxy uses.
const BEFORE_DNAT: i32 = -110;
/// `NF_IP_PRI_FILTER`, `filter` in `nft`.
const FILTER: i32 = 0;
/// Before the nat rules of other programs (`NF_IP_PRI_NAT_SRC`, `srcnat` in `nft`), for the same reason.
const SNAT: i32 = 99;
