use ferroute_iptables::{TableName, plan::chains, runner::Backend};
use ferroute_nftables::{
    kernel::{FoundTable, TableFamily},
    plan::TABLE,
};

use crate::KernelRules;

/// A service proxy whose rules are in the kernel, running or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceProxy {
    /// kube-proxy or Ferroute in iptables mode. They write the same rules, so nobody can tell from these which it was.
    Iptables(Backend),
    /// Ferroute in nftables mode.
    FerrouteNftables,
    /// kube-proxy in nftables mode.
    KubeProxyNftables,
}

impl KernelRules {
    /// The proxies whose rules are here.
    pub fn proxies(&self) -> Vec<ServiceProxy> {
        // The kubelet makes some of the same chains, and kube-proxy's ipvs mode has no canary.
        let by_proxy = [chains::SERVICES, chains::CANARY];
        let iptables = self
            .iptables
            .iter()
            .filter(|found| by_proxy.iter().all(|chain| found.saved.rules.chain(TableName::Nat, *chain).is_some()));
        let by_table = [
            (self.ferroute_table(), ServiceProxy::FerrouteNftables),
            (self.kube_proxy_table(), ServiceProxy::KubeProxyNftables),
        ];
        let nftables = by_table.into_iter().filter(|(table, _)| table.is_some()).map(|(_, proxy)| proxy);
        iptables.map(|found| ServiceProxy::Iptables(found.backend)).chain(nftables).collect()
    }

    /// Ferroute's table in nftables mode, if it is there.
    pub fn ferroute_table(&self) -> Option<&FoundTable> {
        self.table(TABLE.as_str())
    }

    /// The table of kube-proxy's nftables mode, if it is there.
    pub fn kube_proxy_table(&self) -> Option<&FoundTable> {
        self.table(KUBE_PROXY)
    }

    fn table(&self, name: &str) -> Option<&FoundTable> {
        let of = TableFamily::Ip(self.family);
        self.nftables.iter().find(|table| table.family == of && table.name.as_str() == name)
    }
}

/// The name that kube-proxy gives its tables.
const KUBE_PROXY: &str = "kube-proxy";
