use std::{
    collections::{HashMap, HashSet},
    error::Error,
    fmt,
    net::IpAddr,
    time::{Duration, Instant},
};

use ferroute_core::{
    Changes, Dataplane, DataplaneError, Heartbeat, HostState, IpFamily, Protocol, RulesDigest, ServiceTable,
    SyncReport, TableReport, Throttle, error_chain,
};
use ferroute_host::processor_time;
use ferroute_iptables::exec::RuleWriter;
use ipnet::IpNet;

use crate::{
    departed::Departed,
    difference::{Difference, ServerChange, ServerEdit},
    kernel::{Kernel, KernelRealServer, KernelState, Operation, Refused},
    plan::{Entry, IpvsContext, IpvsPlan, IpvsSettings, RealServer, ServerKey, SetKind, SetType},
    sets::{DEFAULT_CAPACITY, capacity},
    termination::{Terminating, is_graceful},
};

/// Applies the virtual servers, ipsets, addresses and rules of one IP family.
pub struct IpvsDataplane<K, R> {
    family: IpFamily,
    settings: IpvsSettings,
    kernel: K,
    rules: R,
    /// Features of the host, and its addresses.
    host: HostState,
    /// The applied objects; `None` while they are unknown.
    state: Option<IpvsPlan>,
    terminating: Terminating,
    departed: Departed,
    /// Lower bound of the maximum number of entries of each set.
    capacities: [u32; SetKind::ALL.len()],
    /// Limits comparisons of the kernel's objects with `state`: the kernel does not report changes.
    comparisons: Throttle,
    /// The rules of the last sync, by table.
    tables: Vec<TableReport>,
}

/// The comparison of rules with the kernel's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// With the rules written last.
    Changes,
    /// With the rules in the kernel.
    Full,
}

/// The outcome of a write.
#[derive(Default)]
struct Written {
    written: usize,
    removed: usize,
    kernel_time: Duration,
}

impl<K: Kernel, R: RuleWriter> IpvsDataplane<K, R> {
    /// Creates a dataplane without applied objects. `host` has the features of the host; its addresses may be set
    /// later.
    pub fn new(family: IpFamily, settings: IpvsSettings, kernel: K, rules: R, host: HostState) -> Self {
        Self {
            family,
            settings,
            kernel,
            rules,
            host,
            state: None,
            terminating: Terminating::default(),
            departed: Departed::default(),
            capacities: DEFAULT_CAPACITIES,
            comparisons: Throttle::default(),
            tables: Vec::new(),
        }
    }

    /// Keeps node ports for this time at an address that has left the host.
    #[must_use]
    pub fn keep_node_ports(self, period: Duration) -> Self {
        Self { departed: Departed::new(period), ..self }
    }

    /// Returns the kernel.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Returns the writer of rules.
    pub fn rules_mut(&mut self) -> &mut R {
        &mut self.rules
    }

    /// Returns the applied objects.
    pub fn state(&self) -> Option<&IpvsPlan> {
        self.state.as_ref()
    }

    /// Returns the number of removed real servers that still have connections.
    pub fn terminating(&self) -> usize {
        self.terminating.len()
    }

    fn context(&self, table: &ServiceTable) -> IpvsContext {
        let mut context = IpvsContext::new(&self.settings, table, &self.host);
        let departed: Vec<IpAddr> =
            self.departed.addresses().filter(|address| !context.node_ports.contains(address)).collect();
        context.node_ports.extend(departed);
        context
    }

    /// Makes all changes, including those after one that the kernel refuses. Rules are written only with `rules`.
    fn write(
        &mut self,
        difference: &Difference,
        state: &IpvsPlan,
        rules: Option<Scope>,
    ) -> Result<Written, DataplaneError> {
        let start = Instant::now();
        let mut refused = Vec::new();
        let mut written = Written::default();
        self.reserve(difference, state)?;
        for (kind, entry) in &difference.add_entries {
            self.push(Operation::AddEntry(*kind, *entry), &mut written)?;
        }
        self.flush(&mut refused)?;
        self.tables.iter_mut().for_each(|table| table.written = 0);
        if let Some(scope) = rules {
            let report = self.rules.apply(&state.chains(), scope == Scope::Full)?;
            written.written += report.written.rules.total();
            self.tables = report.tables;
        }
        for (number, change) in difference.servers.iter().enumerate() {
            self.write_server(change, state, &mut written)?;
            if number % SERVERS_PER_BEAT == 0 {
                Heartbeat::beat_thread();
            }
        }
        for address in &difference.rebind {
            self.push(Operation::Unbind(*address), &mut written)?;
        }
        for address in difference.rebind.iter().chain(&difference.bind) {
            self.push(Operation::Bind(*address), &mut written)?;
        }
        for address in &difference.unbind {
            self.push(Operation::Unbind(*address), &mut written)?;
        }
        for key in &difference.delete_servers {
            self.terminating.remove_all(*key);
            self.push(Operation::DeleteServer(*key), &mut written)?;
        }
        // Sent only after all virtual servers of these entries have been deleted.
        for (kind, entry) in &difference.delete_entries {
            self.push(Operation::DeleteEntry(*kind, *entry), &mut written)?;
        }
        self.flush(&mut refused)?;
        written.kernel_time = start.elapsed();
        match first_refusal(refused, state, self.family) {
            None => Ok(written),
            Some(error) => Err(error),
        }
    }

