//! The rules in the kernel, and the host's support for the mode.

use ferroute_config::Resolved;
use ferroute_core::IpFamily;
use ferroute_iptables::{
    ChainName, HostExec, Policy, TableName,
    exec::{BackendSnapshot, search_path},
};
use ferroute_proxy::{
    kernel_rules::{self, KernelRules},
    logging::chain,
    modes::{REGISTRY, kernel_has_ipv6},
};

use crate::doctor::{BackendRules, FamilyInputs};

/// Reads the inputs of an IP family.
pub(super) fn read(family: IpFamily, resolved: &Resolved, has_services: Option<bool>) -> FamilyInputs {
    let mode = REGISTRY.active(resolved.mode);
    let rules = kernel_rules::read(family, &HostExec, &search_path()).map_err(|error| chain(&error));
    FamilyInputs {
        in_kernel: family == IpFamily::V4 || kernel_has_ipv6(),
        has_services,
        unrouted: Ok(None),
        supported: mode.probe(resolved, family),
        backends: rules.as_ref().map(backends).map_err(Clone::clone),
        unread: rules.as_ref().map_or_else(|_| Vec::new(), |rules| rules.unread.clone()),
        active_proxies: rules.as_ref().map(active_proxies).map_err(Clone::clone),
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

fn active_proxies(rules: &KernelRules) -> Vec<String> {
    REGISTRY.active_proxies(rules).into_iter().map(|proxy| proxy.description.to_owned()).collect()
}
