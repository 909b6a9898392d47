//! Compares the elements of sets and maps with those that were written, without keeping either in memory.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
};

use crate::{
    kernel::{Consistency, Kernel},
    model::{Change, Element, Key, Name, Set, SetKind, TableId},
    plan::{Planner, SetId},
};

/// A sum over the elements of a set, independent of their order.
type Sum = u64;

/// Reports whether the elements in the kernel differ from those of the planner; `None` if they changed while they were read.
pub(super) fn has_other_elements<K: Kernel>(
    kernel: &mut K,
    table: &TableId,
    planner: &Planner,
) -> Result<Option<bool>, K::Error> {
    let hasher = RandomState::new();
    let mut planned: HashMap<Name, (usize, Sum)> = HashMap::new();
    for_each_written(planner, |set, element| {
        let (count, sum) = planned.entry(set).or_default();
        (*count, *sum) = (*count + 1, sum.wrapping_add(hasher.hash_one(element)));
    });
    for set in planner.sets() {
        let Some(id) = SetId::from_name(&set.name).filter(|id| !id.is_dynamic()) else { continue };
        let (count, wanted) = planned.get(&set.name).copied().unwrap_or_default();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut sum: Sum = 0;
            let mut is_undecodable = false;
            let mut add = |element: Option<Element>, _| match element {
                Some(element) => sum = sum.wrapping_add(hasher.hash_one(&element)),
                None => is_undecodable = true,
            };
            let consistency = if count > super::MAX_COUNTED_ELEMENTS {
                let keys = keys(planner, id);
                kernel.get_elements(table, &set, &mut keys.into_iter(), &mut add)?;
                Consistency::Consistent
            } else {
                kernel.dump_elements(table, &set, &mut add)?
            };
            match consistency {
                _ if is_undecodable => return Ok(Some(true)),
                _ if sum == wanted => break,
                Consistency::Consistent => return Ok(Some(true)),
                // Every transaction, for any table, interrupts a dump.
                Consistency::Interrupted if attempts < MAX_ATTEMPTS => {}
                Consistency::Interrupted => return Ok(None),
            }
        }
    }
    Ok(Some(false))
}

/// Reports whether elements with these sets and keys differ from those of the planner, without reading others. The kernel does
/// not find ranges by their keys, so sets with ranges are compared as a whole.
pub(super) fn differ<K: Kernel>(
    kernel: &mut K,
    table: &TableId,
    planner: &Planner,
    changed: &HashSet<(Name, Key)>,
) -> Result<bool, K::Error> {
    let has_ranges = |set: &Set| set.kind == SetKind::Interval;
    let sets: Vec<Set> =
        planner.sets().into_iter().filter(|set| changed.iter().any(|(name, _)| *name == set.name)).collect();
    let whole: HashSet<&Name> = sets.iter().filter(|set| has_ranges(set)).map(|set| &set.name).collect();
    let mut planned: HashMap<Name, HashSet<Element>> = HashMap::new();
    for_each_written(planner, |set, element| {
        let id = (set, element.key.clone());
        if whole.contains(&id.0) || changed.contains(&id) {
            planned.entry(id.0).or_default().insert(element);
        }
    });
    for set in &sets {
        let mut found = HashSet::new();
        let mut is_undecodable = false;
        let mut add = |element: Option<Element>, _| match element {
            Some(element) => _ = found.insert(element),
            None => is_undecodable = true,
        };
        let consistency = if has_ranges(set) {
            kernel.dump_elements(table, set, &mut add)?
        } else {
            let keys: Vec<Key> =
                changed.iter().filter(|(name, _)| *name == set.name).map(|(_, key)| key.clone()).collect();
            kernel.get_elements(table, set, &mut keys.into_iter(), &mut add)?;
            Consistency::Consistent
        };
        let is_same = found == planned.remove(&set.name).unwrap_or_default();
        // What was interrupted is left to the comparison of all elements.
        if is_undecodable || (!is_same && consistency == Consistency::Consistent) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Calls `each` with every element that was written: those of the plan, and those that are kept for reuse.
fn for_each_written(planner: &Planner, mut each: impl FnMut(Name, Element)) {
    planner.for_each_element(|set, element| each(set.name(), element));
    for change in planner.unused_elements() {
        if let Change::DeleteElement(set, element) = change {
            each(set, element);
        }
    }
}

/// Returns the keys of all elements of a set.
fn keys(planner: &Planner, set: SetId) -> Vec<Key> {
    let mut keys = Vec::new();
    planner.for_each_element(|id, element| keys.extend((id == set).then_some(element.key)));
    keys
}

const MAX_ATTEMPTS: usize = 5;
