//! Comparing a table with the kernel's, and repairing the difference.

use std::collections::{HashMap, HashSet};

use ferroute_core::{ServiceTable, SyncReport};

use super::{
    Failure, NftablesDataplane, has_rules,
    run::{Pending, Run},
};
use crate::{
    kernel::{Consistency, Kernel, ListedChain, Listing},
    model::{Change, Comment, Data, Element, Key, Name, Set, SetOrMap, TableId, Transaction},
    plan::{ExistingLists, FLOWTABLE, Planner, SetId, Steps, is_optional},
    remove::listed_udp_frontends,
    wire::is_escaped,
};

impl<K: Kernel> NftablesDataplane<K> {
    /// Makes the kernel's table match `table`. If the kernel has no table yet, the most important Services are written
    /// first.
    pub(super) fn reconcile(&mut self, table: &ServiceTable) -> Result<SyncReport, Failure<K::Error>> {
        let applied = self.applied.take();
        let numbers = applied.as_ref().map(|applied| applied.planner.numbers()).unwrap_or_default();
        let planner = Planner::new(self.context(table)?);
        let mut run = Run::new(HashMap::new(), Some(self.kernel.generation()?));
        run.report.full = true;
        run.kept_unused = applied.as_ref().map(|applied| applied.planner.unused_deletions()).unwrap_or_default();
        let listing = self.kernel.list_table(&self.table)?;
        self.restart_flowtable(listing.as_ref(), &mut run.expected_generation);
        let Some(listing) = listing else {
            let mut steps = self.steps();
            planner.create_table(&mut steps.before);
            return self.write_new_table(planner, table, steps, run);
        };
        let mut contents = match read(&mut self.kernel, &self.table, &listing, &planner)? {
            ReadResult::Contents(contents) => contents,
            ReadResult::Incompatible => {
                tracing::info!(table = %self.table, "existing table is incompatible; replacing it");
                run.report.udp_frontends_before = listed_udp_frontends(&mut self.kernel, &self.table, &listing)?;
                return self.replace_table(planner, table, run);
            }
            ReadResult::KeptChanging(set) => return Err(Failure::ChangedWhileReading { set }),
        };
        contents.lists.restore_numbers(numbers);
        run.report.udp_frontends_before = contents.lists.udp_frontends();
        let mut planner = Planner::with_lists(planner.context().clone(), std::mem::take(&mut contents.lists));
        let mut steps = self.steps();
        for name in table.entries.keys() {
            if let Err(error) = planner.update(name, table, &mut steps) {
                run.reject(name, &error);
            }
            steps.clear();
        }
        planner.finish_transaction(&mut steps);
        steps.clear();
        if !has_compatible_chains(&listing, &planner) {
            tracing::info!(table = %self.table, "existing chains are incompatible; replacing the table");
            run.report.rejected.clear();
            return self.replace_table(Planner::new(planner.context().clone()), table, run);
        }
        contents.lists = planner.take_existing();
        let mut elements: HashMap<Name, usize> = HashMap::new();
        planner.for_each_element(|set, _| *elements.entry(set.name()).or_default() += 1);
        let unused = contents.repair(&planner, &mut steps);
        for step in [&steps.before, &steps.changes, &steps.after] {
            self.commit_all(step, &planner, &mut run)?;
        }
        // The planner's numbers: elements that the repair added were missing before.
        run.elements = elements;
        self.delete_unused(unused, &mut run)?;
        Ok(self.finish(planner, run))
    }

    /// Replaces the table in one transaction, so that packets never see a partial table.
    fn replace_table(
        &mut self,
        mut planner: Planner,
        table: &ServiceTable,
        mut run: Run,
    ) -> Result<SyncReport, Failure<K::Error>> {
        self.restart_flowtable(None, &mut run.expected_generation);
        let mut steps = self.steps();
        steps.before.push(Change::DeleteTable);
        planner.create_table(&mut steps.before);
        for name in table.entries.keys() {
            if let Err(error) = planner.update(name, table, &mut steps) {
                run.reject(name, &error);
            }
        }
        planner.finish_transaction(&mut steps);
        self.commit_all(&steps.merged(), &planner, &mut run)?;
        Ok(self.finish(planner, run))
    }