    /// Enlarges the sets that cannot hold the planned entries together with the old ones, which are deleted last.
    fn reserve(&mut self, difference: &Difference, state: &IpvsPlan) -> Result<(), DataplaneError> {
        let mut entries = SetKind::ALL.map(|kind| state.set_size(kind));
        difference.delete_entries.iter().for_each(|(kind, _)| entries[kind.index()] += 1);
        for kind in SetKind::ALL.into_iter().filter(|kind| kind.set_type() != SetType::Port) {
            let entries = entries[kind.index()];
            if entries > self.capacities[kind.index()] as usize {
                self.kernel.reserve(kind, entries).map_err(|error| self.write_error(error))?;
                self.capacities[kind.index()] = capacity(entries);
            }
        }
        Ok(())
    }

    fn write_server(
        &mut self,
        change: &ServerChange,
        state: &IpvsPlan,
        written: &mut Written,
    ) -> Result<(), DataplaneError> {
        let scheduler = &state.context().scheduler;
        match change {
            ServerChange::Add(key) => {
                let Some(server) = state.servers().get(key) else { return Ok(()) };
                self.push(Operation::AddServer(*key, server.settings(scheduler)), written)?;
                for (real, weight) in server.real_servers().iter() {
                    self.push(Operation::AddRealServer(*key, real, weight), written)?;
                }
            }
            ServerChange::Edit(key, edit) => {
                let ServerEdit { settings, add, restore, remove } = &**edit;
                if let Some(server) = state.servers().get(key).filter(|_| *settings) {
                    self.push(Operation::EditServer(*key, server.settings(scheduler)), written)?;
                }
                for (real, weight) in add {
                    // A real server that returns before its connections have ended keeps them.
                    let operation = match self.terminating.remove(*key, *real) {
                        true => Operation::SetWeight(*key, *real, *weight),
                        false => Operation::AddRealServer(*key, *real, *weight),
                    };
                    self.push(operation, written)?;
                }
                for (real, weight) in restore {
                    self.push(Operation::SetWeight(*key, *real, *weight), written)?;
                }
                self.remove_real_servers(*key, remove, written)?;
            }
        }
        Ok(())
    }

    /// Deletes real servers without connections; others get weight 0 and are deleted later.
    fn remove_real_servers(
        &mut self,
        key: ServerKey,
        remove: &[RealServer],
        written: &mut Written,
    ) -> Result<(), DataplaneError> {
        if remove.is_empty() {
            return Ok(());
        }
        if is_graceful(key.protocol) {
            // The weight is set first, so that no connection starts between the count and the deletion.
            for real in remove {
                if !self.terminating.contains(key, real) {
                    self.push(Operation::SetWeight(key, *real, 0), written)?;
                }
            }
        }
        let now = Instant::now();
        let existing = if is_graceful(key.protocol) { self.read_real_servers(key)? } else { Vec::new() };
        let in_use = existing.iter().filter(|existing| existing.connections > 0);
        let in_use: HashSet<RealServer> = in_use.map(|existing| existing.real).collect();
        for real in remove {
            if in_use.contains(real) {
                self.terminating.add(key, *real, now);
            } else {
                self.push(Operation::DeleteRealServer(key, *real), written)?;
            }
        }
        Ok(())
    }

    fn read_real_servers(&mut self, key: ServerKey) -> Result<Vec<KernelRealServer>, DataplaneError> {
        self.kernel.real_servers(key).map_err(|error| self.read_error(error))
    }

