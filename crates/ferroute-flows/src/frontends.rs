use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_core::{
    Changes, Endpoints, FamilySettings, Frontend, FrontendKind, IpFamily, ModeTraits, NodePortMatch, OverLimit,
    Protocol, ProxySettings, ServicePortEntry, ServicePortName, ServiceTable, Sources, Unserved, forwarding,
};
use ipnet::IpNet;

use crate::refusals::{Refusals, Watched};

/// Owners of all frontends, and the connections to them that rules refuse.
#[derive(Clone, Debug)]
pub struct Frontends {
    /// Node ports have one entry per family, because Services need not have both families.
    owners: HashMap<(IpFamily, Frontend), FrontendOwner>,
    traits: &'static ModeTraits,
    settings: ProxySettings,
    families: [Option<Family>; 2],
    /// The addresses of the host's interfaces.
    host: Vec<IpAddr>,
    revision: u64,
}

/// A service port that owns a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendOwner {
    /// The service port.
    pub service_port: Arc<str>,
    /// The kind of the frontend.
    pub kind: FrontendKind,
    /// The endpoints of the service port, regardless of their conditions.
    endpoints: Arc<Endpoints>,
    /// The connections that rules refuse.
    pub(crate) refusals: Option<Arc<Refusals>>,
    /// How rules refuse connections beyond the limits; `None` if there are no limits.
    pub(crate) over_limit: Option<OverLimit>,
}

/// Settings of an IP family that refusals depend on besides Services.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Family {
    settings: FamilySettings,
    /// The networks of cluster IPs.
    networks: Vec<IpNet>,
}

/// Frontends that one thread updates and another thread reads.
#[derive(Clone, Debug)]
pub struct SharedFrontends(Arc<Mutex<Frontends>>);

impl Frontends {
    /// Creates an empty table, for a mode with these traits.
    pub fn new(traits: &'static ModeTraits, settings: ProxySettings) -> Self {
        Self { owners: HashMap::new(), traits, settings, families: [None, None], host: Vec::new(), revision: 0 }
    }

    /// Reports whether a process relays connections, so that connection tracking has no endpoints.
    pub fn is_relayed(&self) -> bool {
        self.traits.sources == Sources::Node
    }

    /// Returns a number that changes with [`watched`](Self::watched).
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Replaces all frontends of an IP family. `host` has the addresses of the host's interfaces.
    pub fn set(&mut self, table: &ServiceTable, host: &[IpAddr]) {
        self.owners.retain(|(family, _), _| *family != table.family);
        self.set_host(host);
        let family = self.family(table, host);
        for (name, entry) in &table.entries {
            self.add(table, name, entry, &family.settings);
        }
        self.families[table.family.index()] = Some(family);
        self.revision += 1;
    }

    /// Removes all frontends, and frees their memory.
    pub fn clear(&mut self) {
        if !self.owners.is_empty() {
            (self.owners, self.families) = (HashMap::new(), [None, None]);
            self.revision += 1;
        }
    }

    /// Updates the service ports that differ between the previous and the current state of the table.
    pub fn update(&mut self, table: &ServiceTable, changes: &Changes, host: &[IpAddr]) {
        let family = self.family(table, host);
        if self.families[table.family.index()].as_ref() != Some(&family) {
            return self.set(table, host);
        }
        self.set_host(host);
        let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
        for (name, entry) in changes.previous.iter().filter_map(|(name, entry)| Some((name, entry.as_ref()?))) {
            for (_, frontend) in entry.service.frontends(name.protocol) {
                if let Some(owner) = self.owners.remove(&(table.family, frontend)) {
                    before.insert((frontend, owner.watch()));
                }
            }
        }
        for name in changes.previous.keys() {
            if let Some(entry) = table.entries.get(name) {
                self.add(table, name, entry, &family.settings);
                let frontends = entry.service.frontends(name.protocol);
                after.extend(
                    frontends.filter_map(|(_, frontend)| {
                        Some((frontend, self.owners.get(&(table.family, frontend))?.watch()))
                    }),
                );
            }
        }
        // Most changes concern endpoints only, which the watched rules do not depend on.
        let is_watched = |(_, [refuses, is_limited]): &(Frontend, [bool; 2])| {
            *refuses || *is_limited || self.traits.unknown_ports == Unserved::Rejected
        };
        let refuses = before.iter().chain(&after).any(|(_, [refuses, _])| *refuses);
        if refuses || before != after && before.iter().chain(&after).any(is_watched) {
            self.revision += 1;
        }
    }

