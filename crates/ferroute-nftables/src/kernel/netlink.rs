use std::collections::HashSet;

use ferroute_core::error_chain;
use ferroute_host::{GenerationError, KernelGeneration, RuleGeneration, RuleNotifications};
use ferroute_netlink::{Error, Protocol, Refusal, Socket};

use super::{Consistency, EncodedTransaction, ErrorKind, Kernel, KernelError, Listing, OnElement};
use crate::{
    model::{Change, Key, Name, Set, TableId, Transaction},
    wire::{
        self, Listed, changed_elements, elements_request, is_bound_chain, is_table_changed, list_request, parse_chain,
        parse_elements, parse_flowtable, parse_rule, parse_set, parse_table_owner, table_request,
    },
};

/// The kernel's nf_tables in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NetlinkKernel {
    pub(super) socket: Socket,
    generation: KernelGeneration,
    /// See [`NetlinkKernel::listen`].
    notifications: Option<RuleNotifications>,
}

/// An error of [`NetlinkKernel`]. The failed call has changed nothing, unless it is [`NetlinkError::Commit`]; it may
/// succeed if it is repeated.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The netlink socket could not be opened.
    #[error("cannot open a netlink socket for nf_tables")]
    Open(#[source] Error),
    /// The kernel has no nf_tables: it is neither built in nor available as a module.
    #[error("the kernel does not support nf_tables")]
    NotSupported,
    /// The generation could not be read.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// The kernel refused a transaction because of one of its changes.
    #[error("kernel refused a transaction of {changes} changes at «{text}»")]
    Refused {
        /// The number of changes in the transaction.
        changes: usize,
        /// The refused change in `nft` syntax.
        text: String,
        /// The refused change.
        change: Box<Change>,
        /// The kernel's error.
        #[source]
        source: Error,
    },
    /// A transaction could not be sent, or the kernel did not acknowledge it.
    #[error("cannot commit a transaction of {changes} changes")]
    Commit {
        /// The number of changes in the transaction.
        changes: usize,
        /// The cause.
        #[source]
        source: Error,
    },
    /// Another process owns the table, so that only it can change or delete it.
    #[error(
        "process with netlink port {owner} owns table {table} (flags owner), so no other can change it; end that process, and delete \
         the table if it remains"
    )]
    Owned {
        /// The table.
        table: String,
        /// The netlink port of the process; usually its process ID.
        owner: u32,
        /// The kernel's error.
        #[source]
        source: Error,
    },
    /// An object could not be read.
    #[error("cannot read {object}")]
    Read {
        /// A description of the object.
        object: String,
        /// The cause.
        #[source]
        source: Error,
    },
}

impl KernelError for NetlinkError {
    fn kind(&self) -> Option<ErrorKind> {
        let (Self::Refused { source, .. }
        | Self::Commit { source, .. }
        | Self::Owned { source, .. }
        | Self::Read { source, .. }) = self
        else {
            return None;
        };
        let refusal = source.refusal()?;
        Some(if refusal.is_not_found() {
            ErrorKind::NotFound
        } else if refusal.is_exists() {
            ErrorKind::Exists
        } else if refusal.is_busy() {
            ErrorKind::Busy
        } else if refusal.is_circumstantial() {
            ErrorKind::Circumstances
        } else {
            ErrorKind::Other
        })
    }

    fn refused(&self) -> Option<&Change> {
        match self {
            Self::Refused { change, .. } => Some(change),
            _ => None,
        }
    }
}

impl NetlinkKernel {
    /// Opens sockets in the network namespace of the calling thread.
    pub fn open() -> Result<Self, NetlinkError> {
        let generation = KernelGeneration::open()?.ok_or(NetlinkError::NotSupported)?;
        let socket = Socket::open(Protocol::Netfilter).map_err(NetlinkError::Open)?;
        Ok(Self { socket, generation, notifications: None })
    }

    /// Listens to changes by other programs in the network namespace of the calling thread, for
    /// [`Kernel::changed_elements`]. If the kernel refuses, that returns nothing.
    pub fn listen(&mut self) {
        self.notifications =
            RuleNotifications::open().inspect_err(|error| tracing::debug!("{}", error_chain(error))).ok();
    }

    /// Returns the netlink port of the process that owns a table; `None` if there is no such table, or it has no owner.
    pub fn table_owner(&mut self, table: &TableId) -> Result<Option<u32>, NetlinkError> {
        match self.socket.get(&mut table_request(table), |message| parse_table_owner(&message)) {
            Ok(owner) => Ok(owner.flatten()),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(failed_table(table, source)),
        }
    }
}

impl Kernel for NetlinkKernel {
    type Error = NetlinkError;
    type Encoded = EncodedTransaction;

    fn encode(transaction: &Transaction) -> EncodedTransaction {
        wire::encode(transaction)
    }

