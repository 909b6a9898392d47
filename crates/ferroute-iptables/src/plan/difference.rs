use std::{collections::BTreeMap, io};

use ferroute_core::{Entry, ServicePortName, ServiceTable};

use super::{
    BaseChain, ChainDigest, Contents, Dispatch, InForce, Jump, PlanContext, RuleCounts, ServicePlan,
    base::{base_chains, node_port_jumps},
    is_service_chain,
    ledger::Record,
};
use crate::{ChainName, RestoreWriter, TableName};

/// What must be written so that the kernel holds what is planned: whole chains, nothing that is in force already.
#[derive(Clone, Debug)]
pub struct Difference {
    pub(super) context: PlanContext,
    /// All service ports were looked at, not only some.
    pub(super) complete: bool,
    /// Service ports that were looked at; `None` for those that are gone.
    pub(super) ports: BTreeMap<ServicePortName, Option<Record>>,
    /// Which dispatch chains must be written, by [`Dispatch::index`].
    pub(super) shared: [bool; Dispatch::ALL.len()],
    /// Base chains to be written.
    pub(super) base: Vec<BaseChain>,
    /// Jumps that are missing.
    pub(super) jumps: Vec<Jump>,
    /// Chains of table nat that are wanted no more.
    pub(super) delete: Vec<ChainName>,
}

impl Difference {
    /// No difference, until somebody finds one.
    pub(super) fn nothing(context: PlanContext) -> Self {
        Self {
            context,
            complete: false,
            ports: BTreeMap::new(),
            shared: [false; Dispatch::ALL.len()],
            base: Vec::new(),
            jumps: Vec::new(),
            delete: Vec::new(),
        }
    }

    /// What must be written for `table` where the kernel holds `in_force`, whoever has written that.
    pub fn from_kernel(table: &ServiceTable, context: PlanContext, mut in_force: InForce) -> Self {
        let mut difference = Self { complete: true, ..Self::nothing(context) };
        let context = &difference.context;
        let mut shared = [ChainDigest::EMPTY; Dispatch::ALL.len()];
        for (name, entry) in &table.entries {
            let plan = ServicePlan::new(name, &entry.service, table.routes(entry), context);
            let mut record = Record::of(&plan, &mut shared);
            for chain in &mut record.chains {
                chain.in_force = in_force.chains.remove(&(TableName::Nat, chain.name)) == Some(chain.digest);
            }
            difference.ports.insert(name.clone(), Some(record));
        }
        node_port_jumps(context).iter().for_each(|rule| shared[Dispatch::Services.index()].append(rule));
        for dispatch in Dispatch::ALL {
            let known = in_force.chains.get(&(dispatch.table(), dispatch.chain()));
            difference.shared[dispatch.index()] = known != Some(&shared[dispatch.index()]);
        }
        difference.base = base_chains(context);
        difference.base.retain(|chain| {
            let known = in_force.chains.get(&(chain.table, chain.name));
            match &chain.contents {
                Contents::Rules(rules) => known != Some(&ChainDigest::of(rules)),
                Contents::Foreign => known.is_none(),
            }
        });
        difference.jumps = in_force.missing_jumps;
        let left = in_force.chains.into_keys().filter(|(table, _)| *table == TableName::Nat);
        difference.delete = left.map(|(_, chain)| chain).filter(|chain| is_service_chain(*chain)).collect();
        difference.delete.sort_unstable();
        difference
    }

    /// There is nothing to write.
    pub fn is_empty(&self) -> bool {
        TABLES.into_iter().all(|table| !self.concerns(table))
    }

    /// All service ports were looked at, not only those of Services that changed.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// How many chains it deletes.
    pub fn deleted(&self) -> usize {
        self.delete.len()
    }

