use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_core::{
    Changes, Frontend, FrontendKind, IpFamily, Protocol, ServicePortEntry, ServicePortName, ServiceTable,
};

/// The owners of all frontends.
#[derive(Clone, Debug, Default)]
pub struct Frontends {
    /// Node ports of both families are apart, because Services need not have both.
    owners: HashMap<(IpFamily, Frontend), FrontendOwner>,
    /// Whether a process relays connections, so that the kernel knows no endpoints.
    is_relayed: bool,
}

/// A service port that owns a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendOwner {
    /// The service port.
    pub service_port: Arc<str>,
    /// The kind of the frontend.
    pub kind: FrontendKind,
}

/// Frontends that one thread keeps up to date and another one reads.
#[derive(Clone, Debug, Default)]
pub struct SharedFrontends(Arc<Mutex<Frontends>>);

impl Frontends {
    /// Creates an empty table; `is_relayed` if a process relays connections, so that the kernel knows no endpoints.
    pub fn new(is_relayed: bool) -> Self {
        Self { owners: HashMap::new(), is_relayed }
    }

    /// Reports whether a process relays connections.
    pub fn is_relayed(&self) -> bool {
        self.is_relayed
    }

    /// Replaces all frontends of an IP family.
    pub fn set(&mut self, table: &ServiceTable) {
        self.owners.retain(|(family, _), _| *family != table.family);
        for (name, entry) in &table.entries {
            self.add(table.family, name, entry);
        }
    }

    /// Removes all frontends, and frees their memory.
    pub fn clear(&mut self) {
        self.owners = HashMap::new();
    }

    /// Updates the service ports that changed between the table's last state and this one.
    pub fn update(&mut self, table: &ServiceTable, changes: &Changes) {
        for (name, entry) in changes.previous.iter().filter_map(|(name, entry)| Some((name, entry.as_ref()?))) {
            for (_, frontend) in entry.service.frontends(name.protocol) {
                self.owners.remove(&(table.family, frontend));
            }
        }
        for name in changes.previous.keys() {
            if let Some(entry) = table.entries.get(name) {
                self.add(table.family, name, entry);
            }
        }
    }

    fn add(&mut self, family: IpFamily, name: &ServicePortName, entry: &ServicePortEntry) {
        let service_port: Arc<str> = name.to_string().into();
        for (kind, frontend) in entry.service.frontends(name.protocol) {
            let owner = FrontendOwner { service_port: Arc::clone(&service_port), kind };
            // An address that a Service lists twice keeps the first kind.
            self.owners.entry((family, frontend)).or_insert(owner);
        }
    }

    /// Returns the owner of the frontend that a client has connected to.
    pub fn find(&self, destination: SocketAddr, protocol: Protocol) -> Option<&FrontendOwner> {
        let (family, port) = (IpFamily::of(destination.ip()), destination.port());
        let at = |address| self.owners.get(&(family, Frontend { address, protocol, port }));
        at(Some(destination.ip())).or_else(|| at(None))
    }
}

impl SharedFrontends {
    /// Creates frontends to share.
    pub fn new(frontends: Frontends) -> Self {
        Self(Arc::new(Mutex::new(frontends)))
    }

    /// Locks the frontends.
    pub fn lock(&self) -> MutexGuard<'_, Frontends> {
        // The table is valid even if a thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use ferroute_core::testing::{Cluster, pod, service, slice};

    use super::*;

    fn find(frontends: &Frontends, destination: &str) -> Option<String> {
        let owner = frontends.find(destination.parse().unwrap(), Protocol::Tcp)?;
        Some(format!("{} {}", owner.service_port, owner.kind))
    }

    #[test]
    fn frontends_follow_the_table() {
        let web = || service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        let cluster = |web| {
            Cluster::new("node-1")
                .service(web)
                .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2")))
        };
        let old = cluster(web().node_port(30080)).table(IpFamily::V4);
        let new = cluster(web().external_ip("198.51.100.1")).table(IpFamily::V4);
        let mut frontends = Frontends::default();
        frontends.set(&old);
        assert_eq!(find(&frontends, "10.96.0.1:80").as_deref(), Some("shop/web:http cluster IP"));
        assert_eq!(find(&frontends, "192.0.2.1:30080").as_deref(), Some("shop/web:http node port"));
        assert_eq!(find(&frontends, "10.96.0.1:81"), None);
        let previous = old.entries.iter().map(|(name, entry)| (name.clone(), Some(entry.clone()))).collect();
        frontends.update(&new, &Changes { previous, ..Changes::default() });
        assert_eq!(find(&frontends, "10.96.0.1:80").as_deref(), Some("shop/web:http cluster IP"));
        assert_eq!(find(&frontends, "198.51.100.1:80").as_deref(), Some("shop/web:http external IP"));
        assert_eq!(find(&frontends, "192.0.2.1:30080"), None);
        let previous = new.entries.iter().map(|(name, entry)| (name.clone(), Some(entry.clone()))).collect();
        let empty = ServiceTable::new(IpFamily::V4, new.node.clone());
        frontends.update(&empty, &Changes { previous, ..Changes::default() });
        assert!(frontends.owners.is_empty());
    }
}
