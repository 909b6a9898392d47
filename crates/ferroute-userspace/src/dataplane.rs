//! Applies listeners and rules of one IP family.

use std::{
    collections::{BTreeSet, HashMap},
    error::Error,
};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, Heartbeat, HostState, IpFamily, ModeTraits, Protocol, ProxySettings, Rejection,
    RulesDigest, ServicePortName, ServiceTable, SyncReport,
};
use ferroute_host::HostAddresses;
use ferroute_iptables::exec::RuleWriter;

use crate::{
    ListenerSpec,
    plan::{ListenerChanges, ListenerKey, RelayContext, RelayPlan},
};

/// A process that accepts and relays connections.
pub trait Relay: Send {
    /// The cause of a failure.
    type Error: Error + Send + Sync + 'static;

    /// Returns the number of the process, after starting it if it is not running. A new process has a new number and no
    /// listeners.
    ///
    /// # Errors
    /// If the process cannot be started.
    fn generation(&mut self) -> Result<u64, Self::Error>;

    /// Opens listeners, or changes the specifications of open ones. Returns the port of each, or the reason why it
    /// could not be opened.
    ///
    /// # Errors
    /// If the process cannot be reached.
    fn set(&mut self, listeners: &[(ListenerKey, ListenerSpec)]) -> Result<Vec<Result<u16, String>>, Self::Error>;

    /// Closes listeners. Their established connections continue.
    ///
    /// # Errors
    /// If the process cannot be reached.
    fn close(&mut self, listeners: &[ListenerKey]) -> Result<(), Self::Error>;

    /// Closes all listeners of an IP family except these.
    ///
    /// # Errors
    /// If the process cannot be reached.
    fn retain(&mut self, family: IpFamily, listeners: &[ListenerKey]) -> Result<(), Self::Error>;

    /// Reports whether the process of a generation is running, and answers. It must be cheap.
    fn is_running(&mut self, generation: u64) -> bool;

    /// Returns why connections may not be accepted although the process is running.
    fn problem(&mut self) -> Option<&'static str> {
        None
    }
}

/// Applies the listeners and rules of one IP family.
pub struct UserspaceDataplane<P, R> {
    family: IpFamily,
    settings: ProxySettings,
    relay: P,
    rules: R,
    addresses: Box<dyn HostAddresses>,
    host: HostState,
    /// The applied state and the process that has its listeners; `None` while the state is unknown.
    applied: Option<(RelayPlan, u64)>,
    /// Service ports whose protocol cannot be relayed and that were reported.
    unsupported: BTreeSet<ServicePortName>,
    tables: Vec<ferroute_core::TableReport>,
}

impl<P: Relay, R: RuleWriter> UserspaceDataplane<P, R> {
    /// Creates a dataplane that has not applied anything.
    pub fn new(
        family: IpFamily,
        settings: ProxySettings,
        relay: P,
        rules: R,
        addresses: Box<dyn HostAddresses>,
    ) -> Self {
        Self {
            family,
            settings,
            relay,
            rules,
            addresses,
            host: HostState::default(),
            applied: None,
            unsupported: BTreeSet::new(),
            tables: Vec::new(),
        }
    }

    /// Returns the relay.
    pub fn relay_mut(&mut self) -> &mut P {
        &mut self.relay
    }

    /// Returns the writer of rules.
    pub fn rules_mut(&mut self) -> &mut R {
        &mut self.rules
    }

    fn context(&mut self, table: &ServiceTable) -> RelayContext {
        self.addresses.refresh(&mut self.host.addresses);
        RelayContext::new(&self.settings, table, &self.host)
    }

