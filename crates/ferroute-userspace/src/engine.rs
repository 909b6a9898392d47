//! The set of open listeners.

use std::{collections::HashMap, hash::Hash, io, sync::Arc, time::Duration};

use ferroute_core::{IpFamily, Protocol};
use tokio::task::AbortHandle;

use crate::{
    datagram,
    listener::{Limits, Listener, ListenerResources, ListenerSpec, ListenerStats},
    ports::PortRange,
    retired::RetiredListener,
    tcp,
    udp::Flows,
};

/// Listeners by a key that the caller chooses. All methods must be called within a tokio runtime.
#[derive(Debug)]
pub struct Engine<K> {
    shared: Arc<ListenerResources>,
    ports: PortRange,
    listeners: HashMap<K, Open>,
    /// Number of listeners that were opened, to spread them over the range of ports.
    opened: usize,
}

/// An open listener.
#[derive(Clone, Debug)]
pub struct EngineListener<'a, K> {
    /// Key.
    pub key: &'a K,
    /// Port.
    pub port: u16,
    /// Specification.
    pub spec: &'a ListenerSpec,
    /// Statistics since it was opened.
    pub stats: ListenerStats,
    /// The number of connections or flows that each of its endpoints got, or was the last to refuse.
    pub connections: Vec<u64>,
}

#[derive(Debug)]
struct Open {
    port: u16,
    spec: ListenerSpec,
    listener: Arc<Listener>,
    task: AbortHandle,
    /// The flows of a UDP listener.
    flows: Option<Arc<Flows>>,
}

/// A listener could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The protocol cannot be relayed.
    #[error("protocol {0} is not supported in userspace mode")]
    UnsupportedProtocol(Protocol),
    /// No socket could be opened.
    #[error("cannot listen")]
    Listen(#[from] io::Error),
}

impl<K: Clone + Eq + Hash> Engine<K> {
    /// Returns an engine without listeners.
    pub fn new(limits: Limits, ports: PortRange) -> Self {
        Self { shared: ListenerResources::new(limits), ports, listeners: HashMap::new(), opened: 0 }
    }

    /// Opens a listener or changes the specification of an open one, and returns its port. The port of a listener
    /// changes only with its family or protocol.
    ///
    /// # Errors
    /// If the listener cannot be opened. An open listener with this key is kept.
    pub fn set(&mut self, key: K, spec: ListenerSpec) -> Result<u16, OpenError> {
        if let Some(open) = self.listeners.get_mut(&key)
            && (open.spec.family, open.spec.protocol) == (spec.family, spec.protocol)
        {
            if open.spec != spec {
                open.listener.balancer().update(&spec.endpoints, spec.affinity);
                open.spec = spec;
            }
            return Ok(open.port);
        }
        let listener = Listener::new(self.shared.clone(), &spec);
        let start = self.opened;
        let (port, task, flows) = match spec.protocol {
            Protocol::Tcp => {
                let socket = self.ports.bind(start, |port| tcp::listen(spec.family, port))?;
                (socket.local_addr()?.port(), tokio::spawn(tcp::serve(listener.clone(), socket)), None)
            }
            Protocol::Udp => {
                let socket = self.ports.bind(start, |port| datagram::listen(spec.family, port))?;
                let port = socket.local_addr()?.port();
                let flows = Flows::new(listener.clone(), socket, self.shared.relay_ports.add(spec.family, port));
                (port, tokio::spawn(flows.clone().serve()), Some(flows))
            }
            Protocol::Sctp => return Err(OpenError::UnsupportedProtocol(spec.protocol)),
        };
        self.opened = self.opened.wrapping_add(1);
        let open = Open { port, spec, listener, task: task.abort_handle(), flows };
        if let Some(old) = self.listeners.insert(key, open) {
            self.end(old, false);
        }
        Ok(port)
    }

    /// Closes a listener. Its established connections continue, and UDP clients receive outstanding responses.
    pub fn close(&mut self, key: &K) {
        if let Some(open) = self.listeners.remove(key) {
            self.end(open, false);
        }
    }

    /// Takes all listeners. The ports of UDP listeners stay in [`Engine::relay_ports`] while they are open.
    pub fn take(&mut self) -> Self {
        let listeners = std::mem::take(&mut self.listeners);
        Self { shared: self.shared.clone(), ports: self.ports.clone(), listeners, opened: self.opened }
    }

    /// Returns the ports on which UDP flows are relayed, including those of closed listeners whose clients still use
    /// them.
    pub fn relay_ports(&self) -> Vec<(IpFamily, u16)> {
        self.shared.relay_ports.list()
    }

    /// Returns the keys of all open listeners.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.listeners.keys()
    }

    /// Returns all open listeners.
    pub fn open(&self) -> impl Iterator<Item = EngineListener<'_, K>> {
        self.listeners.iter().map(|(key, open)| EngineListener {
            key,
            port: open.port,
            spec: &open.spec,
            stats: open.listener.stats(),
            connections: open.listener.balancer().connections(),
        })
    }

    /// Returns the port of an open listener.
    pub fn port(&self, key: &K) -> Option<u16> {
        self.listeners.get(key).map(|open| open.port)
    }

    /// Returns the statistics of all open listeners.
    pub fn all_stats(&self) -> impl Iterator<Item = (&K, ListenerStats)> {
        self.listeners.iter().map(|(key, open)| (key, open.listener.stats()))
    }

    /// Returns the statistics of an open listener.
    pub fn stats(&self, key: &K) -> Option<ListenerStats> {
        self.listeners.get(key).map(|open| open.listener.stats())
    }

    /// Closes all listeners and waits until the last TCP connection has ended and the clients of all UDP flows use other
    /// rules, or until `deadline` has passed. Returns the number of connections that remain; they end with the runtime.
    pub async fn drain(mut self, deadline: Duration) -> usize {
        for (_, open) in std::mem::take(&mut self.listeners) {
            self.end(open, true);
        }
        let ended = async {
            self.shared.retired.ended().await;
            self.shared.connections.ended().await;
        };
        let ended = tokio::time::timeout(deadline, ended).await.is_ok();
        if ended { 0 } else { self.shared.connections.used() }
    }

    /// Ends a listener that no rule leads to. If `serves` is true, because its endpoints are those of the new rules, it
    /// serves UDP clients that still use it until then.
    fn end(&self, open: Open, serves: bool) {
        let Open { port, spec, listener, task, flows } = open;
        let Some(flows) = flows else { return task.abort() };
        if !serves {
            listener.balancer().update(&[], None);
        }
        self.shared.retired.add(RetiredListener::new(spec.family, port, flows, task));
    }
}

#[cfg(test)]
mod tests;
