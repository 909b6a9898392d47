//! Lists, deletes and follows entries of the kernel's connection tracking table (conntrack).
//!
//! ```text
//!   list (one family, one protocol) ──► Entry ──► predicate ──► delete by tuple and id, in batches
//!   list (one family), events ──► Connection: an entry with its state
//! ```
//!
//! The caller decides which entries are stale. The table is read as a stream, so memory use does not grow with it, and
//! entries are deleted while the dump is still running. The kernel's own "delete by filter" is not used: kernels without
//! filter support ignore the filter and flush the whole table.

pub(crate) mod entry;
mod events;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{self as netlink, Batch, Consistency, Request, Socket, nfnetlink};

use self::entry::{
    CTA_IP_V4_SRC, CTA_PROTO_NUM, CTA_STATUS, CTA_TUPLE_IP, CTA_TUPLE_ORIG, CTA_TUPLE_PROTO, CTA_TUPLE_REPLY,
    IPS_SEEN_REPLY, ListedEntry, address_family,
};
pub use self::{
    entry::{Connection, Entry, TcpState, Traffic},
    events::{ConnectionEvents, ConnectionReader, EventKind, Received},
};

/// The result of [`delete_if`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Entries of the family and protocol that were checked. An entry that the kernel moves during the dump may count
    /// twice.
    pub seen: usize,
    /// Entries that were deleted, except for those that expired before the kernel received the request.
    pub deleted: usize,
}