    /// Deletes the real servers whose connections have ended.
    fn delete_terminated(&mut self, now: Instant) -> Result<(), DataplaneError> {
        let mut written = Written::default();
        for key in self.terminating.due(now) {
            let existing = self.read_real_servers(key)?;
            let existing: HashMap<RealServer, &KernelRealServer> =
                existing.iter().map(|existing| (existing.real, existing)).collect();
            for real in self.terminating.of(key) {
                match existing.get(&real) {
                    Some(existing) if existing.connections > 0 => {}
                    found => {
                        if found.is_some() {
                            tracing::debug!(server = %key, %real, "deleting real server: its connections have ended");
                            self.push(Operation::DeleteRealServer(key, real), &mut written)?;
                        }
                        self.terminating.remove(key, real);
                    }
                }
            }
        }
        let mut refused = Vec::new();
        self.flush(&mut refused)
    }

    fn push(&mut self, operation: Operation, written: &mut Written) -> Result<(), DataplaneError> {
        match operation {
            Operation::DeleteEntry(..)
            | Operation::DeleteServer(_)
            | Operation::DeleteRealServer(..)
            | Operation::Unbind(_) => written.removed += 1,
            _ => written.written += 1,
        }
        self.kernel.write(operation).map_err(|error| self.write_error(error))
    }

    fn flush(&mut self, refused: &mut Vec<Refused<K::Error>>) -> Result<(), DataplaneError> {
        refused.extend(self.kernel.flush().map_err(|error| self.write_error(error))?);
        Ok(())
    }

    /// Reads the kernel's objects and returns the changes that lead to `state`.
    fn kernel_difference(&mut self, state: &IpvsPlan) -> Result<Difference, DataplaneError> {
        let is_planned = |key: &ServerKey| state.servers().contains_key(key);
        let kernel = self.kernel.read(&is_planned).map_err(|error| self.read_error(error))?;
        let (host, excluded) = (&self.host, &self.settings.exclude_cidrs);
        Ok(Difference::from_kernel(kernel, state, |key, kernel| is_ours(key, kernel, host, excluded)))
    }

    /// Removes real servers from a difference that are only waiting for the end of their connections.
    fn ignore_terminating(&self, difference: &mut Difference) {
        difference.servers.retain_mut(|change| match change {
            ServerChange::Edit(key, edit) => {
                edit.remove.retain(|real| !self.terminating.contains(*key, real));
                **edit != ServerEdit::default()
            }
            ServerChange::Add(_) => true,
        });
    }

    fn report(&mut self, state: IpvsPlan, full: bool, written: &Written) -> SyncReport {
        let rules: usize = self.tables.iter().map(|table| table.total).sum();
        let total = state.total() + rules;
        self.state = Some(state);
        SyncReport {
            full,
            written: written.written,
            removed: written.removed,
            total,
            tables: self.tables.clone(),
            kernel_time: written.kernel_time,
            ..SyncReport::default()
        }
    }

    fn read_error(&self, source: impl Error + Send + Sync + 'static) -> DataplaneError {
        DataplaneError::Read { rules: objects(self.family), source: source.into() }
    }

    fn write_error(&self, source: impl Error + Send + Sync + 'static) -> DataplaneError {
        DataplaneError::Write { rules: objects(self.family), source: source.into() }
    }
}

impl<K: Kernel, R: RuleWriter> Dataplane for IpvsDataplane<K, R> {
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> Result<SyncReport, DataplaneError> {
        let context = self.context(table);
        // The kernel's objects are unknown until the sync has succeeded.
        let Some(mut state) = self.state.take() else { return self.resync(table) };
        let before = state.rules_version();
        let (delta, rules_differ) = if changes.node || *state.context() != context {
            let new = IpvsPlan::new(table, context);
            let delta = new.difference(&state);
            state = new;
            (delta, true)
        } else {
            let delta = state.update(table, changes);
            (delta, state.rules_version() != before)
        };
        let difference = Difference::from_delta(delta, &state);
        let written = self.write(&difference, &state, rules_differ.then_some(Scope::Changes))?;
        Ok(self.report(state, false, &written))
    }

    fn resync(&mut self, table: &ServiceTable) -> Result<SyncReport, DataplaneError> {
        self.state = None;
        self.terminating.clear();
        self.capacities = DEFAULT_CAPACITIES;
        let context = self.context(table);
        let start = Instant::now();
        self.kernel.prepare().map_err(|error| self.write_error(error))?;
        let state = IpvsPlan::new(table, context);
        let difference = self.kernel_difference(&state)?;
        for key in &difference.taken {
            let service_port = &state.servers()[key].owner;
            tracing::warn!(
                server = %key, %service_port,
                "replacing the virtual server of another program: a Service has its address and port"
            );
        }
        let read = start.elapsed();
        let mut written = self.write(&difference, &state, Some(Scope::Full))?;
        written.kernel_time += read;
        let deleted = difference.delete_servers.iter().filter(|key| key.protocol == Protocol::Udp);
        let udp_frontends_before = deleted.map(|key| key.frontend()).collect();
        Ok(SyncReport { udp_frontends_before, ..self.report(state, true, &written) })
    }