    /// Writes a table that does not exist yet.
    fn write_new_table(
        &mut self,
        planner: Planner,
        table: &ServiceTable,
        steps: Steps,
        mut run: Run,
    ) -> Result<SyncReport, Failure<K::Error>> {
        let (urgent, rest): (Vec<_>, Vec<_>) = table.entries.iter().partition(|(_, entry)| entry.service.is_urgent);
        self.progress.start(table.entries.len());
        let mut pending = Pending::new(planner, steps);
        urgent.into_iter().for_each(|(name, _)| pending.update(name, table, &mut run));
        self.commit_pending(table, &mut pending, &mut run)?;
        self.update_all(rest.into_iter().map(|(name, _)| name), table, pending, run)
    }
}

/// The contents of a table whose declarations are compatible with the planner's.
#[derive(Debug)]
struct Contents {
    listing: Listing,
    /// The elements of all sets except slots and endpoints.
    elements: HashMap<SetId, Elements>,
    /// Slots and endpoints.
    lists: ExistingLists,
}

/// The elements of a set by key.
type Elements = HashMap<Key, (Option<Data>, Option<Comment>)>;

/// The result of reading a table.
enum ReadResult {
    /// The contents, which can be repaired.
    Contents(Box<Contents>),
    /// The table has objects that cannot be changed in place; it has to be replaced.
    Incompatible,
    /// This set changed during each attempt to read it.
    KeptChanging(Name),
}

/// Reads a table that has this listing.
fn read<K: Kernel>(
    kernel: &mut K,
    table: &TableId,
    listing: &Listing,
    planner: &Planner,
) -> Result<ReadResult, K::Error> {
    if !is_compatible(listing, planner) {
        return Ok(ReadResult::Incompatible);
    }
    let mut contents = Contents { listing: listing.clone(), elements: HashMap::new(), lists: ExistingLists::default() };
    let mut sets: Vec<(SetId, Set, Option<usize>)> = contents
        .listing
        .sets
        .iter()
        .filter_map(|listed| Some((SetId::from_name(&listed.name)?, listed.set.clone()?, listed.element_count)))
        .filter(|(id, ..)| !id.is_dynamic())
        .collect();
    // The keys of slots are derived from services and lists, and those of endpoints from slots.
    sets.sort_by_key(|(id, ..)| (matches!(id, SetId::Endpoints(_)), *id == SetId::Slots));
    for (id, set, count) in sets {
        let mut reader = SetReader { kernel: &mut *kernel, table, id, set: &set, count };
        match reader.read(&mut contents)? {
            SetState::Complete => {}
            SetState::Undecodable => return Ok(ReadResult::Incompatible),
            SetState::Incomplete => return Ok(ReadResult::KeptChanging(set.name)),
        }
    }
    Ok(ReadResult::Contents(Box::new(contents)))
}

struct SetReader<'a, K> {
    kernel: &'a mut K,
    table: &'a TableId,
    id: SetId,
    set: &'a Set,
    /// The number of elements, if the kernel reports it.
    count: Option<usize>,
}

#[derive(PartialEq, Eq)]
enum SetState {
    /// All elements were read.
    Complete,
    /// The set has elements that the model cannot represent.
    Undecodable,
    /// Elements may be missing.
    Incomplete,
}

