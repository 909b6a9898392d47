use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use ferroute_core::{NfacctCounters, RulesDigest, ServiceTable};

use super::{PlanContext, ServicePlan};
use crate::{ChainName, Rule, TableName, text::write_rule};

/// A 64-bit digest of a chain's rules and their order. Two different chains collide with probability 2^-64. Digests are
/// comparable only within one run of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChainDigest(u64);

impl ChainDigest {
    /// The digest of a chain without rules.
    pub(crate) const EMPTY: Self = Self(0);

    /// Computes the digest of a chain with these rules.
    pub(crate) fn from_rules<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        let mut digest = Self::EMPTY;
        for rule in rules {
            digest.append(rule);
        }
        digest
    }

    /// Updates the digest for a rule appended to the chain.
    pub(crate) fn append(&mut self, rule: &Rule) {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        rule.hash(&mut hasher);
        self.0 = hasher.finish();
    }
}

/// Computes a digest of the rules planned for the Services of `table`, which is comparable between machines. Rules that
/// exist without any Service, and rules that only count packets, are excluded: they depend on the host.
pub fn rules_digest(table: &ServiceTable, context: &PlanContext) -> RulesDigest {
    let context = PlanContext { counters: NfacctCounters::default(), ..context.clone() };
    RulesDigest::compute(|mut out| {
        let mut result = Ok(());
        let mut write = |table: TableName, chain: ChainName, rules: &[Rule]| {
            if result.is_ok() {
                result = write_rules(&mut out, table, chain, rules);
            }
        };
        for (name, entry) in &table.entries {
            let plan = ServicePlan::new(name, &entry.service, table.endpoint_sets(entry), &context);
            plan.shared_rules(&mut |shared, rule| write(shared.table(), shared.name(), &[rule]));
            plan.service_chains(&mut |chain, rules| write(TableName::Nat, chain, rules));
        }
        result
    })
}

fn write_rules(out: &mut impl fmt::Write, table: TableName, chain: ChainName, rules: &[Rule]) -> fmt::Result {
    rules.iter().try_for_each(|rule| {
        out.write_str(table.as_str())?;
        write_rule(out, " -A", chain, rule)
    })
}

#[cfg(test)]
mod tests {
    use ferroute_core::{
        HostState, IpFamily, ProxySettings,
        testing::{Cluster, pod, service, slice},
    };

    use super::*;

    fn web(pods: &[&str]) -> ServiceTable {
        let slice = slice("shop/web-a", "web").port("http", 8080);
        let slice = pods.iter().fold(slice, |slice, address| slice.pod(pod(address)));
        let service = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080);
        Cluster::new("node-1").service(service).slice(slice).table(IpFamily::V4)
    }

    fn digest(table: &ServiceTable, host: &HostState) -> RulesDigest {
        rules_digest(table, &PlanContext::new(&ProxySettings::default(), table, host))
    }

    #[test]
    fn digest_depends_on_every_rule() {
        let digests = [&["10.244.0.2"][..], &["10.244.0.3"], &["10.244.0.2", "10.244.0.3"], &[]]
            .map(|pods| digest(&web(pods), &HostState::default()));
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[..i].contains(digest), "{digests:?}");
        }
        assert_eq!(digest(&web(&["10.244.0.2"]), &HostState::default()), digests[0]);
    }

    #[test]
    fn digest_does_not_depend_on_host_features() {
        let host = HostState {
            random_fully: true,
            counters: NfacctCounters { invalid_dropped: true, localhost_accepted: true },
            conntrack_tcp_be_liberal: true,
            ..HostState::default()
        };
        let table = web(&["10.244.0.2"]);
        assert_eq!(digest(&table, &host), digest(&table, &HostState::default()));
    }
}
