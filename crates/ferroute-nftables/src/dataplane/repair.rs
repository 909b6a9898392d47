//! The changes that make what a kernel holds into what a planner wants.

use std::collections::{HashMap, HashSet};

use super::found::Found;
use crate::{
    kernel::ListedChain,
    model::{Change, Element, Name, SetWord, Transaction},
    plan::{Planner, SetId},
};

impl Found {
    /// Writes what has to be changed, and returns what can be removed once that is done.
    pub(super) fn repair(mut self, planner: &Planner, transaction: &mut Transaction) -> Vec<Change> {
        let there: HashSet<&Name> = self.listing.sets.iter().map(|set| &set.name).collect();
        let sets = planner.sets();
        transaction.changes.extend(sets.iter().filter(|set| !there.contains(&set.name)).cloned().map(Change::AddSet));
        let left_over = self.repair_chains(planner, transaction);
        let mut additions = Vec::new();
        planner.for_each_element(|set, element| {
            if let Some(old) = self.take(set, &element) {
                if old == element {
                    return;
                }
                transaction.push(Change::DeleteElement(set.name(), old));
            }
            additions.push(Change::AddElement(set.name(), element));
        });
        let others = self.elements.into_iter().flat_map(|(set, elements)| {
            elements.into_iter().map(move |(key, (datum, comment))| (set, Element { key, datum, comment }))
        });
        let too_many = self.order.into_elements().chain(others);
        transaction.changes.extend(too_many.map(|(set, element)| Change::DeleteElement(set.name(), element)));
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

    /// Takes out the element that has the key of a wanted one.
    fn take(&mut self, set: SetId, wanted: &Element) -> Option<Element> {
        let content = match self.elements.get_mut(&set).and_then(|elements| elements.remove(&wanted.key)) {
            Some(content) => content,
            None => (Some(self.order.take(set, wanted)?), None),
        };
        Some(Element { key: wanted.key.clone(), datum: content.0, comment: content.1 })
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
