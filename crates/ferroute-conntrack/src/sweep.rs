use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{self as netlink, Batch, Consistency, Request, Socket, nfnetlink};

use crate::{
    Flow,
    flow::{FlowEntry, PROTOCOL_NUMBER, TUPLE_ORIGINAL, TUPLE_PROTOCOL, family_number},
};

/// What [`remove_flows`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Flows of the family and protocol that were looked at. One that moves while the table is read can count twice.
    pub seen: usize,
    /// Flows that were deleted. One that was selected and ended by itself is not among them.
    pub removed: usize,
}

/// Flows could not be removed; some may have been. Trying again is right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no way to ask for the table.
    #[error("cannot ask the kernel for its connection table")]
    Open(#[source] netlink::Error),
    /// The table could not be read to its end.
    #[error("cannot list {family} flows of {protocol}")]
    List {
        /// Family of the flows.
        family: IpFamily,
        /// Protocol of the flows.
        protocol: Protocol,
        /// The kernel's answer.
        #[source]
        source: netlink::Error,
    },
    /// A flow that was selected could not be deleted.
    #[error("cannot remove {family} flows of {protocol}")]
    Remove {
        /// Family of the flows.
        family: IpFamily,
        /// Protocol of the flows.
        protocol: Protocol,
        /// The kernel's answer.
        #[source]
        source: netlink::Error,
    },
}

/// Removes the flows of one family and protocol that `is_stale` selects, in the network namespace of the calling thread,
/// and leaves all others alone.
///
/// A flow that begins while the table is read may be missed. So first bring rules into force that begin no more such
/// flows. Needs `CAP_NET_ADMIN`.
pub fn remove_flows(
    family: IpFamily,
    protocol: Protocol,
    is_stale: impl FnMut(&Flow) -> bool,
) -> Result<Removed, Error> {
    sweep(&mut list_request(family, Some(protocol)), family, protocol, is_stale)
}

/// Calls `each` with the flows of one family and protocol in the network namespace of the calling thread. Nothing is
/// changed; a flow that begins, ends or moves meanwhile may be told or not, or twice. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// When the table cannot be read; some flows may have been told.
pub fn list_flows(family: IpFamily, protocol: Protocol, mut each: impl FnMut(&Flow)) -> Result<(), Error> {
    let mut reader = Socket::open(netlink::Protocol::Netfilter).map_err(Error::Open)?;
    let listed = reader.dump(&mut list_request(family, Some(protocol)), |message| {
        // Filtered once more: kernels before 5.8 list everything, whatever is asked.
        if let Some(entry) = FlowEntry::parse(message, family, protocol)? {
            each(&entry.flow);
        }
        Ok::<(), netlink::Error>(())
    });
    listed.map(|_: Consistency| ()).map_err(|source| Error::List { family, protocol, source })
}

fn sweep(
    request: &mut Request,
    family: IpFamily,
    protocol: Protocol,
    mut is_stale: impl FnMut(&Flow) -> bool,
) -> Result<Removed, Error> {
    let mut reader = Socket::open(netlink::Protocol::Netfilter).map_err(Error::Open)?;
    let mut remover = Remover {
        // A socket of its own, for the reader's is busy with the list.
        socket: Socket::open(netlink::Protocol::Netfilter).map_err(Error::Open)?,
        batch: Batch::new(),
        family,
        removed: 0,
    };
    let mut seen = 0;
    let listed = reader.dump(request, |message| {
        // Filtered once more: kernels before 5.8 list everything, whatever is asked.
        if let Some(entry) = FlowEntry::parse(message, family, protocol).map_err(netlink::Error::from)? {
            seen += 1;
            if is_stale(&entry.flow) {
                remover.add(&entry).map_err(Failure::Remove)?;
            }
        }
        Ok::<(), Failure>(())
    });
    // The table changes all the time; the kernel does not say so here, nor would it matter.
    match listed.and_then(|_: Consistency| remover.flush().map_err(Failure::Remove)) {
        Ok(()) => Ok(Removed { seen, removed: remover.removed }),
        Err(Failure::List(source)) => Err(Error::List { family, protocol, source }),
        Err(Failure::Remove(source)) => Err(Error::Remove { family, protocol, source }),
    }
}

/// A request for the table of a family, and where the kernel can, only for the part of a protocol.
fn list_request(family: IpFamily, protocol: Option<Protocol>) -> Request {
    let mut request = Request::new(nfnetlink::kind(nfnetlink::CONNTRACK, GET), 0, &header(family));
    if let Some(protocol) = protocol {
        let mut attributes = request.attributes();
        attributes.nest(TUPLE_ORIGINAL).nest(TUPLE_PROTOCOL).put_u8(PROTOCOL_NUMBER, protocol.number());
        attributes.nest(FILTER).put_u32_ne(FILTER_ORIGINAL, FILTER_BY_PROTOCOL);
    }
    request
}

fn header(family: IpFamily) -> [u8; nfnetlink::HEADER_LENGTH] {
    nfnetlink::header(family_number(family), 0, 0)
}

enum Failure {
    List(netlink::Error),
    Remove(netlink::Error),
}

impl From<netlink::Error> for Failure {
    fn from(error: netlink::Error) -> Self {
        Self::List(error)
    }
}

/// Deletes flows, many at a time.
struct Remover {
    socket: Socket,
    batch: Batch,
    family: IpFamily,
    removed: usize,
}

impl Remover {
    fn add(&mut self, entry: &FlowEntry<'_>) -> Result<(), netlink::Error> {
        let kind = nfnetlink::kind(nfnetlink::CONNTRACK, DELETE);
        entry.write_identity(&mut self.batch.message(kind, 0, &header(self.family)));
        if self.batch.len() == BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), netlink::Error> {
        let refusals = self.socket.send_batch(&mut self.batch)?;
        if refusals.is_overrun() {
            return Err(netlink::Error::Overrun);
        }
        // One that is not there any more has ended by itself.
        if let Some(refusal) = refusals.as_slice().iter().find(|refusal| !refusal.is_not_found()) {
            return Err(refusal.clone().into());
        }
        self.removed += self.batch.len() - refusals.as_slice().len();
        self.batch.clear();
        Ok(())
    }
}

/// Deletions that are sent at once: enough that the calls do not count, few enough that all can be refused and the
/// reports still fit into the receive buffer.
const BATCH: usize = 512;

// Commands and attributes of `include/uapi/linux/netfilter/nfnetlink_conntrack.h`; the filter's bits are in the kernel's
// `net/netfilter/nf_internals.h`.
const GET: u8 = 1;
const DELETE: u8 = 2;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_BY_PROTOCOL: u32 = 1 << 3;

#[cfg(test)]
mod tests;
