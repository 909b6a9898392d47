use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use ferroute_core::{Changes, IpFamily, Protocol, RulesDigest, ServicePortName, ServiceTable, TrafficPolicy};
use ferroute_iptables::plan::ChainGroup;

use super::{
    ListenerKey, RelayContext,
    chains::SlotRules,
    port_relay::{PortRelay, Ports},
};
use crate::ListenerSpec;

/// The planned listeners and rules of one IP family.
#[derive(Clone, Debug)]
pub struct RelayPlan {
    context: RelayContext,
    /// A hash of the rules of each service port.
    ports: BTreeMap<ServicePortName, u64>,
    listeners: BTreeMap<ListenerKey, Listening>,
}

/// A listener.
#[derive(Clone, Debug)]
struct Listening {
    spec: ListenerSpec,
    /// Port; `None` if it could not be opened.
    port: Option<u16>,
}

/// Changes of listeners.
#[derive(Clone, Debug, Default)]
pub struct ListenerChanges {
    /// The listeners to open or to change.
    pub set: Vec<(ListenerKey, ListenerSpec)>,
    /// The listeners to close once no rule leads to them.
    pub close: Vec<ListenerKey>,
    /// Service ports to be planned again once the ports of listeners are available.
    planned: BTreeSet<ServicePortName>,
}

impl RelayPlan {
    /// Returns a state without service ports.
    pub fn new(context: RelayContext) -> Self {
        Self { context, ports: BTreeMap::new(), listeners: BTreeMap::new() }
    }

    /// Returns the inputs of the plan.
    pub fn context(&self) -> &RelayContext {
        &self.context
    }

    /// Returns the IP family.
    pub fn family(&self) -> IpFamily {
        self.context.settings.family
    }

    /// Changes the inputs of the plan. All service ports must be planned again.
    pub fn set_context(&mut self, context: RelayContext) {
        self.context = context;
    }

    /// Returns the changes of listeners for the changed service ports; for all service ports if `changes` is `None`.
    pub fn listener_changes(&self, table: &ServiceTable, changes: Option<&Changes>) -> ListenerChanges {
        let mut result = ListenerChanges::default();
        match changes {
            Some(changes) => result.planned.extend(changes.previous.keys().cloned()),
            None => result.planned.extend(table.entries.keys().chain(self.ports.keys()).cloned()),
        }
        for name in &result.planned {
            let plan = table.entries.get(name).map(|entry| PortRelay::new(name, entry, table, &self.context));
            let wanted: Vec<_> = plan.iter().flat_map(PortRelay::listeners).collect();
            for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
                let key = ListenerKey { family: self.family(), service_port: name.clone(), policy };
                if self.listeners.contains_key(&key) && !wanted.iter().any(|(wanted, _)| *wanted == key) {
                    result.close.push(key);
                }
            }
            result.set.extend(wanted.into_iter().filter(|(key, spec)| {
                self.listeners.get(key).is_none_or(|open| open.spec != *spec || open.port.is_none())
            }));
        }
        result
    }

    /// Records changes with the ports of the listeners that were set, in their order. Returns true if rules change.
    pub fn record(&mut self, table: &ServiceTable, changes: &ListenerChanges, ports: &[Option<u16>]) -> bool {
        for ((key, spec), port) in changes.set.iter().zip(ports) {
            self.listeners.insert(key.clone(), Listening { spec: spec.clone(), port: *port });
        }
        for key in &changes.close {
            self.listeners.remove(key);
        }
        let mut differ = false;
        for name in &changes.planned {
            let new = table.entries.get(name).map(|entry| {
                let plan = PortRelay::new(name, entry, table, &self.context);
                let mut hasher = DefaultHasher::new();
                plan.rules(self.ports_of(name), &mut |slot, rule| (slot, rule).hash(&mut hasher));
                hasher.finish()
            });
            let old = match new {
                Some(new) => self.ports.insert(name.clone(), new),
                None => self.ports.remove(name),
            };
            differ |= old != new;
        }
        differ
    }

    /// Returns the iptables rules.
    pub fn chains(&self, table: &ServiceTable) -> ChainGroup {
        self.chains_with(table, |name| self.ports_of(name))
    }

    /// Returns the listeners with their ports; `None` for those that could not be opened.
    pub fn listeners(&self) -> impl Iterator<Item = (&ListenerKey, &ListenerSpec, Option<u16>)> {
        self.listeners.iter().map(|(key, open)| (key, &open.spec, open.port))
    }

    /// Returns the number of listeners.
    pub fn total(&self) -> usize {
        self.listeners.len()
    }

    /// Returns a digest of listeners and rules that does not depend on the ports of listeners.
    pub fn digest(&self, table: &ServiceTable) -> RulesDigest {
        RulesDigest::compute(|out| {
            for (key, open) in &self.listeners {
                writeln!(out, "{key} {:?} {:?}", open.spec.endpoints, open.spec.affinity)?;
            }
            let open = |name: &ServicePortName| {
                let Ports { cluster, local } = self.ports_of(name);
                Ports { cluster: cluster.map(|_| 0), local: local.map(|_| 0) }
            };
            write!(out, "{}", self.chains_with(table, open).to_rule_set(self.family()))
        })
    }

    fn chains_with(&self, table: &ServiceTable, ports_of: impl Fn(&ServicePortName) -> Ports) -> ChainGroup {
        let mut rules = SlotRules::default();
        let mut ports: BTreeSet<(Protocol, u16)> = BTreeSet::new();
        for (name, entry) in table.entries.iter().filter(|(name, _)| self.ports.contains_key(*name)) {
            let plan = PortRelay::new(name, entry, table, &self.context);
            let Ports { cluster, local } = ports_of(name);
            ports.extend([cluster, local].into_iter().flatten().map(|port| (name.protocol, port)));
            plan.rules(Ports { cluster, local }, &mut |slot, rule| rules.push(slot, rule));
        }
        rules.into_group(&self.context, &ports)
    }

    fn ports_of(&self, name: &ServicePortName) -> Ports {
        let port = |policy| {
            let key = ListenerKey { family: self.family(), service_port: name.clone(), policy };
            self.listeners.get(&key).and_then(|open| open.port)
        };
        Ports { cluster: port(TrafficPolicy::Cluster), local: port(TrafficPolicy::Local) }
    }
}