/// An error of the connection tracking table. Entries may have been deleted before it occurred; the operation can be
/// retried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No netlink socket could be opened.
    #[error("cannot open a netlink socket for conntrack")]
    Open(#[source] netlink::Error),
    /// The dump of the table failed.
    #[error("cannot list {family} {protocol} conntrack entries")]
    List {
        /// The IP family of the entries.
        family: IpFamily,
        /// The protocol of the entries.
        protocol: Protocol,
        /// The kernel's error.
        #[source]
        source: netlink::Error,
    },
    /// The events of connections cannot be received.
    #[error("cannot receive events of connection tracking")]
    Events(#[source] netlink::Error),
    /// The dump of all entries of a family failed.
    #[error("cannot list {family} conntrack entries")]
    ListAll {
        /// The IP family of the entries.
        family: IpFamily,
        /// The kernel's error.
        #[source]
        source: netlink::Error,
    },
    /// A selected entry could not be deleted.
    #[error("cannot delete {family} conntrack entries")]
    Delete {
        /// The IP family of the entries.
        family: IpFamily,
        /// The kernel's error.
        #[source]
        source: netlink::Error,
    },
}

/// Deletes the entries of one family and protocol for which `is_stale` returns `true`, in the network namespace of the
/// calling thread.
///
/// An entry that is created during the dump may be missed, so rules that do not create further stale entries must be
/// applied first. Requires `CAP_NET_ADMIN`.
///
/// # Errors
/// See [`Error`].
pub fn delete_if(family: IpFamily, protocol: Protocol, is_stale: impl FnMut(&Entry) -> bool) -> Result<Deleted, Error> {
    delete_listed(&mut list_request(family, Some(protocol)), family, Some(protocol), is_stale)
}

/// Calls `each` with every entry of one family and protocol in the network namespace of the calling thread. An entry that
/// is created, deleted or moved during the dump may be listed once, twice or not at all. Requires `CAP_NET_ADMIN`.
///
/// # Errors
/// The table cannot be read; `each` may have been called for some entries.
pub fn list(family: IpFamily, protocol: Protocol, each: impl FnMut(&Entry)) -> Result<(), Error> {
    list_by(&mut list_request(family, Some(protocol)), family, protocol, each)
}

/// Like [`list`], for at least the entries whose replies come from one of these addresses.
///
/// # Errors
/// The table cannot be read; `each` may have been called for some entries.
pub fn list_from(
    addresses: &BTreeSet<IpAddr>,
    family: IpFamily,
    protocol: Protocol,
    mut each: impl FnMut(&Entry),
) -> Result<(), Error> {
    // The kernel selects by an address (5.8 and later), but for IPv6 it compares the wrong way around.
    let v4 = |address: &IpAddr| if let IpAddr::V4(address) = address { Some(*address) } else { None };
    match addresses.iter().map(v4).collect::<Option<Vec<Ipv4Addr>>>() {
        Some(addresses) if addresses.len() <= MAX_SELECTED => addresses.into_iter().try_for_each(|address| {
            list_by(&mut reply_source_request(address, protocol), IpFamily::V4, protocol, |entry| {
                // Older kernels ignore the filter.
                if entry.reply_source.ip() == address {
                    each(entry);
                }
            })
        }),
        _ => list(family, protocol, each),
    }
}

/// Calls `each` with every connection of one family whose protocol Services can have, with its state, in the network namespace
/// of the calling thread. A connection that is created, deleted or moved during the dump may be listed once, twice or not at
/// all. Requires `CAP_NET_ADMIN`.
///
/// # Errors
/// The table cannot be read; `each` may have been called for some connections.
pub fn list_connections(family: IpFamily, mut each: impl FnMut(&Connection)) -> Result<(), Error> {
    let mut socket = Socket::open(netlink::Protocol::Netfilter).map_err(Error::Open)?;
    let listed = socket.dump(&mut list_request(family, None), |message| {
        if let Some(listed) = ListedEntry::parse_any(message)? {
            each(&listed.connection);
        }
        Ok::<(), netlink::Error>(())
    });
    listed.map(|_: Consistency| ()).map_err(|source| Error::ListAll { family, source })
}

/// Like [`list`], for the entries without a reply. The kernel selects them (5.15 and later), which costs a fraction of
/// a complete dump.
///
/// # Errors
/// The table cannot be read; `each` may have been called for some entries.
pub fn list_unanswered(family: IpFamily, protocol: Protocol, mut each: impl FnMut(&Entry)) -> Result<(), Error> {
    list_by(&mut unanswered_request(family, Some(protocol)), family, protocol, |entry| {
        // Older kernels ignore the filter.
        if !entry.is_answered {
            each(entry);
        }
    })
}

/// Like [`delete_if`], for the entries without a reply of all protocols that Services can have. For each dump the kernel
/// walks its whole table, whose size depends on the machine's memory and not on the number of entries, so one is made for all
/// protocols.
///
/// # Errors
/// See [`Error`].
pub fn delete_unanswered_if(family: IpFamily, mut is_stale: impl FnMut(&Entry) -> bool) -> Result<Deleted, Error> {
    let mut request = unanswered_request(family, None);
    delete_listed(&mut request, family, None, |entry| !entry.is_answered && is_stale(entry))
}

fn list_by(
    request: &mut Request,
    family: IpFamily,
    protocol: Protocol,
    mut each: impl FnMut(&Entry),
) -> Result<(), Error> {
    let mut socket = Socket::open(netlink::Protocol::Netfilter).map_err(Error::Open)?;
    let listed = socket.dump(request, |message| {
        // Kernels before 5.8 ignore the filter of the request, so filter again.
        if let Some(listed) = ListedEntry::parse(message, family, Some(protocol))? {
            each(&listed.connection.entry);
        }
        Ok::<(), netlink::Error>(())
    });
    listed.map(|_: Consistency| ()).map_err(|source| Error::List { family, protocol, source })
}

fn delete_listed(
    request: &mut Request,
    family: IpFamily,
    protocol: Option<Protocol>,
    mut is_stale: impl FnMut(&Entry) -> bool,
) -> Result<Deleted, Error> {
    let mut socket = Socket::open(netlink::Protocol::Netfilter).map_err(Error::Open)?;
    let mut deleter = Deleter {
        // The dump occupies the first socket.
        socket: Socket::open(netlink::Protocol::Netfilter).map_err(Error::Open)?,
        batch: Batch::new(),
        family,
        deleted: 0,
    };
    let mut seen = 0;
    let listed = socket.dump(request, |message| {
        // Kernels before 5.8 ignore the filter of the request, so filter again.
        if let Some(listed) = ListedEntry::parse(message, family, protocol).map_err(netlink::Error::from)? {
            seen += 1;
            if is_stale(&listed.connection.entry) {
                deleter.push(&listed).map_err(Failure::Delete)?;
            }
        }
        Ok::<(), Failure>(())
    });
    // The table changes all the time; conntrack dumps do not report it, and it would not matter here.
    match listed.and_then(|_: Consistency| deleter.flush().map_err(Failure::Delete)) {
        Ok(()) => Ok(Deleted { seen, deleted: deleter.deleted }),
        Err(Failure::List(source)) => Err(match protocol {
            Some(protocol) => Error::List { family, protocol, source },
            None => Error::ListAll { family, source },
        }),
        Err(Failure::Delete(source)) => Err(Error::Delete { family, source }),
    }
}

/// Builds a dump request for a family, with a filter for one protocol (kernel 5.8 and later).
fn list_request(family: IpFamily, protocol: Option<Protocol>) -> Request {
    let mut request =
        Request::new(nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET), 0, &header(family));
    if let Some(protocol) = protocol {
        let mut attributes = request.attributes();
        attributes.nest(CTA_TUPLE_ORIG).nest(CTA_TUPLE_PROTO).put_u8(CTA_PROTO_NUM, protocol.number());
        attributes.nest(CTA_FILTER).put_u32_ne(CTA_FILTER_ORIG_FLAGS, CTA_FILTER_F_CTA_PROTO_NUM);
    }
    request
}

