use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    ops::AddAssign,
};

use ferroute_core::{NfacctCounters, RulesDigest, ServiceTable};

use super::{IptablesContext, ServicePlan};
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
        self.0 = hash(&(self.0, rule));
    }
}

/// A 64-bit digest of rules regardless of their order, which is the sum of their hashes: the digest of a shared chain is the
/// sum of those of its service ports. Like [`ChainDigest`], it is comparable only within one run of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleSum(u64);

impl RuleSum {
    /// The digest of no rules.
    pub(crate) const EMPTY: Self = Self(0);

    /// Computes the digest of these rules.
    pub(crate) fn from_rules<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        let mut sum = Self::EMPTY;
        rules.into_iter().for_each(|rule| sum.add(rule));
        sum
    }

    /// Updates the digest for a further rule.
    pub(crate) fn add(&mut self, rule: &Rule) {
        *self += Self(hash(rule));
    }

    /// Updates the digest for a rule after those that must be last, so that it does not equal the digest of planned
    /// rules.
    pub(crate) fn add_misplaced(&mut self, rule: &Rule) {
        *self += Self(hash(&("misplaced", rule)));
    }
}

impl AddAssign for RuleSum {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Computes a digest of the rules planned for the Services of `table`, which is comparable between machines. Rules that
/// exist without any Service, and rules that only count packets, are excluded because they depend on the host.
pub fn rules_digest(table: &ServiceTable, context: &IptablesContext) -> RulesDigest {
    let context = IptablesContext { counters: NfacctCounters::default(), ..context.clone() };
    RulesDigest::compute(|mut out| {
        let mut result = Ok(());
        let mut write = |table: TableName, chain: ChainName, rules: &[Rule]| {
            if result.is_ok() {
                result = write_rules(&mut out, table, chain, rules);
            }
        };
        for (name, entry) in &table.entries {
            let plan = ServicePlan::new(table, name, entry, &context);
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
        rules_digest(table, &IptablesContext::new(&ProxySettings::default(), table, host))
    }

    #[test]
    fn sum_of_rules_depends_on_their_number_and_not_on_their_order() {
        let [a, b] = ["a", "b"].map(|comment| Rule::new().comment(comment));
        let sum = |rules: &[&Rule]| RuleSum::from_rules(rules.iter().copied());
        assert_eq!(sum(&[&a, &b, &a]), sum(&[&a, &a, &b]));
        let mut total = sum(&[&a]);
        total += sum(&[&b, &a]);
        assert_eq!(total, sum(&[&a, &b, &a]));
        let mut misplaced = sum(&[&a]);
        misplaced.add_misplaced(&b);
        let sums = [sum(&[]), sum(&[&a]), sum(&[&b]), sum(&[&a, &a]), sum(&[&a, &b]), sum(&[&b, &b]), misplaced];
        for (i, sum) in sums.iter().enumerate() {
            assert!(!sums[..i].contains(sum), "{sums:?}");
        }
        assert_eq!(sum(&[]), RuleSum::EMPTY);
        assert_ne!(ChainDigest::from_rules([&a, &b]), ChainDigest::from_rules([&b, &a]));
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
