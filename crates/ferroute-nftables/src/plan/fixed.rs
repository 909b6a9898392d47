//! The chains that are always there.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use ferroute_core::{IpFamily, NodePortMatch};
use ipnet::IpNet;

use super::{
    Context, Frontend, MapName, SetId,
    kind::{CLIENT, index_key, remember_chain},
};
use crate::model::{BaseKind, Chain, ChainWithRules, Field, Hook, Match, Name, Rule, Statement, Verdict};

/// All of them; `timeouts` are the affinities that there are, in seconds. Chains that others lead to come first.
pub(super) fn fixed_chains(context: &Context, timeouts: impl Iterator<Item = u32> + Clone) -> Vec<ChainWithRules> {
    let mut chains = vec![
        remember(false, timeouts.clone()),
        remember(true, timeouts),
        Chain::new(SERVICES).comment("the choice of an endpoint").rules(services(context)),
        Chain::new(FIREWALL).comment("source ranges of load balancers").rules([Rule::new([
            member(&Frontend::fields(false), SetId::Restricted, true),
            member(&[&Frontend::fields(false)[..], &[Field::Source]].concat(), SetId::SourceRanges, false),
            Verdict::Drop.into(),
        ])]),
        Chain::new(FRONTENDS)
            .comment("services with nothing to send packets to")
            .rules(without_endpoints(&Frontend::fields(false), None)),
        Chain::new(NODE_PORTS)
            .comment("the same for node ports")
            .rules(without_endpoints(&Frontend::fields(true), Some(context))),
        Chain::new(CLUSTER_IPS)
            .comment("what no service has answered although it has the address")
            .rules(cluster_ips(context)),
        Chain::new(MASQUERADING).comment("sources that endpoints could not answer to").rules(masquerading(context)),
    ];
    chains.extend(base_chains(context));
    chains
}

fn base_chains(context: &Context) -> Vec<ChainWithRules> {
    use BaseKind::{Filter, Nat};
    let base = |name, kind, hook, priority, rules: Vec<Rule>| {
        Chain::new(Name::fixed(name)).base(kind, hook, priority).rules(rules)
    };
    let jump = |chain: Name| Rule::new([Verdict::Jump(chain).into()]);
    let new = |chain: Name| Rule::new([Match::New.into(), Verdict::Jump(chain).into()]);
    let checks = || vec![new(FRONTENDS), new(CLUSTER_IPS)];
    let input = context.localhost_node_ports.then(|| shut_localhost(context.family));
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
    let cluster_ip = || member(&[Field::Destination], SetId::ClusterIps, true);
    let masquerade = Statement::SetMark(context.masquerade_mark);
    let strangers = if context.masquerade_all {
        Some(Rule::new([cluster_ip(), masquerade]).comment("masquerade all"))
    } else {
        let from_others = context.match_local_pods(false);
        from_others.map(|other| {
            Rule::new([cluster_ip(), other.into(), masquerade])
                .comment("endpoints may not know the way to others than pods")
        })
    };
    let dispatch = |conditions: Vec<Statement>, node_port| {
        let key = Frontend::fields(node_port).to_vec();
        let lookup = [
            Statement::PriorityFromMap { key, map: MapName::SERVICES },
            Statement::Dispatch { key: vec![Field::Priority], map: MapName::DISPATCH },
        ];
        Rule::new(conditions.into_iter().chain(lookup).collect::<Vec<_>>())
    };
    let node_ports = dispatch(answers_on_node_ports(context, true), true);
    strangers.into_iter().chain([dispatch(Vec::new(), false), node_ports.comment("node ports")]).collect()
}

