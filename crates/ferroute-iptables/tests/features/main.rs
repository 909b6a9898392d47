//! Features that the recorded cases do not cover, or cover only in combination. The expected rules follow kube-proxy
//! 1.36's logic.

#![expect(clippy::unwrap_used, reason = "the texts of this file are valid")]

mod environment;
mod services;

use ferroute_core::{
    Endpoint, HostState, IpFamily, LocalTrafficDetector, NodeView, ProxySettings, ServicePort, ServicePortName,
    ServiceTable,
    testing::{endpoint, entry, node, table},
};
use ferroute_iptables::{ChainName, IptablesContext, RuleSet, TableName, plan::fixed_chains, render, text::Line};

/// The node `node-1` with addresses of both families.
fn this_node() -> NodeView {
    NodeView {
        addresses: ["192.168.0.1", "fd00:168::1", "203.0.113.1"].map(|text| text.parse().unwrap()).into(),
        pod_cidrs: ["10.244.1.0/24", "fd00:244:1::/64"].map(|text| text.parse().unwrap()).into(),
        ..node("node-1")
    }
}

/// Returns a table of one service port.
fn one(name: ServicePortName, service: ServicePort, endpoints: impl IntoIterator<Item = Endpoint>) -> ServiceTable {
    table(IpFamily::of(service.cluster_ip.unwrap()), this_node(), [(name, entry(service, endpoints))])
}

fn local(socket: &str) -> Endpoint {
    Endpoint { local: true, ..endpoint(socket) }
}

fn host() -> HostState {
    let addresses = ["127.0.0.1", "192.168.0.1", "203.0.113.1", "::1", "fd00:168::1"];
    HostState {
        addresses: addresses.map(|text| text.parse().unwrap()).into(),
        random_fully: true,
        ..HostState::default()
    }
}

fn cluster_cidr() -> ProxySettings {
    let networks = ["10.244.0.0/16", "fd00:244::/32"].map(|text| text.parse().unwrap()).into();
    ProxySettings { detector: LocalTrafficDetector::ClusterCidr(networks), ..ProxySettings::default() }
}

fn rules(table: &ServiceTable, settings: &ProxySettings) -> RuleSet {
    render(table, &IptablesContext::new(settings, table, &host()))
}

/// Returns the rules that depend on Services.
fn service_rules(table: &ServiceTable, settings: &ProxySettings) -> String {
    let fixed = fixed_chains(&IptablesContext::new(settings, table, &host()));
    let is_fixed = |table: TableName, chain: ChainName| fixed.iter().any(|own| own.table == table && own.name == chain);
    lines(&rules(table, settings), |table, chain, line| {
        !chain.is_builtin() && !is_fixed(table, chain) && !line.contains("NOTE: this must be the last rule")
    })
}

/// Returns the lines of the rules that match `wanted`, each preceded by the name of its table.
fn lines(rules: &RuleSet, wanted: impl Fn(TableName, ChainName, &str) -> bool) -> String {
    let mut lines = Vec::new();
    for (table, contents) in &rules.tables {
        for (name, chain) in &contents.chains {
            let printed = chain.rules.iter().map(|rule| Line(*name, rule).to_string());
            lines.extend(printed.filter(|line| wanted(*table, *name, line)).map(|line| format!("{table} {line}")));
        }
    }
    lines.join("\n")
}

/// Returns the rules of one chain.
fn chain_rules(rules: &RuleSet, table: TableName, chain: ChainName) -> String {
    lines(rules, |t, c, _| t == table && c == chain)
}
