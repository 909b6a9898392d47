//! Notifications of the kernel about rules, chains, sets and elements of nf_tables that were changed.

use std::io;

use ferroute_netlink::{Drained, Error, Message, Protocol, Subscription};

/// Changes of nf_tables by other programs.
///
/// The kernel shows a change only to who listens at that moment, and drops notifications beyond a buffer. They therefore say
/// what to compare first, and never that the rest is unchanged.
#[derive(Debug)]
pub struct RuleNotifications {
    subscription: Subscription,
}

impl RuleNotifications {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub fn open() -> Result<Self, Error> {
        let mut subscription = Subscription::open(Protocol::Netfilter, &[GROUP])?;
        subscription.set_receive_buffer(BUFFER)?;
        Ok(Self { subscription })
    }

    /// Runs `write` without notifications of what it changes: there may be millions, which cost time and memory.
    pub fn without<T>(&self, write: impl FnOnce() -> T) -> T {
        let log = |result: io::Result<()>| {
            if let Err(error) = result {
                tracing::debug!(%error, "cannot change the subscription to changes of rules");
            }
        };
        log(self.subscription.leave(GROUP));
        let written = write();
        log(self.subscription.join(GROUP));
        written
    }

    /// Calls `on_message` with each notification since the last call. Returns false if there were too many, so that some
    /// are missing.
    pub fn receive(&mut self, on_message: impl FnMut(Message<'_>)) -> bool {
        let drained = self.subscription.receive(MAX_DATAGRAMS, on_message);
        let is_complete = matches!(drained, Ok(Drained::Nothing | Drained::Messages));
        if !is_complete {
            tracing::debug!(?drained, "too many changes of rules by other programs");
        }
        is_complete
    }
}

// include/uapi/linux/netfilter/nfnetlink.h
const GROUP: u32 = libc::NFNLGRP_NFTABLES as u32;
/// Bytes of notifications beyond which they are lost.
const BUFFER: usize = 1 << 20;
/// Number of datagrams that one call reads: a program that changes rules all the time must not occupy it.
const MAX_DATAGRAMS: usize = 1000;
