//! The quick look whether somebody else has changed the table.

use super::{InForce, NftablesDataplane};
use crate::{
    kernel::{Kernel, Listing, Reading},
    plan::SetId,
};

impl<K: Kernel> NftablesDataplane<K> {
    /// Whether what is in force has to be compared and mended. Elements are counted, not compared.
    pub(super) fn look(&mut self) -> Result<bool, K::Error> {
        let Some(in_force) = &mut self.in_force else { return Ok(true) };
        let now = self.kernel.generation()?;
        if in_force.generation == Some(now) {
            return Ok(false);
        }
        // Somebody has changed something, maybe of ours.
        let Some(listing) = self.kernel.listing(&self.table)? else { return Ok(true) };
        if !in_force.is_as(&listing) {
            return Ok(true);
        }
        for set in in_force.planner.sets() {
            let Some(listed) = listing.sets.iter().find(|listed| listed.name == set.name) else { return Ok(true) };
            let wanted = in_force.elements.get(&set.name).copied().unwrap_or_default();
            let learned = SetId::of_name(&set.name).is_some_and(SetId::is_learned);
            let there = match listed.elements {
                _ if learned => wanted,
                Some(there) => there,
                None if wanted <= COUNTED_ELEMENTS => {
                    let mut count = 0;
                    match self.kernel.read(&self.table, &set, &mut |_| count += 1)? {
                        Reading::Steady => count,
                        // Looked at again the next time.
                        Reading::Interrupted => return Ok(false),
                    }
                }
                None => wanted,
            };
            if there != wanted {
                return Ok(true);
            }
        }
        in_force.generation = Some(now);
        Ok(false)
    }
}

impl InForce {
    /// Whether chains, rules and sets are there as they should be.
    fn is_as(&self, listing: &Listing) -> bool {
        let chains = self.planner.chains();
        let garbage = self.planner.garbage().len();
        let family = self.planner.context().family;
        listing.chains.len() == chains.len() + garbage
            && listing.sets.len() == self.planner.sets().len()
            && chains.iter().all(|wanted| {
                listing.chains.iter().find(|listed| listed.name == wanted.chain.name).is_some_and(|listed| {
                    listed.rules.len() == wanted.rules.len()
                        && listed.rules.iter().zip(&wanted.rules).all(|(listed, wanted)| listed.is(wanted, family))
                })
            })
    }
}

/// Where the kernel does not tell how many elements a set has, they are counted, up to so many. Reading takes quadratic
/// time, 0.3 s for 100,000.
const COUNTED_ELEMENTS: usize = 50_000;