    /// Opens listeners, then writes rules, then closes listeners that no rule leads to any more.
    fn write(
        &mut self,
        mut state: RelayPlan,
        generation: u64,
        table: &ServiceTable,
        changes: &ListenerChanges,
        scope: Scope,
    ) -> Result<SyncReport, DataplaneError> {
        let mut report = SyncReport { full: scope == Scope::Full, ..SyncReport::default() };
        let mut ports = Vec::with_capacity(changes.set.len());
        for listeners in changes.set.chunks(LISTENERS_PER_REQUEST) {
            let opened = self.relay.set(listeners).map_err(|error| self.relay_error(error))?;
            for ((key, _), result) in listeners.iter().zip(opened) {
                ports.push(result.as_ref().ok().copied());
                if let Err(error) = result {
                    report.rejected.push(Rejection { service_port: key.service_port.clone(), error });
                }
            }
            Heartbeat::beat_thread();
        }
        report.written = changes.set.len();
        report.removed = changes.close.len();
        let rules_differ = state.record(table, changes, &ports);
        self.tables.iter_mut().for_each(|table| table.written = 0);
        if rules_differ || scope != Scope::Changes {
            let written = self.rules.apply(&state.chains(table), scope == Scope::Full)?;
            report.written += written.written.rules.total();
            report.kernel_time = written.took;
            report.udp_frontends_before = written.udp_frontends_before;
            self.tables = written.tables;
        }
        if scope == Scope::Full {
            let open: Vec<ListenerKey> = state.listeners().map(|(key, ..)| key.clone()).collect();
            self.relay.retain(self.family, &open).map_err(|error| self.relay_error(error))?;
        } else if !changes.close.is_empty() {
            self.relay.close(&changes.close).map_err(|error| self.relay_error(error))?;
        }
        report.total = state.total() + self.tables.iter().map(|table| table.total).sum::<usize>();
        report.tables.clone_from(&self.tables);
        self.applied = Some((state, generation));
        Ok(report)
    }

    /// Returns those of the service ports that cannot be served, each once.
    fn unsupported<'a>(
        &mut self,
        table: &ServiceTable,
        names: impl Iterator<Item = &'a ServicePortName>,
    ) -> BTreeSet<ServicePortName> {
        self.unsupported.retain(|name| table.entries.contains_key(name));
        let is_supported = |name: &ServicePortName| ModeTraits::USERSPACE.protocols.contains(&name.protocol);
        let unsupported = names.filter(|name| !is_supported(name) && table.entries.contains_key(name));
        unsupported.filter(|name| self.unsupported.insert((*name).clone())).cloned().collect()
    }

    fn relay_error(&self, source: P::Error) -> DataplaneError {
        DataplaneError::Write {
            rules: format!("{} listeners of the userspace proxy", self.family),
            source: source.into(),
        }
    }
}

impl<P: Relay, R: RuleWriter> Dataplane for UserspaceDataplane<P, R> {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        let context = self.context(table);
        // The applied state is unknown until the sync has succeeded.
        let Some((mut state, generation)) = self.applied.take() else { return self.resync(table) };
        if !self.relay.is_running(generation) {
            return self.resync(table);
        }
        let unsupported = self.unsupported(table, changes.previous.keys());
        let (changes, scope) = if changes.node || *state.context() != context {
            state.set_context(context);
            (state.listener_changes(table, None), Scope::All)
        } else {
            (state.listener_changes(table, Some(changes)), Scope::Changes)
        };
        Ok(SyncReport { unsupported, ..self.write(state, generation, table, &changes, scope)? })
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        let applied = self.applied.take();
        let context = self.context(table);
        let generation = self.relay.generation().map_err(|error| self.relay_error(error))?;
        let state = match applied {
            Some((mut state, of)) if of == generation => {
                state.set_context(context);
                state
            }
            // Listeners that are open already keep their ports.
            _ => RelayPlan::new(context),
        };
        let unsupported = self.unsupported(table, table.entries.keys());
        let changes = state.listener_changes(table, None);
        Ok(SyncReport { unsupported, ..self.write(state, generation, table, &changes, Scope::Full)? })
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        let Some((_, generation)) = &self.applied else { return Ok(true) };
        Ok(!self.relay.is_running(*generation) || self.rules.was_modified_externally()?)
    }

    fn problem(&mut self) -> Option<&'static str> {
        self.relay.problem()
    }

    fn relays(&self) -> HashMap<u16, ServicePortName> {
        let listeners = self.applied.iter().flat_map(|(state, _)| state.listeners());
        let udp = listeners.filter(|(key, ..)| key.service_port.protocol == Protocol::Udp);
        udp.filter_map(|(key, _, port)| Some((port?, key.service_port.clone()))).collect()
    }

    fn digest(&self, table: &ServiceTable) -> Option<RulesDigest> {
        self.applied.as_ref().map(|(state, _)| state.digest(table))
    }
}

impl<P, R> std::fmt::Debug for UserspaceDataplane<P, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserspaceDataplane").field("family", &self.family).finish_non_exhaustive()
    }
}

/// The rules to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Rules of changed service ports.
    Changes,
    /// Rules that differ from the last ones written.
    All,
    /// Rules that differ from the kernel's.
    Full,
}

/// Number of listeners in one request to the process; each may have a thousand endpoints.
const LISTENERS_PER_REQUEST: usize = 256;
