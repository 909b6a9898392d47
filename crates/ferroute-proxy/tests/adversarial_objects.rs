//! No object that the API server accepts makes the kernel refuse a transaction. With the kernel, in network namespaces.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use ferroute_config::{KubeProxyConfiguration, ModeName, Resolved};
use ferroute_core::{
    Dataplane, IpFamily, SyncReport, Tracker,
    testing::{Cluster, Edit, arbitrary, namespaced_name},
};
use ferroute_modes::REGISTRY;
use ferroute_testing::NetNs;
use proptest::{prelude::*, test_runner::TestRunner};

/// A node whose rules a mode writes.
struct Node {
    netns: NetNs,
    resolved: Resolved,
    tracker: Tracker,
    dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)>,
}

impl Node {
    fn new(mode: ModeName, tracker: Tracker) -> Self {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.mode = mode.as_str().into();
        config.cluster_cidr = "10.244.0.0/16,fd00:244::/64".into();
        let resolved = REGISTRY.resolve(&config).unwrap();
        let mut node = Self { netns: NetNs::new(), resolved, tracker, dataplanes: Vec::new() };
        node.restart();
        node
    }

    fn restart(&mut self) {
        let mode = REGISTRY.active(self.resolved.mode);
        self.dataplanes = self.netns.run(|| mode.open(&self.resolved, self.tracker.node()).unwrap().dataplanes);
        assert_eq!(self.dataplanes.len(), 2);
    }

    fn resync(&mut self) -> Vec<SyncReport> {
        let dataplanes = self.dataplanes.iter_mut();
        dataplanes.map(|(family, it)| self.netns.run(|| it.resync(self.tracker.table(*family)).unwrap())).collect()
    }

    fn sync(&mut self, edits: &[Edit]) -> Vec<SyncReport> {
        edits.iter().for_each(|edit| edit.apply_to(&mut self.tracker));
        let mut reports = Vec::new();
        for (family, dataplane) in &mut self.dataplanes {
            let changes = self.tracker.update(*family);
            let table = self.tracker.table(*family);
            reports.push(self.netns.run(|| dataplane.sync(table, &changes).unwrap()));
        }
        reports
    }

    /// Checks that no rules were refused, and that the kernel's listing equals the plan.
    fn check(&mut self, reports: &[SyncReport]) -> Result<(), TestCaseError> {
        let removal_of_unused = self.resync();
        self.restart();
        let restart = self.resync();
        for report in reports.iter().chain(&removal_of_unused).chain(&restart) {
            prop_assert_eq!((&report.rejected[..], report.refused_removals), (&[][..], 0));
        }
        prop_assert!(removal_of_unused.iter().all(|report| report.written == 0), "{removal_of_unused:?}");
        prop_assert!(restart.iter().all(|report| (report.written, report.removed) == (0, 0)), "{restart:?}");
        Ok(())
    }
}

fn removals(cluster: &Cluster) -> impl Iterator<Item = Edit> {
    let names = cluster.services.iter().map(|service| &service.metadata);
    let name = |meta: &ferroute_api::ObjectMeta| namespaced_name(&format!("{}/{}", meta.namespace, meta.name));
    let slices = cluster.slices.iter().map(move |slice| Edit::RemoveSlice(name(&slice.metadata)));
    names.map(move |meta| Edit::RemoveService(name(meta))).chain(slices)
}

fn nothing_is_refused(mode: ModeName, cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let clusters = (arbitrary::adversarial_cluster(), arbitrary::adversarial_cluster());
    TestRunner::new(config)
        .run(&clusters, |(first, second)| {
            let mut node = Node::new(mode, first.tracker());
            let written = node.resync();
            node.check(&written)?;
            // Services keep their names and change all other fields.
            let changed = node.sync(&second.edits().collect::<Vec<_>>());
            node.check(&changed)?;
            let removed = node.sync(&removals(&first).chain(removals(&second)).collect::<Vec<_>>());
            node.check(&removed)
        })
        .unwrap();
}

#[test]
fn kernel_accepts_nftables_rules_of_all_objects() {
    nothing_is_refused(ModeName::NFTABLES, 16);
}

#[test]
fn kernel_accepts_iptables_rules_of_all_objects() {
    nothing_is_refused(ModeName::IPTABLES, 6);
}