impl<K: Kernel> SetReader<'_, K> {
    fn read(&mut self, contents: &mut Contents) -> Result<SetState, K::Error> {
        let has_lists = matches!(self.id, SetId::Endpoints(_) | SetId::Slots);
        if has_lists && self.count.is_some_and(|count| count > MAX_DUMPED_ELEMENTS) {
            // This misses elements of lists that no frontend uses.
            let state = self.get(contents)?;
            if state == SetState::Complete {
                return Ok(state);
            }
        }
        for _ in 0..MAX_ATTEMPTS {
            contents.clear(self.id);
            let mut is_undecodable = false;
            let consistency = self.kernel.dump_elements(self.table, self.set, &mut |element, _| match element {
                Some(element) => contents.insert(self.id, element),
                None => is_undecodable = true,
            })?;
            // Every transaction, for any table, interrupts a dump; the dump is still complete if no element is missing.
            let is_complete = match self.count {
                Some(count) => contents.count(self.id) == count,
                None => consistency == Consistency::Consistent,
            };
            if is_undecodable {
                return Ok(SetState::Undecodable);
            }
            if is_complete {
                return Ok(SetState::Complete);
            }
        }
        Ok(SetState::Incomplete)
    }

    /// Gets the elements whose keys are derived from the sets read before.
    fn get(&mut self, contents: &mut Contents) -> Result<SetState, K::Error> {
        let id = self.id;
        let service_ports: Vec<_> = contents.lists.service_ports().into_iter().collect();
        let mut is_undecodable = false;
        for service_ports in service_ports.chunks(SERVICE_PORTS_PER_REQUEST) {
            let mut elements = Vec::new();
            let mut keys = service_ports.iter().flat_map(|port| contents.lists.keys(id, *port));
            self.kernel.get_elements(self.table, self.set, &mut keys, &mut |element, _| match element {
                Some(element) => elements.push(element),
                None => is_undecodable = true,
            })?;
            elements.into_iter().for_each(|element| contents.insert(id, element));
        }
        let is_complete = Some(contents.count(id)) == self.count;
        Ok(if is_undecodable || !is_complete { SetState::Incomplete } else { SetState::Complete })
    }
}

impl Contents {
    fn insert(&mut self, set: SetId, element: Element) {
        if let Some(Element { key, data, comment }) = self.lists.insert(set, element) {
            self.elements.entry(set).or_default().insert(key, (data, comment));
        }
    }

    fn count(&self, set: SetId) -> usize {
        self.lists.count(set) + self.elements.get(&set).map_or(0, HashMap::len)
    }

    fn clear(&mut self, set: SetId) {
        self.lists.clear(set);
        self.elements.remove(&set);
    }

    /// Writes the changes that make these contents match the planner's. Returns deletions of unused objects, to be committed
    /// afterwards.
    fn repair(mut self, planner: &Planner, steps: &mut Steps) -> Vec<Change> {
        let existing: HashSet<&Name> = self.listing.sets.iter().map(|set| &set.name).collect();
        let sets = planner.sets();
        let missing = sets.iter().filter(|set| !existing.contains(&set.name));
        steps.before.changes.extend(missing.cloned().map(Change::AddSet));
        let unused_flowtables = self.repair_flowtable(planner, &mut steps.before);
        let unused_chains = self.repair_chains(planner, steps);
        let Steps { changes: transaction, after, .. } = steps;
        let mut additions = Vec::new();
        planner.for_each_element(|set, element| {
            if let Some(old) = self.remove(set, &element) {
                if old == element {
                    return;
                }
                transaction.push(Change::DeleteElement(set.name(), old));
            }
            additions.push(Change::AddElement(set.name(), element));
        });
        let unordered = self.elements.into_iter().flat_map(|(set, elements)| {
            elements.into_iter().map(move |(key, (data, comment))| (set, Element { key, data, comment }))
        });
        let surplus = self.lists.into_elements().chain(unordered);
        for (set, element) in surplus {
            // Another element may have led a packet there.
            let step = if set.is_led_to() { &mut *after } else { &mut *transaction };
            step.push(Change::DeleteElement(set.name(), element));
        }
        // After all deletions, because the kernel rejects overlapping ranges.
        transaction.changes.append(&mut additions);
        let planned: HashSet<&Name> = sets.iter().map(|set| &set.name).collect();
        let unused_sets = self
            .listing
            .sets
            .iter()
            .filter(|set| !planned.contains(&set.name))
            .map(|set| Change::DeleteSet(set.name.clone(), if set.is_map { SetOrMap::Map } else { SetOrMap::Set }));
        // Elements of maps may refer to chains.
        unused_sets.chain(unused_flowtables).chain(unused_chains.into_iter().map(Change::DeleteChain)).collect()
    }

    /// Removes and returns the element with the key of a planned one.
    fn remove(&mut self, set: SetId, planned: &Element) -> Option<Element> {
        let (data, comment) = match self.elements.get_mut(&set).and_then(|elements| elements.remove(&planned.key)) {
            Some(content) => content,
            None => (Some(self.lists.remove(set, planned)?), None),
        };
        Some(Element { key: planned.key.clone(), data, comment })
    }

