//! Service ports whose rules the kernel refuses: they are set aside, so that all others are applied, and retried alone.
//!
//! ```text
//!   Dataplane: a service port was rejected
//!        └──► Isolation: its last accepted entry takes its place in the table, if there is one,
//!                  │     with the frontends that the service port still owns
//!                  └──► retried alone after a delay that doubles, and soon after it was changed
//! ```
//!
//! If the kernel refuses rules for a Service that passed the API server's validation, that is an error of the proxy,
//! and must not prevent updates of other Services.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ferroute_core::{
    Backoff, Changes, Frontend, Rejection, ServicePort, ServicePortEntry, ServicePortName, ServiceTable,
};
use tokio::time::Instant;

/// The service ports of one IP family that are set aside.
#[derive(Debug, Default)]
pub(super) struct Isolation {
    ports: BTreeMap<ServicePortName, Isolated>,
}

#[derive(Debug)]
struct Isolated {
    /// The entry whose rules are active; `None` if there are none.
    accepted: Option<ServicePortEntry>,
    /// The last error of the kernel, or of the program that writes rules to it.
    error: String,
    backoff: Backoff,
    rejected_at: Instant,
    retry_at: Instant,
}

impl Isolation {
    /// Returns the number of service ports.
    pub(super) fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns the service ports that are set aside, with the last errors.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&ServicePortName, &str)> {
        self.ports.iter().map(|(name, port)| (name, &*port.error))
    }

    /// Reports whether a service port is set aside, and has rules of an earlier version.
    pub(super) fn has_accepted_rules(&self, name: &ServicePortName) -> Option<bool> {
        self.ports.get(name).map(|port| port.accepted.is_some())
    }

    /// Sets a rejected service port aside. `accepted` is the entry whose rules are active. Returns true if the service port
    /// has lost frontends of that entry, so that the rules must be written again.
    pub(super) fn reject(
        &mut self,
        table: &ServiceTable,
        Rejection { service_port: name, error }: &Rejection,
        accepted: Option<&ServicePortEntry>,
        now: Instant,
    ) -> bool {
        let owned = accepted.and_then(|accepted| still_owned(name, accepted, table));
        let has_lost = owned.as_ref() != accepted;
        let port = self.ports.entry(name.clone()).or_insert_with(|| Isolated {
            accepted: None,
            error: String::new(),
            backoff: Backoff::new(FIRST_RETRY, LAST_RETRY),
            rejected_at: now,
            retry_at: now,
        });
        port.accepted = owned;
        port.error.clone_from(error);
        port.rejected_at = now;
        port.retry_at = now + port.backoff.next_delay();
        has_lost
    }

    /// Ends the isolation of a service port whose rules were accepted.
    pub(super) fn accept(&mut self, name: &ServicePortName) {
        self.ports.remove(name);
    }

    /// Prepares for a sync and returns the changes to apply to the table of [`Isolation::apply`].
    ///
    /// Changes of service ports that are set aside bring their next retry forward. They are left out, except that the
    /// accepted entries lose the frontends that the service ports lose. Removed service ports are no longer set aside.
    pub(super) fn filter<'a>(&mut self, table: &ServiceTable, changes: &'a Changes) -> Cow<'a, Changes> {
        let mut allowed = Cow::Borrowed(changes);
        self.ports.retain(|name, port| {
            let is_served = table.entries.contains_key(name);
            if is_served && changes.previous.contains_key(name) {
                allowed.to_mut().previous.remove(name);
                port.retry_at = port.retry_at.min(port.rejected_at + AFTER_CHANGE);
            }
            let owned = port.accepted.as_ref().and_then(|accepted| still_owned(name, accepted, table));
            if !is_served || owned != port.accepted {
                let allowed = allowed.to_mut();
                allowed.services.insert(name.service.clone());
                allowed.previous.insert(name.clone(), std::mem::replace(&mut port.accepted, owned));
            }
            is_served
        });
        allowed
    }

    /// Reports whether a service port is to be retried.
    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        self.ports.values().any(|port| port.retry_at <= now)
    }

    /// Returns the service ports to retry, with the entries whose rules are active.
    pub(super) fn due(&self, now: Instant) -> Vec<(ServicePortName, Option<ServicePortEntry>)> {
        let due = self.ports.iter().filter(|(_, port)| port.retry_at <= now);
        due.map(|(name, port)| (name.clone(), port.accepted.clone())).collect()
    }

    /// Returns a table in which the service ports that are set aside, except for one, have their accepted entries or
    /// none.
    pub(super) fn apply<'a>(&self, table: &'a ServiceTable, except: Option<&ServicePortName>) -> Cow<'a, ServiceTable> {
        let mut applied = Cow::Borrowed(table);
        for (name, port) in self.ports.iter().filter(|(name, _)| Some(*name) != except) {
            let entries = &mut applied.to_mut().entries;
            match &port.accepted {
                Some(entry) => entries.insert(name.clone(), entry.clone()),
                None => entries.remove(name),
            };
        }
        debug_assert_eq!(applied.shared_frontend(), None, "bug: two service ports have the same frontend");
        applied
    }
}

