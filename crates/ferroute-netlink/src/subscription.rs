use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use crate::{
    Error, Message, Messages, Protocol,
    socket::{MAX_DATAGRAM, receive, set_receive_buffer},
    sys,
};

/// A socket for notifications of changes.
///
/// It never blocks: its file descriptor becomes readable when a notification arrives, so it can be registered with an
/// event loop.
#[derive(Debug)]
pub struct Subscription {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// The result of [`Subscription::drain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// There were no notifications.
    Nothing,
    /// All notifications since the last call were read.
    Messages,
    /// `ENOBUFS`: the receive buffer overran and notifications were lost, so the state has to be read again.
    Overrun,
}

impl Subscription {
    /// Subscribes to multicast groups (`RTNLGRP_*`, `NFNLGRP_*`) in the network namespace of the calling thread. The
    /// initial state must be read after this call, so that no change is missed.
    pub fn open(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let failed = |source| Error::Open { protocol, source };
        let subscription = Self::from_socket(sys::open(protocol.number()).map_err(failed)?);
        groups.iter().try_for_each(|group| subscription.join(*group)).map_err(failed)?;
        Ok(subscription)
    }

    /// Subscribes to a multicast group.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.set_membership(libc::NETLINK_ADD_MEMBERSHIP, group)
    }

    /// Ends the subscription to a multicast group. The kernel creates no notifications for a group without members.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn leave(&self, group: u32) -> io::Result<()> {
        self.set_membership(libc::NETLINK_DROP_MEMBERSHIP, group)
    }

    fn set_membership(&self, option: libc::c_int, group: u32) -> io::Result<()> {
        let group = libc::c_int::try_from(group).unwrap_or(libc::c_int::MAX);
        sys::set_option(&self.fd, libc::SOL_NETLINK, option, group)
    }

    /// Receives from an open socket.
    pub(crate) fn from_socket(fd: OwnedFd) -> Self {
        Self { fd, buffer: vec![0; MAX_DATAGRAM] }
    }

    /// Sets the size of the receive buffer, beyond which notifications are lost. It is a limit and does not allocate
    /// memory.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        set_receive_buffer(&self.fd, bytes).map_err(|source| Error::Receive { source })
    }

    /// Calls `on_message` with each notification received so far.
    pub fn drain(&mut self, on_message: impl FnMut(Message<'_>)) -> Result<Drained, Error> {
        self.receive(usize::MAX, on_message)
    }

    /// Like [`drain`](Self::drain), for at most this many datagrams, so that a continuous stream of notifications
    /// cannot occupy the caller.
    pub fn receive(&mut self, limit: usize, mut on_message: impl FnMut(Message<'_>)) -> Result<Drained, Error> {
        let mut drained = Drained::Nothing;
        for _ in 0..limit {
            match receive(&self.fd, &mut self.buffer) {
                Ok(None) => break,
                Ok(Some(datagram)) => {
                    for message in Messages::new(datagram) {
                        on_message(message?);
                    }
                    if drained == Drained::Nothing {
                        drained = Drained::Messages;
                    }
                }
                Err(Error::Overrun) => drained = Drained::Overrun,
                Err(error) => return Err(error),
            }
        }
        Ok(drained)
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Subscription {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