/// Builds a dump request with a filter for one protocol and the source of replies (kernel 5.8 and later).
fn reply_source_request(address: Ipv4Addr, protocol: Protocol) -> Request {
    let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET);
    let mut request = Request::new(kind, 0, &header(IpFamily::V4));
    let mut attributes = request.attributes();
    let mut tuple = attributes.nest(CTA_TUPLE_REPLY);
    tuple.nest(CTA_TUPLE_IP).put_ip(CTA_IP_V4_SRC, address.into());
    tuple.nest(CTA_TUPLE_PROTO).put_u8(CTA_PROTO_NUM, protocol.number());
    drop(tuple);
    let flags = CTA_FILTER_F_CTA_IP_SRC | CTA_FILTER_F_CTA_PROTO_NUM;
    attributes.nest(CTA_FILTER).put_u32_ne(CTA_FILTER_REPLY_FLAGS, flags);
    drop(attributes);
    request
}

/// Like [`list_request`], with a filter for entries without a reply (kernel 5.15 and later).
fn unanswered_request(family: IpFamily, protocol: Option<Protocol>) -> Request {
    let mut request = list_request(family, protocol);
    let mut attributes = request.attributes();
    attributes.put_u32_be(CTA_STATUS, 0);
    attributes.put_u32_be(CTA_STATUS_MASK, IPS_SEEN_REPLY);
    drop(attributes);
    request
}

fn header(family: IpFamily) -> [u8; nfnetlink::HEADER_LENGTH] {
    nfnetlink::header(address_family(family), 0, 0)
}

/// Parses a message as an entry, and checks the request that would delete it.
#[cfg(feature = "testing")]
pub(crate) fn check_deletion(message: netlink::Message<'_>, family: IpFamily, protocol: Protocol) {
    let Ok(Some(listed)) = ListedEntry::parse(message, family, Some(protocol)) else { return };
    assert_eq!(listed.connection.entry.protocol, protocol);
    let mut batch = Batch::new();
    listed.write_key(&mut batch.message(0, 0, &header(family)));
    let Ok(bytes) = batch.as_bytes() else { return };
    let request = netlink::Messages::new(bytes).next().and_then(Result::ok).expect("a request that was just written");
    let (_, mut attributes) = request.split_header::<{ nfnetlink::HEADER_LENGTH }>().expect("it has this header");
    let tuple = attributes.next().and_then(Result::ok).expect("attributes that were just written");
    assert_eq!(tuple.kind, CTA_TUPLE_ORIG);
    assert!(!tuple.payload.is_empty(), "a request without a tuple flushes the table");
}

enum Failure {
    List(netlink::Error),
    Delete(netlink::Error),
}

impl From<netlink::Error> for Failure {
    fn from(error: netlink::Error) -> Self {
        Self::List(error)
    }
}

/// Deletes entries in batches.
struct Deleter {
    socket: Socket,
    batch: Batch,
    family: IpFamily,
    deleted: usize,
}

impl Deleter {
    fn push(&mut self, listed: &ListedEntry<'_>) -> Result<(), netlink::Error> {
        let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE);
        listed.write_key(&mut self.batch.message(kind, 0, &header(self.family)));
        if self.batch.len() == BATCH_SIZE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), netlink::Error> {
        let refusals = self.socket.send_batch(&mut self.batch)?;
        if refusals.is_overrun() {
            return Err(netlink::Error::Overrun);
        }
        // ENOENT: the entry has expired in the meantime.
        if let Some(refusal) = refusals.as_slice().iter().find(|refusal| !refusal.is_not_found()) {
            return Err(refusal.clone().into());
        }
        self.deleted += self.batch.len() - refusals.as_slice().len();
        self.batch.clear();
        Ok(())
    }
}

/// Maximum number of addresses for which separate dumps are made. For each, the kernel walks its whole table but
/// returns only the entries of the address. A dump of all entries takes about eight times as long: 1.4 µs of CPU for
/// each entry.
const MAX_SELECTED: usize = 8;

/// Deletions per batch: enough to make the system calls negligible, few enough that the error replies to all of them fit
/// into the receive buffer.
const BATCH_SIZE: usize = 512;

// include/uapi/linux/netfilter/nfnetlink_conntrack.h; the filter's flag is from net/netfilter/nf_internals.h.
const IPCTNL_MSG_CT_GET: u8 = 1;
const IPCTNL_MSG_CT_DELETE: u8 = 2;
const CTA_FILTER: u16 = 25;
const CTA_STATUS_MASK: u16 = 26;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
const CTA_FILTER_F_CTA_IP_SRC: u32 = 1 << 0;
const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;

#[cfg(test)]
mod tests;
