//! The changes that turn the objects in the kernel into the planned ones.

use std::{collections::HashMap, net::IpAddr};

use crate::{
    kernel::{KernelRealServer, KernelState},
    plan::{Delta, Entry, IpvsPlan, RealServer, Server, ServerKey, SetKind},
};

/// Changes by kind, in the order in which they are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Set entries to add. Rules and virtual servers may need them.
    pub(crate) add_entries: Vec<(SetKind, Entry)>,
    /// Virtual servers to add or change.
    pub(crate) servers: Vec<ServerChange>,
    /// Addresses to add to the dummy device, once their virtual servers exist.
    pub(crate) bind: Vec<IpAddr>,
    /// Addresses to delete from it.
    pub(crate) unbind: Vec<IpAddr>,
    /// Addresses to delete and to add again, because their local route was deleted.
    pub(crate) rebind: Vec<IpAddr>,
    /// Virtual servers to delete.
    pub(crate) delete_servers: Vec<ServerKey>,
    /// Set entries to delete. They identify a virtual server as kube-proxy's or Ferroute's, so they are deleted after
    /// it.
    pub(crate) delete_entries: Vec<(SetKind, Entry)>,
    /// Timeouts of connections differ; see [`KernelState::has_other_timeouts`].
    pub(crate) timeouts: bool,
    /// Virtual servers in [`Difference::servers`] that another program has added.
    pub(crate) taken: Vec<ServerKey>,
}

/// A virtual server to add or change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerChange {
    /// Add it with all of its real servers.
    Add(ServerKey),
    /// Change it. Boxed, because a first sync has thousands of additions.
    Edit(ServerKey, Box<ServerEdit>),
}

/// The changes of a virtual server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerEdit {
    /// Whether its settings differ.
    pub(crate) settings: bool,
    /// Real servers to add, with their weights.
    pub(crate) add: Vec<(RealServer, u16)>,
    /// Real servers whose weight must be set.
    pub(crate) restore: Vec<(RealServer, u16)>,
    /// Real servers to remove.
    pub(crate) remove: Vec<RealServer>,
}

impl Difference {
    /// Returns the changes that `delta` describes.
    pub(crate) fn from_delta(delta: Delta, state: &IpvsPlan) -> Self {
        let mut difference = Self::default();
        for ((kind, entry), added) in delta.entries {
            let entries = if added { &mut difference.add_entries } else { &mut difference.delete_entries };
            entries.push((kind, entry));
        }
        for (address, added) in delta.addresses {
            if added { &mut difference.bind } else { &mut difference.unbind }.push(address);
        }
        for (key, old) in delta.servers {
            match (old, state.servers().get(&key)) {
                (None, Some(_)) => difference.servers.push(ServerChange::Add(key)),
                (Some(_), None) => difference.delete_servers.push(key),
                (Some(old), Some(new)) => difference.servers.extend(edit(key, &old, new)),
                (None, None) => {}
            }
        }
        difference
    }

