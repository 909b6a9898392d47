//! The ports of a process on which it relays UDP flows.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_core::IpFamily;

/// Ports of all open UDP listeners, including those that no rule leads to any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct RelayPorts {
    ports: Arc<Mutex<BTreeSet<(IpFamily, u16)>>>,
}

/// A port of an open UDP listener, which is removed from the set on drop.
#[derive(Debug)]
pub(crate) struct RelayPort {
    ports: RelayPorts,
    port: (IpFamily, u16),
}

impl RelayPorts {
    /// Adds the port of a socket.
    pub(crate) fn add(&self, family: IpFamily, port: u16) -> RelayPort {
        self.lock().insert((family, port));
        RelayPort { ports: self.clone(), port: (family, port) }
    }

    /// Returns all ports.
    pub(crate) fn list(&self) -> Vec<(IpFamily, u16)> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(IpFamily, u16)>> {
        // A set is valid after each of its operations.
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RelayPort {
    fn drop(&mut self) {
        self.ports.lock().remove(&self.port);
    }
}
