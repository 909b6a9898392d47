//! A node with rules for a cluster.

use ferroute_core::{Dataplane, IpFamily, Tracker, testing::Cluster};
use ferroute_nftables::{NftablesDataplane, plan::NftablesSettings};

use super::{Host, lab::Lab, settings};

/// A node with rules of one IP family for a cluster.
pub struct Case {
    pub lab: Lab,
    pub tracker: Tracker,
    pub dataplane: NftablesDataplane,
    family: IpFamily,
}

impl Case {
    /// Applies a cluster to a node with some Pods.
    pub fn new(pods: usize, family: IpFamily, cluster: &Cluster) -> Self {
        Self::with_settings(pods, family, settings(), cluster)
    }

    pub fn with_settings(pods: usize, family: IpFamily, settings: NftablesSettings, cluster: &Cluster) -> Self {
        let lab = Lab::new(pods);
        let tracker = cluster.tracker();
        let mut dataplane =
            lab.node.run(|| NftablesDataplane::open(family, settings, Box::new(Host::default())).unwrap());
        dataplane.resync(tracker.table(family)).unwrap();
        Self { lab, tracker, dataplane, family }
    }

    /// Applies the objects of a cluster.
    pub fn update_to(&mut self, cluster: &Cluster) {
        cluster.edits().for_each(|edit| edit.apply_to(&mut self.tracker));
        self.sync();
    }

    /// Applies the pending changes of `tracker`.
    pub fn sync(&mut self) {
        let changes = self.tracker.update(self.family);
        self.dataplane.sync(self.tracker.table(self.family), &changes).unwrap();
    }
}
