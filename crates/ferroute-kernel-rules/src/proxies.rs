use ferroute_iptables::{TableName, plan::chains, runner::Backend};

use crate::KernelRules;

/// A service proxy whose rules are in the kernel, running or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceProxy {
    /// kube-proxy or Ferroute in iptables mode. They write the same rules, so nobody can tell from these which it was.
    Iptables(Backend),
}

impl KernelRules {
    /// The proxies whose rules are here.
    pub fn proxies(&self) -> Vec<ServiceProxy> {
        // The kubelet makes some of the same chains, and kube-proxy's ipvs mode has no canary.
        let by_proxy = [chains::SERVICES, chains::CANARY];
        let found = self
            .iptables
            .iter()
            .filter(|found| by_proxy.iter().all(|chain| found.saved.rules.chain(TableName::Nat, *chain).is_some()));
        found.map(|found| ServiceProxy::Iptables(found.backend)).collect()
    }
}
