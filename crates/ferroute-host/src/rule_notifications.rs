//! Notifications of the kernel about rules, chains, sets and elements of nf_tables that were changed.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use ferroute_netlink::{Drained, Error, Message, Protocol, Subscription};

/// Changes of nf_tables by other programs.
///
/// The kernel shows a change only to who listens at that moment, and drops notifications beyond a buffer. They therefore say
/// what to compare first, and never that the rest is unchanged.
#[derive(Debug)]
pub struct RuleNotifications {
    subscription: SharedSubscription,
    namespace: Namespace,
}

type SharedSubscription = Arc<Mutex<Subscription>>;

/// The inode of a network namespace.
type Namespace = u64;

/// All subscriptions of this process: what is written for one IP family would otherwise cost time and memory by those of the
/// other.
static ALL: Mutex<Vec<(Namespace, Weak<Mutex<Subscription>>)>> = Mutex::new(Vec::new());

impl RuleNotifications {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub fn open() -> Result<Self, Error> {
        let mut subscription = Subscription::open(Protocol::Netfilter, &[GROUP])?;
        subscription.set_receive_buffer(BUFFER)?;
        let subscription = Arc::new(Mutex::new(subscription));
        // Without procfs, one namespace is assumed: a subscription that is off for a moment misses hints only.
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_or(0, |metadata| metadata.ino());
        let mut all = lock(&ALL);
        all.retain(|(_, subscription)| subscription.strong_count() > 0);
        all.push((namespace, Arc::downgrade(&subscription)));
        Ok(Self { subscription, namespace })
    }

    /// Runs `write` without notifications of what it changes, to any subscription of this process: there may be millions, which cost
    /// time and memory.
    pub fn without<T>(&self, write: impl FnOnce() -> T) -> T {
        let log = |result: io::Result<()>| {
            if let Err(error) = result {
                tracing::debug!(%error, "cannot change the subscription to changes of rules");
            }
        };
        let is_here = |(namespace, _): &&(Namespace, _)| *namespace == self.namespace;
        let all: Vec<SharedSubscription> =
            lock(&ALL).iter().filter(is_here).filter_map(|(_, subscription)| subscription.upgrade()).collect();
        all.iter().for_each(|subscription| log(lock(subscription).leave(GROUP)));
        let written = write();
        all.iter().for_each(|subscription| log(lock(subscription).join(GROUP)));
        written
    }

    /// Calls `on_message` with each notification since the last call. Returns false if there were too many, so that some
    /// are missing.
    pub fn receive(&mut self, on_message: impl FnMut(Message<'_>)) -> bool {
        let drained = lock(&self.subscription).receive(MAX_DATAGRAMS, on_message);
        let is_complete = matches!(drained, Ok(Drained::Nothing | Drained::Messages));
        if !is_complete {
            tracing::debug!(?drained, "too many changes of rules by other programs");
        }
        is_complete
    }
}

/// A panic cannot leave a subscription in a wrong state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// include/uapi/linux/netfilter/nfnetlink.h
const GROUP: u32 = libc::NFNLGRP_NFTABLES as u32;
/// Bytes of notifications beyond which they are lost.
const BUFFER: usize = 1 << 20;
/// Number of datagrams that one call reads: a program that changes rules all the time must not occupy it.
const MAX_DATAGRAMS: usize = 1000;
