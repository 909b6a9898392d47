//! The interface to the kernel's virtual servers, ipsets and addresses, and its implementations.
//!
//! A [`Kernel`] belongs to one IP family. [`NetlinkKernel`] is the kernel of a network namespace; [`MemoryKernel`] is for
//! tests and replays.

mod memory;
mod netlink;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    net::IpAddr,
};

use ferroute_core::IpFamily;

pub use self::{
    memory::MemoryKernel,
    netlink::{KernelError, NetlinkKernel, read_state},
};
use crate::plan::{
    Entry, RealServer, ServerConfig, ServerKey, ServerSettings, SetKind,
    text::{AddressLine, DeletionLine, RealServerLine, ServerLine},
};

/// A change of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Adds an entry to a set. An existing entry is not an error.
    AddEntry(SetKind, Entry),
    /// Deletes an entry from a set. A missing entry is not an error.
    DeleteEntry(SetKind, Entry),
    /// Adds a virtual server.
    AddServer(ServerKey, ServerSettings),
    /// Changes the settings of a virtual server.
    EditServer(ServerKey, ServerSettings),
    /// Deletes a virtual server with its real servers. A missing virtual server is not an error.
    DeleteServer(ServerKey),
    /// Adds a real server with this weight to a virtual server.
    AddRealServer(ServerKey, RealServer, u16),
    /// Sets the weight of a real server; 0 for no new connections.
    SetWeight(ServerKey, RealServer, u16),
    /// Deletes a real server. A missing real server is not an error.
    DeleteRealServer(ServerKey, RealServer),
    /// Adds an address to the dummy device. An existing address is not an error.
    Bind(IpAddr),
    /// Deletes an address of the dummy device. A missing address is not an error.
    Unbind(IpAddr),
}

/// Objects of one IP family in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelState {
    /// The virtual servers with an address.
    pub servers: BTreeMap<ServerKey, KernelServer>,
    /// The entries of each set, by [`SetKind::index`].
    pub entries: [HashSet<Entry>; SetKind::ALL.len()],
    /// The addresses of the dummy device.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses of the dummy device without a local route: the kernel added the route with the address, and another
    /// program deleted it. The host does not accept packets to these addresses.
    pub unrouted: BTreeSet<IpAddr>,
    /// Whether timeouts of connections differ from the configured ones, which [`Kernel::prepare`] sets.
    pub has_other_timeouts: bool,
}

/// A virtual server in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelServer {
    /// Settings.
    pub config: ServerConfig,
    /// Real servers; empty if they were not requested.
    pub real_servers: Vec<KernelRealServer>,
}

/// A real server in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRealServer {
    /// Identity.
    pub real: RealServer,
    /// Weight; 0 for no new connections.
    pub weight: u32,
    /// Whether packets are forwarded by NAT, like those to kube-proxy's real servers.
    pub is_masqueraded: bool,
    /// Whether its number of connections is limited, which only other programs do (`ipvsadm -x`, `-y`).
    pub has_limits: bool,
    /// Number of connections that are established, in setup, half closed, or were closed in the last two minutes.
    pub connections: u64,
    /// Number of connections since it was added.
    pub total_connections: u64,
}

impl KernelServer {
    /// Returns the server and its real servers as lines of `ipvsadm --restore`.
    pub fn lines(&self, key: ServerKey) -> Vec<String> {
        let server = ServerLine { command: "-A", key, config: &self.config }.to_string();
        let real = |server: &KernelRealServer| {
            RealServerLine { command: "-a", key, real: server.real, weight: Some(server.weight) }.to_string()
        };
        std::iter::once(server).chain(self.real_servers.iter().map(real)).collect()
    }
}

impl KernelState {
    /// Returns the sets that contain the frontend of a virtual server, with the entry of each.
    pub fn entries_of(&self, key: ServerKey) -> Vec<(SetKind, Entry)> {
        let contains = |entry: &Entry| match entry {
            Entry::Service(of) | Entry::ServiceAndNetwork(of, _) | Entry::ServiceExceptNetwork(of, _) => *of == key,
            // The set of endpoints that connect to themselves contains addresses of endpoints.
            Entry::ServiceAndAddress(of, address) => *of == key && *address == key.address,
            Entry::Address(_) | Entry::Port(_) => false,
        };
        let port = |kind: SetKind| {
            kind == SetKind::node_ports(key.protocol) || kind == SetKind::local_node_ports(key.protocol)
        };
        let mut found = Vec::new();
        for kind in SetKind::ALL {
            let entries = &self.entries[kind.index()];
            found.extend(entries.iter().filter(|entry| contains(entry)).map(|entry| (kind, *entry)));
            found.extend(entries.get(&Entry::Port(key.port)).filter(|_| port(kind)).map(|entry| (kind, *entry)));
        }
        found.sort_unstable();
        found
    }
}