    /// Writes the input for `iptables-restore --noflush` and tells how many rules it holds. `table` must be the one
    /// that the difference was made for. Doing so again writes the same again.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn write<W: io::Write>(&self, table: &ServiceTable, out: W) -> io::Result<RuleCounts> {
        let mut out = RestoreWriter::new(out);
        let mut counts = RuleCounts::default();
        for name in TABLES.into_iter().filter(|table| self.concerns(*table)) {
            let before = out.rules();
            self.write_table(name, table, &mut out)?;
            *counts.of_mut(name) += out.rules() - before;
        }
        out.finish()?;
        Ok(counts)
    }

    /// Something in this table must be written.
    fn concerns(&self, table: TableName) -> bool {
        self.shared_in(table).next().is_some()
            || self.base.iter().any(|chain| chain.table == table)
            || self.jumps.iter().any(|jump| jump.table == table)
            || (table == TableName::Nat && (!self.delete.is_empty() || self.records().any(Record::is_stale)))
    }

    fn shared_in(&self, table: TableName) -> impl Iterator<Item = Dispatch> {
        Dispatch::ALL.into_iter().filter(move |dispatch| dispatch.table() == table && self.shared[dispatch.index()])
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        self.ports.values().flatten()
    }

    fn write_table<W: io::Write>(
        &self,
        name: TableName,
        table: &ServiceTable,
        out: &mut RestoreWriter<W>,
    ) -> io::Result<()> {
        out.begin(name)?;
        self.write_heads(name, out)?;
        for Jump { from, rule, .. } in self.jumps.iter().filter(|jump| jump.table == name) {
            out.insert(*from, rule)?;
        }
        for chain in self.base.iter().filter(|chain| chain.table == name) {
            if let Contents::Rules(rules) = &chain.contents {
                out.append_all(chain.name, rules)?;
            }
        }
        self.write_ports(name, table, out)?;
        if name == TableName::Nat {
            if self.shared[Dispatch::Services.index()] {
                out.append_all(Dispatch::Services.chain(), &node_port_jumps(&self.context))?;
            }
            self.delete.iter().try_for_each(|chain| out.delete(*chain))?;
        }
        out.commit()
    }

    /// Declares all chains before any rule, because a rule can jump only to a chain that is there. This also empties
    /// chains that are.
    fn write_heads<W: io::Write>(&self, name: TableName, out: &mut RestoreWriter<W>) -> io::Result<()> {
        let base = self.base.iter().filter(|chain| chain.table == name).map(|chain| chain.name);
        base.chain(self.shared_in(name).map(Dispatch::chain)).try_for_each(|chain| out.declare(chain))?;
        if name == TableName::Nat {
            let own = self.records().flat_map(|record| &record.chains).filter(|chain| !chain.in_force);
            own.map(|chain| chain.name).chain(self.delete.iter().copied()).try_for_each(|chain| out.declare(chain))?;
        }
        Ok(())
    }

    /// Plans again, one after the other, the service ports of which rules are to be written: their rules are not kept.
    fn write_ports<W: io::Write>(
        &self,
        name: TableName,
        table: &ServiceTable,
        out: &mut RestoreWriter<W>,
    ) -> io::Result<()> {
        let all = self.shared_in(name).next().is_some();
        let mut write = |port: &ServicePortName, entry: &Entry| {
            let stale = self.ports.get(port).and_then(Option::as_ref).filter(|record| record.is_stale());
            let stale = stale.filter(|_| name == TableName::Nat);
            if !all && stale.is_none() {
                return Ok(());
            }
            let plan = ServicePlan::new(port, &entry.service, table.routes(entry), &self.context);
            let mut result = Ok(());
            if let Some(record) = stale {
                plan.own_chains(&mut |chain, rules| {
                    if result.is_ok() && record.chain(chain).is_some_and(|known| !known.in_force) {
                        result = out.append_all(chain, rules);
                    }
                });
            }
            if all {
                plan.contribute(&mut |dispatch, rule| {
                    if result.is_ok() && dispatch.table() == name && self.shared[dispatch.index()] {
                        result = out.append(dispatch.chain(), &rule);
                    }
                });
            }
            result
        };
        if all {
            return table.entries.iter().try_for_each(|(port, entry)| write(port, entry));
        }
        let entries = self.ports.keys().filter_map(|port| table.entries.get_key_value(port));
        entries.into_iter().try_for_each(|(port, entry)| write(port, entry))
    }
}

/// In the order in which they are written, which is kube-proxy's.
const TABLES: [TableName; 3] = [TableName::Filter, TableName::Nat, TableName::Mangle];
