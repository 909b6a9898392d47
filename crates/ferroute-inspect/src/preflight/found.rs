//! What is in the kernel before a switch.

use ferroute_config::ModeName;
use ferroute_core::IpFamily;
use ferroute_iptables::{
    ChainName, HostExec, Policy, Rule, RuleSet, TableName,
    exec::search_path,
    plan::{is_proxy_chain, jumps},
    text::Line,
};
use ferroute_proxy::{kernel_rules::KernelRules, logging::chain, modes::REGISTRY};

/// What the kernel holds that matters for a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The mode of the proxy whose rules are there, of kube-proxy or of ours.
    pub(super) mode: Option<ModeName>,
    /// Rules of other programs that use chains of a proxy, as `iptables` would be told them.
    pub(super) references: Vec<(IpFamily, String)>,
    /// Families whose forwarded packets are dropped unless a rule accepts them.
    pub(super) drops_forwarded: Vec<IpFamily>,
    /// The same for packets to the host.
    pub(super) drops_input: Vec<IpFamily>,
    /// Why the kernel was not read to the end.
    pub(super) trouble: Option<String>,
}

/// Reads all rules.
pub(super) fn read() -> Found {
    let mut found = Found { mode: REGISTRY.present().next(), ..Found::default() };
    for family in IpFamily::BOTH {
        match ferroute_proxy::kernel_rules::read(family, &HostExec, &search_path()) {
            Ok(rules) => found.add(&rules),
            Err(error) => found.trouble = Some(chain(&error)),
        }
    }
    found
}

impl Found {
    fn add(&mut self, rules: &KernelRules) {
        for found in &rules.iptables {
            self.add_iptables(&found.saved.rules);
        }
    }

    fn add_iptables(&mut self, rules: &RuleSet) {
        let family = rules.family;
        let drops = |chain| {
            let head = rules.chain(TableName::Filter, chain).and_then(|chain| chain.head);
            head.and_then(|head| head.policy) == Some(Policy::Drop)
        };
        if drops(ChainName::FORWARD) {
            self.drops_forwarded.push(family);
        }
        if drops(ChainName::INPUT) {
            self.drops_input.push(family);
        }
        self.references.extend(foreign_references(rules).into_iter().map(|rule| (family, rule)));
    }
}

/// Rules that lead into chains of a proxy and are not its own, and rules in its chains that lead out of them.
pub(super) fn foreign_references(rules: &RuleSet) -> Vec<String> {
    let mut found = Vec::new();
    for (table, chains) in &rules.tables {
        for (from, chain) in &chains.chains {
            let is_proxys = |chain: ChainName| is_proxy_chain(*table, chain);
            let is_foreign = |rule: &&Rule| match rule.next_chain() {
                Some(to) if is_proxys(*from) => !is_proxys(to) && !is_kubernetes(to),
                Some(to) => is_proxys(to) && !is_way_in(*table, *from, rule),
                None => false,
            };
            let told = chain.rules.iter().filter(is_foreign).map(|rule| format!("-t {table} {}", Line(*from, rule)));
            found.extend(told);
        }
    }
    found
}

/// A chain that the kubelet makes for everybody.
fn is_kubernetes(chain: ChainName) -> bool {
    chain.as_str().starts_with("KUBE-")
}

/// A proxy's own jump out of a builtin chain: one of ours, or one with a comment such as every mode of kube-proxy writes.
fn is_way_in(table: TableName, from: ChainName, rule: &Rule) -> bool {
    let is_ours = || jumps().iter().any(|jump| jump.table == table && jump.from == from && jump.rule == *rule);
    let is_commented =
        || rule.first_comment().is_some_and(|text| text.starts_with("kubernetes ") || text.starts_with("kube-proxy "));
    from.is_builtin() && (is_commented() || is_ours())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(text: &str) -> Vec<String> {
        foreign_references(&RuleSet::parse_save(IpFamily::V4, text).unwrap())
    }

    const PROXYS: &str = "*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-4LVCYZMTA5CQO6SX - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-4LVCYZMTA5CQO6SX
-A KUBE-SVC-4LVCYZMTA5CQO6SX -j KUBE-MARK-MASQ
-A KUBE-SERVICES -j KUBE-MARK-DROP
";

    #[test]
    fn a_proxys_own_rules_and_those_of_the_kubelet_are_no_references() {
        assert_eq!(references(&format!("{PROXYS}COMMIT\n")), Vec::<String>::new());
        let filter = "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n";
        assert_eq!(references(filter), Vec::<String>::new());
    }

    #[test]
    fn rules_into_a_proxys_chains_and_out_of_them_are_told() {
        let others = "\
:CNI-X - [0:0]
-A PREROUTING -i cni0 -j KUBE-SERVICES
-A CNI-X -j KUBE-MARK-MASQ
-A KUBE-SERVICES -j CNI-X
-A CNI-X -d 192.0.2.1/32 -j ACCEPT
COMMIT
";
        assert_eq!(
            references(&format!("{PROXYS}{others}")),
            [
                "-t nat -A PREROUTING -i cni0 -j KUBE-SERVICES",
                "-t nat -A KUBE-SERVICES -j CNI-X",
                "-t nat -A CNI-X -j KUBE-MARK-MASQ",
            ]
        );
    }

    #[test]
    fn policies_that_drop_are_seen() {
        let mut found = Found::default();
        let text = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\nCOMMIT\n";
        found.add_iptables(&RuleSet::parse_save(IpFamily::V6, text).unwrap());
        assert_eq!(found, Found { drops_forwarded: vec![IpFamily::V6], ..Found::default() });
    }
}
