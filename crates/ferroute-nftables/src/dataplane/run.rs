use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use ferroute_core::SyncReport;

use crate::{
    model::{Change, Name, Transaction},
    plan::Planner,
};

/// Changes that are on their way.
pub(super) struct Writing {
    pub(super) planner: Planner,
    pub(super) transaction: Transaction,
    /// Service ports that the planner was told of.
    pub(super) done: usize,
}

/// What a sync has done so far.
pub(super) struct Run {
    pub(super) report: SyncReport,
    /// Elements in force, by set.
    pub(super) elements: HashMap<Name, usize>,
    /// What the kernel's number should be if nobody else changes anything.
    pub(super) expected: Option<u32>,
    /// When somebody was last told how far it is.
    told: Instant,
}

impl Run {
    /// Nothing yet: these elements are in force, and the kernel's number is as expected.
    pub(super) fn new(elements: HashMap<Name, usize>, expected: Option<u32>) -> Self {
        Self { report: SyncReport::default(), elements, expected, told: Instant::now() }
    }

    pub(super) fn committed(&mut self, transaction: &Transaction, took: Duration) {
        self.report.kernel_time += took;
        // The kernel leaves 0 out.
        self.expected = self.expected.map(|generation| generation.checked_add(1).unwrap_or(1));
        for change in &transaction.changes {
            match change {
                Change::AddTable(_) | Change::FlushChain(_) => {}
                Change::DeleteTable => self.elements.clear(),
                Change::AddChain(_) | Change::AddRule(..) | Change::AddSet(_) => self.report.written += 1,
                Change::DeleteChain(_) | Change::DeleteSet(..) => self.report.removed += 1,
                Change::AddElement(set, _) => {
                    self.report.written += 1;
                    *self.elements.entry(set.clone()).or_default() += 1;
                }
                Change::DeleteElement(set, _) => {
                    self.report.removed += 1;
                    // Saturating, for repairs count otherwise.
                    let count = self.elements.entry(set.clone()).or_default();
                    *count = count.saturating_sub(1);
                }
            }
        }
    }

    /// So long after the last time that people who watch the log may wonder.
    pub(super) fn is_time_to_tell(&mut self) -> bool {
        let is_time = self.told.elapsed() > TELL_INTERVAL;
        if is_time {
            self.told = Instant::now();
        }
        is_time
    }
}

const TELL_INTERVAL: Duration = Duration::from_secs(1);