    fn set_host(&mut self, host: &[IpAddr]) {
        if self.host != host {
            self.host = host.to_vec();
        }
    }

    fn family(&self, table: &ServiceTable, host: &[IpAddr]) -> Family {
        let networks = match self.traits.unassigned_addresses {
            Unserved::Dropped => IpNet::aggregate(&table.service_cidrs),
            Unserved::Routed | Unserved::Rejected => Vec::new(),
        };
        Family { settings: FamilySettings::new(&self.settings, table, self.traits, host), networks }
    }

    fn add(
        &mut self,
        table: &ServiceTable,
        name: &ServicePortName,
        entry: &ServicePortEntry,
        settings: &FamilySettings,
    ) {
        let service_port: Arc<str> = name.to_string().into();
        let port = forwarding(table, name, entry, settings, self.traits);
        let endpoints = Arc::new(entry.endpoints.clone());
        let limits = entry.service.limits.as_ref().filter(|_| self.traits.limits);
        let over_limit = limits.map(|limits| limits.over_limit);
        for (kind, frontend) in entry.service.claims(name.protocol) {
            let refusals = Refusals::new(&port, kind, frontend).map(Arc::new);
            let (service_port, endpoints) = (Arc::clone(&service_port), Arc::clone(&endpoints));
            let owner = FrontendOwner { service_port, kind, endpoints, refusals, over_limit };
            self.owners.insert((table.family, frontend), owner);
        }
    }

    /// Returns the owner of the frontend that a client has connected to.
    pub fn find(&self, destination: SocketAddr, protocol: Protocol) -> Option<&FrontendOwner> {
        let (family, port) = (IpFamily::of(destination.ip()), destination.port());
        let at = |address| self.owners.get(&(family, Frontend { address, protocol, port }));
        at(Some(destination.ip())).or_else(|| at(None).filter(|_| self.is_for_node_ports(destination.ip())))
    }

    /// Reports whether rules serve or refuse node ports at an address. Other programs may translate other addresses.
    fn is_for_node_ports(&self, address: IpAddr) -> bool {
        let family = self.families[IpFamily::of(address).index()].as_ref();
        match family.map(|family| &family.settings.node_ports) {
            Some(NodePortMatch::Addresses(addresses)) if !self.traits.refuses_node_ports_at_all_addresses => {
                addresses.contains(&address)
            }
            // Without its addresses, the host is not this one.
            _ => self.host.is_empty() || address.is_loopback() || self.host.contains(&address),
        }
    }

    /// Returns the endpoint of a connection whose replies come from `address`; `None` if a process of this node relays
    /// it, as in userspace mode, and for older connections after another mode has followed.
    pub(crate) fn endpoint(&self, owner: &FrontendOwner, address: SocketAddr) -> Option<SocketAddr> {
        let is_endpoint = || owner.endpoints.iter().any(|endpoint| endpoint.socket() == address);
        let is_relay = self.is_relayed() || self.host.contains(&address.ip()) && !is_endpoint();
        (!is_relay).then_some(address)
    }

    /// Returns the endpoints of all service ports.
    pub fn endpoints(&self) -> Vec<(Arc<str>, Arc<Endpoints>)> {
        let mut ports: Vec<_> = self.owners.values().collect();
        ports.sort_unstable_by_key(|owner| Arc::as_ptr(&owner.endpoints));
        ports.dedup_by_key(|owner| Arc::as_ptr(&owner.endpoints));
        ports.into_iter().map(|owner| (Arc::clone(&owner.service_port), Arc::clone(&owner.endpoints))).collect()
    }

    /// Returns the refused connections of an IP family; `None` if it has no frontends.
    pub(crate) fn watched(&self, family: IpFamily) -> Option<Watched<'_>> {
        let Family { settings, networks } = self.families[family.index()].as_ref()?;
        let owners =
            || self.owners.iter().filter(move |((of, _), _)| *of == family).map(|((_, to), owner)| (*to, owner));
        let refusing = owners().filter_map(|(frontend, owner)| Some((frontend, &**owner.refusals.as_ref()?))).collect();
        let limited = owners().filter(|(_, owner)| owner.over_limit.is_some()).map(|(frontend, _)| frontend).collect();
        let knows_ports = self.traits.unknown_ports == Unserved::Rejected;
        let cluster_ips: BTreeMap<IpAddr, Arc<str>> = owners()
            .filter(|(_, owner)| knows_ports && owner.kind == FrontendKind::ClusterIp)
            .filter_map(|(frontend, owner)| Some((frontend.address?, owner.service())))
            .collect();
        let frontends = if knows_ports || !networks.is_empty() {
            owners().map(|(frontend, _)| frontend).filter(|frontend| frontend.address.is_some()).collect()
        } else {
            Vec::new()
        };
        let refuses_at_all_addresses = self.traits.refuses_node_ports_at_all_addresses;
        Some(Watched { settings, refusing, limited, frontends, refuses_at_all_addresses, cluster_ips, networks })
    }
}

