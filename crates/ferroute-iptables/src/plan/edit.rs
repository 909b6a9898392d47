use std::array;

use ferroute_core::{Changes, ServicePortEntry, ServicePortName, ServiceTable};

use super::{
    ChainState, Difference, RuleSum, ServicePlan, SharedChain, chain_state::shared_digests_of, difference::SharedChange,
};
use crate::Rule;

/// The change of a shared chain that replaces the rules of some service ports.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedEdit {
    /// The rules to delete.
    pub(super) remove: Vec<Rule>,
    /// Rules to insert at the start of the chain, in this order.
    pub(super) insert: Vec<Rule>,
}

impl ChainState {
    /// Replaces whole shared chains of an incremental difference by edits if few rules change: edits are written in
    /// less time, and keep the counters of other rules. `changes` must be those that `difference` was created for.
    ///
    /// An edit fails if another program has deleted one of the rules before. The whole chains must then be written, see
    /// `Difference::replace_edits`.
    pub fn edit_shared(&self, table: &ServiceTable, changes: &Changes, difference: &mut Difference) {
        if difference.complete {
            return;
        }
        let mut edits: [Option<SharedEdit>; SharedChain::ALL.len()] = array::from_fn(|_| Some(SharedEdit::default()));
        for (name, port) in &difference.ports {
            let (old, new) = (shared_digests_of(self.ports.get(name)), shared_digests_of(port.as_ref()));
            let is_edited = |(at, edit): (usize, &Option<SharedEdit>)| old[at] != new[at] && edit.is_some();
            if !edits.iter().enumerate().any(is_edited) {
                continue;
            }
            let previous = changes.previous.get(name).and_then(Option::as_ref);
            let removed = self.shared_rules(name, previous, table);
            let inserted = self.shared_rules(name, table.entries.get(name), table);
            for (at, (remove, insert)) in removed.into_iter().zip(inserted).enumerate() {
                // All rules of the service port are replaced, because their order may matter: some only count packets.
                if old[at] != new[at] {
                    let is_applied = RuleSum::from_rules(&remove) == old[at];
                    let edit = edits[at].take().filter(|_| is_applied);
                    edits[at] = edit.and_then(|edit| edit.with(remove, insert));
                }
            }
        }
        for (change, edit) in difference.shared.iter_mut().zip(edits) {
            if let (SharedChange::Whole, Some(edit)) = (&change, edit) {
                *change = SharedChange::Edit(edit);
            }
        }
    }

    /// Plans the rules of a service port in the shared chains, by [`SharedChain::index`].
    fn shared_rules(
        &self,
        name: &ServicePortName,
        entry: Option<&ServicePortEntry>,
        table: &ServiceTable,
    ) -> [Vec<Rule>; SharedChain::ALL.len()] {
        let mut rules = [const { Vec::new() }; SharedChain::ALL.len()];
        if let Some(entry) = entry {
            let plan = ServicePlan::new(table, name, entry, &self.context);
            plan.shared_rules(&mut |chain, rule| rules[chain.index()].push(rule));
        }
        rules
    }
}

impl SharedEdit {
    /// Adds the rules of a service port; `None` if the edit becomes too large.
    fn with(mut self, remove: Vec<Rule>, insert: Vec<Rule>) -> Option<Self> {
        self.remove.extend(remove);
        self.insert.extend(insert);
        (self.remove.len() + self.insert.len() <= MAX_RULES).then_some(self)
    }
}

/// Maximum number of rules in an edit of a chain. The kernel searches the chain for each rule that it deletes, and all
/// the rules are in memory at once.
const MAX_RULES: usize = 1000;

#[cfg(test)]
mod tests {
    use ferroute_api::Service;
    use ferroute_core::{
        HostState, IpFamily, NamespacedName, ProxySettings, Tracker,
        testing::{Cluster, Edit, service, slice},
    };

    use super::*;
    use crate::{IptablesContext, text::RestoreWriter};

    /// Applies edits to a cluster whose rules are active and returns the difference.
    fn difference(
        tracker: &mut Tracker,
        edits: &[Edit],
        change: impl FnOnce(&mut IptablesContext, &mut Changes),
    ) -> Difference {
        let table = tracker.table(IpFamily::V4);
        let mut context = IptablesContext::new(&ProxySettings::default(), table, &HostState::default());
        let state = ChainState::new(Difference::everything(table, context.clone()));
        edits.iter().for_each(|edit| edit.apply_to(tracker));
        let mut changes = tracker.update(IpFamily::V4);
        change(&mut context, &mut changes);
        let table = tracker.table(IpFamily::V4);
        let mut difference = state.difference(table, &context, &changes);
        state.edit_shared(table, &changes, &mut difference);
        difference
    }

