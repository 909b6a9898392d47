//! What the sync loop does that people should know.

use std::{collections::BTreeMap, num::NonZeroU16};

use ferroute_core::{DataplaneError, ServicePortEntry, IpFamily, ServicePortName};
use ferroute_kube::EventType;

use super::{Events, Job, sockets::Claim};
use crate::{
    logging::chain,
    observer::{InForce, Observer},
};

/// Tells of rules that cannot be written, and has a look taken at node ports that are new.
pub(crate) struct EventsWatcher {
    events: Events,
    /// Node ports in force, by family.
    claims: [BTreeMap<ServicePortName, NonZeroU16>; 2],
}

impl EventsWatcher {
    /// Nothing is in force yet.
    pub(crate) fn new(events: Events) -> Self {
        Self { events, claims: Default::default() }
    }

    /// Notes the node ports that have changed and gives those that are new in either family.
    fn news(&mut self, sync: &InForce<'_>) -> Vec<Claim> {
        let (table, family) = (sync.table, sync.table.family);
        let is_full = sync.outcome.report.as_ref().is_some_and(|report| report.full);
        let mut new = Vec::new();
        let mut note = |claims: &mut [BTreeMap<_, _>; 2], name: &ServicePortName, entry: Option<&ServicePortEntry>| {
            let port = entry.and_then(|entry| entry.service.node_port);
            let is_known = |claims: &[BTreeMap<ServicePortName, NonZeroU16>; 2]| {
                claims.iter().any(|claims| claims.get(name).copied() == port)
            };
            match port {
                Some(port) if !is_known(claims) => new.push(Claim { service: name.clone(), port }),
                Some(_) => {}
                None => {
                    claims[family.index()].remove(name);
                    return;
                }
            }
            claims[family.index()].extend(port.map(|port| (name.clone(), port)));
        };
        if is_full {
            self.claims[family.index()].retain(|name, _| table.entries.contains_key(name));
            table.entries.iter().for_each(|(name, entry)| note(&mut self.claims, name, Some(entry)));
        } else {
            let changed = sync.outcome.changes.previous.keys();
            changed.for_each(|name| note(&mut self.claims, name, table.entries.get(name)));
        }
        new
    }
}

impl Observer for EventsWatcher {
    fn in_force(&mut self, sync: &InForce<'_>) {
        let new = self.news(sync);
        if !new.is_empty() {
            self.events.give(Job::Look(new));
        }
    }

    fn failed(&mut self, family: IpFamily, error: &DataplaneError) {
        let note = format!("{family} rules are not up to date, the former ones stay in force: {}", chain(error));
        self.events.on_node(EventType::Warning, "FailedToSyncRules", "SyncRules", note);
    }
}
