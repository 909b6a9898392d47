use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::{
    Error, Message, Messages, Protocol,
    socket::{DATAGRAM_ROOM, receive},
    sys,
};

/// A socket that hears what others change.
///
/// It never blocks: its file descriptor becomes readable when there is news, so it can be given to an event loop.
#[derive(Debug)]
pub struct Subscription {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// What has woken the reader of a [`Subscription`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Nothing is there, or no longer.
    Nothing,
    /// All news since the last time was handed over.
    News,
    /// There was so much news that some is lost: look at everything anew.
    Lost,
}

impl Subscription {
    /// Listens to these groups (`RTNLGRP_*`, `NFNLGRP_*`) in the network namespace of the calling thread. What happens
    /// after this call is heard: so first subscribe, then look.
    pub fn open(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let failed = |source| Error::Open { protocol, source };
        let fd = sys::open(protocol.number()).map_err(failed)?;
        for &group in groups {
            let group = libc::c_int::try_from(group).unwrap_or(libc::c_int::MAX);
            sys::set_option(&fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group).map_err(failed)?;
        }
        Ok(Self { fd, buffer: vec![0; DATAGRAM_ROOM] })
    }

    /// Hands over all news that has come until now.
    pub fn drain(&mut self, mut on_message: impl FnMut(Message<'_>)) -> Result<Wake, Error> {
        let mut wake = Wake::Nothing;
        loop {
            match receive(&self.fd, &mut self.buffer) {
                Ok(None) => return Ok(wake),
                Ok(Some(datagram)) => {
                    for message in Messages::new(datagram) {
                        on_message(message?);
                    }
                    if wake == Wake::Nothing {
                        wake = Wake::News;
                    }
                }
                Err(Error::Overrun) => wake = Wake::Lost,
                Err(error) => return Err(error),
            }
        }
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
