//! What the kernel and the tools can do for a family, and whose rules there are.

use ferroute_config::Resolved;
use ferroute_core::IpFamily;
use ferroute_doctor::{BackendRules, FamilyFacts};
use ferroute_iptables::{
    ChainName, FoundRules, HostPrograms, Policy, TableName, Tools,
    runner::{Backend, search_path},
};
use ferroute_kernel_rules::{KernelRules, ServiceProxy};
use ferroute_nftables::{kernel::NetlinkKernel, probe};

use crate::{logging::chain, planes};

/// Looks at a family.
pub(super) fn look(family: IpFamily, resolved: &Resolved, wanted: Option<bool>) -> FamilyFacts {
    let (programs, path) = (HostPrograms, search_path());
    let tools = Tools::find_beside_kubelet(family, &programs, &path);
    let nftables = NetlinkKernel::open()
        .and_then(|mut kernel| probe(&mut kernel, family, &planes::nftables_settings(resolved)))
        .map_err(|error| chain(&error));
    let rules = ferroute_kernel_rules::read(family, &programs, &path).map_err(|error| chain(&error));
    FamilyFacts {
        in_kernel: family == IpFamily::V4 || planes::kernel_has_ipv6(),
        wanted,
        nftables,
        iptables: tools.map(|tools| tools.release.to_string()).map_err(|error| chain(&error)),
        backends: rules.as_ref().map(backends).map_err(Clone::clone),
        rules_of: rules.as_ref().map(rules_of).map_err(Clone::clone),
    }
}

fn backends(rules: &KernelRules) -> Vec<BackendRules> {
    rules.iptables.iter().map(backend).collect()
}

fn backend(FoundRules { backend, saved }: &FoundRules) -> BackendRules {
    let tables = saved.rules.tables.values();
    let forward = saved.rules.chain(TableName::Filter, ChainName::FORWARD).and_then(|chain| chain.head);
    BackendRules {
        backend: backend.to_string(),
        rules: tables.flat_map(|table| table.chains.values()).map(|chain| chain.rules.len()).sum(),
        forward_drops: forward.is_some_and(|head| head.policy == Some(Policy::Drop)),
    }
}

fn rules_of(rules: &KernelRules) -> Vec<String> {
    let name = |proxy| match proxy {
        ServiceProxy::Iptables(Backend::NfTables) => "kube-proxy or Ferroute in iptables mode",
        ServiceProxy::Iptables(Backend::Legacy) => "kube-proxy or Ferroute in iptables mode (legacy)",
        ServiceProxy::FerrouteNftables => "Ferroute in nftables mode",
        ServiceProxy::KubeProxyNftables => "kube-proxy in nftables mode",
    };
    rules.proxies().into_iter().map(|proxy| name(proxy).to_owned()).collect()
}