    fn commit_encoded(
        &mut self,
        transaction: &Transaction,
        mut encoded: EncodedTransaction,
    ) -> Result<(), Self::Error> {
        let changes = transaction.len();
        let mut send = || self.socket.send_batch(&mut encoded.batch);
        let sent = match &self.notifications {
            Some(notifications) => notifications.without(send),
            None => send(),
        };
        let refusals = sent.map_err(|source| NetlinkError::Commit { changes, source })?;
        // One mistake can cause many errors; the first error is closest to it.
        let first = refusals.as_slice().first().cloned();
        refusals.into_result().map_err(|source| {
            if source.refusal().is_some_and(Refusal::is_permission)
                && let Ok(Some(owner)) = self.table_owner(&transaction.table)
            {
                return NetlinkError::Owned { table: transaction.table.to_string(), owner, source };
            }
            let change = first.and_then(|refusal| encoded.refused(&refusal, transaction));
            match change {
                Some(change) => NetlinkError::Refused {
                    changes,
                    text: change.text(&transaction.table),
                    change: Box::new(change.clone()),
                    source,
                },
                None => NetlinkError::Commit { changes, source },
            }
        })
    }

    fn generation(&mut self) -> Result<u32, Self::Error> {
        Ok(self.generation.current()?)
    }

    fn list_table(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error> {
        let failed = |source| failed_table(table, source);
        let is_changed = match self.socket.get(&mut table_request(table), |message| is_table_changed(&message)) {
            Ok(is_changed) => is_changed.unwrap_or_default(),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut chains = self
            .socket
            .collect(&mut list_request(table.family.into(), &table.name, Listed::Chains), |message| {
                if is_bound_chain(&message)? { Ok(None) } else { parse_chain(&message, &table.name) }
            })
            .map_err(failed)?;
        let rules = self
            .socket
            .collect(&mut list_request(table.family.into(), &table.name, Listed::Rules), |message| {
                parse_rule(&message).map(Some)
            })
            .map_err(failed)?;
        for (name, rule) in rules {
            // Chains created since the dump of chains are listed next time.
            if let Some(chain) = chains.iter_mut().find(|chain| chain.name == name) {
                chain.rules.push(rule);
            }
        }
        let sets = self
            .socket
            .collect(&mut list_request(table.family.into(), &table.name, Listed::Sets), |message| parse_set(&message))
            .map_err(failed)?;
        let flowtables = self
            .socket
            .collect(&mut list_request(table.family.into(), &table.name, Listed::Flowtables), |message| {
                parse_flowtable(&message).map(Some)
            })
            .map_err(failed)?;
        let objects = self
            .socket
            .collect(&mut list_request(table.family.into(), &table.name, Listed::Objects), |_| Ok(Some(())))
            .map_err(failed)?;
        let has_stateful_objects = !objects.is_empty();
        Ok(Some(Listing { is_changed, has_stateful_objects, chains, sets, flowtables }))
    }

    fn dump_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        on_element: &mut OnElement<'_>,
    ) -> Result<Consistency, Self::Error> {
        let mut request = elements_request(table.family.into(), &table.name, &set.name, &[]);
        self.socket
            .dump(&mut request, |message| parse_elements(&message, set, on_element))
            .map_err(|source| failed_elements(table, set, source))
    }

    fn get_elements(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        on_element: &mut OnElement<'_>,
    ) -> Result<(), Self::Error> {
        let mut pending: Vec<Key> = Vec::with_capacity(KEYS_PER_REQUEST);
        loop {
            pending.extend(keys.take(KEYS_PER_REQUEST - pending.len()));
            if pending.is_empty() {
                return Ok(());
            }
            let mut received = 0;
            let mut request = elements_request(table.family.into(), &table.name, &set.name, &pending);
            let result = self.socket.request(&mut request, |message| {
                received += 1;
                parse_elements(&message, set, on_element)
            });
            match result {
                Ok(()) => pending.clear(),
                // The kernel replies per element and stops at the first key that does not exist.
                Err(error) if error.is_not_found() && received < pending.len() => drop(pending.drain(..=received)),
                Err(source) => return Err(failed_elements(table, set, source)),
            }
        }
    }

    fn changed_elements(&mut self, table: &TableId, sets: &[Set]) -> HashSet<(Name, Key)> {
        let mut changed = HashSet::new();
        if let Some(notifications) = &mut self.notifications {
            let is_complete = notifications.receive(|message| {
                // What cannot be read is not ours.
                let _ = changed_elements(message, table, sets, &mut changed);
            });
            if !is_complete || changed.len() > MAX_CHANGED_ELEMENTS {
                changed.clear();
            }
        }
        changed
    }
}

pub(super) fn failed_table(table: &dyn std::fmt::Display, source: Error) -> NetlinkError {
    NetlinkError::Read { object: format!("table {table}"), source }
}

fn failed_elements(table: &TableId, set: &Set, source: Error) -> NetlinkError {
    NetlinkError::Read { object: format!("elements of table {table}, set {}", set.name), source }
}

/// Number of changed elements beyond which all elements are compared.
const MAX_CHANGED_ELEMENTS: usize = 1_000;
/// The kernel replies with one datagram per element, and all of them must fit into the receive buffer.
const KEYS_PER_REQUEST: usize = 256;
