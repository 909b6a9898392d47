//! Dataplanes without a kernel: what they would write is kept as text.

use std::net::IpAddr;

use ferroute_config::{Mode, Resolved};
use ferroute_core::{Changes, Dataplane, DataplaneError, IpFamily, ServiceTable, Tracker};
use ferroute_host::{AddressError, HostAddresses};
use ferroute_iptables::{Difference, HostFacts, InForce, Ledger, PlanContext};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{Counter, Kernel, Listing, MemoryError, MemoryKernel, Reading},
    model::{Element, Key, Set, TableId, Transaction},
};
use ferroute_recorder::{Bundle, Outcome};

use crate::{desired, planes};

/// One family's rules.
pub(super) enum Plane {
    Iptables(Box<Iptables>),
    Nftables(Box<NftablesDataplane<NotingKernel>>),
}

/// What a sync comes to.
pub(super) struct Decision {
    /// Rules or elements written.
    pub(super) written: usize,
    /// Chains or elements removed.
    pub(super) removed: usize,
    /// Rules or elements in force afterwards.
    pub(super) total: usize,
    /// What is written, as the tools read it.
    pub(super) text: String,
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
                let kernel = NotingKernel::default();
                Self::Nftables(Box::new(NftablesDataplane::with_kernel(kernel, family, settings, addresses)))
            }
            Mode::Iptables | Mode::Ipvs(_) => {
                Self::Iptables(Box::new(Iptables { resolved: resolved.clone(), host_addresses, ledger: None }))
            }
        }
    }

    /// Brings everything into force.
    pub(super) fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<Decision> {
        match self {
            Self::Iptables(plane) => plane.write(table, None),
            Self::Nftables(plane) => noted(plane, |plane| plane.resync(table)),
        }
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
                Self::Nftables(plane) => noted(plane, |plane| plane.sync(table, &changes)),
            }
            .map(Some),
        }
    }
}

/// What a call to the dataplane has written.
fn noted(
    plane: &mut NftablesDataplane<NotingKernel>,
    call: impl FnOnce(&mut NftablesDataplane<NotingKernel>) -> Result<ferroute_core::SyncReport, DataplaneError>,
) -> anyhow::Result<Decision> {
    let before = plane.kernel().text.len();
    let report = call(plane)?;
    let text = plane.kernel().text[before..].to_owned();
    Ok(Decision { written: report.written, removed: report.removed, total: report.total, text })
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
        Ok(Decision { written: written.rules.total(), removed, total, text })
    }
}

/// The addresses of a host that is not this one.
struct KnownAddresses(Vec<IpAddr>);

impl HostAddresses for KnownAddresses {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        Ok(self.0.clone())
    }
}

/// Tables in memory that remember how they came to be what they are.
#[derive(Default)]
pub(super) struct NotingKernel {
    kernel: MemoryKernel,
    text: String,
}

impl Kernel for NotingKernel {
    type Error = MemoryError;

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Self::Error> {
        self.text.push_str(&transaction.to_string());
        self.kernel.commit(transaction)
    }

    fn generation(&mut self) -> Result<u32, Self::Error> {
        self.kernel.generation()
    }

    fn listing(&mut self, table: &TableId) -> Result<Option<Listing>, Self::Error> {
        self.kernel.listing(table)
    }

    fn read(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Option<Element>),
    ) -> Result<Reading, Self::Error> {
        self.kernel.read(table, set, each)
    }

    fn counts(
        &mut self,
        table: &TableId,
        set: &Set,
        each: &mut dyn FnMut(Element, Counter),
    ) -> Result<Reading, Self::Error> {
        self.kernel.counts(table, set, each)
    }

    fn find(
        &mut self,
        table: &TableId,
        set: &Set,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Option<Element>, Option<Counter>),
    ) -> Result<(), Self::Error> {
        self.kernel.find(table, set, keys, each)
    }
}
