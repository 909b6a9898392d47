//! The changes that make what a kernel holds into what a planner wants.

use std::collections::{HashMap, HashSet};

use crate::{
    kernel::{Kernel, ListedChain, Listing},
    model::{Change, Element, Key, Name, SetWord, TableId, Transaction},
    plan::{Order, Planner, SetId},
};

/// What was found of a table that is declared as ours is.
#[derive(Debug)]
pub(super) struct Found {
    listing: Listing,
    elements: HashMap<SetId, HashMap<Key, Element>>,
}

/// Reads a table that has the given listing; `None` if its declarations are not those of `planner`, so that it has to
/// be made anew.
pub(super) fn read<K: Kernel>(
    kernel: &mut K,
    table: &TableId,
    listing: Listing,
    planner: &Planner,
) -> Result<Option<Found>, K::Error> {
    if !is_compatible(&listing, planner) {
        return Ok(None);
    }
    let mut elements = HashMap::new();
    for listed in &listing.sets {
        let Some((id, set)) = SetId::of_name(&listed.name).zip(listed.set.as_ref()) else { continue };
        if id.is_learned() {
            continue;
        }
        let found = kernel.elements(table, set)?;
        elements.insert(id, found.into_iter().map(|element| (element.key.clone(), element)).collect());
    }
    Ok(Some(Found { listing, elements }))
}

/// Whether everything that cannot be changed is as it should be, as far as it is there.
fn is_compatible(listing: &Listing, planner: &Planner) -> bool {
    let context = planner.context();
    let sets = listing.sets.iter().all(|listed| match SetId::of_name(&listed.name) {
        Some(id) => listed.set.as_ref() == Some(&id.declare(context)),
        // Somebody else's; it can go.
        None => true,
    });
    let wanted = planner.chains();
    let chains =
        listing.chains.iter().all(|listed| match wanted.iter().find(|chain| chain.chain.name == listed.name) {
            Some(wanted) => listed.chain.as_ref() == Some(&wanted.chain),
            // One of an earlier number of endpoints, or somebody else's.
            None => listed.chain.as_ref().is_none_or(|chain| chain.base.is_none()),
        });
    sets && chains
}

impl Found {
    /// The order that endpoints have.
    pub(super) fn order(&self) -> Order {
        let mut order = Order::default();
        for id in [SetId::Endpoints, SetId::Slots] {
            for element in self.elements.get(&id).into_iter().flat_map(HashMap::values) {
                order.note(id, element);
            }
        }
        order
    }

    /// Writes what has to be changed, and returns what can be removed once that is done.
    pub(super) fn repair(mut self, planner: &Planner, transaction: &mut Transaction) -> Vec<Change> {
        let there: HashSet<&Name> = self.listing.sets.iter().map(|set| &set.name).collect();
        let sets = planner.sets();
        transaction.changes.extend(sets.iter().filter(|set| !there.contains(&set.name)).cloned().map(Change::AddSet));
        let left_over = self.repair_chains(planner, transaction);
        let mut additions = Vec::new();
        planner.for_each_element(|set, element| {
            let old = self.elements.get_mut(&set).and_then(|found| found.remove(&element.key));
            if old.as_ref() == Some(&element) {
                return;
            }
            transaction.changes.extend(old.map(|old| Change::DeleteElement(set.name(), old)));
            additions.push(Change::AddElement(set.name(), element));
        });
        for (set, left) in self.elements {
            transaction.changes.extend(left.into_values().map(|element| Change::DeleteElement(set.name(), element)));
        }
        // Behind all removals, as the kernel takes no range that overlaps another.
        transaction.changes.append(&mut additions);
        let wanted: HashSet<&Name> = sets.iter().map(|set| &set.name).collect();
        let unwanted = self
            .listing
            .sets
            .iter()
            .filter(|set| !wanted.contains(&set.name))
            .map(|set| Change::DeleteSet(set.name.clone(), if set.is_map { SetWord::Map } else { SetWord::Set }));
        left_over.into_iter().map(Change::DeleteChain).chain(unwanted).collect()
    }

    /// Chains of which nothing can be left behind are flushed and returned.
    fn repair_chains(&self, planner: &Planner, transaction: &mut Transaction) -> Vec<Name> {
        let wanted = planner.chains();
        let listed: HashMap<&Name, &ListedChain> =
            self.listing.chains.iter().map(|chain| (&chain.name, chain)).collect();
        let missing = wanted.iter().filter(|wanted| !listed.contains_key(&wanted.chain.name));
        transaction.changes.extend(missing.map(|wanted| Change::AddChain(wanted.chain.clone())));
        let family = planner.context().family;
        for wanted in &wanted {
            let same = listed.get(&wanted.chain.name).is_some_and(|listed| {
                listed.rules.len() == wanted.rules.len()
                    && listed.rules.iter().zip(&wanted.rules).all(|(listed, wanted)| listed.is(wanted, family))
            });
            if !same {
                transaction.replace_rules(&wanted.chain.name, wanted.rules.iter().cloned());
            }
        }
        let names: HashSet<&Name> = wanted.iter().map(|wanted| &wanted.chain.name).collect();
        let left_over: Vec<Name> =
            listed.keys().filter(|name| !names.contains(*name)).map(|name| (*name).clone()).collect();
        transaction.changes.extend(left_over.iter().cloned().map(Change::FlushChain));
        left_over
    }
}
