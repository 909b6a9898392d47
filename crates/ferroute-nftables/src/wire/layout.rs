//! Where things are: registers, and fields of packets.

use ferroute_core::IpFamily;

use crate::model::Relation;

/// The first of a row of registers, counted in 32-bit words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Register(pub(super) u32);

impl Register {
    pub(super) const FIRST: Self = Self(0);

    /// As the kernel counts: registers of 16 bytes from 1, those of 4 bytes from 8, the former where both would do.
    pub(super) fn number(self) -> u32 {
        if self.0.is_multiple_of(4) { 1 + self.0 / 4 } else { 8 + self.0 }
    }

    /// The opposite of [`Self::number`]; `None` for the verdict.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        match number {
            1..=4 => Some(Self((number - 1) * 4)),
            8..=23 => Some(Self(number - 8)),
            _ => None,
        }
    }

    /// The first register that several bytes leave free.
    pub(super) fn behind(self, bytes: usize) -> Self {
        Self(self.0 + u32::try_from(bytes.div_ceil(4)).expect("bug: keys have at most 64 bytes"))
    }
}

/// Where `struct iphdr` and `struct ipv6hdr` have the source.
pub(super) fn source_offset(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 12,
        IpFamily::V6 => 8,
    }
}

/// Where they have the destination.
pub(super) fn destination_offset(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 16,
        IpFamily::V6 => 24,
    }
}

/// `NFT_CMP_*`.
pub(super) fn relation_number(relation: Relation) -> u32 {
    match relation {
        Relation::Equal => 0,
        Relation::NotEqual => 1,
        Relation::Less => 2,
        Relation::AtMost => 3,
        Relation::Greater => 4,
        Relation::AtLeast => 5,
    }
}
