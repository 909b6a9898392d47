//! The chains that exist without any Service.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use ferroute_core::{IpFamily, NodePortMatch};
use ipnet::IpNet;

use super::{
    Context, MapName, SetId, frontend_fields,
    kind::{CLIENT, index_key, remember_chain},
};
use crate::model::{Chain, ChainType, ChainWithRules, Field, Hook, Match, Name, Rule, Statement, Verdict};

/// Returns these chains, targets of jumps first. `timeouts` are the affinity timeouts in seconds.
pub(super) fn fixed_chains(context: &Context, timeouts: impl Iterator<Item = u32> + Clone) -> Vec<ChainWithRules> {
    let mut chains = vec![
        rein_set(false, timeouts.clone()),
        rein_set(true, timeouts),
        Chain::new(SERVICES).comment("the choice of an endpoint").rules(services(context)),
        Chain::new(FIREWALL).comment("source ranges of load balancers").rules([Rule::new([
            in_set(&frontend_fields(false), SetId::Restricted, true),
            in_set(&[&frontend_fields(false)[..], &[Field::Saddr]].concat(), SetId::SourceRanges, false),
            Verdict::Drop.into(),
        ])]),
        Chain::new(FRONTENDS)
            .comment("services with nothing to send packets to")
            .rules(unserved(&frontend_fields(false), None)),
        Chain::new(NODE_PORTS)
            .comment("the same for node ports")
            .rules(unserved(&frontend_fields(true), Some(context))),
        Chain::new(CLUSTER_IPS)
            .comment("what no service has answered although it has the address")
            .rules(cluster_ips(context)),
        Chain::new(MASQUERADING).comment("sources that endpoints could not answer to").rules(masquerading(context)),
    ];
    chains.extend(base_chains(context));
    chains
}

fn base_chains(context: &Context) -> Vec<ChainWithRules> {
    use ChainType::{Filter, Nat};
    let base = |name, kind, hook, priority, rules: Vec<Rule>| {
        Chain::new(Name::fixed(name)).base(kind, hook, priority).rules(rules)
    };
    let jump = |chain: Name| Rule::new([Verdict::Jump(chain).into()]);
    let new = |chain: Name| Rule::new([Match::CtStateNew.into(), Verdict::Jump(chain).into()]);
    let checks = || vec![new(FRONTENDS), new(CLUSTER_IPS)];
    let input = context.localhost_node_ports.then(|| protect_localhost(context.family));
    let input = input.into_iter().chain([new(NODE_PORTS), new(FRONTENDS)]).collect();
    vec![
        base("filter-prerouting-pre-dnat", Filter, Hook::Prerouting, DNAT - 10, vec![new(FIREWALL)]),
        base("filter-output-pre-dnat", Filter, Hook::Output, DNAT - 10, vec![new(FIREWALL)]),
        base("nat-prerouting", Nat, Hook::Prerouting, DNAT, vec![jump(SERVICES)]),
        base("nat-output", Nat, Hook::Output, DNAT, vec![jump(SERVICES)]),
        base("filter-prerouting-post-dnat", Filter, Hook::Prerouting, DNAT + 1, vec![clear_priority()]),
        base("filter-output-post-dnat", Filter, Hook::Output, DNAT + 1, vec![clear_priority()]),
        base("filter-input", Filter, Hook::Input, FILTER, input),
        base("filter-forward", Filter, Hook::Forward, FILTER, checks()),
        base("filter-output", Filter, Hook::Output, FILTER, checks()),
        base("nat-postrouting", Nat, Hook::Postrouting, SNAT, vec![jump(MASQUERADING)]),
    ]
}

fn services(context: &Context) -> Vec<Rule> {
    let cluster_ip = || in_set(&[Field::Daddr], SetId::ClusterIps, true);
    let masquerade = Statement::MetaMarkOr(context.masquerade_mark);
    let masqueraded = if context.masquerade_all {
        Some(Rule::new([cluster_ip(), masquerade]).comment("masquerade all"))
    } else {
        let not_from_pods = context.match_local_pods(false);
        not_from_pods.map(|not_from_pods| {
            Rule::new([cluster_ip(), not_from_pods.into(), masquerade])
                .comment("endpoints may not know the way to others than pods")
        })
    };
    let dispatch = |conditions: Vec<Statement>, node_port| {
        let key = frontend_fields(node_port).to_vec();
        let lookup = [
            Statement::MetaPriorityMap { key, map: MapName::SERVICES },
            Statement::Vmap { key: vec![Field::MetaPriority], map: MapName::DISPATCH },
        ];
        Rule::new(conditions.into_iter().chain(lookup).collect::<Vec<_>>())
    };
    let node_ports = dispatch(serves_node_ports(context, true), true);
    masqueraded.into_iter().chain([dispatch(Vec::new(), false), node_ports.comment("node ports")]).collect()
}

