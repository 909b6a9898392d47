use ferroute_core::IpFamily;

use crate::{
    kernel::{Kernel, KernelError, Objection},
    model::{Change, Name, TableId, Transaction},
    plan,
};

/// Whose table it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Ours.
    Ferroute,
    /// That of kube-proxy's own nftables mode.
    KubeProxy,
}

impl Owner {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ferroute, Self::KubeProxy];

    /// Its table of a family.
    pub fn table(self, family: IpFamily) -> TableId {
        let name = match self {
            Self::Ferroute => plan::TABLE,
            Self::KubeProxy => KUBE_PROXY,
        };
        TableId { family, name }
    }
}

/// Removes a table with all that is in it, and tells whether it was there.
///
/// # Errors
/// When the kernel does not remove it.
pub fn remove_table<K: Kernel>(kernel: &mut K, table: TableId) -> Result<bool, K::Error> {
    match kernel.commit(&Transaction { table, changes: vec![Change::DeleteTable] }) {
        Ok(()) => Ok(true),
        Err(error) if error.objection() == Some(Objection::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// kube-proxy's name for its tables, one per family, since its nftables mode exists (version 1.29).
const KUBE_PROXY: Name = Name::fixed("kube-proxy");