/// Returns an entry without the frontends that the service port no longer owns; `None` if the service port was removed.
fn still_owned(name: &ServicePortName, accepted: &ServicePortEntry, table: &ServiceTable) -> Option<ServicePortEntry> {
    let current = &table.entries.get(name)?.service;
    let frontends = |service: &ServicePort| -> HashSet<Frontend> {
        service.frontends(name.protocol).map(|(_, frontend)| frontend).collect()
    };
    let mut entry = accepted.clone();
    if !Arc::ptr_eq(current, &entry.service) {
        let owned = frontends(current);
        if !frontends(&entry.service).is_subset(&owned) {
            Arc::make_mut(&mut entry.service).retain_frontends(name.protocol, |frontend| owned.contains(&frontend));
        }
    }
    Some(entry)
}

/// The delay before the first retry of a service port that does not change. It doubles up to [`LAST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_secs(10);
const LAST_RETRY: Duration = Duration::from_secs(600);
/// The time between attempts for a service port that changes again and again.
const AFTER_CHANGE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ferroute_core::{
        IpFamily,
        testing::{endpoint, entry, node, port_name, service_port, table},
    };

    use super::*;

    fn version(frontend: &str, address: &str) -> ServicePortEntry {
        entry(service_port(frontend), [endpoint(address)])
    }

    fn rejection(name: &ServicePortName) -> Rejection {
        Rejection { service_port: name.clone(), error: "exists".to_owned() }
    }

    fn changes(names: &[&str]) -> Changes {
        Changes { previous: names.iter().map(|name| (port_name(name), None)).collect(), ..Changes::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_service_port_keeps_its_accepted_entry_and_is_retried_later_and_later() {
        let (good, bad) = (version("10.96.0.1:80", "10.244.0.2:80"), version("10.96.0.1:80", "10.244.0.3:80"));
        let other = version("10.96.0.2:80", "10.244.0.3:80");
        let [web, cart] = ["shop/web:http", "shop/cart:http"].map(port_name);
        let entries = [(web.clone(), bad.clone()), (cart.clone(), other.clone())];
        let table = table(IpFamily::V4, node("node-1"), entries);
        let mut isolation = Isolation::default();
        assert!(matches!(isolation.apply(&table, None), Cow::Borrowed(_)));
        isolation.reject(&table, &rejection(&web), Some(&good), Instant::now());
        isolation.reject(&table, &rejection(&cart), None, Instant::now());
        assert_eq!(isolation.apply(&table, None).entries, BTreeMap::from([(web.clone(), good.clone())]));
        let retried = BTreeMap::from([(web.clone(), good.clone()), (cart.clone(), other)]);
        assert_eq!(isolation.apply(&table, Some(&cart)).entries, retried);
        let mut delays = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            while !isolation.is_retry_due(Instant::now()) {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            delays.push(start.elapsed().as_secs());
            assert_eq!(isolation.due(Instant::now()), [(cart.clone(), None), (web.clone(), Some(good.clone()))]);
            isolation.due(Instant::now()).into_iter().for_each(|(name, accepted)| {
                isolation.reject(&table, &rejection(&name), accepted.as_ref(), Instant::now());
            });
        }
        assert_eq!(delays, [10, 20, 40]);
        isolation.accept(&cart);
        assert_eq!(isolation.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn changed_service_port_is_retried_soon_and_a_removed_one_is_forgotten() {
        let entries = [(port_name("shop/web:http"), version("10.96.0.1:80", "10.244.0.2:80"))];
        let table = table(IpFamily::V4, node("node-1"), entries);
        let mut isolation = Isolation::default();
        for name in ["shop/web:http", "shop/gone:http"] {
            isolation.reject(&table, &rejection(&port_name(name)), None, Instant::now());
        }
        let changes = changes(&["shop/web:http", "shop/gone:http", "shop/cart:http"]);
        let left: BTreeSet<_> = isolation.filter(&table, &changes).into_owned().previous.into_keys().collect();
        assert_eq!(left, [port_name("shop/gone:http"), port_name("shop/cart:http")].into());
        assert_eq!((isolation.len(), isolation.is_retry_due(Instant::now())), (1, false));
        tokio::time::advance(AFTER_CHANGE).await;
        assert!(isolation.is_retry_due(Instant::now()));
    }
}
