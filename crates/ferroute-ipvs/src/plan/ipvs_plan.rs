use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ferroute_core::{Changes, IpFamily, RulesDigest, ServicePortName, ServiceTable};
use ferroute_iptables::plan::ChainGroup;

use super::{
    IpvsContext, Server, ServerKey, chains,
    port_objects::PortObjects,
    sets::{Entry, SetKind, SetType},
};

/// The planned objects of one IP family.
#[derive(Clone, Debug)]
pub struct IpvsPlan {
    context: IpvsContext,
    servers: BTreeMap<ServerKey, Server>,
    /// Node ports at addresses of the node where another Service uses the same port, because its cluster IP or another
    /// of its addresses is that address. As in other modes, the other Service takes precedence; when it is removed, the
    /// node port takes over.
    superseded: BTreeMap<ServerKey, Server>,
    /// Set entries that several servers or service ports may need, with the number of their users.
    shared: HashMap<(SetKind, Entry), u32>,
    /// The addresses of the dummy device, with the number of servers.
    bound: BTreeMap<IpAddr, u32>,
    /// The number of entries in each set.
    sizes: [usize; SetKind::ALL.len()],
    /// The servers that the node itself may not use.
    denied: BTreeSet<ServerKey>,
    /// Number of changes of `denied`.
    denied_version: u64,
}

/// The objects that differ from an earlier [`IpvsPlan`].
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Previous servers; `None` for new ones.
    pub(crate) servers: BTreeMap<ServerKey, Option<Server>>,
    /// The set entries: true if added, false if deleted.
    pub(crate) entries: BTreeMap<(SetKind, Entry), bool>,
    /// The addresses of the dummy device: true if added, false if deleted.
    pub(crate) addresses: BTreeMap<IpAddr, bool>,
}

impl IpvsPlan {
    /// Plans all service ports.
    pub fn new(table: &ServiceTable, context: IpvsContext) -> Self {
        let mut state = Self {
            context,
            servers: BTreeMap::new(),
            superseded: BTreeMap::new(),
            shared: HashMap::new(),
            bound: BTreeMap::new(),
            sizes: Default::default(),
            denied: BTreeSet::new(),
            denied_version: 0,
        };
        for (name, entry) in &table.entries {
            let plan = PortObjects::new(name, entry, table, &state.context);
            state.replace(name, &PortObjects::default(), plan, &mut None);
        }
        state
    }

    /// Plans changed service ports again; the context must be the same as before.
    pub fn update(&mut self, table: &ServiceTable, changes: &Changes) -> Delta {
        let mut delta = Some(Delta::default());
        for (name, previous) in &changes.previous {
            let plan = |entry| PortObjects::new(name, entry, table, &self.context);
            let old = previous.as_ref().map(plan).unwrap_or_default();
            let new = table.entries.get(name).map(plan).unwrap_or_default();
            self.replace(name, &old, new, &mut delta);
        }
        delta.unwrap_or_default()
    }

    /// Returns the objects that differ from `old`.
    pub fn difference(&self, old: &Self) -> Delta {
        let mut delta = Delta::default();
        for (key, server) in &old.servers {
            if self.servers.get(key) != Some(server) {
                delta.servers.insert(*key, Some(server.clone()));
            }
        }
        delta.servers.extend(self.servers.keys().filter(|key| !old.servers.contains_key(key)).map(|key| (*key, None)));
        let mut entries = BTreeMap::new();
        old.for_each_entry(|kind, entry| _ = entries.insert((kind, entry), false));
        self.for_each_entry(|kind, entry| {
            if entries.remove(&(kind, entry)).is_none() {
                entries.insert((kind, entry), true);
            }
        });
        delta.entries = entries;
        let removed =
            old.bound.keys().filter(|address| !self.bound.contains_key(address)).map(|address| (*address, false));
        let added =
            self.bound.keys().filter(|address| !old.bound.contains_key(address)).map(|address| (*address, true));
        delta.addresses = removed.chain(added).collect();
        delta
    }

    /// Returns the inputs of the plan.
    pub fn context(&self) -> &IpvsContext {
        &self.context
    }

