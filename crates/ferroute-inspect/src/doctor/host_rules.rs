//! What the kernel and the tools can do for a family, and whose rules there are.

use ferroute_config::Resolved;
use ferroute_core::IpFamily;
use crate::doctor::{BackendRules, FamilyFacts};
use ferroute_iptables::{
    ChainName, BackendSnapshot, HostExec, Policy, TableName, IptablesPrograms,
    exec::{Backend, search_path},
};
use ferroute_proxy::kernel_rules::{KernelRules, ServiceProxy};
use ferroute_nftables::{kernel::NetlinkKernel, probe};

use ferroute_proxy::{logging::chain, modes::{REGISTRY, kernel_has_ipv6}};

/// Looks at a family.
pub fn look(family: IpFamily, resolved: &Resolved, wanted: Option<bool>) -> FamilyFacts {
    let (programs, path) = (HostExec, search_path());
    let mode = REGISTRY.active(resolved.mode);
    let rules = ferroute_proxy::kernel_rules::read(family, &programs, &path).map_err(|error| chain(&error));
    FamilyFacts {
        in_kernel: family == IpFamily::V4 || kernel_has_ipv6(),
        wanted,
        supported: mode.probe(resolved, family),
        backends: rules.as_ref().map(backends).map_err(Clone::clone),
        rules_of: rules.as_ref().map(rules_of).map_err(Clone::clone),
    }
}

fn backends(rules: &KernelRules) -> Vec<BackendRules> {
    rules.iptables.iter().map(backend).collect()
}

fn backend(BackendSnapshot { backend, saved }: &BackendSnapshot) -> BackendRules {
    let tables = saved.rules.tables.values();
    let forward = saved.rules.chain(TableName::Filter, ChainName::FORWARD).and_then(|chain| chain.head);
    BackendRules {
        backend: backend.to_string(),
        rules: tables.flat_map(|table| table.chains.values()).map(|chain| chain.rules.len()).sum(),
        forward_drops: forward.is_some_and(|head| head.policy == Some(Policy::Drop)),
    }
}

fn rules_of(rules: &KernelRules) -> Vec<String> {
    REGISTRY.active_proxies(rules).into_iter().map(|proxy| proxy.description.to_owned()).collect()
}