    /// Returns the changes to the objects in the kernel. `is_ours` reports whether a virtual server is the proxy's, so that
    /// it may be deleted if it is not planned.
    pub(crate) fn from_kernel(
        mut kernel: KernelState,
        state: &IpvsPlan,
        is_ours: impl Fn(&ServerKey, &KernelState) -> bool,
    ) -> Self {
        let mut difference = Self { timeouts: kernel.has_other_timeouts, ..Self::default() };
        let servers = std::mem::take(&mut kernel.servers);
        difference.delete_servers =
            servers.keys().filter(|key| !state.servers().contains_key(key) && is_ours(key, &kernel)).copied().collect();
        for (key, new) in state.servers() {
            let Some(old) = servers.get(key) else {
                difference.servers.push(ServerChange::Add(*key));
                continue;
            };
            // A Service may have 100,000 endpoints.
            let existing: HashMap<RealServer, &KernelRealServer> =
                old.real_servers.iter().map(|existing| (existing.real, existing)).collect();
            let is_planned = |real: &RealServer| new.real_servers().weight(*real).is_some();
            let scheduler = &state.context().scheduler;
            let settings = old.config != new.settings(scheduler).with_scheduler(scheduler);
            let add: Vec<_> = new.real_servers().iter().filter(|(real, _)| !existing.contains_key(real)).collect();
            let differs = |(real, weight): &(RealServer, u16)| {
                let differs =
                    |old: &&KernelRealServer| old.weight != u32::from(*weight) || !old.is_masqueraded || old.has_limits;
                existing.get(real).is_some_and(differs)
            };
            let restore: Vec<_> = new.real_servers().iter().filter(differs).collect();
            let others = old.real_servers.iter().map(|old| old.real);
            let remove: Vec<RealServer> = others.filter(|real| !is_planned(real)).collect();
            let edit = ServerEdit { settings, add, restore, remove };
            if edit != ServerEdit::default() {
                difference.servers.push(ServerChange::Edit(*key, edit.into()));
                difference.taken.extend((!is_ours(key, &kernel)).then_some(*key));
            }
        }
        state.for_each_entry(|kind, entry| {
            if !kernel.entries[kind.index()].remove(&entry) {
                difference.add_entries.push((kind, entry));
            }
        });
        // Adding a network ends its exception; deleting the exception would delete the network.
        let is_replaced = |kind: SetKind, entry: &Entry| match entry {
            Entry::ServiceExceptNetwork(key, net) => state.has_entry(kind, Entry::ServiceAndNetwork(*key, *net)),
            _ => false,
        };
        for kind in SetKind::ALL {
            let others = kernel.entries[kind.index()].iter().filter(|entry| !is_replaced(kind, entry));
            difference.delete_entries.extend(others.map(|entry| (kind, *entry)));
        }
        difference.bind = state.addresses().filter(|address| !kernel.addresses.contains(address)).collect();
        difference.rebind = kernel.unrouted.iter().filter(|address| state.has_address(**address)).copied().collect();
        difference.unbind = kernel.addresses.iter().filter(|address| !state.has_address(**address)).copied().collect();
        difference
    }

    /// Reports whether nothing differs.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the change of a virtual server, if its kernel objects differ.
fn edit(key: ServerKey, old: &Server, new: &Server) -> Option<ServerChange> {
    let (before, after) = (old.real_servers(), new.real_servers());
    let with_other_weight = |(real, weight): &(RealServer, u16)| before.weight(*real).is_some_and(|old| old != *weight);
    let edit = ServerEdit {
        settings: (old.affinity(), old.scheduler) != (new.affinity(), new.scheduler),
        add: after.iter().filter(|(real, _)| before.weight(*real).is_none()).collect(),
        restore: after.iter().filter(with_other_weight).collect(),
        remove: before.iter().map(|(real, _)| real).filter(|real| after.weight(*real).is_none()).collect(),
    };
    (edit != ServerEdit::default()).then(|| ServerChange::Edit(key, edit.into()))
}

#[cfg(test)]
mod tests {
    use ferroute_core::{
        HostState, IpFamily,
        testing::{Cluster, service},
    };

    use super::*;
    use crate::{
        kernel::KernelServer,
        plan::{IpvsContext, IpvsSettings, ServerConfig},
    };

    #[test]
    fn virtual_servers_of_other_programs_at_frontends_are_taken_over_by_name() {
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        let table = Cluster::new("node-1").service(web).table(IpFamily::V4);
        let context = IpvsContext::new(&IpvsSettings::default(), &table, &HostState::default());
        let state = IpvsPlan::new(&table, context);
        let key = *state.servers().keys().next().unwrap();
        for (scheduler, is_ours, expected) in [("wlc", true, vec![]), ("wlc", false, vec![key]), ("rr", false, vec![])]
        {
            let config = ServerConfig { scheduler: scheduler.into(), flags: 0, timeout: 0, netmask: None };
            let server = KernelServer { config, real_servers: Vec::new() };
            let kernel = KernelState { servers: [(key, server)].into(), ..KernelState::default() };
            assert_eq!(Difference::from_kernel(kernel, &state, |_, _| is_ours).taken, expected, "{scheduler}");
        }
    }
}