/// Returns the conditions for packets to addresses that serve node ports. In the input hook every destination is local.
fn serves_node_ports(context: &Context, check_local: bool) -> Vec<Statement> {
    match &context.node_ports {
        NodePortMatch::Addresses(_) => vec![in_set(&[Field::Daddr], SetId::NodePortAddresses, true)],
        NodePortMatch::AnyLocal => {
            let local = check_local.then_some(Match::FibDaddrLocal);
            let loopback = Match::Daddr { net: loopback(context.family), eq: false };
            let not_loopback = (!context.localhost_node_ports).then_some(loopback);
            local.into_iter().chain(not_loopback).map(Statement::from).collect()
        }
    }
}

fn unserved(key: &[Field], node_ports: Option<&Context>) -> Vec<Rule> {
    let condition = || node_ports.map(|context| serves_node_ports(context, false)).unwrap_or_default();
    let rule = |set, end: Statement| {
        Rule::new(condition().into_iter().chain([in_set(key, set, true), end]).collect::<Vec<_>>())
    };
    vec![rule(SetId::Refused, Statement::REJECT), rule(SetId::Dropped, Verdict::Drop.into())]
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
    let mark = context.masquerade_mark;
    let hairpin = [Field::Saddr, Field::Daddr, Field::L4proto, Field::Dport];
    vec![
        Rule::new([Match::MetaMark(mark).into(), Statement::MetaMarkXor(mark), Statement::MASQUERADE]),
        Rule::new([Match::CtStatusDnat.into(), in_set(&hairpin, SetId::Hairpin, true), Statement::MASQUERADE]),
    ]
}

/// Has no rules while no Service has session affinity: versions of `nft` before 1.0.9, given these rules as text, load
/// a client's IPv6 address and its slot into the same register.
fn rein_set(node_port: bool, timeouts: impl Iterator<Item = u32>) -> ChainWithRules {
    let (client, frontend) = (CLIENT.to_vec(), frontend_fields(node_port));
    let mut rules: Vec<Rule> = timeouts
        .map(|seconds| {
            let timeout = Duration::from_secs(seconds.into());
            Rule::new([
                in_set(&frontend, SetId::Sticky(seconds), true),
                Statement::UpdateMap { key: client.clone(), map: MapName::AFFINITY, timeout },
            ])
        })
        .collect();
    if !rules.is_empty() {
        rules.push(Rule::new([Statement::DnatMap { key: index_key(node_port), map: MapName::ENDPOINTS }]));
        let delete = Rule::new([Statement::DeleteFromMap { key: client, map: MapName::AFFINITY }]);
        rules.push(delete.comment("the endpoint is gone"));
    }
    Chain::new(remember_chain(node_port)).comment("the endpoint whose slot is the priority").rules(rules)
}

/// Drops packets from other hosts to localhost. Node ports on localhost require `route_localnet`, which would give
/// neighbouring hosts access to everything that listens on localhost (CVE-2020-8558). Only new connections are dropped,
/// because replies to the node's own requests can have a localhost destination, too.
fn protect_localhost(family: IpFamily) -> Rule {
    let net = loopback(family);
    let (to, from_elsewhere) = (Match::Daddr { net, eq: true }, Match::Saddr { net, eq: false });
    Rule::new([Match::CtStateNew.into(), to.into(), from_elsewhere.into(), Verdict::Drop.into()])
        .comment("localhost is not for others")
}

/// Clears the priority after the endpoint was chosen, before anything else interprets it.
fn clear_priority() -> Rule {
    Rule::new([Match::CtStateNew.into(), Match::CtStatusDnat.into(), Statement::MetaPriorityNone])
        .comment("it has carried kind:endpoints")
}

fn in_set(key: &[Field], set: SetId, eq: bool) -> Statement {
    Match::InSet { key: key.to_vec(), set: set.name(), eq }.into()
}

fn loopback(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        IpFamily::V6 => IpNet::new_assert(Ipv6Addr::LOCALHOST.into(), 128),
    }
}

const SERVICES: Name = Name::fixed("services");
const FIREWALL: Name = Name::fixed("firewall");
const FRONTENDS: Name = Name::fixed("frontends");
const NODE_PORTS: Name = Name::fixed("node-ports");
const CLUSTER_IPS: Name = Name::fixed("cluster-ips");
const MASQUERADING: Name = Name::fixed("masquerading");

/// `NF_IP_PRI_NAT_DST`, `dstnat` in `nft`.
const DNAT: i32 = -100;
/// `NF_IP_PRI_FILTER`, `filter` in `nft`.
const FILTER: i32 = 0;
/// `NF_IP_PRI_NAT_SRC`, `srcnat` in `nft`.
const SNAT: i32 = 100;