    /// Returns the IP family.
    pub fn family(&self) -> IpFamily {
        self.context.settings.family
    }

    /// Returns the virtual servers.
    pub fn servers(&self) -> &BTreeMap<ServerKey, Server> {
        &self.servers
    }

    /// Returns the addresses of the dummy device.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.bound.keys().copied()
    }

    /// Reports whether the dummy device has an address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.bound.contains_key(&address)
    }

    /// Calls `each` with all set entries, each once, in no particular order.
    pub fn for_each_entry(&self, mut each: impl FnMut(SetKind, Entry)) {
        for (key, server) in &self.servers {
            server.entries(*key, |kind, entry| {
                if !is_shared(kind) {
                    each(kind, entry);
                }
            });
        }
        self.shared.keys().for_each(|(kind, entry)| each(*kind, *entry));
        self.bound.keys().for_each(|address| each(SetKind::IpvsIps, Entry::Address(*address)));
    }

    /// Reports whether a set contains an entry.
    pub fn has_entry(&self, kind: SetKind, entry: Entry) -> bool {
        if is_shared(kind) {
            return self.shared.contains_key(&(kind, entry));
        }
        let key = match entry {
            Entry::Address(address) => return self.bound.contains_key(&address),
            Entry::Port(_) | Entry::ServiceExceptNetwork(..) => return false,
            Entry::Service(key) | Entry::ServiceAndAddress(key, _) | Entry::ServiceAndNetwork(key, _) => key,
        };
        let mut found = false;
        if let Some(server) = self.servers.get(&key) {
            server.entries(key, |of, candidate| found |= (of, candidate) == (kind, entry));
        }
        found
    }

    /// Returns the number of entries in a set.
    pub fn set_size(&self, kind: SetKind) -> usize {
        self.sizes[kind.index()]
    }

    /// Returns the number of objects: virtual servers, real servers, set entries and addresses.
    pub fn total(&self) -> usize {
        let real: usize = self.servers.values().map(|server| server.real_servers.len()).sum();
        self.servers.len() + real + self.sizes.iter().sum::<usize>() + self.bound.len()
    }

    /// Returns a digest of virtual servers, set entries and addresses. The rules do not depend on single Services.
    pub fn digest(&self) -> RulesDigest {
        RulesDigest::compute(|mut out| self.write_objects(&mut out))
    }

    /// Returns a value that differs between two states with the same context if their rules differ.
    pub(crate) fn rules_version(&self) -> (u32, u64) {
        let used = SetKind::ALL.into_iter().filter(|kind| self.set_size(*kind) > 0);
        (used.fold(0, |mask, kind| mask | 1 << kind.index()), self.denied_version)
    }

    /// Returns the iptables rules.
    pub fn chains(&self) -> ChainGroup {
        chains::chain_group(&self.context, |kind| self.set_size(kind) > 0, self.denied.iter().copied())
    }

    fn replace(&mut self, name: &ServicePortName, old: &PortObjects, new: PortObjects, delta: &mut Option<Delta>) {
        // Acquired first, so that the counts of entries in both stay above zero; a delta holds net changes only.
        new.entries.iter().for_each(|(kind, entry)| self.acquire(*kind, *entry, delta));
        old.entries.iter().for_each(|(kind, entry)| self.release(*kind, *entry, delta));
        for (key, _) in &old.servers {
            if self.superseded.get(key).is_some_and(|server| server.owner == *name) {
                self.superseded.remove(key);
            }
            // A service port that was updated earlier may have the frontend now.
            let is_owner = self.servers.get(key).is_some_and(|server| server.owner == *name);
            if is_owner && !new.servers.iter().any(|(kept, _)| kept == key) {
                self.remove(*key, delta);
                if let Some(node_port) = self.superseded.remove(key) {
                    self.insert(*key, node_port, delta);
                }
            }
        }
        for (key, server) in new.servers {
            self.place(key, server, delta);
        }
    }

    /// Adds a server, or replaces the one that has its key. If both are of one kind, they have different owners only
    /// while owners change: service ports are updated in the order of their names, so an earlier one that loses the
    /// frontend has been updated already.
    fn place(&mut self, key: ServerKey, server: Server, delta: &mut Option<Delta>) {
        match self.servers.get(&key) {
            Some(active) if *active == server => return,
            Some(active) if active.owner != server.owner && active.is_node_port != server.is_node_port => {
                if server.is_node_port {
                    self.superseded.insert(key, server);
                    return;
                }
                self.superseded.insert(key, active.clone());
            }
            Some(active) if active.owner < server.owner => return,
            _ => {}
        }
        self.remove(key, delta);
        self.insert(key, server, delta);
    }

    fn insert(&mut self, key: ServerKey, server: Server, delta: &mut Option<Delta>) {
        server.entries(key, |kind, entry| self.acquire(kind, entry, delta));
        if server.is_bound && acquire(&mut self.bound, key.address) {
            self.sizes[SetKind::IpvsIps.index()] += 1;
            record(delta, |delta| &mut delta.addresses, key.address, true);
            record(delta, |delta| &mut delta.entries, (SetKind::IpvsIps, Entry::Address(key.address)), true);
        }
        if server.denies_node {
            self.denied.insert(key);
            self.denied_version += 1;
        }
        if let Some(delta) = delta {
            delta.servers.entry(key).or_insert(None);
        }
        self.servers.insert(key, server);
    }

    fn remove(&mut self, key: ServerKey, delta: &mut Option<Delta>) {
        let Some(server) = self.servers.remove(&key) else { return };
        server.entries(key, |kind, entry| self.release(kind, entry, delta));
        if server.is_bound && release(&mut self.bound, key.address) {
            self.sizes[SetKind::IpvsIps.index()] -= 1;
            record(delta, |delta| &mut delta.addresses, key.address, false);
            record(delta, |delta| &mut delta.entries, (SetKind::IpvsIps, Entry::Address(key.address)), false);
        }
        if self.denied.remove(&key) {
            self.denied_version += 1;
        }
        if let Some(delta) = delta {
            delta.servers.entry(key).or_insert(Some(server));
        }
    }

    fn acquire(&mut self, kind: SetKind, entry: Entry, delta: &mut Option<Delta>) {
        if is_shared(kind) {
            let users = self.shared.entry((kind, entry)).or_default();
            *users += 1;
            if *users > 1 {
                return;
            }
        }
        self.sizes[kind.index()] += 1;
        record(delta, |delta| &mut delta.entries, (kind, entry), true);
    }

    fn release(&mut self, kind: SetKind, entry: Entry, delta: &mut Option<Delta>) {
        if is_shared(kind) {
            let Some(users) = self.shared.get_mut(&(kind, entry)) else { return };
            *users -= 1;
            if *users > 0 {
                return;
            }
            self.shared.remove(&(kind, entry));
        }
        self.sizes[kind.index()] -= 1;
        record(delta, |delta| &mut delta.entries, (kind, entry), false);
    }
}