/// A change that the kernel refused. Other changes are applied nevertheless.
#[derive(Debug)]
pub struct Refused<E> {
    /// The change.
    pub operation: Operation,
    /// The cause.
    pub error: E,
}

/// The virtual servers, ipsets and addresses of one IP family.
pub trait Kernel: Send {
    /// An error of the kernel.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Creates the dummy device and the sets that do not exist, and sets the configured timeouts of connections.
    ///
    /// # Errors
    /// If the device or a set cannot be created, for example because it exists with another type.
    fn prepare(&mut self) -> Result<(), Self::Error>;

    /// Enlarges a set to hold this many entries, if its maximum is smaller.
    ///
    /// # Errors
    /// If the set cannot be replaced by a larger one.
    fn reserve(&mut self, kind: SetKind, entries: usize) -> Result<(), Self::Error>;

    /// Reads all objects. Real servers are read only for virtual servers that `is_wanted`.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&mut self, is_wanted: &dyn Fn(&ServerKey) -> bool) -> Result<KernelState, Self::Error>;

    /// Reads the real servers of a virtual server.
    ///
    /// # Errors
    /// If they cannot be read.
    fn real_servers(&mut self, key: ServerKey) -> Result<Vec<KernelRealServer>, Self::Error>;

    /// Makes a change, after all earlier changes, no later than the next call of [`Kernel::flush`].
    ///
    /// # Errors
    /// If the kernel cannot be reached.
    fn write(&mut self, operation: Operation) -> Result<(), Self::Error>;

    /// Makes all pending changes. Returns all changes refused since the last call.
    ///
    /// # Errors
    /// If the kernel cannot be reached.
    fn flush(&mut self) -> Result<Vec<Refused<Self::Error>>, Self::Error>;
}

impl Operation {
    /// Returns the virtual server that the change is for; `None` for changes of other objects.
    pub fn server(&self) -> Option<ServerKey> {
        match self {
            Self::AddServer(key, _)
            | Self::EditServer(key, _)
            | Self::DeleteServer(key)
            | Self::AddRealServer(key, ..)
            | Self::SetWeight(key, ..)
            | Self::DeleteRealServer(key, _) => Some(*key),
            Self::AddEntry(_, entry) | Self::DeleteEntry(_, entry) => match entry {
                Entry::Service(key)
                | Entry::ServiceAndAddress(key, _)
                | Entry::ServiceAndNetwork(key, _)
                | Entry::ServiceExceptNetwork(key, _) => Some(*key),
                Entry::Address(_) | Entry::Port(_) => None,
            },
            Self::Bind(_) | Self::Unbind(_) => None,
        }
    }

    /// Returns a text for people, in the syntax of the tool for this kind of object.
    pub fn describe(&self, family: IpFamily, scheduler: &str) -> String {
        let config = |settings: &ServerSettings| settings.with_scheduler(scheduler);
        let entry = |command, kind: SetKind, entry: &Entry| format!("ipset {command} {} {entry}", kind.name(family));
        let ipvsadm = |line: &dyn fmt::Display| format!("ipvsadm {line}");
        match self {
            Self::AddEntry(kind, member) => entry("add", *kind, member),
            Self::DeleteEntry(kind, member) => entry("del", *kind, member),
            Self::AddServer(key, settings) => {
                ipvsadm(&ServerLine { command: "-A", key: *key, config: &config(settings) })
            }
            Self::EditServer(key, settings) => {
                ipvsadm(&ServerLine { command: "-E", key: *key, config: &config(settings) })
            }
            Self::DeleteServer(key) => ipvsadm(&DeletionLine(*key)),
            Self::AddRealServer(key, real, weight) => {
                ipvsadm(&RealServerLine { command: "-a", key: *key, real: *real, weight: Some((*weight).into()) })
            }
            Self::SetWeight(key, real, weight) => {
                ipvsadm(&RealServerLine { command: "-e", key: *key, real: *real, weight: Some((*weight).into()) })
            }
            Self::DeleteRealServer(key, real) => {
                ipvsadm(&RealServerLine { command: "-d", key: *key, real: *real, weight: None })
            }
            Self::Bind(address) => format!("ip {}", AddressLine { command: "add", address: *address }),
            Self::Unbind(address) => format!("ip {}", AddressLine { command: "del", address: *address }),
        }
    }
}