impl FrontendOwner {
    /// Reports whether rules refuse some connections always, and whether they do so beyond limits.
    fn watch(&self) -> [bool; 2] {
        [self.refusals.is_some(), self.over_limit.is_some()]
    }

    /// Returns the Service, without the port.
    fn service(&self) -> Arc<str> {
        self.service_port.split_once(':').map_or_else(|| Arc::clone(&self.service_port), |(service, _)| service.into())
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
    use ferroute_core::{
        NodePortAddresses,
        testing::{Cluster, pod, service, slice},
    };

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
        let mut frontends = Frontends::new(&ModeTraits::IPTABLES, ProxySettings::default());
        frontends.set(&old, &[]);
        assert_eq!(find(&frontends, "10.96.0.1:80").as_deref(), Some("shop/web:http cluster IP"));
        assert_eq!(find(&frontends, "192.0.2.1:30080").as_deref(), Some("shop/web:http node port"));
        assert_eq!(find(&frontends, "10.96.0.1:81"), None);
        let previous = old.entries.iter().map(|(name, entry)| (name.clone(), Some(entry.clone()))).collect();
        frontends.update(&new, &Changes { previous, ..Changes::default() }, &[]);
        assert_eq!(find(&frontends, "10.96.0.1:80").as_deref(), Some("shop/web:http cluster IP"));
        assert_eq!(find(&frontends, "198.51.100.1:80").as_deref(), Some("shop/web:http external IP"));
        assert_eq!(find(&frontends, "192.0.2.1:30080"), None);
        let previous = new.entries.iter().map(|(name, entry)| (name.clone(), Some(entry.clone()))).collect();
        let empty = ServiceTable::new(IpFamily::V4, new.node.clone());
        frontends.update(&empty, &Changes { previous, ..Changes::default() }, &[]);
        assert!(frontends.owners.is_empty());
    }

    #[test]
    fn node_ports_are_those_of_the_host() {
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080);
        let table = Cluster::new("node-1").service(web).table(IpFamily::V4);
        let host: Vec<IpAddr> = ["192.0.2.1", "10.244.0.1"].map(|address| address.parse().unwrap()).to_vec();
        for (traits, own, other) in [(&ModeTraits::IPTABLES, true, true), (&ModeTraits::NFTABLES, true, false)] {
            let node_port_addresses = NodePortAddresses::Within(vec!["192.0.2.0/24".parse().unwrap()]);
            let mut frontends =
                Frontends::new(traits, ProxySettings { node_port_addresses, ..ProxySettings::default() });
            frontends.set(&table, &host);
            let found = ["192.0.2.1:30080", "10.244.0.1:30080", "198.51.100.9:30080"]
                .map(|destination| find(&frontends, destination).is_some());
            assert_eq!(found, [own, other, false]);
        }
    }

    #[test]
    fn rules_are_written_again_only_if_what_they_watch_changes() {
        let cluster = |pods: &[&str]| {
            let slice = slice("shop/web-a", "web").port("http", 8080);
            let slice = pods.iter().fold(slice, |slice, address| slice.pod(pod(address)));
            Cluster::new("node-1").service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80)).slice(slice)
        };
        for traits in [&ModeTraits::IPTABLES, &ModeTraits::NFTABLES] {
            let mut frontends = Frontends::new(traits, ProxySettings::default());
            let mut before = cluster(&["10.244.0.2"]).table(IpFamily::V4);
            frontends.set(&before, &[]);
            for (pods, is_watched) in [
                (&["10.244.0.3"][..], false),
                (&["10.244.0.3", "10.244.0.4"], false),
                (&[], true),
                (&["10.244.0.3"], true),
            ] {
                let revision = frontends.revision();
                let after = cluster(pods).table(IpFamily::V4);
                let previous = before.entries.iter().map(|(name, entry)| (name.clone(), Some(entry.clone()))).collect();
                frontends.update(&after, &Changes { previous, ..Changes::default() }, &[]);
                assert_eq!(frontends.revision() != revision, is_watched, "{pods:?}");
                let watched = frontends.watched(IpFamily::V4).unwrap();
                assert_eq!(watched.refusing.is_empty(), !pods.is_empty());
                before = after;
            }
        }
    }
}