/// Reports whether several servers or service ports may need the same entry of this set.
fn is_shared(kind: SetKind) -> bool {
    matches!(kind, SetKind::LoopBack | SetKind::NodePortIps) || kind.set_type() == SetType::Port
}

/// Adds a user. Returns true for the first one.
fn acquire(users: &mut BTreeMap<IpAddr, u32>, address: IpAddr) -> bool {
    let users = users.entry(address).or_default();
    *users += 1;
    *users == 1
}

/// Removes a user. Returns true for the last one.
fn release(users: &mut BTreeMap<IpAddr, u32>, address: IpAddr) -> bool {
    let Some(count) = users.get_mut(&address) else { return false };
    *count -= 1;
    let is_last = *count == 0;
    if is_last {
        users.remove(&address);
    }
    is_last
}

/// Records that an object was added or deleted; both together are no change.
fn record<K: Ord>(
    delta: &mut Option<Delta>,
    part: impl FnOnce(&mut Delta) -> &mut BTreeMap<K, bool>,
    key: K,
    added: bool,
) {
    let Some(delta) = delta else { return };
    let part = part(delta);
    if part.get(&key) == Some(&!added) {
        part.remove(&key);
    } else {
        part.insert(key, added);
    }
}

#[cfg(test)]
mod tests;
