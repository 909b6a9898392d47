//! The state of the kernel before a switch of modes.

use ferroute_config::ModeName;
use ferroute_core::{IpFamily, error_chain};
use ferroute_iptables::{
    ChainName, HostExec, Policy, Rule, RuleSet, TableName,
    exec::search_path,
    plan::{is_proxy_chain, jumps},
    text::Line,
};
use ferroute_modes::{
    REGISTRY,
    kernel_rules::{self, KernelRules},
};

/// The parts of the kernel's state that a switch of modes affects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelSnapshot {
    /// The modes whose rules are in the kernel.
    pub(super) modes: Vec<ModeName>,
    /// Rules of other programs that use chains of a proxy, as arguments of `iptables`.
    pub(super) references: Vec<(IpFamily, String)>,
    /// The IP families in which the policy of FORWARD is DROP.
    pub(super) drops_forwarded: Vec<IpFamily>,
    /// The IP families in which the policy of INPUT is DROP.
    pub(super) drops_input: Vec<IpFamily>,
    /// Reason why some rules could not be read.
    pub(super) error: Option<String>,
}

/// Reads the snapshot.
pub(super) fn read() -> KernelSnapshot {
    let mut snapshot = KernelSnapshot { modes: REGISTRY.present(), ..KernelSnapshot::default() };
    for family in IpFamily::BOTH {
        match kernel_rules::read(family, &HostExec, &search_path()) {
            Ok(rules) => {
                snapshot.add(&rules);
                if !rules.unread.is_empty() {
                    snapshot.error = Some(rules.unread.join("; "));
                }
            }
            Err(error) => snapshot.error = Some(error_chain(&error)),
        }
    }
    snapshot
}

impl KernelSnapshot {
    fn add(&mut self, rules: &KernelRules) {
        for backend in &rules.iptables {
            self.add_iptables(&backend.saved.rules);
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

/// Returns the rules of other programs that jump to chains of a proxy, and rules in its chains that jump to other chains.
pub(super) fn foreign_references(rules: &RuleSet) -> Vec<String> {
    let mut references = Vec::new();
    for (table, chains) in &rules.tables {
        for (from, chain) in &chains.chains {
            let is_proxy = |chain: ChainName| is_proxy_chain(*table, chain);
            let is_foreign = |rule: &&Rule| match rule.next_chain() {
                Some(to) if is_proxy(*from) => !is_proxy(to) && !is_kubernetes(to),
                Some(to) => is_proxy(to) && !is_entry_jump(*table, *from, rule),
                None => false,
            };
            let foreign = chain.rules.iter().filter(is_foreign).map(|rule| format!("-t {table} {}", Line(*from, rule)));
            references.extend(foreign);
        }
    }
    references
}

/// Reports whether a chain belongs to Kubernetes, such as those that the kubelet creates.
fn is_kubernetes(chain: ChainName) -> bool {
    chain.as_str().starts_with("KUBE-")
}

/// Reports whether a rule is a proxy's jump from a builtin chain: Ferroute's, or one with a comment of kube-proxy.
fn is_entry_jump(table: TableName, from: ChainName, rule: &Rule) -> bool {
    let is_ferroutes = || jumps().iter().any(|jump| jump.table == table && jump.from == from && jump.rule == *rule);
    let is_commented =
        || rule.first_comment().is_some_and(|text| text.starts_with("kubernetes ") || text.starts_with("kube-proxy "));
    from.is_builtin() && (is_commented() || is_ferroutes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(text: &str) -> Vec<String> {
        foreign_references(&RuleSet::parse_save(IpFamily::V4, text).unwrap())
    }

    const PROXY_RULES: &str = "*nat
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
    fn rules_of_proxy_and_kubelet_are_not_foreign() {
        assert_eq!(references(&format!("{PROXY_RULES}COMMIT\n")), Vec::<String>::new());
        let filter = "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n";
        assert_eq!(references(filter), Vec::<String>::new());
    }

    #[test]
    fn foreign_jumps_to_and_from_proxy_chains_are_returned() {
        let foreign = "\
:CNI-X - [0:0]
-A PREROUTING -i cni0 -j KUBE-SERVICES
-A CNI-X -j KUBE-MARK-MASQ
-A KUBE-SERVICES -j CNI-X
-A CNI-X -d 192.0.2.1/32 -j ACCEPT
COMMIT
";
        assert_eq!(
            references(&format!("{PROXY_RULES}{foreign}")),
            [
                "-t nat -A PREROUTING -i cni0 -j KUBE-SERVICES",
                "-t nat -A KUBE-SERVICES -j CNI-X",
                "-t nat -A CNI-X -j KUBE-MARK-MASQ",
            ]
        );
    }

    #[test]
    fn drop_policies_are_recorded() {
        let mut snapshot = KernelSnapshot::default();
        let text = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\nCOMMIT\n";
        snapshot.add_iptables(&RuleSet::parse_save(IpFamily::V6, text).unwrap());
        assert_eq!(snapshot, KernelSnapshot { drops_forwarded: vec![IpFamily::V6], ..KernelSnapshot::default() });
    }
}
