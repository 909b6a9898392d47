use ferroute_core::ServiceTable;

use super::{
    BaseChain, Contents, Dispatch, Jump, PlanContext, ServicePlan,
    base::{localnet_guard, node_port_jumps},
    base_chains, chains, jumps,
};
use crate::{ChainHead, RuleSet, TableName};

/// All rules for a table, as the kernel would show them if it held no others: chains sorted by name, builtin ones first.
pub fn render(table: &ServiceTable, context: &PlanContext) -> RuleSet {
    let mut set = RuleSet::new(table.family);
    for name in TableName::OURS {
        set.table_mut(name);
    }
    for Jump { table, from, rule } in jumps() {
        set.table_mut(table).chains.entry(from).or_default().rules.insert(0, rule);
    }
    for BaseChain { table, name, contents } in base_chains(context) {
        let chain = set.table_mut(table).declare(name, ChainHead::default());
        if let Contents::Rules(rules) = contents {
            chain.rules = rules;
        }
    }
    if context.localhost_node_ports {
        set.table_mut(TableName::Filter).append(chains::FIREWALL, localnet_guard(table.family));
    }
    for dispatch in Dispatch::ALL {
        set.table_mut(dispatch.table()).declare(dispatch.chain(), ChainHead::default());
    }
    for (name, entry) in &table.entries {
        let plan = ServicePlan::new(name, &entry.service, table.routes(entry), context);
        plan.contribute(&mut |dispatch, rule| set.table_mut(dispatch.table()).append(dispatch.chain(), rule));
        plan.own_chains(&mut |chain, rules| {
            set.table_mut(TableName::Nat).declare(chain, ChainHead::default()).rules = rules.to_vec();
        });
    }
    for rule in node_port_jumps(context) {
        set.table_mut(TableName::Nat).append(Dispatch::Services.chain(), rule);
    }
    for table in set.tables.values_mut() {
        table.chains.sort_unstable_by_key(|name, _| (!name.is_builtin(), *name));
    }
    set
}
