//! Every variant of the iptables programs accepts the planned rules, and what it then prints parses to the same rules.
//! Each test has a separate network namespace.

mod common;

use common::{
    arbitrary::{Environment, environment},
    fake_kernel::{chains_of, kernel_chains},
};
use ferroute_core::{
    IpFamily, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_iptables::{ChainName, Difference, Rule, RuleSet, TableName, render};
use ferroute_testing::NetNs;
use proptest::{prelude::*, test_runner::TestRunner};

/// One variant of the iptables programs.
#[derive(Clone, Copy)]
struct IptablesPrograms {
    family: IpFamily,
    /// `iptables-nft` etc., followed by `-save` or `-restore`.
    prefix: &'static str,
}

const ALL: [IptablesPrograms; 4] = [
    IptablesPrograms { family: IpFamily::V4, prefix: "iptables-nft" },
    IptablesPrograms { family: IpFamily::V6, prefix: "ip6tables-nft" },
    IptablesPrograms { family: IpFamily::V4, prefix: "iptables-legacy" },
    IptablesPrograms { family: IpFamily::V6, prefix: "ip6tables-legacy" },
];

impl IptablesPrograms {
    fn restore(self, host: &NetNs, input: &str) {
        host.feed(&format!("{}-restore", self.prefix), &["--noflush", "--counters"], input);
    }

    fn save(self, host: &NetNs) -> String {
        host.command(&format!("{}-save", self.prefix), &[])
    }

    /// Applies the difference to `table` and returns its text.
    fn sync(self, host: &NetNs, table: &ServiceTable, env: &Environment) -> String {
        let kernel = kernel_chains(self.family, &self.save(host));
        let mut input = Vec::new();
        let difference = Difference::from_kernel(table, env.context(table), kernel);
        difference.write(table, &mut input).expect("writing to memory cannot fail");
        let input = String::from_utf8(input).expect("rules are text");
        self.restore(host, &input);
        input
    }

    fn check(self, host: &NetNs, table: &ServiceTable, env: &Environment) {
        let written = self.sync(host, table, env);
        let saved = RuleSet::parse_save(self.family, &self.save(host)).expect("iptables-save prints rules");
        let got = chains_of(&saved);
        for (chain, rules) in chains_of(&render(table, &env.context(table))) {
            assert_eq!(got.get(&chain), Some(&rules), "{} {chain:?} after\n{written}", self.prefix);
        }
        assert_eq!(self.sync(host, table, env), "", "{}: the second sync writes something", self.prefix);
    }
}

#[test]
fn the_kernel_has_the_planned_rules_of_any_cluster() {
    // The kernel is slow; the same properties are tested with many more cases on the fake kernel.
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    for programs in ALL {
        TestRunner::new(config.clone())
            .run(&(arbitrary::cluster(), arbitrary::cluster(), environment(false)), |(first, then, env)| {
                // Rules in KUBE-FIREWALL are never deleted, so both clusters use the same settings.
                let host = NetNs::new();
                programs.check(&host, &first.table(programs.family), &env);
                programs.check(&host, &then.table(programs.family), &env);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{}: {error}", programs.prefix));
    }
}

#[test]
fn rules_of_other_programs_parse_and_stay_unchanged() {
    for programs in ALL {
        let host = NetNs::new();
        let foreign = "*nat\n:CNI-DN - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-DN\n\
             -A CNI-DN -p tcp -m multiport --dports 80,443 -m comment --comment \"it's \\\"theirs\\\"\" -j RETURN\n\
             -A POSTROUTING ! -o lo -p udp -m udp --sport 5:9 -j MASQUERADE --random\nCOMMIT\n\
             *filter\n-A FORWARD -i cali+ -m mark --mark 0x10000/0x10000 -m limit --limit 5/min -j LOG --log-prefix \
             \"a b\" --log-level 4\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n";
        programs.restore(&host, foreign);
        let before = RuleSet::parse_save(programs.family, &programs.save(&host)).expect("iptables-save prints rules");
        let without_comments = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        assert_eq!(before.to_string(), without_comments(&programs.save(&host)));

        let cluster = Cluster::uniform(3, 2);
        let env = Environment { settings: Default::default(), host: Default::default(), large_cluster: false };
        programs.sync(&host, &cluster.table(programs.family), &env);
        let after = RuleSet::parse_save(programs.family, &programs.save(&host)).expect("iptables-save prints rules");
        let cni: ChainName = "CNI-DN".parse().expect("a chain's name");
        for (table, chain) in [(TableName::Nat, cni), (TableName::Nat, ChainName::POSTROUTING)] {
            let theirs = |rules: &RuleSet| -> Vec<Rule> {
                let ours = |rule: &&Rule| rule.next_chain().is_none_or(|to| !to.as_str().starts_with("KUBE-"));
                rules.rules(table, chain).iter().filter(ours).cloned().collect()
            };
            assert_eq!(theirs(&after), theirs(&before), "{} {chain}", programs.prefix);
        }
        assert_eq!(
            after.rules(TableName::Filter, ChainName::FORWARD).last(),
            before.rules(TableName::Filter, ChainName::FORWARD).last()
        );
    }
}
