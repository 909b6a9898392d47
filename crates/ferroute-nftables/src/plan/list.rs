//! Endpoint lists: their numbers, and the class ids that the priority carries.
//!
//! ```text
//!   class id 191:8003    19    class, 12 bits: the kind of forwarding and the number of endpoints, see `Class`
//!                        1:8003 list, 20 bits: the number of the service port, which of its lists, and 1
//! ```
//!
//! Neither half of a list is zero, because `nft` does not parse such class ids. A service port keeps its number as long
//! as it exists. The number of a removed one is reused only after all other numbers have been used: a packet that was
//! between two rules when a transaction took effect finds its own list, or none.

use std::collections::HashSet;

use ferroute_core::TrafficPolicy;

use crate::model::ClassId;

/// One of the two lists of a service port's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum List {
    /// The endpoints for traffic policy Cluster.
    Cluster,
    /// The endpoints for traffic policy Local.
    Local,
}

/// The number of a service port, which both of its lists are named after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListNumber(u32);

/// The numbers in use.
#[derive(Clone, Debug, Default)]
pub(super) struct ListNumbers {
    taken: HashSet<ListNumber>,
    /// Numbers in the kernel's table, of service ports that have not been planned yet.
    reserved: HashSet<ListNumber>,
    next: u32,
}

impl List {
    /// Both lists.
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Local];

    /// Returns the traffic policy whose endpoints the list has.
    pub(super) fn policy(self) -> TrafficPolicy {
        match self {
            Self::Cluster => TrafficPolicy::Cluster,
            Self::Local => TrafficPolicy::Local,
        }
    }
}

impl From<TrafficPolicy> for List {
    fn from(policy: TrafficPolicy) -> Self {
        match policy {
            TrafficPolicy::Cluster => Self::Cluster,
            TrafficPolicy::Local => Self::Local,
        }
    }
}

impl ListNumber {
    /// Returns the class id of a list, whose class is zero.
    pub fn list(self, list: List) -> ClassId {
        let local = match list {
            List::Cluster => 0,
            List::Local => LOCAL.0,
        };
        ClassId(((1 + (self.0 >> LOW_BITS)) << 16) | (self.0 & LOW_MASK) << 2 | local | 1)
    }

    /// Returns the number and the list of a class id, regardless of its class; `None` if it has no list.
    pub fn from_class_id(id: ClassId) -> Option<(Self, List)> {
        let id = id.masked(LIST);
        let high = u32::from(id.major()).checked_sub(1)?;
        let list = if id.masked(LOCAL) == LOCAL { List::Local } else { List::Cluster };
        (id.0 & 1 == 1).then_some((Self(high << LOW_BITS | u32::from(id.minor()) >> 2), list))
    }
}

impl ListNumbers {
    /// Returns an empty state that reserves the numbers in the kernel's table.
    pub(super) fn new(reserved: HashSet<ListNumber>) -> Self {
        let next = reserved.iter().map(|number| number.0 + 1).max().unwrap_or_default();
        Self { taken: HashSet::new(), reserved, next }
    }

    /// Ends the reservation of the numbers in the kernel's table.
    pub(super) fn clear_reserved(&mut self) {
        self.reserved = HashSet::new();
    }

    /// Returns the previous number if it is free, otherwise the number that has been unused for the longest time;
    /// `None` if all are in use.
    pub(super) fn choose(&mut self, previous: Option<ListNumber>) -> Option<ListNumber> {
        if let Some(previous) = previous.filter(|number| !self.taken.contains(number)) {
            return Some(previous);
        }
        let is_free = |number: &ListNumber| !self.taken.contains(number) && !self.reserved.contains(number);
        let free = (0..COUNT).map(|i| ListNumber((self.next % COUNT + i) % COUNT)).find(is_free)?;
        self.next = free.0 + 1;
        Some(free)
    }

    /// Marks a number as used.
    pub(super) fn take(&mut self, number: ListNumber) {
        self.taken.insert(number);
    }

    /// Marks a number as free.
    pub(super) fn release(&mut self, number: ListNumber) {
        self.taken.remove(&number);
    }
}

/// The bits of a list.
pub(super) const LIST: ClassId = ClassId::new(0xf, 0xffff);
/// Bits that are the same in all lists of a service port.
pub(super) const NUMBER: ClassId = ClassId(LIST.0 & !LOCAL.0);
/// The bit that distinguishes the lists of a service port.
pub(super) const LOCAL: ClassId = ClassId(2);
/// The lowest bit of the class.
pub(super) const CLASS_SHIFT: u32 = 20;
/// Bits of a number in the minor half.
const LOW_BITS: u32 = 14;
const LOW_MASK: u32 = (1 << LOW_BITS) - 1;
/// Number of numbers: four bits in the major half, which must not be zero.
const COUNT: u32 = 15 << LOW_BITS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_unique_and_have_no_zero_half() {
        let mut seen = HashSet::new();
        for number in (0..COUNT).step_by(1021).chain([1, COUNT - 1]).map(ListNumber) {
            for list in List::ALL {
                let id = number.list(list);
                assert!(seen.insert(id) && id.major() != 0 && id.minor() != 0 && id.masked(LIST) == id, "{id}");
                assert_eq!(ListNumber::from_class_id(ClassId(id.0 | 0xabc << CLASS_SHIFT)), Some((number, list)));
            }
            assert_eq!(number.list(List::Local), ClassId(number.list(List::Cluster).masked(NUMBER).0 | LOCAL.0));
        }
        assert_eq!(ListNumber::from_class_id(ClassId::new(0x10, 1)), None);
    }

    #[test]
    fn number_is_given_to_another_service_port_as_late_as_possible() {
        let mut numbers = ListNumbers::new([ListNumber(4)].into());
        assert_eq!(numbers.choose(None), Some(ListNumber(5)));
        numbers.take(ListNumber(5));
        numbers.release(ListNumber(5));
        assert_eq!(numbers.choose(None), Some(ListNumber(6)));
        assert_eq!(numbers.choose(Some(ListNumber(4))), Some(ListNumber(4)), "it is reserved for its previous owner");
        numbers.next = COUNT - 1;
        assert_eq!(numbers.choose(None), Some(ListNumber(COUNT - 1)));
        numbers.take(ListNumber(0));
        assert_eq!(numbers.choose(None), Some(ListNumber(1)));
        assert_eq!(numbers.choose(Some(ListNumber(0))), Some(ListNumber(2)), "it has another owner");
        numbers.clear_reserved();
        (0..COUNT).for_each(|number| numbers.take(ListNumber(number)));
        assert_eq!(numbers.choose(None), None);
    }
}
