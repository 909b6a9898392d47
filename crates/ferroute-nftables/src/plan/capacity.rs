use std::fmt;

use ferroute_core::limits;

/// The number of endpoints of a list, rounded up so that there are at most 416 different numbers.
///
/// Up to 64 it is exact. Above, at most every 33rd choice has no endpoint, and is repeated. A list with thousands of
/// endpoints therefore rarely needs another chain, and the number fits into a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Capacity(u32);

impl Capacity {
    /// Returns the smallest capacity for a number of endpoints, which a plan limits to [`Capacity::MAX`].
    pub(crate) fn fitting(endpoints: usize) -> Self {
        let count = u32::try_from(endpoints).unwrap_or(Self::MAX).clamp(1, Self::MAX);
        let unit = Self::unit(count);
        Self(count.next_multiple_of(unit))
    }

    /// Returns the capacity.
    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// Returns the number of attempts of a random choice. After the last attempt, one choice in a million has not found
    /// an endpoint.
    pub(crate) fn tries(self) -> usize {
        if self.0 <= EXACT { 1 } else { 4 }
    }

    /// Returns the position among all capacities, from 1 to 416.
    pub(crate) fn step(self) -> u32 {
        if self.0 <= EXACT {
            return self.0;
        }
        // With 33 to 64 units.
        let unit = Self::unit(self.0);
        EXACT + (unit.ilog2() - 1) * STEPS + self.0 / unit - STEPS
    }

    /// Returns the capacity at a position; `None` if the position has none. The inverse of [`Capacity::step`].
    pub(crate) fn from_step(step: u32) -> Option<Self> {
        match step {
            0 => None,
            1..=EXACT => Some(Self(step)),
            _ => {
                let (doublings, units) = ((step - EXACT - 1) / STEPS, (step - EXACT - 1) % STEPS + 1);
                let capacity = (STEPS + units).checked_shl(doublings + 1)?;
                (capacity <= Self::MAX).then_some(Self(capacity))
            }
        }
    }

    /// Returns the difference between this number, rounded, and the next smaller capacity.
    fn unit(count: u32) -> u32 {
        if count <= EXACT { 1 } else { 1 << ((count - 1).ilog2() - STEPS.ilog2()) }
    }

    /// The largest capacity.
    pub(crate) const MAX: u32 = 1 << 17;
    /// The number of capacities.
    pub(crate) const COUNT: u32 = EXACT + (Self::MAX.ilog2() - EXACT.ilog2()) * STEPS;
}

const _: () = assert!(limits::MAX_ENDPOINTS <= Capacity::MAX as usize);

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Capacities up to this one are exact.
const EXACT: u32 = 64;
/// Number of capacities between two powers of two.
const STEPS: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_exceeds_the_number_of_endpoints_by_a_32nd_at_most() {
        let (mut last, mut steps) = (0, 0);
        for endpoints in 1..=Capacity::MAX as usize {
            let capacity = Capacity::fitting(endpoints);
            let count = u32::try_from(endpoints).unwrap();
            assert!(capacity.0 >= count && (capacity.0 - count) * 32 < count, "{capacity} for {endpoints}");
            assert!(endpoints > 64 || capacity.0 == count);
            if capacity.0 != last {
                (last, steps) = (capacity.0, steps + 1);
                assert_eq!((capacity.step(), Capacity::from_step(steps)), (steps, Some(capacity)));
            }
        }
        assert_eq!((steps, Capacity::from_step(0), Capacity::from_step(steps + 1)), (Capacity::COUNT, None, None));
    }
}
