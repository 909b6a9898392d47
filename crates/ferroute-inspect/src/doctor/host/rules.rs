//! The rules in the kernel.

use std::{fs, io, path::Path};

use ferroute_core::{IpFamily, error_chain};
use ferroute_iptables::{
    Chain, ChainName, HostExec, Policy, Rule, TableName, Target,
    exec::{BackendSnapshot, search_path},
    plan::chains::{IPVS_ACCEPT, NODEPORT_NON_LOCAL},
};
use ferroute_modes::{
    REGISTRY,
    kernel_rules::{self, KernelRules},
};
use ferroute_nftables::{
    TableOwner,
    kernel::{NetlinkError, NetlinkKernel},
};

use crate::doctor::{BackendRules, FullAffinityList, Reading};

/// Reads the rules of an IP family.
pub(super) fn read(family: IpFamily) -> Reading<KernelRules> {
    kernel_rules::read(family, &HostExec, &search_path()).map_err(|error| error_chain(&error))
}

/// Returns the lists of clients of endpoints that have reached the limit of the kernel module.
pub(super) fn full_affinity_lists(rules: &KernelRules) -> Reading<Vec<FullAffinityList>> {
    let failed = |error: io::Error| format!("cannot read the lists of xt_recent: {error}");
    let limit = match fs::read_to_string(RECENT_LIMIT) {
        Ok(text) => text.trim().parse::<usize>().map_err(|_| format!("invalid value of {RECENT_LIMIT}: {text:?}"))?,
        // The module is not loaded.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut full = Vec::new();
    let tables = rules.iptables.iter().filter_map(|backend| backend.saved.rules.tables.get(&TableName::Nat));
    for (name, chain) in tables.flat_map(|table| &table.chains) {
        if !name.as_str().starts_with(ENDPOINT_CHAINS) {
            continue;
        }
        let clients = match fs::read_to_string(Path::new(RECENT_LISTS).join(name.as_str())) {
            Ok(list) => list.lines().count(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        if clients >= limit {
            let comment = chain.rules.iter().find_map(Rule::first_comment);
            let service = comment.map_or_else(|| name.to_string(), |service| format!("{service} ({name})"));
            full.push(FullAffinityList { service, clients });
        }
    }
    Ok(full)
}

/// The chains of endpoints; a list of clients has the name of the chain.
const ENDPOINT_CHAINS: &str = "KUBE-SEP-";
/// The lists of the network namespace.
const RECENT_LISTS: &str = "/proc/thread-self/net/xt_recent";
/// The maximum number of addresses in a list.
const RECENT_LIMIT: &str = "/sys/module/xt_recent/parameters/ip_list_tot";

/// Reports whether a process owns Ferroute's table.
pub(super) fn table_is_owned(family: IpFamily) -> Reading<bool> {
    match NetlinkKernel::open().and_then(|mut kernel| kernel.table_owner(&TableOwner::Ferroute.table(family))) {
        Ok(owner) => Ok(owner.is_some()),
        Err(NetlinkError::NotSupported) => Ok(false),
        Err(error) => Err(error_chain(&error)),
    }
}

/// Returns the rules of each backend of iptables. `forward_policy_drops`: whether the policy of `FORWARD` drops packets
/// to Services; [`None`] if unknown.
pub(super) fn backends(rules: &KernelRules, forward_policy_drops: Option<bool>) -> Vec<BackendRules> {
    rules.iptables.iter().map(|snapshot| backend(snapshot, forward_policy_drops)).collect()
}

fn backend(BackendSnapshot { backend, saved }: &BackendSnapshot, forward_policy_drops: Option<bool>) -> BackendRules {
    let tables = saved.rules.tables.values();
    let forward = saved.rules.chain(TableName::Filter, ChainName::FORWARD).and_then(|chain| chain.head);
    BackendRules {
        backend: backend.to_string(),
        rules: tables.flat_map(|table| table.chains.values()).map(|chain| chain.rules.len()).sum(),
        forward_drops: forward.is_some_and(|head| head.policy == Some(Policy::Drop))
            && forward_policy_drops != Some(false),
        input_drops: saved.rules.chain(TableName::Filter, ChainName::INPUT).is_some_and(input_drops),
    }
}

/// Reports whether `INPUT` drops or rejects all packets that its rules do not accept, by its policy or a last rule,
/// without a preceding jump to the chain that accepts Service traffic of ipvs or userspace mode.
fn input_drops(input: &Chain) -> bool {
    let drops_all = |rule: &Rule| {
        let is_unconditional = Rule { target: None, ..rule.clone() } == Rule::new();
        is_unconditional && matches!(rule.target, Some(Target::Drop | Target::Reject(_)))
    };
    let accepts_services = |rule: &Rule| [IPVS_ACCEPT, NODEPORT_NON_LOCAL].map(Some).contains(&rule.next_chain());
    let by_rule = input.rules.iter().position(drops_all);
    let by_policy = input.head.is_some_and(|head| head.policy == Some(Policy::Drop)).then_some(input.rules.len());
    let accepted = input.rules.iter().position(accepts_services);
    by_rule.or(by_policy).is_some_and(|dropped| accepted.is_none_or(|accepted| dropped < accepted))
}

/// Returns the kinds of proxies that have rules in the path of packets.
pub(super) fn active_proxies(rules: &KernelRules) -> Vec<String> {
    REGISTRY.active_proxies(rules).into_iter().map(|proxy| proxy.description.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use ferroute_iptables::RuleSet;

    use super::*;

    #[test]
    fn input_that_drops_services_is_detected() {
        let drops = |policy: &str, rules: &[&str]| {
            let rules: String = rules.iter().map(|rule| format!("-A INPUT {rule}\n")).collect();
            let text = format!(
                "*filter\n:INPUT {policy} [0:0]\n:KUBE-IPVS-ACCEPT - [0:0]\n:KUBE-NODEPORT-NON-LOCAL - [0:0]\n{rules}COMMIT\n"
            );
            let rules = RuleSet::parse_save(IpFamily::V4, &text).unwrap();
            rules.chain(TableName::Filter, ChainName::INPUT).is_some_and(input_drops)
        };
        let accept = "-m comment --comment \"kubernetes ipvs service traffic\" -j KUBE-IPVS-ACCEPT";
        let reject = "-j REJECT --reject-with icmp-host-prohibited";
        assert!(!drops("ACCEPT", &[]) && !drops("ACCEPT", &["-p tcp -m tcp --dport 23 -j DROP"]));
        assert!(drops("DROP", &["-i lo -j ACCEPT"]) && drops("ACCEPT", &["-i lo -j ACCEPT", reject]));
        assert!(!drops("DROP", &[accept]) && !drops("ACCEPT", &[accept, reject]));
        assert!(drops("ACCEPT", &[reject, accept]) && drops("DROP", &["-j DROP", accept]));
        let userspace = "-m comment --comment \"kubernetes ports of the userspace proxy\" -j KUBE-NODEPORT-NON-LOCAL";
        assert!(!drops("DROP", &[userspace]) && drops("ACCEPT", &[reject, userspace]));
    }
}
