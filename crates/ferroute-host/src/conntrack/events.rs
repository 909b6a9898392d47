use std::os::fd::{AsFd, BorrowedFd};

use ferroute_core::IpFamily;
use ferroute_netlink::{self as netlink, Drained, Message, Request, Socket, Subscription, flags, nfnetlink};

use super::{
    Connection, Error, IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_GET, Traffic,
    entry::{IPCTNL_MSG_CT_NEW, ListedEntry},
    header,
};

/// The events of all connections in one network namespace.
///
/// While a subscription exists, and only then, the kernel creates events: one for each new, answered, established, closed and
/// deleted connection. It never blocks: the file descriptor becomes readable when an event arrives.
#[derive(Debug)]
pub struct ConnectionEvents {
    subscription: Subscription,
}

/// Kind of an event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The first packet has passed all rules.
    New,
    /// The state has changed.
    Update,
    /// The entry was deleted: the connection ended some time ago, the entry has expired, or a program deleted it.
    Destroy,
}

/// The result of [`ConnectionEvents::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// There were no events.
    Nothing,
    /// There were events.
    Events,
    /// Some events were lost, because they arrived faster than they were received, so the state must be listed again.
    Lost,
}

impl ConnectionEvents {
    /// Subscribes to the events in the network namespace of the calling thread. Events beyond `buffer` bytes that are not
    /// received in time are lost. Requires `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub fn open(buffer: usize) -> Result<Self, Error> {
        let groups = [libc::NFNLGRP_CONNTRACK_NEW, libc::NFNLGRP_CONNTRACK_UPDATE, libc::NFNLGRP_CONNTRACK_DESTROY];
        Self::subscribe(&groups, buffer)
    }

    /// Like [`open`](Self::open), for events of the kind [`EventKind::Destroy`] alone.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub fn open_ends(buffer: usize) -> Result<Self, Error> {
        Self::subscribe(&[libc::NFNLGRP_CONNTRACK_DESTROY], buffer)
    }

    fn subscribe(groups: &[i32], buffer: usize) -> Result<Self, Error> {
        let groups: Vec<u32> = groups.iter().map(|group| *group as u32).collect();
        let mut subscription = Subscription::open(netlink::Protocol::Netfilter, &groups).map_err(Error::Events)?;
        subscription.set_receive_buffer(buffer).map_err(Error::Events)?;
        Ok(Self { subscription })
    }

    /// Calls `each` with the events received so far, at most those of `limit` messages. Events of protocols that Services do
    /// not have are skipped.
    ///
    /// # Errors
    /// If the socket cannot be read.
    pub fn receive(&mut self, limit: usize, mut each: impl FnMut(EventKind, &Connection)) -> Result<Received, Error> {
        let drained = self.subscription.receive(limit, |message| {
            // An event that this version cannot read is like that of another protocol.
            if let (Some(kind), Ok(Some(listed))) = (event_kind(message), ListedEntry::parse_any(message)) {
                each(kind, &listed.connection);
            }
        });
        match drained.map_err(Error::Events)? {
            Drained::Nothing => Ok(Received::Nothing),
            Drained::Messages => Ok(Received::Events),
            Drained::Overrun => Ok(Received::Lost),
        }
    }
}

impl AsFd for ConnectionEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

/// Reads single connections.
#[derive(Debug)]
pub struct ConnectionReader {
    socket: Socket,
}

impl ConnectionReader {
    /// Opens a reader in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(netlink::Protocol::Netfilter).map_err(Error::Open)? })
    }

    /// Returns the packets and bytes of a connection so far; `None` if its entry no longer exists, or if the kernel
    /// does not count.
    pub fn traffic(&mut self, connection: &Connection) -> Option<Traffic> {
        let family = IpFamily::of(connection.entry.original_source.ip());
        let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET);
        let mut request = Request::new(kind, 0, &header(family));
        connection.entry.write_tuple(&mut request.attributes());
        let listed = self.socket.get::<_, netlink::Error>(&mut request, |message| {
            let listed = ListedEntry::parse_any(message)?;
            Ok(listed
                .filter(|listed| listed.connection.id == connection.id)
                .and_then(|listed| listed.connection.traffic))
        });
        listed.ok().flatten().flatten()
    }
}

/// Returns `None` for other messages.
fn event_kind(message: Message<'_>) -> Option<EventKind> {
    const NEW: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW);
    const DELETE: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE);
    match message.kind {
        NEW if message.flags & flags::NLM_F_CREATE != 0 => Some(EventKind::New),
        NEW => Some(EventKind::Update),
        DELETE => Some(EventKind::Destroy),
        _ => None,
    }
}
