//! Dataplanes without a kernel: what they would write is kept as text.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_config::{Mode, Resolved};
use ferroute_core::{Changes, Dataplane, DataplaneError, IpFamily, RulesDigest, ServiceTable, SyncReport, Tracker};
use ferroute_host::{AddressError, HostAddresses};
use ferroute_iptables::{Difference, HostFacts, InForce, Ledger, PlanContext, plan::rules_digest};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{Kernel, MemoryError, MemoryKernel, Watched},
    model::Transaction,
};
use ferroute_recorder::{Bundle, Outcome};

use crate::{desired, planes};

/// One family's rules.
pub(super) enum Plane {
    Iptables(Box<Iptables>),
    Nftables(Box<Nftables>),
}

/// What a sync comes to.
pub(super) struct Decision {
    /// Rules or elements written.
    pub(super) written: usize,
    /// Chains or elements removed.
    pub(super) removed: usize,
    /// Rules or elements in force afterwards.
    pub(super) total: usize,
    /// What all rules come to, where all were gone through.
    pub(super) rules: Option<RulesDigest>,
    /// What is written, as the tools read it.
    pub(super) text: String,
}

/// The dataplane of nftables mode over tables in memory.
pub(super) struct Nftables {
    dataplane: NftablesDataplane<NotingKernel>,
    /// What has been written since it was last taken.
    written: Arc<Mutex<String>>,
}

/// The planner of iptables mode with what it remembers.
pub(super) struct Iptables {
    resolved: Resolved,
    host_addresses: Vec<IpAddr>,
    ledger: Option<Ledger>,
}

impl Plane {
    /// Nothing is in force yet.
    pub(super) fn new(family: IpFamily, bundle: &Bundle, resolved: &Resolved) -> Self {
        let host_addresses = bundle.host_addresses.clone();
        match resolved.mode {
            Mode::Nftables => {
                let addresses = Box::new(KnownAddresses(host_addresses));
                let settings = planes::nftables_settings(resolved);
                let written = Arc::new(Mutex::new(String::new()));
                let taken_down = written.clone();
                let note: Note = Box::new(move |kernel, transaction| {
                    lock(&taken_down).push_str(&transaction.to_string());
                    kernel.commit(transaction)
                });
                let kernel = Watched::new(MemoryKernel::new(), note);
                let dataplane = NftablesDataplane::with_kernel(kernel, family, settings, addresses);
                Self::Nftables(Box::new(Nftables { dataplane, written }))
            }
            Mode::Iptables | Mode::Ipvs(_) => {
                Self::Iptables(Box::new(Iptables { resolved: resolved.clone(), host_addresses, ledger: None }))
            }
        }
    }

    /// Brings everything into force.
    pub(super) fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<Decision> {
        let (decision, rules) = match self {
            Self::Iptables(plane) => (plane.write(table, None)?, Some(rules_digest(table, &plane.context(table)))),
            Self::Nftables(plane) => (plane.noted(|dataplane| dataplane.resync(table))?, plane.dataplane.digest(table)),
        };
        Ok(Decision { rules, ..decision })
    }

    /// Decides again what was decided when `recorded` came of it; `None` when there is nothing to do.
    pub(super) fn again(
        &mut self,
        family: IpFamily,
        recorded: &Outcome,
        tracker: &mut Tracker,
    ) -> anyhow::Result<Option<Decision>> {
        let changes = tracker.update(family);
        let table = tracker.table(family);
        match recorded {
            // The changes are part of what the next sync writes anew.
            Outcome::Failed { .. } => Ok(None),
            Outcome::InForce { full: true, .. } => self.resync(table).map(Some),
            Outcome::Unchanged | Outcome::InForce { .. } if changes.is_empty() => Ok(None),
            Outcome::Unchanged | Outcome::InForce { .. } => match self {
                Self::Iptables(plane) => plane.write(table, Some(&changes)),
                Self::Nftables(plane) => plane.noted(|dataplane| dataplane.sync(table, &changes)),
            }
            .map(Some),
        }
    }
}

impl Nftables {
    /// What a call to the dataplane writes.
    fn noted(
        &mut self,
        call: impl FnOnce(&mut dyn Dataplane) -> Result<SyncReport, DataplaneError>,
    ) -> anyhow::Result<Decision> {
        let report = call(&mut self.dataplane)?;
        let text = std::mem::take(&mut *lock(&self.written));
        Ok(Decision { written: report.written, removed: report.removed, total: report.total, rules: None, text })
    }
}

/// A text is whole, whatever happened to whoever last added to it.
fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Iptables {
    /// The facts that the record does not tell are taken to be those of a host that can do everything: they decide about
    /// a few rules that no Service has a part in.
    fn context(&self, table: &ServiceTable) -> PlanContext {
        let host = HostFacts {
            addresses: self.host_addresses.clone(),
            conntrack_tcp_be_liberal: self.resolved.conntrack.tcp_be_liberal,
            ..desired::full_host(table)
        };
        PlanContext::new(&self.resolved.settings, table, &host)
    }

    fn write(&mut self, table: &ServiceTable, changes: Option<&Changes>) -> anyhow::Result<Decision> {
        let context = self.context(table);
        let (ledger, difference) = match (self.ledger.take(), changes) {
            (Some(ledger), Some(changes)) => {
                let difference = ledger.difference(table, &context, changes);
                (Some(ledger), difference)
            }
            _ => (None, Difference::from_kernel(table, context, InForce::nothing())),
        };
        let mut text = Vec::new();
        let written = difference.write(table, &mut text)?;
        let removed = difference.deleted();
        let ledger = match ledger {
            Some(mut ledger) => {
                ledger.note(difference, &written);
                ledger
            }
            None => Ledger::new(difference),
        };
        let total = ledger.tally().rules.total();
        self.ledger = Some(ledger);
        let text = String::from_utf8(text).expect("rules are printed as text");
        Ok(Decision { written: written.rules.total(), removed, total, rules: None, text })
    }
}

/// The addresses of a host that is not this one.
struct KnownAddresses(Vec<IpAddr>);

impl HostAddresses for KnownAddresses {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        Ok(self.0.clone())
    }
}

/// Tables in memory, with what was written to them as text.
type NotingKernel = Watched<MemoryKernel, Note>;

/// Takes down a transaction and passes it on.
type Note = Box<dyn FnMut(&mut MemoryKernel, &Transaction) -> Result<(), MemoryError> + Send>;
