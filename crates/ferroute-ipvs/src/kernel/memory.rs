use std::{collections::HashSet, fmt::Write};

use ferroute_core::IpFamily;

use super::{Kernel, KernelRealServer, KernelServer, KernelState, Operation, Refused};
use crate::{
    plan::{Entry, RealServer, ServerKey, SetKind},
    sets::DEFAULT_CAPACITY,
};

/// An in-memory kernel. It refuses the same changes as the real one, and records all changes that it makes.
#[derive(Debug)]
pub struct MemoryKernel {
    family: IpFamily,
    scheduler: Box<str>,
    /// The objects. The real servers of each virtual server are sorted.
    pub state: KernelState,
    /// The maximum number of entries of each set.
    capacities: [usize; SetKind::ALL.len()],
    /// The changes since the last call of [`MemoryKernel::take_text`], one per line.
    text: String,
    written: Vec<Operation>,
    refused: Vec<Refused<MemoryError>>,
}

/// A refusal of [`MemoryKernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The object exists already.
    #[error("the object exists")]
    Exists,
    /// The object, or an object that it refers to, does not exist.
    #[error("the object does not exist")]
    NotFound,
    /// The set has its maximum number of entries.
    #[error("the set is full")]
    Full,
}

impl MemoryKernel {
    /// Creates a kernel without objects.
    pub fn new(family: IpFamily, scheduler: &str) -> Self {
        Self {
            family,
            scheduler: scheduler.into(),
            state: KernelState::default(),
            capacities: [DEFAULT_CAPACITY as usize; SetKind::ALL.len()],
            text: String::new(),
            written: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Returns the changes since the last call.
    pub fn take_operations(&mut self) -> Vec<Operation> {
        std::mem::take(&mut self.written)
    }

    /// Returns the changes since the last call as text, one per line.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn entries(&mut self, kind: SetKind) -> &mut HashSet<Entry> {
        &mut self.state.entries[kind.index()]
    }

    fn apply(&mut self, operation: Operation) -> Result<(), MemoryError> {
        match operation {
            Operation::AddEntry(kind, entry) => {
                let capacity = self.capacities[kind.index()];
                let entries = self.entries(kind);
                if entries.len() >= capacity && !entries.contains(&entry) {
                    return Err(MemoryError::Full);
                }
                // A network is in a set once, with or without the option.
                if let Entry::ServiceAndNetwork(key, net) = entry {
                    entries.remove(&Entry::ServiceExceptNetwork(key, net));
                }
                entries.insert(entry);
            }
            Operation::DeleteEntry(kind, entry) => {
                self.entries(kind).remove(&entry);
                if let Entry::ServiceExceptNetwork(key, net) = entry {
                    self.entries(kind).remove(&Entry::ServiceAndNetwork(key, net));
                }
            }
            Operation::AddServer(key, settings) => {
                if self.state.servers.contains_key(&key) {
                    return Err(MemoryError::Exists);
                }
                let config = settings.with_scheduler(&self.scheduler);
                self.state.servers.insert(key, KernelServer { config, real_servers: Vec::new() });
            }
            Operation::EditServer(key, settings) => {
                let config = settings.with_scheduler(&self.scheduler);
                self.server(key)?.config = config;
            }
            Operation::DeleteServer(key) => _ = self.state.servers.remove(&key),
            Operation::AddRealServer(key, real, weight) => {
                let real_servers = &mut self.server(key)?.real_servers;
                let Err(at) = position(real_servers, real) else { return Err(MemoryError::Exists) };
                let added = KernelRealServer {
                    real,
                    weight: weight.into(),
                    is_masqueraded: true,
                    has_limits: false,
                    connections: 0,
                    total_connections: 0,
                };
                real_servers.insert(at, added);
            }
            Operation::SetWeight(key, real, weight) => {
                let real_servers = &mut self.server(key)?.real_servers;
                let at = position(real_servers, real).map_err(|_| MemoryError::NotFound)?;
                let real = &mut real_servers[at];
                (real.weight, real.is_masqueraded, real.has_limits) = (weight.into(), true, false);
            }
            Operation::DeleteRealServer(key, real) => {
                let real_servers = &mut self.server(key)?.real_servers;
                if let Ok(at) = position(real_servers, real) {
                    real_servers.remove(at);
                }
            }
            // The kernel adds the route of a new address only.
            Operation::Bind(address) => _ = self.state.addresses.insert(address),
            Operation::Unbind(address) => {
                self.state.addresses.remove(&address);
                self.state.unrouted.remove(&address);
            }
        }
        Ok(())
    }

    fn server(&mut self, key: ServerKey) -> Result<&mut KernelServer, MemoryError> {
        self.state.servers.get_mut(&key).ok_or(MemoryError::NotFound)
    }
}

impl Kernel for MemoryKernel {
    type Error = MemoryError;

    fn prepare(&mut self) -> Result<(), MemoryError> {
        self.state.has_other_timeouts = false;
        Ok(())
    }

    fn reserve(&mut self, kind: SetKind, entries: usize) -> Result<(), MemoryError> {
        let capacity = &mut self.capacities[kind.index()];
        *capacity = entries.max(*capacity);
        Ok(())
    }

    fn read(&mut self, is_wanted: &dyn Fn(&ServerKey) -> bool) -> Result<KernelState, MemoryError> {
        let mut state = self.state.clone();
        for (key, server) in &mut state.servers {
            if !is_wanted(key) {
                server.real_servers.clear();
            }
        }
        Ok(state)
    }

    fn real_servers(&mut self, key: ServerKey) -> Result<Vec<KernelRealServer>, MemoryError> {
        self.server(key).map(|server| server.real_servers.clone())
    }

    fn write(&mut self, operation: Operation) -> Result<(), MemoryError> {
        match self.apply(operation) {
            Ok(()) => {
                self.written.push(operation);
                let line = operation.describe(self.family, &self.scheduler);
                writeln!(self.text, "{line}").expect("writing to a String cannot fail");
            }
            Err(error) => self.refused.push(Refused { operation, error }),
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<Vec<Refused<MemoryError>>, MemoryError> {
        Ok(std::mem::take(&mut self.refused))
    }
}

/// Returns the index of a real server in a sorted list, or the index at which it would have to be inserted.
fn position(real_servers: &[KernelRealServer], real: RealServer) -> Result<usize, usize> {
    real_servers.binary_search_by_key(&real, |existing| existing.real)
}
