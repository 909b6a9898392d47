use ferroute_core::IpFamily;

use crate::{
    kernel::{ErrorKind, Kernel, KernelError},
    model::{Change, Name, TableId, Transaction},
    plan,
};

/// A program with tables of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableOwner {
    /// Ferroute.
    Ferroute,
    /// kube-proxy in nftables mode.
    KubeProxy,
}

impl TableOwner {
    /// Both programs.
    pub const ALL: [Self; 2] = [Self::Ferroute, Self::KubeProxy];

    /// Returns the program's table of an IP family.
    pub fn table(self, family: IpFamily) -> TableId {
        let name = match self {
            Self::Ferroute => plan::TABLE,
            Self::KubeProxy => KUBE_PROXY,
        };
        TableId { family, name }
    }
}

/// Deletes a table with its contents. Reports whether it existed.
///
/// # Errors
///
/// The kernel refused the deletion.
pub fn delete_table<K: Kernel>(kernel: &mut K, table: TableId) -> Result<bool, K::Error> {
    match kernel.commit(&Transaction { table, changes: vec![Change::DeleteTable] }) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == Some(ErrorKind::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The name of kube-proxy's tables, one per IP family, since its nftables mode was added in version 1.29.
const KUBE_PROXY: Name = Name::fixed("kube-proxy");
