//! The kernel's rules without the iptables programs: the form in which `iptables-nft` stores them in nf_tables, read and
//! written by netlink.
//!
//! ```text
//!   Rule ──► encode ──► transaction ──► kernel      in the form that every iptables-nft since 1.8.2 can read
//!   Rule ◄── decode ◄── dump ◄───────── kernel      in the form of any version of iptables-nft
//! ```
//!
//! The tables of `iptables` are tables of nf_tables with the same names, builtin chains are base chains, and counters are in
//! each rule. Conditions of a rule itself (addresses, interfaces, the protocol) and verdicts are expressions of nf_tables;
//! match modules and other targets are the structures of `x_tables` (`nft_compat` in the kernel).
//!
//! This module does not determine the rules, nor the time at which they are written.

mod compat;
mod decode;
mod encode;
mod other;
mod probe;
mod protocols;
mod read;
mod repair;
mod sets;
mod snapshot;
mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod write;

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use ferroute_core::IpFamily;
use ferroute_host::read_generation;
use ferroute_netlink::{Error, Protocol, Socket, nfnetlink};

pub use compat::CompatReader;
pub use probe::{Modules, ProbeError, probe};
pub(crate) use read::AddItem;
pub use repair::Obstacle;
pub(crate) use sets::SetNumbers;
pub(crate) use tables::nfproto;
pub(crate) use write::KernelSink;
pub use write::WriteError;

use crate::{ChainName, TableName};
use tables::{BUILTIN_CHAINS, base_chain};

/// The rules of one IP family in the nf_tables of a network namespace.
#[derive(Debug)]
pub struct NativeRules {
    family: IpFamily,
    /// Idle sockets. A socket that an error leaves unusable does not return.
    sockets: Mutex<Vec<Socket>>,
    /// Builtin chains, and chains of other programs in tables where there were many when they were read.
    other_chains: Mutex<BTreeSet<(TableName, ChainName)>>,
    /// Chains of the proxy that another program created as base chains, to which no rule can jump: they are read as
    /// missing, and replaced.
    hooked_chains: Mutex<BTreeSet<(TableName, ChainName)>>,
    /// Whether `hooked_chains` includes the chains of Services in tables of any size.
    looks_for_hooks: AtomicBool,
}

/// A failure to read rules by netlink. Retrying may succeed.
#[derive(Debug, thiserror::Error)]
#[error("cannot read table {table} by netlink")]
pub struct ReadError {
    /// The table.
    pub table: TableName,
    /// The cause.
    #[source]
    pub source: Error,
}

impl NativeRules {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn open(family: IpFamily) -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter)?;
        let builtin = TableName::ALL.into_iter().flat_map(|table| BUILTIN_CHAINS.map(|chain| (table, chain)));
        let builtin = builtin.filter(|(table, chain)| base_chain(*table, *chain).is_some());
        Ok(Self {
            family,
            sockets: Mutex::new(vec![socket]),
            other_chains: Mutex::new(builtin.collect()),
            hooked_chains: Mutex::default(),
            looks_for_hooks: AtomicBool::new(false),
        })
    }

    /// Like [`NativeRules::open`]; `None` if the kernel does not support nf_tables.
    ///
    /// # Errors
    /// If the socket cannot be opened, or the process may not read rules.
    pub(crate) fn open_existing(family: IpFamily) -> Result<Option<Self>, Error> {
        let rules = Self::open(family)?;
        match rules.generation() {
            Ok(_) => Ok(Some(rules)),
            Err(error) if nfnetlink::is_subsystem_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The IP family.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// Reads the generation of the rules, which every transaction of any program increments.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn generation(&self) -> Result<u32, Error> {
        self.with_socket(read_generation)
    }

    fn other_chains(&self) -> MutexGuard<'_, BTreeSet<(TableName, ChainName)>> {
        self.other_chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hooked_chains(&self) -> MutexGuard<'_, BTreeSet<(TableName, ChainName)>> {
        self.hooked_chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether chains of Services that are called from a hook are found in tables of any size. Returns the former value.
    pub(crate) fn look_for_hooks(&self, look: bool) -> bool {
        self.looks_for_hooks.swap(look, Ordering::Relaxed)
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `exchange` with a socket that is not used elsewhere at the same time.
    pub(super) fn with_socket<T>(&self, exchange: impl FnOnce(&mut Socket) -> Result<T, Error>) -> Result<T, Error> {
        let idle = self.sockets().pop();
        let mut socket = idle.map_or_else(|| Socket::open(Protocol::Netfilter), Ok)?;
        let result = exchange(&mut socket);
        if !matches!(&result, Err(error) if leaves_unusable(error)) {
            self.sockets().push(socket);
        }
        result
    }
}

/// Reports whether a socket cannot be used any more after this error.
fn leaves_unusable(error: &Error) -> bool {
    !matches!(error, Error::Refused(_) | Error::Oversize(_))
}