    fn remove(cluster: &Cluster, services: usize) -> Vec<Edit> {
        let names = cluster
            .services
            .iter()
            .map(|Service { metadata, .. }| NamespacedName::new(&metadata.namespace, &metadata.name));
        names.take(services).map(Edit::RemoveService).collect()
    }

    fn text(difference: &Difference, tracker: &Tracker) -> String {
        let mut text = Vec::new();
        let mut writer = RestoreWriter::new(&mut text);
        difference.write_to(tracker.table(IpFamily::V4), None, &mut writer).unwrap();
        writer.finish().unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn rules_of_changed_service_ports_are_replaced() {
        let slice = |pods: &[&str]| {
            let slice = slice("shop/web-a", "web").port("http", 8080);
            pods.iter().fold(slice, |slice, address| slice.pod(*address)).build()
        };
        let service = service("shop/web").cluster_ip("10.111.0.1").port("http", 80).external_ip("192.0.2.1");
        let mut tracker = Cluster::uniform(2, 1).service(service).slice(slice(&[])).tracker();
        let edits = [Edit::SetSlice(slice(&["10.244.0.2"]))];
        let difference = difference(&mut tracker, &edits, |_, _| {});
        insta::assert_snapshot!(text(&difference, &tracker), @r#"
        *filter
        -D KUBE-SERVICES -d 10.111.0.1/32 -p tcp -m comment --comment "shop/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
        -D KUBE-EXTERNAL-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment "shop/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
        COMMIT
        *nat
        :KUBE-EXT-67NZLRHBNDSAWJRO - [0:0]
        :KUBE-SEP-OLBUFZVHCJLG5LFW - [0:0]
        :KUBE-SVC-67NZLRHBNDSAWJRO - [0:0]
        -A KUBE-EXT-67NZLRHBNDSAWJRO -m comment --comment "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ
        -A KUBE-EXT-67NZLRHBNDSAWJRO -j KUBE-SVC-67NZLRHBNDSAWJRO
        -A KUBE-SVC-67NZLRHBNDSAWJRO -m comment --comment "shop/web:http -> 10.244.0.2:8080" -j KUBE-SEP-OLBUFZVHCJLG5LFW
        -A KUBE-SEP-OLBUFZVHCJLG5LFW -s 10.244.0.2/32 -m comment --comment "shop/web:http" -j KUBE-MARK-MASQ
        -A KUBE-SEP-OLBUFZVHCJLG5LFW -p tcp -m comment --comment "shop/web:http" -m tcp -j DNAT --to-destination 10.244.0.2:8080
        -I KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment "shop/web:http external IP" -m tcp --dport 80 -j KUBE-EXT-67NZLRHBNDSAWJRO
        -I KUBE-SERVICES -d 10.111.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-67NZLRHBNDSAWJRO
        COMMIT
        "#);
    }

    #[test]
    fn whole_chains_are_written_if_many_rules_change() {
        let cluster = Cluster::uniform(MAX_RULES + 2, 1);
        for (services, edits) in [(MAX_RULES, true), (MAX_RULES + 1, false)] {
            let difference = difference(&mut cluster.tracker(), &remove(&cluster, services), |_, _| {});
            assert_eq!(difference.has_edits(), edits);
        }
    }

    #[test]
    fn whole_chains_are_written_if_the_old_rules_are_unknown() {
        let cluster = Cluster::uniform(3, 1);
        let edits = remove(&cluster, 1);
        let other = cluster.tracker().table(IpFamily::V4).entries.values().next_back().cloned();
        for previous in [None, other] {
            let change = |_: &mut IptablesContext, changes: &mut Changes| {
                changes.previous.values_mut().for_each(|entry| entry.clone_from(&previous));
            };
            assert!(!difference(&mut cluster.tracker(), &edits, change).has_edits());
        }
        let change = |context: &mut IptablesContext, _: &mut Changes| context.settings.masquerade_mark += 1;
        assert!(!difference(&mut cluster.tracker(), &edits, change).has_edits());
        assert!(difference(&mut cluster.tracker(), &edits, |_, _| {}).has_edits());
    }
}
