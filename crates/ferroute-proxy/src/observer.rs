//! Those who want to know what the sync loop does: health, and whoever counts, records or reports.

use std::net::IpAddr;

use ferroute_core::{Dataplane, DataplaneError, IpFamily, ServiceTable, Tracker};

use crate::sync::{Change, FamilyOutcome};

/// Is told what the sync loop does, on the loop's own thread: nothing here may block, since rules wait for it.
pub trait Observer: Send {
    /// A change is being taken; `before` is what was wanted until now.
    fn taken(&mut self, _: &Change, _before: &Tracker) {}
    /// Everything has been listed: these families are served.
    fn serves(&mut self, _: &[IpFamily]) {}
    /// Something has changed that is not in force yet.
    fn queued(&mut self, _: IpFamily) {}
    /// A sync of a family begins; `full`: it compares everything.
    fn begins(&mut self, _: IpFamily, _full: bool) {}
    /// Everything that was queued for a family is in force.
    fn in_force(&mut self, _: &InForce<'_>) {}
    /// A family's rules could not be written: the old ones stay in force, and what was queued still is.
    fn failed(&mut self, _: IpFamily, _: &DataplaneError) {}
    /// A second has passed: time for what could not be done before, and to answer questions about what is wanted.
    fn look(&mut self, _wanted: &Tracker) {}
}

/// One family's successful sync.
#[derive(Clone, Copy)]
pub struct InForce<'a> {
    /// What is in force now.
    pub table: &'a ServiceTable,
    /// What it took.
    pub outcome: &'a FamilyOutcome,
    /// The addresses of the host's interfaces.
    pub host_addresses: &'a [IpAddr],
    /// Who has written it.
    pub dataplane: &'a dyn Dataplane,
}