/// What packets to addresses that answer on node ports have in common. In the input hook every destination is local.
fn answers_on_node_ports(context: &Context, check_local: bool) -> Vec<Statement> {
    match &context.node_ports {
        NodePortMatch::Addresses(_) => vec![member(&[Field::Destination], SetId::NodePortAddresses, true)],
        NodePortMatch::AnyLocal => {
            let local = check_local.then_some(Match::DestinationIsLocal);
            let loopback = Match::Destination { net: loopback(context.family), is: false };
            let not_loopback = (!context.localhost_node_ports).then_some(loopback);
            local.into_iter().chain(not_loopback).map(Statement::from).collect()
        }
    }
}

fn without_endpoints(key: &[Field], node_ports: Option<&Context>) -> Vec<Rule> {
    let condition = || node_ports.map(|context| answers_on_node_ports(context, false)).unwrap_or_default();
    let rule = |set, end: Statement| {
        Rule::new(condition().into_iter().chain([member(key, set, true), end]).collect::<Vec<_>>())
    };
    vec![rule(SetId::Refused, Statement::REJECT), rule(SetId::Dropped, Verdict::Drop.into())]
}

fn cluster_ips(context: &Context) -> Vec<Rule> {
    let unknown_port = Rule::new([member(&[Field::Destination], SetId::ClusterIps, true), Statement::REJECT])
        .comment("a port that the service has not");
    let unknown_address = context.service_networks.iter().map(|net| {
        Rule::new([Match::Destination { net: *net, is: true }.into(), Verdict::Drop.into()])
            .comment("an address that no service has")
    });
    [unknown_port].into_iter().chain(unknown_address).collect()
}

fn masquerading(context: &Context) -> Vec<Rule> {
    let mark = context.masquerade_mark;
    let hairpin = [Field::Source, Field::Destination, Field::Protocol, Field::Port];
    vec![
        Rule::new([Match::Marked(mark).into(), Statement::FlipMark(mark), Statement::MASQUERADE]),
        Rule::new([Match::Translated.into(), member(&hairpin, SetId::Hairpin, true), Statement::MASQUERADE]),
    ]
}

/// Without rules while no Service has affinity: nothing leads there then, and versions of `nft` before 1.0.9, given these
/// rules as text, put a client's IPv6 address and its slot into the same register.
fn remember(node_port: bool, timeouts: impl Iterator<Item = u32>) -> ChainWithRules {
    let (client, frontend) = (CLIENT.to_vec(), Frontend::fields(node_port));
    let mut rules: Vec<Rule> = timeouts
        .map(|seconds| {
            let timeout = Duration::from_secs(seconds.into());
            Rule::new([
                member(&frontend, SetId::Sticky(seconds), true),
                Statement::Learn { key: client.clone(), map: MapName::AFFINITY, timeout },
            ])
        })
        .collect();
    if !rules.is_empty() {
        rules.push(Rule::new([Statement::Translate { key: index_key(node_port), map: MapName::ENDPOINTS }]));
        let forget = Rule::new([Statement::Forget { key: client, map: MapName::AFFINITY }]);
        rules.push(forget.comment("the endpoint is gone"));
    }
    Chain::new(remember_chain(node_port)).comment("the endpoint whose slot is the priority").rules(rules)
}

/// What node ports on localhost need, `route_localnet`, lets neighbours get at everything that listens on localhost
/// (CVE-2020-8558). Replies to the node's own calls are for localhost here, too, so this is about new connections.
fn shut_localhost(family: IpFamily) -> Rule {
    let net = loopback(family);
    let (to, from_elsewhere) = (Match::Destination { net, is: true }, Match::Source { net, is: false });
    Rule::new([Match::New.into(), to.into(), from_elsewhere.into(), Verdict::Drop.into()])
        .comment("localhost is not for others")
}

/// Behind the choice of an endpoint, before anybody takes the priority for what it usually means.
fn clear_priority() -> Rule {
    Rule::new([Match::New.into(), Match::Translated.into(), Statement::ClearPriority])
        .comment("it has carried kind:endpoints")
}

fn member(key: &[Field], set: SetId, is: bool) -> Statement {
    Match::Member { key: key.to_vec(), set: set.name(), is }.into()
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
