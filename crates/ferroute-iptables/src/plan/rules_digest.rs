use std::fmt;

use ferroute_core::{RulesDigest, ServiceTable};

use super::{NfacctCounters, PlanContext, ServicePlan};
use crate::{ChainName, Rule, TableName, text::write_rule};

/// Stands for the rules that come from the table's Services. What is there without any Service, and rules that only
/// count, are left out: they depend on what the host can do, and a digest is for comparing on other machines.
pub fn rules_digest(table: &ServiceTable, context: &PlanContext) -> RulesDigest {
    let context = PlanContext { counters: NfacctCounters::default(), ..context.clone() };
    RulesDigest::of(|mut out| {
        let mut result = Ok(());
        let mut write = |table: TableName, chain: ChainName, rules: &[Rule]| {
            if result.is_ok() {
                result = write_rules(&mut out, table, chain, rules);
            }
        };
        for (name, entry) in &table.entries {
            let plan = ServicePlan::new(name, &entry.service, table.routes(entry), &context);
            plan.contribute(&mut |dispatch, rule| write(dispatch.table(), dispatch.chain(), &[rule]));
            plan.own_chains(&mut |chain, rules| write(TableName::Nat, chain, rules));
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
        IpFamily, ProxySettings,
        testing::{Cluster, pod, service, slice},
    };

    use super::*;
    use crate::HostFacts;

    fn web(pods: &[&str]) -> ServiceTable {
        let slice = slice("shop/web-a", "web").port("http", 8080);
        let slice = pods.iter().fold(slice, |slice, address| slice.pod(pod(address)));
        let service = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080);
        Cluster::of_node("node-1").service(service).slice(slice).table(IpFamily::V4)
    }

    fn digest(table: &ServiceTable, host: &HostFacts) -> RulesDigest {
        rules_digest(table, &PlanContext::new(&ProxySettings::default(), table, host))
    }

    #[test]
    fn it_is_another_one_as_soon_as_one_rule_is() {
        let digests = [&["10.244.0.2"][..], &["10.244.0.3"], &["10.244.0.2", "10.244.0.3"], &[]]
            .map(|pods| digest(&web(pods), &HostFacts::default()));
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[..i].contains(digest), "{digests:?}");
        }
        assert_eq!(digest(&web(&["10.244.0.2"]), &HostFacts::default()), digests[0]);
    }

    #[test]
    fn it_does_not_depend_on_what_the_host_can_do() {
        let able = HostFacts {
            random_fully: true,
            counters: NfacctCounters { invalid_dropped: true, localhost_accepted: true },
            conntrack_tcp_be_liberal: true,
            ..HostFacts::default()
        };
        let table = web(&["10.244.0.2"]);
        assert_eq!(digest(&table, &able), digest(&table, &HostFacts::default()));
    }
}
