//! Registers, and offsets of header fields.

use ferroute_core::IpFamily;

use super::constants::*;
use crate::model::CmpOp;

/// A register, as an index of 32-bit words. Longer values occupy the following registers, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Register(pub(super) u32);

impl Register {
    pub(super) const FIRST: Self = Self(0);

    /// Returns the kernel's number: `NFT_REG_1` to `NFT_REG_4` are 16-byte registers, and `NFT_REG32_00` to
    /// `NFT_REG32_15` are the same memory in 4-byte registers. The former are used if both are possible.
    pub(super) fn number(self) -> u32 {
        if self.0.is_multiple_of(4) { NFT_REG_1 + self.0 / 4 } else { NFT_REG32_00 + self.0 }
    }

    /// Returns the register with the kernel's number; `None` for `NFT_REG_VERDICT`. The inverse of [`Self::number`].
    pub(super) fn from_number(number: u32) -> Option<Self> {
        match number {
            NFT_REG_1..=NFT_REG_4 => Some(Self((number - NFT_REG_1) * 4)),
            NFT_REG32_00..=NFT_REG32_15 => Some(Self(number - NFT_REG32_00)),
            _ => None,
        }
    }

    /// Returns the first register after a value of this length.
    pub(super) fn after(self, bytes: usize) -> Self {
        Self(self.0 + bytes.div_ceil(4) as u32)
    }
}

/// Returns the offset of the protocol in `struct iphdr` or `struct ipv6hdr`.
pub(crate) fn protocol_offset(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 9,
        IpFamily::V6 => 6,
    }
}

/// Returns the offset of the source address in `struct iphdr` or `struct ipv6hdr`.
pub(crate) fn source_offset(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 12,
        IpFamily::V6 => 8,
    }
}

/// Returns the offset of the destination address.
pub(crate) fn destination_offset(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 16,
        IpFamily::V6 => 24,
    }
}

/// Returns the kernel's operator (`NFT_CMP_*`).
pub(super) fn cmp_op(op: CmpOp) -> u32 {
    match op {
        CmpOp::Eq => NFT_CMP_EQ,
        CmpOp::Neq => NFT_CMP_NEQ,
        CmpOp::Lt => NFT_CMP_LT,
        CmpOp::Lte => NFT_CMP_LTE,
        CmpOp::Gt => NFT_CMP_GT,
        CmpOp::Gte => NFT_CMP_GTE,
    }
}
