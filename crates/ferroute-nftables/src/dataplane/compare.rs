//! Compares the elements of sets and maps with those that were written, without keeping either in memory.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use crate::{
    kernel::{Consistency, Kernel},
    model::{Change, Element, Key, Name, TableId},
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
    let mut plan = |set: Name, element: &Element| {
        let (count, sum) = planned.entry(set).or_default();
        (*count, *sum) = (*count + 1, sum.wrapping_add(hasher.hash_one(element)));
    };
    planner.for_each_element(|set, element| plan(set.name(), &element));
    for change in planner.unused_elements() {
        if let Change::DeleteElement(set, element) = change {
            plan(set, &element);
        }
    }
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

/// Returns the keys of all elements of a set.
fn keys(planner: &Planner, set: SetId) -> Vec<Key> {
    let mut keys = Vec::new();
    planner.for_each_element(|id, element| keys.extend((id == set).then_some(element.key)));
    keys
}

const MAX_ATTEMPTS: usize = 5;
