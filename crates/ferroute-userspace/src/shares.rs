//! Maximum number of connections of each client and each listener.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// Divides a number of connections among listeners and clients.
///
/// A listener gets at most half of all connections. A client gets at most as many as remain, both of all connections
/// and of those of the listener, so that a single client can have many. The last eighth is reserved for clients with
/// few connections.
#[derive(Debug)]
pub(crate) struct Shares {
    limit: usize,
    state: Mutex<InUse>,
    released: Notify,
}

#[derive(Debug, Default)]
struct InUse {
    used: Use,
    listeners: HashMap<ListenerId, Use>,
    /// The number of listeners so far.
    last: u64,
}

/// Connections of all listeners, or of one.
#[derive(Debug, Default)]
struct Use {
    total: usize,
    clients: HashMap<IpAddr, usize>,
}

/// Identifies a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListenerId(u64);

/// Permit for one connection or flow.
#[derive(Debug)]
pub(crate) struct Permit {
    shares: Arc<Shares>,
    listener: ListenerId,
    client: IpAddr,
}

/// Reason why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPermit {
    /// All connections, or all connections of the listener, are in use.
    Full,
    /// The client has reached its share.
    Client,
}

impl Use {
    /// Returns the reason why a client may not have another one of `limit` connections.
    fn check(&self, client: IpAddr, limit: usize) -> Result<(), NoPermit> {
        let left = limit.saturating_sub(self.total);
        let own = self.clients.get(&client).copied().unwrap_or_default();
        let is_reserved = left <= limit / 8 && own >= FEW;
        match () {
            () if left == 0 => Err(NoPermit::Full),
            () if own >= left || is_reserved => Err(NoPermit::Client),
            () => Ok(()),
        }
    }

    fn add(&mut self, client: IpAddr) {
        self.total += 1;
        *self.clients.entry(client).or_default() += 1;
    }

    fn remove(&mut self, client: IpAddr) {
        self.total = self.total.saturating_sub(1);
        if let Some(count) = self.clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

impl Shares {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default(), released: Notify::new() })
    }

    /// Returns the identity of a new listener.
    pub(crate) fn add_listener(&self) -> ListenerId {
        let mut state = self.lock();
        state.last += 1;
        ListenerId(state.last)
    }

    /// Returns a permit for a connection.
    ///
    /// # Errors
    /// If the client or the listener has reached its share, or if all connections are in use.
    pub(crate) fn try_acquire(self: &Arc<Self>, listener: ListenerId, client: IpAddr) -> Result<Permit, NoPermit> {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.used.check(client, self.limit)?;
        let of_listener = state.listeners.entry(listener).or_default();
        of_listener.check(client, self.limit.div_ceil(2))?;
        of_listener.add(client);
        state.used.add(client);
        drop(guard);
        Ok(Permit { shares: self.clone(), listener, client })
    }

    /// Like [`try_acquire`](Self::try_acquire), but waits while all connections are in use.
    ///
    /// # Errors
    /// If the client has reached its share.
    pub(crate) async fn acquire(self: &Arc<Self>, listener: ListenerId, client: IpAddr) -> Result<Permit, NoPermit> {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // A release between the attempt and the wait counts.
            released.as_mut().enable();
            match self.try_acquire(listener, client) {
                Err(NoPermit::Full) => released.await,
                result => return result,
            }
        }
    }

    /// Waits until no connection is left.
    pub(crate) async fn ended(&self) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if self.used() == 0 {
                return;
            }
            released.await;
        }
    }

    /// Returns the number of connections.
    pub(crate) fn used(&self) -> usize {
        self.lock().used.total
    }

    fn lock(&self) -> MutexGuard<'_, InUse> {
        // It is valid after each of its operations.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Self { shares, listener, client } = self;
        let mut state = shares.lock();
        state.used.remove(*client);
        if let Some(of_listener) = state.listeners.get_mut(listener) {
            of_listener.remove(*client);
            if of_listener.total == 0 {
                state.listeners.remove(listener);
            }
        }
        drop(state);
        shares.released.notify_waiters();
    }
}

/// Connections of a client to which the last eighth is open.
const FEW: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    /// Takes as many permits as a client gets.
    fn take_all(shares: &Arc<Shares>, listeners: &[ListenerId], client: IpAddr) -> Vec<Permit> {
        let mut permits = Vec::new();
        loop {
            let before = permits.len();
            permits.extend(listeners.iter().filter_map(|listener| shares.try_acquire(*listener, client).ok()));
            if permits.len() == before {
                return permits;
            }
        }
    }

    #[test]
    fn greedy_clients_leave_permits_for_others() {
        let shares = Shares::new(1000);
        let listeners = [shares.add_listener(), shares.add_listener(), shares.add_listener()];
        let alone = take_all(&shares, &listeners[..1], client(1));
        assert_eq!(alone.len(), 250, "half of the listener's half");
        drop(alone);
        assert_eq!(take_all(&shares, &listeners, client(1)).len(), 500);
        let greedy: Vec<Vec<Permit>> = (1..9).map(|number| take_all(&shares, &listeners, client(number))).collect();
        assert!(greedy.iter().all(|permits| !permits.is_empty()));
        for listener in listeners {
            assert!(shares.try_acquire(listener, client(100)).is_ok(), "a client that has none gets one");
        }
        drop(greedy);
        assert_eq!(shares.used(), 0);
        let state = shares.lock();
        assert!(state.listeners.is_empty() && state.used.clients.is_empty());
    }

    #[test]
    fn listener_has_at_most_half() {
        let shares = Shares::new(8);
        let listener = shares.add_listener();
        let permits: Vec<Permit> =
            (1..=4).map(|number| shares.try_acquire(listener, client(number)).unwrap()).collect();
        assert_eq!(shares.try_acquire(listener, client(5)).unwrap_err(), NoPermit::Full);
        assert!(shares.try_acquire(shares.add_listener(), client(5)).is_ok());
        drop(permits);
        assert!(shares.try_acquire(listener, client(5)).is_ok());
    }
}
