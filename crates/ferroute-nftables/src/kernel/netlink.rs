use ferroute_host::{GenerationError, KernelGeneration, RuleGeneration};
use ferroute_netlink::{Consistency, Error, Protocol, Socket};

use super::{Counter, Kernel, KernelError, Listing, Objection, Reading};
use crate::{
    model::{Element, Key, Set, TableId, Transaction},
    wire::{
        self, Listed, elements_request, list_request, parse_chain, parse_elements, parse_rule, parse_set, table_request,
    },
};

/// The kernel's nf_tables, in the network namespace of the thread that has opened it.
#[derive(Debug)]
pub struct NetlinkKernel {
    pub(super) socket: Socket,
    generation: KernelGeneration,
}

/// Why the kernel did not do something. Nothing was changed; another try may help.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// There is no way to talk to it.
    #[error("cannot open a netlink socket for nf_tables")]
    Open(#[source] Error),
    /// The kernel has no nf_tables. It can be built without them or as a module that is not there.
    #[error("the kernel has no nf_tables")]
    NotSupported,
    /// Nobody can tell whether somebody has changed something.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// It has refused a transaction because of one of its changes.
    #[error("kernel refused a transaction of {changes} changes at «{change}»")]
    Refused {
        /// Number of changes in the transaction.
        changes: usize,
        /// The change at fault, as `nft` writes it.
        change: String,
        /// The kernel's answer.
        #[source]
        source: Error,
    },
    /// A transaction could not be sent, or it is not known what became of it.
    #[error("cannot commit a transaction of {changes} changes")]
    Commit {
        /// Number of changes in the transaction.
        changes: usize,
        /// What came in its way.
        #[source]
        source: Error,
    },
    /// Something could not be read.
    #[error("cannot read {what}")]
    Read {
        /// What it is.
        what: String,
        /// What came in its way.
        #[source]
        source: Error,
    },
}

impl KernelError for NetlinkError {
    fn objection(&self) -> Option<Objection> {
        let (Self::Refused { source, .. } | Self::Read { source, .. }) = self else { return None };
        let refusal = source.refusal()?;
        Some(if refusal.is_not_found() {
            Objection::NotFound
        } else if refusal.is_exists() {
            Objection::Exists
        } else if refusal.is_busy() {
            Objection::Busy
        } else {
            Objection::Other
        })
    }
}

impl NetlinkKernel {
    /// Opens sockets to it.
    pub fn open() -> Result<Self, NetlinkError> {
        let generation = KernelGeneration::open()?.ok_or(NetlinkError::NotSupported)?;
        Ok(Self { socket: Socket::open(Protocol::Netfilter).map_err(NetlinkError::Open)?, generation })
    }

    fn dump(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Option<Element>, Option<Counter>),
    ) -> Result<Reading, NetlinkError> {
        let mut request = elements_request(table.family.into(), &table.name, &set.name, &[]);
        match self.socket.dump(&mut request, |message| parse_elements(&message, set, each)) {
            Ok(Consistency::Consistent) => Ok(Reading::Steady),
            Ok(Consistency::Interrupted) => Ok(Reading::Interrupted),
            Err(source) => Err(failed_elements(table, set, source)),
        }
    }
}

impl Kernel for NetlinkKernel {
    type Error = NetlinkError;

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Self::Error> {
        let mut encoded = wire::encode(transaction);
        let changes = transaction.len();
        let refusals =
            self.socket.send_batch(&mut encoded.batch).map_err(|source| NetlinkError::Commit { changes, source })?;
        // One cause may have many effects; the first refusal is nearest to it.
        let first = refusals.as_slice().first().cloned();
        refusals.into_result().map_err(|source| {
            let change = first.and_then(|refusal| encoded.refused(&refusal, transaction));
            match change {
                Some(change) => NetlinkError::Refused { changes, change: change.text(&transaction.table), source },
                None => NetlinkError::Commit { changes, source },
            }
        })
    }

    fn generation(&mut self) -> Result<u32, Self::Error> {
        Ok(self.generation.current()?)
    }

    fn listing(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error> {
        let failed = |source| failed_table(table, source);
        match self.socket.request_ack(&mut table_request(table)) {
            Ok(()) => {}
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let mut chains = self
            .socket
            .collect(&mut list_request(table.family.into(), &table.name, Listed::Chains), |message| {
                parse_chain(&message, &table.name)
            })
            .map_err(failed)?;
        let rules = self
            .socket
            .collect(&mut list_request(table.family.into(), &table.name, Listed::Rules), |message| {
                parse_rule(&message).map(Some)
            })
            .map_err(failed)?;
        for (name, rule) in rules {
            // A chain that came in between is seen the next time.
            if let Some(chain) = chains.iter_mut().find(|chain| chain.name == name) {
                chain.rules.push(rule);
            }
        }
        let sets = self
            .socket
            .collect(&mut list_request(table.family.into(), &table.name, Listed::Sets), |message| {
                parse_set(&message).map(Some)
            })
            .map_err(failed)?;
        Ok(Some(Listing { chains, sets }))
    }

    fn read(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Option<Element>),
    ) -> Result<Reading, Self::Error> {
        self.dump(table, set, &mut |element, _| each(element))
    }

    fn counts(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Element, Counter),
    ) -> Result<Reading, Self::Error> {
        self.dump(table, set, &mut |element, counter| {
            if let Some((element, counter)) = element.zip(counter) {
                each(element, counter);
            }
        })
    }

    fn find(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Option<Element>, Option<Counter>),
    ) -> Result<(), Self::Error> {
        let mut wanted: Vec<Key> = Vec::with_capacity(KEYS_AT_ONCE);
        loop {
            wanted.extend(keys.take(KEYS_AT_ONCE - wanted.len()));
            if wanted.is_empty() {
                return Ok(());
            }
            let mut found = 0;
            let mut request = elements_request(table.family.into(), &table.name, &set.name, &wanted);
            let result = self.socket.request(&mut request, |message| {
                found += 1;
                parse_elements(&message, set, each)
            });
            match result {
                Ok(()) => wanted.clear(),
                // The kernel answers one after the other and stops at the first that is not there.
                Err(error) if error.is_not_found() && found < wanted.len() => drop(wanted.drain(..=found)),
                Err(source) => return Err(failed_elements(table, set, source)),
            }
        }
    }
}

pub(super) fn failed_table(table: &dyn std::fmt::Display, source: Error) -> NetlinkError {
    NetlinkError::Read { what: format!("table {table}"), source }
}

fn failed_elements(table: &TableId, set: &Set, source: Error) -> NetlinkError {
    NetlinkError::Read { what: format!("elements of table {table}, set {}", set.name), source }
}

/// The kernel answers with a datagram per element, and all of them have to fit into the receive buffer.
const KEYS_AT_ONCE: usize = 256;
