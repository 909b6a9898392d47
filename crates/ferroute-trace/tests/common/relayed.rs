//! The plan of userspace mode.

use ferroute_core::{HostState, IpFamily, testing::Cluster};
use ferroute_iptables::RuleSet;
use ferroute_trace::{Ruleset, Traceable};
use ferroute_userspace::{
    PlannedRelay, PortRange, Relay,
    plan::{self as userspace, RelayPlan},
};

use super::world::World;

/// Planned rules and listeners of userspace mode.
pub struct Relayed {
    listeners: RelayPlan,
    rules: RuleSet,
}

impl Relayed {
    /// Plans them.
    pub fn new(cluster: &Cluster, world: &World, family: IpFamily) -> Self {
        let table = cluster.table(family);
        let host_state = HostState { addresses: world.addresses(), ..HostState::default() };
        let mut listeners = RelayPlan::new(userspace::RelayContext::new(&world.settings, &table, &host_state));
        let changes = listeners.listener_changes(&table, None);
        let ports = PlannedRelay::new(PortRange::Any).set(&changes.set).unwrap();
        listeners.record(&table, &changes, &ports.into_iter().map(Result::ok).collect::<Vec<_>>());
        let rules = listeners.chains(&table).to_rule_set(family);
        Self { listeners, rules }
    }
}

impl Traceable for Relayed {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_iptables(&self.rules);
        ruleset.add_userspace(&self.listeners);
    }
}