    fn set_host_addresses(&mut self, addresses: &[IpAddr]) {
        let serving = self.state.as_ref().map(|state| &state.context().node_ports[..]).unwrap_or_default();
        self.departed.update(&self.host.addresses, addresses, serving, Instant::now());
        self.host.addresses = addresses.to_vec();
    }

    fn is_resync_due(&self) -> bool {
        self.departed.is_due(Instant::now())
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        if self.state.is_none() || self.rules.was_modified_externally()? {
            return Ok(true);
        }
        let cost = processor_time();
        if !self.comparisons.is_due(Instant::now()) {
            return Ok(false);
        }
        let Some(state) = self.state.take() else { return Ok(true) };
        let difference = self.kernel_difference(&state);
        self.state = Some(state);
        self.comparisons.record(Instant::now(), processor_time().saturating_sub(cost));
        let mut difference = difference?;
        self.ignore_terminating(&mut difference);
        Ok(!difference.is_empty())
    }

    fn maintain(&mut self) {
        if let Err(error) = self.delete_terminated(Instant::now()) {
            tracing::warn!(
                family = %self.family, error = error_chain(&error),
                "cannot delete real servers whose connections have ended; retrying in a minute"
            );
        }
    }

    fn digest(&self, _: &ServiceTable) -> Option<RulesDigest> {
        self.state.as_ref().map(IpvsPlan::digest)
    }
}

impl<K, R> fmt::Debug for IpvsDataplane<K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpvsDataplane").field("family", &self.family).finish_non_exhaustive()
    }
}

/// Reports whether a virtual server that is not planned is kube-proxy's or Ferroute's: its address is on the dummy
/// device or in a set, or it is a node port at an address that had node ports. Other programs may have virtual servers,
/// too, also at addresses of the host and with the number of a node port.
fn is_ours(key: &ServerKey, kernel: &KernelState, host: &HostState, excluded: &[IpNet]) -> bool {
    let contains = |kind: SetKind, entry| kernel.entries[kind.index()].contains(&entry);
    let node_port = match key.protocol {
        Protocol::Sctp => Entry::Service(*key),
        Protocol::Tcp | Protocol::Udp => Entry::Port(key.port),
    };
    let is_node_port = contains(SetKind::node_ports(key.protocol), node_port);
    if is_node_port && contains(SetKind::NodePortIps, Entry::Address(key.address)) {
        return true;
    }
    if excluded.iter().any(|net| net.contains(&key.address)) {
        return false;
    }
    // kube-proxy does not record the addresses of node ports.
    let is_kube_proxys = || kernel.entries[SetKind::NodePortIps.index()].is_empty();
    kernel.addresses.contains(&key.address)
        || SetKind::WITH_SERVERS.into_iter().any(|kind| contains(kind, Entry::Service(*key)))
        || is_node_port && is_kube_proxys() && host.addresses.contains(&key.address)
}

/// Returns the error for the first refusal, with the service port that it belongs to, if any.
fn first_refusal<E: Error + Send + Sync + 'static>(
    refused: Vec<Refused<E>>,
    state: &IpvsPlan,
    family: IpFamily,
) -> Option<DataplaneError> {
    let count = refused.len();
    let Refused { operation, error } = refused.into_iter().next()?;
    if count > 1 {
        tracing::warn!(%family, count, "the kernel refused several changes; all others were made");
    }
    let owner = operation.server().and_then(|key| state.servers().get(&key)).map(|server| server.owner.clone());
    let rules = objects(family);
    Some(match owner {
        Some(service_port) => DataplaneError::Rejected { rules, service_port, source: error.into() },
        None => DataplaneError::Write { rules, source: error.into() },
    })
}

/// The capacities of new sets.
const DEFAULT_CAPACITIES: [u32; SetKind::ALL.len()] = [DEFAULT_CAPACITY; SetKind::ALL.len()];

/// Virtual servers that are written between two heartbeats.
const SERVERS_PER_BEAT: usize = 256;

fn objects(family: IpFamily) -> String {
    format!("{family} virtual servers, ipsets and addresses")
}
