//! A small cluster with every kind of chain, and its rules on a real kernel.

use std::collections::BTreeMap;

use ferroute_core::{
    Dataplane, HostState, NfacctCounters, ProxySettings, ServiceTable, SyncReport,
    testing::{Cluster, arbitrary, pod, service, slice},
};
use ferroute_iptables::{
    ChainName, IptablesContext, IptablesDataplane, Rule, RuleSet, TableName,
    plan::{SharedChain, chains, is_service_chain},
    render,
};

use super::{fake_kernel::chains_of, netns_host::NetnsHost};

/// Returns Services of both families that use every kind of chain.
pub(crate) fn cluster() -> Cluster {
    let pods = ["10.0.1.1", "10.0.1.2", "10.0.1.3"];
    Cluster::new(arbitrary::NODE)
        .service(service("ns1/web").cluster_ip("10.96.1.1").cluster_ip("fd00:96::1").port("http", 80).node_port(30080))
        .service(
            service("ns1/lb")
                .cluster_ip("10.96.1.2")
                .cluster_ip("fd00:96::2")
                .port("", 443)
                .node_port(30443)
                .load_balancer("198.51.100.1")
                .source_range("192.168.0.0/16")
                .affinity(3600)
                .external_local(),
        )
        .service(service("ns2/dns").cluster_ip("10.96.1.3").cluster_ip("fd00:96::3").udp("dns", 53))
        .service(service("ns2/empty").cluster_ip("10.96.1.4").cluster_ip("fd00:96::4").port("", 80))
        .slice(pods.iter().fold(slice("ns1/web-a", "web").port("http", 8080), |slice, ip| slice.pod(*ip)))
        .slice(slice("ns1/web-b", "web").port("http", 8080).pod("fd00::1:1").pod("fd00::1:2"))
        .slice(slice("ns1/lb-a", "lb").port("", 8443).pod(pod("10.0.2.1").on(arbitrary::NODE)).pod("10.0.2.2"))
        .slice(slice("ns2/dns-a", "dns").udp("dns", 53).pod("10.0.3.1"))
        .slice(slice("ns2/dns-b", "dns").udp("dns", 53).pod("fd00::3:1"))
}

pub(crate) fn settings() -> ProxySettings {
    ProxySettings::default()
}

/// Returns a dataplane that has applied the rules of a table.
pub(crate) fn synced(node: &NetnsHost, table: &ServiceTable) -> IptablesDataplane {
    let mut dataplane = node.dataplane(table.family, &settings());
    let SyncReport { full, .. } = node.netns.run(|| dataplane.resync(table)).unwrap();
    assert!(full);
    dataplane
}

/// Returns the planned rules of a table on a host with all features and no rules of other programs.
pub(crate) fn rendered(table: &ServiceTable) -> BTreeMap<(TableName, ChainName), Vec<Rule>> {
    let host = HostState {
        random_fully: true,
        counters: NfacctCounters { invalid_dropped: true, localhost_accepted: true },
        ..HostState::default()
    };
    let mut rules = render(table, &IptablesContext::new(&settings(), table, &host));
    // The kernel also has these chains.
    for (name, builtin) in [
        (TableName::Filter, &[ChainName::INPUT, ChainName::FORWARD, ChainName::OUTPUT][..]),
        (TableName::Nat, &[ChainName::PREROUTING, ChainName::INPUT, ChainName::OUTPUT, ChainName::POSTROUTING]),
        (TableName::Mangle, &ALL_BUILTIN),
    ] {
        for chain in builtin {
            rules.table_mut(name).chains.entry(*chain).or_default();
        }
    }
    chains_of(&rules)
}

/// Sorts the rules of shared chains by service port, as far as their order does not matter: an incremental sync by
/// netlink inserts new ones at the start. Rules of one service port keep their order, and so do the rules after the
/// first jump to the chain of node ports, which should only be further jumps.
pub(crate) fn by_service_port(
    mut chains: BTreeMap<(TableName, ChainName), Vec<Rule>>,
) -> BTreeMap<(TableName, ChainName), Vec<Rule>> {
    for shared in SharedChain::ALL {
        let Some(rules) = chains.get_mut(&(shared.table(), shared.name())) else { continue };
        let is_last = |rule: &Rule| rule.next_chain() == Some(chains::NODE_PORTS);
        let end = rules.iter().position(is_last).unwrap_or(rules.len());
        rules[..end].sort_by_cached_key(|rule| {
            let name = rule.first_comment().and_then(|comment| comment.split(' ').next()).map(str::to_owned);
            (name, rule.protocol.as_ref().map(|protocol| protocol.value().to_string()))
        });
    }
    chains
}

const ALL_BUILTIN: [ChainName; 5] =
    [ChainName::PREROUTING, ChainName::INPUT, ChainName::FORWARD, ChainName::OUTPUT, ChainName::POSTROUTING];

/// Returns rules without the proxy's chains and the jumps into them.
pub(crate) fn without_ours(mut rules: RuleSet) -> RuleSet {
    let fixed = [
        chains::SERVICES,
        chains::EXTERNAL_SERVICES,
        chains::NODE_PORTS,
        chains::POSTROUTING,
        chains::MARK_MASQ,
        chains::FORWARD,
        chains::PROXY_FIREWALL,
        chains::FIREWALL,
        chains::CANARY,
    ];
    let ours = |chain: ChainName| fixed.contains(&chain) || is_service_chain(chain);
    for table in rules.tables.values_mut() {
        table.chains.retain(|name, _| !ours(*name));
        for chain in table.chains.values_mut() {
            chain.rules.retain(|rule| rule.next_chain().is_none_or(|to| !ours(to)));
        }
    }
    rules
}
