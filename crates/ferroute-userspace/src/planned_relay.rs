//! Listeners without sockets.

use std::collections::{BTreeMap, BTreeSet};

use ferroute_core::{IpFamily, Protocol};

use crate::{ListenerSpec, PortRange, Relay, plan::ListenerKey};

/// A relay without sockets, for plans and simulations: ports are numbered in the order in which listeners are opened.
#[derive(Debug)]
pub struct PlannedRelay {
    ports: PortRange,
    open: BTreeMap<ListenerKey, u16>,
    used: BTreeSet<(IpFamily, Protocol, u16)>,
    /// How many of the first ports are in use, so that thousands of searches do not start with them.
    full: BTreeMap<(IpFamily, Protocol), usize>,
    /// Requests since the last call of [`PlannedRelay::take_text`], as text.
    text: String,
}

impl PlannedRelay {
    /// Returns a relay without listeners. Without a range, ports start at [`PlannedRelay::FIRST_PORT`].
    pub fn new(ports: PortRange) -> Self {
        Self { ports, open: BTreeMap::new(), used: BTreeSet::new(), full: BTreeMap::new(), text: String::new() }
    }

    /// The first port without a range: above the kernel's default range of ports for outgoing connections.
    pub const FIRST_PORT: u16 = 61_000;

    /// Takes the description of the requests: a line for each listener.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn free_port(&mut self, family: IpFamily, protocol: Protocol) -> Result<u16, String> {
        let (first, last) = match &self.ports {
            PortRange::Within(range) => (*range.start(), *range.end()),
            // Wraps around, so that plans of any size have ports.
            PortRange::Any => (Self::FIRST_PORT, u16::MAX),
        };
        let is_free = |port: u16| port > 0 && !self.used.contains(&(family, protocol, port));
        let mut all: Box<dyn Iterator<Item = u16>> = Box::new(first..=last);
        if self.ports == PortRange::Any {
            all = Box::new(all.chain(1..first));
        }
        let full = self.full.entry((family, protocol)).or_default();
        let found = all.enumerate().skip(*full).find(|(_, port)| is_free(*port));
        let (at, port) = found.ok_or_else(|| format!("no free port from {first} to {last}"))?;
        *full = at;
        Ok(port)
    }

    fn remove(&mut self, key: &ListenerKey) {
        if let Some(port) = self.open.remove(key) {
            self.used.remove(&(key.family, key.service_port.protocol, port));
            self.full.remove(&(key.family, key.service_port.protocol));
            self.text.push_str(&format!("close {key}\n"));
        }
    }
}

impl Relay for PlannedRelay {
    type Error = std::convert::Infallible;

    fn generation(&mut self) -> Result<u64, Self::Error> {
        Ok(0)
    }

    fn set(&mut self, listeners: &[(ListenerKey, ListenerSpec)]) -> Result<Vec<Result<u16, String>>, Self::Error> {
        let mut ports = Vec::new();
        for (key, spec) in listeners {
            let port = match self.open.get(key) {
                Some(port) => Ok(*port),
                None => self.free_port(key.family, spec.protocol),
            };
            if let Ok(port) = port {
                self.open.insert(key.clone(), port);
                self.used.insert((key.family, spec.protocol, port));
                self.text.push_str(&listener_line(key, spec, port));
            }
            ports.push(port);
        }
        Ok(ports)
    }

    fn close(&mut self, listeners: &[ListenerKey]) -> Result<(), Self::Error> {
        listeners.iter().for_each(|key| self.remove(key));
        Ok(())
    }

    fn retain(&mut self, family: IpFamily, listeners: &[ListenerKey]) -> Result<(), Self::Error> {
        let gone: Vec<ListenerKey> =
            self.open.keys().filter(|key| key.family == family && !listeners.contains(key)).cloned().collect();
        self.close(&gone)
    }

    fn is_running(&mut self, _: u64) -> bool {
        true
    }
}

/// Describes a listener: `listen 61000/tcp for IPv4 shop/web:http/tcp: 10.0.0.1:80 10.0.0.2:80`.
pub fn listener_line(key: &ListenerKey, spec: &ListenerSpec, port: u16) -> String {
    let mut line = format!("listen {port}/{} for {key}:", spec.protocol.as_str());
    for endpoint in &spec.endpoints {
        line.push_str(&format!(" {endpoint}"));
    }
    if let Some(affinity) = spec.affinity {
        line.push_str(&format!(" affinity {}s", affinity.as_secs()));
    }
    line.push('\n');
    line
}
