//! Service ports without endpoints on this node.

use ferroute_core::{Changes, ServicePortEntry, ServiceTable};

/// Numbers of service ports with traffic policy Local for which only other nodes have usable endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NoLocalEndpoints {
    pub(super) internal: usize,
    pub(super) external: usize,
}

impl NoLocalEndpoints {
    /// Counts the service ports of a table: all of them, or the difference that `changes` have caused.
    pub(super) fn update(&mut self, table: &ServiceTable, changes: Option<&Changes>) {
        let Some(changes) = changes else {
            *self = Self::default();
            table.entries.values().for_each(|entry| self.add(entry));
            return;
        };
        for (name, previous) in &changes.previous {
            // In this order, so that no number becomes negative.
            table.entries.get(name).into_iter().for_each(|entry| self.add(entry));
            previous.iter().for_each(|entry| self.remove(entry));
        }
    }

    fn add(&mut self, entry: &ServicePortEntry) {
        let (internal, external) = entry.lacks_local_endpoints();
        self.internal += usize::from(internal);
        self.external += usize::from(external);
    }

    fn remove(&mut self, entry: &ServicePortEntry) {
        let (internal, external) = entry.lacks_local_endpoints();
        self.internal -= usize::from(internal);
        self.external -= usize::from(external);
    }
}

#[cfg(test)]
mod tests {
    use ferroute_core::{IpFamily, testing::arbitrary};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn incremental_counts_equal_those_of_the_endpoint_sets(
            cluster in arbitrary::drained_cluster(), edits in arbitrary::edits(0..12),
        ) {
            let mut tracker = cluster.tracker();
            for family in IpFamily::BOTH {
                tracker.update_for_resync(family);
            }
            let mut counts = IpFamily::BOTH.map(|family| {
                let mut counts = NoLocalEndpoints::default();
                counts.update(tracker.table(family), None);
                counts
            });
            for edit in &edits {
                edit.apply_to(&mut tracker);
                for family in IpFamily::BOTH {
                    let changes = tracker.update(family);
                    let table = tracker.table(family);
                    counts[family.index()].update(table, Some(&changes));
                    let count = |is_local: fn(&ServicePortEntry) -> bool| {
                        let lacks = |entry: &&ServicePortEntry| {
                            let sets = table.endpoint_sets(entry);
                            is_local(entry) && sets.has_any_endpoints && sets.local.is_empty()
                        };
                        table.entries.values().filter(lacks).count()
                    };
                    let expected = NoLocalEndpoints {
                        internal: count(|entry| entry.service.internal_local()),
                        external: count(|entry| {
                            entry.service.external_local() && entry.service.externally_accessible()
                        }),
                    };
                    prop_assert_eq!(counts[family.index()], expected);
                }
            }
        }
    }
}
