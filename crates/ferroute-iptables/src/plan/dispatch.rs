use super::chains;
use crate::{ChainName, TableName};

/// A chain that all service ports share. It is written as a whole when any of them contributes other rules than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dispatch {
    /// filter `KUBE-SERVICES`.
    RefusedInternal,
    /// filter `KUBE-EXTERNAL-SERVICES`.
    RefusedExternal,
    /// filter `KUBE-NODEPORTS`.
    HealthChecks,
    /// filter `KUBE-PROXY-FIREWALL`.
    Firewall,
    /// nat `KUBE-SERVICES`.
    Services,
    /// nat `KUBE-NODEPORTS`.
    NodePorts,
}

impl Dispatch {
    /// All of them, filter's before nat's.
    pub const ALL: [Self; 6] = [
        Self::RefusedInternal,
        Self::RefusedExternal,
        Self::HealthChecks,
        Self::Firewall,
        Self::Services,
        Self::NodePorts,
    ];

    /// The table that it is in.
    pub fn table(self) -> TableName {
        match self {
            Self::RefusedInternal | Self::RefusedExternal | Self::HealthChecks | Self::Firewall => TableName::Filter,
            Self::Services | Self::NodePorts => TableName::Nat,
        }
    }

    /// Its name there.
    pub fn chain(self) -> ChainName {
        match self {
            Self::RefusedInternal | Self::Services => chains::SERVICES,
            Self::RefusedExternal => chains::EXTERNAL_SERVICES,
            Self::HealthChecks | Self::NodePorts => chains::NODE_PORTS,
            Self::Firewall => chains::PROXY_FIREWALL,
        }
    }

    /// Position in [`Dispatch::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}
