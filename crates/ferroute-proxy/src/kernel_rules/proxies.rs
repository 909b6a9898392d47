use ferroute_nftables::{
    kernel::{TableSnapshot, TableFamily},
    plan::TABLE,
};

use crate::kernel_rules::KernelRules;

impl KernelRules {
    /// Ferroute's table in nftables mode, if it is there.
    pub fn ferroute_table(&self) -> Option<&TableSnapshot> {
        self.table(TABLE.as_str())
    }

    /// The table of kube-proxy's nftables mode, if it is there.
    pub fn kube_proxy_table(&self) -> Option<&TableSnapshot> {
        self.table(KUBE_PROXY)
    }

    fn table(&self, name: &str) -> Option<&TableSnapshot> {
        let of = TableFamily::Ip(self.family);
        self.nftables.iter().find(|table| table.family == of && table.name.as_str() == name)
    }
}

/// The name that kube-proxy gives its tables.
const KUBE_PROXY: &str = "kube-proxy";