    /// Writes the flowtable if it is missing. Returns the deletions of other flowtables.
    fn repair_flowtable(&self, planner: &Planner, transaction: &mut Transaction) -> Vec<Change> {
        let mut wanted = planner.flowtable();
        let mut unused = Vec::new();
        for listed in &self.listing.flowtables {
            if wanted.take_if(|wanted| wanted.name == listed.name).is_none() {
                unused.push(Change::DeleteFlowtable(listed.name.clone()));
            }
        }
        transaction.changes.extend(wanted.map(Change::AddFlowtable));
        unused
    }

    /// Writes the changes of chains and rules. While the elements are those of before, there are the rules for their sets, too.
    /// Unused chains are flushed and returned.
    fn repair_chains(&self, planner: &Planner, steps: &mut Steps) -> Vec<Name> {
        let Steps { before, changes: transaction, .. } = steps;
        let listed: HashMap<&Name, &ListedChain> =
            self.listing.chains.iter().map(|chain| (&chain.name, chain)).collect();
        let sets = self.listing.sets.iter().filter_map(|set| SetId::from_name(&set.name));
        let (meanwhile, planned) = (planner.chains_with(sets), planner.chains());
        let missing = meanwhile.iter().filter(|chain| !listed.contains_key(&chain.chain.name));
        before.changes.extend(missing.map(|chain| Change::AddChain(chain.chain.clone())));
        let family = planner.context().settings.family;
        for chain in &meanwhile {
            let name = &chain.chain.name;
            if !listed.get(name).is_some_and(|listed| has_rules(listed, chain, family)) {
                before.replace_rules(name, chain.rules.iter().cloned());
            }
        }
        for chain in planned.iter().filter(|chain| !meanwhile.contains(chain)) {
            transaction.replace_rules(&chain.chain.name, chain.rules.iter().cloned());
        }
        let names: HashSet<&Name> = planned.iter().map(|chain| &chain.chain.name).collect();
        let all = meanwhile.iter().map(|chain| &chain.chain.name).chain(listed.into_keys());
        let unused: HashSet<&Name> = all.filter(|name| !names.contains(*name)).collect();
        let unused: Vec<Name> = unused.into_iter().cloned().collect();
        transaction.changes.extend(unused.iter().cloned().map(Change::FlushChain));
        unused
    }
}

/// Reports whether the declarations of table and sets, which cannot be changed in place, match the planner's.
fn is_compatible(listing: &Listing, planner: &Planner) -> bool {
    if listing.is_changed || listing.has_stateful_objects {
        return false;
    }
    // Objects of other programs are deleted by their names.
    let flowtables = &listing.flowtables;
    let names = listing.sets.iter().map(|set| &set.name).chain(listing.chains.iter().map(|chain| &chain.name));
    if names.chain(flowtables.iter().map(|flowtable| &flowtable.name)).any(is_escaped)
        || flowtables.iter().any(|listed| listed.name == FLOWTABLE && listed.flowtable.is_none())
    {
        return false;
    }
    let context = planner.context();
    listing.sets.iter().all(|listed| match SetId::from_name(&listed.name) {
        Some(id) => listed.set.as_ref() == Some(&id.declaration(context)),
        // Another program's set, which is deleted.
        None => true,
    })
}

/// The same for chains, after planning.
fn has_compatible_chains(listing: &Listing, planner: &Planner) -> bool {
    let planned = planner.chains();
    listing.chains.iter().all(|listed| {
        match planned.iter().find(|chain| chain.chain.name == listed.name) {
            Some(planned) => listed.chain.as_ref() == Some(&planned.chain),
            // An unused chain of this proxy, or another program's.
            None => listed.chain.as_ref().is_none_or(|chain| chain.base.is_none() || is_optional(chain)),
        }
    })
}

/// Elements of larger maps are requested by key, because a dump takes quadratic time: 0.3 s for 100,000 elements, 30 s
/// for a million.
const MAX_DUMPED_ELEMENTS: usize = 100_000;
/// The number of service ports whose endpoints are requested together.
const SERVICE_PORTS_PER_REQUEST: usize = 1_000;
const MAX_ATTEMPTS: usize = 5;
