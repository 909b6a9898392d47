//! The kernel shows what was planned: each variant of the real tools takes what we write, and what it then prints is
//! read as the same rules. Each test has a network namespace of its own.

mod common;

use common::{
    arbitrary::{Surroundings, surroundings},
    kernel::{chains_of, in_force},
};
use ferroute_core::{
    IpFamily, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_iptables::{ChainName, Difference, Rule, RuleSet, TableName, render};
use ferroute_testing::NetNs;
use proptest::{prelude::*, test_runner::TestRunner};

/// One variant of the tools.
#[derive(Clone, Copy)]
struct Tools {
    family: IpFamily,
    /// `iptables-nft` and so on, to which `-save` and `-restore` are added.
    prefix: &'static str,
}

const ALL: [Tools; 4] = [
    Tools { family: IpFamily::V4, prefix: "iptables-nft" },
    Tools { family: IpFamily::V6, prefix: "ip6tables-nft" },
    Tools { family: IpFamily::V4, prefix: "iptables-legacy" },
    Tools { family: IpFamily::V6, prefix: "ip6tables-legacy" },
];

impl Tools {
    fn restore(self, host: &NetNs, input: &str) {
        host.feed(&format!("{}-restore", self.prefix), &["--noflush", "--counters"], input);
    }

    fn save(self, host: &NetNs) -> String {
        host.command(&format!("{}-save", self.prefix), &[])
    }

    /// Writes what is missing for `table` and gives it.
    fn sync(self, host: &NetNs, table: &ServiceTable, around: &Surroundings) -> String {
        let in_force = in_force(self.family, &self.save(host));
        let mut input = Vec::new();
        let difference = Difference::from_kernel(table, around.context(table), in_force);
        difference.write(table, &mut input).expect("memory takes all text");
        let input = String::from_utf8(input).expect("rules are text");
        self.restore(host, &input);
        input
    }

    fn check(self, host: &NetNs, table: &ServiceTable, around: &Surroundings) {
        let written = self.sync(host, table, around);
        let saved = RuleSet::parse_save(self.family, &self.save(host)).expect("iptables-save prints rules");
        let got = chains_of(&saved);
        for (chain, rules) in chains_of(&render(table, &around.context(table))) {
            assert_eq!(got.get(&chain), Some(&rules), "{} {chain:?} after\n{written}", self.prefix);
        }
        assert_eq!(self.sync(host, table, around), "", "{} has something more to write", self.prefix);
    }
}

#[test]
fn the_kernel_shows_what_was_planned_for_any_cluster() {
    // The kernel takes its time; the same properties are tested with many more cases on rules in memory.
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    for tools in ALL {
        TestRunner::new(config.clone())
            .run(&(arbitrary::cluster(), arbitrary::cluster(), surroundings(false)), |(first, then, around)| {
                // What is in KUBE-FIREWALL stays there once it is not ours any more, so it is the same settings twice.
                let host = NetNs::new();
                tools.check(&host, &first.table(tools.family), &around);
                tools.check(&host, &then.table(tools.family), &around);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{}: {error}", tools.prefix));
    }
}

#[test]
fn rules_of_others_are_read_and_left_alone() {
    for tools in ALL {
        let host = NetNs::new();
        let foreign = "*nat\n:CNI-DN - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-DN\n\
             -A CNI-DN -p tcp -m multiport --dports 80,443 -m comment --comment \"it's \\\"theirs\\\"\" -j RETURN\n\
             -A POSTROUTING ! -o lo -p udp -m udp --sport 5:9 -j MASQUERADE --random\nCOMMIT\n\
             *filter\n-A FORWARD -i cali+ -m mark --mark 0x10000/0x10000 -m limit --limit 5/min -j LOG --log-prefix \
             \"a b\" --log-level 4\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n";
        tools.restore(&host, foreign);
        let before = RuleSet::parse_save(tools.family, &tools.save(&host)).expect("iptables-save prints rules");
        let without_comments = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        assert_eq!(before.to_string(), without_comments(&tools.save(&host)));

        let cluster = Cluster::uniform(3, 2);
        let around = Surroundings { settings: Default::default(), host: Default::default(), large_cluster: false };
        tools.sync(&host, &cluster.table(tools.family), &around);
        let after = RuleSet::parse_save(tools.family, &tools.save(&host)).expect("iptables-save prints rules");
        let cni: ChainName = "CNI-DN".parse().expect("a chain's name");
        for (table, chain) in [(TableName::Nat, cni), (TableName::Nat, ChainName::POSTROUTING)] {
            let theirs = |rules: &RuleSet| -> Vec<Rule> {
                let ours = |rule: &&Rule| rule.next_chain().is_none_or(|to| !to.as_str().starts_with("KUBE-"));
                rules.rules(table, chain).iter().filter(ours).cloned().collect()
            };
            assert_eq!(theirs(&after), theirs(&before), "{} {chain}", tools.prefix);
        }
        assert_eq!(
            after.rules(TableName::Filter, ChainName::FORWARD).last(),
            before.rules(TableName::Filter, ChainName::FORWARD).last()
        );
    }
}
