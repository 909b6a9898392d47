//! The kernel's structures of match modules and targets (`include/uapi/linux/netfilter/xt_*.h`, `netfilter_ipv4/ipt_*.h`
//! and `netfilter_ipv6/ip6t_*.h`) on 64-bit machines, in the revisions that every `iptables-nft` since 1.8.2 can read.
//!
//! Numbers have the host's byte order, except for addresses and the ports of translations.

use std::{borrow::Cow, net::IpAddr};

use ferroute_core::IpFamily;

use super::PortRange;

/// A match module or target with the content of its structure, in the kernel's alignment.
#[derive(Clone, Debug)]
pub(crate) struct Structure<'a> {
    /// The name: `comment`, `DNAT`.
    pub(crate) name: Cow<'a, str>,
    /// The revision of the structure.
    pub(crate) revision: u32,
    /// The structure.
    pub(crate) bytes: Bytes<'a>,
}

/// The bytes of a structure.
#[expect(clippy::large_enum_variant, reason = "encoding needs no allocation; a value lives for one rule")]
#[derive(Clone, Debug)]
pub(crate) enum Bytes<'a> {
    /// Read from the kernel.
    Borrowed(&'a [u8]),
    /// To be written; the bytes after `length` are unused.
    Owned {
        /// The bytes, initially zero.
        bytes: [u8; MAX_LENGTH],
        /// Number of the bytes.
        length: usize,
    },
}

impl Structure<'static> {
    /// Creates a structure of zero bytes.
    pub(super) fn new(name: &'static str, revision: u32, length: usize) -> Self {
        Self { name: name.into(), revision, bytes: Bytes::Owned { bytes: [0; MAX_LENGTH], length } }
    }
}

impl Structure<'_> {
    /// The bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Owned { bytes, length } => &bytes[..*length],
        }
    }

    pub(super) fn put(mut self, at: usize, value: &[u8]) -> Self {
        if let Bytes::Owned { bytes, .. } = &mut self.bytes {
            bytes[at..at + value.len()].copy_from_slice(value);
        }
        self
    }

    pub(super) fn put_u8(self, at: usize, value: u8) -> Self {
        self.put(at, &[value])
    }

    pub(super) fn put_u16(self, at: usize, value: u16) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub(super) fn put_u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub(super) fn put_address(self, at: usize, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.put(at, &address.octets()),
            IpAddr::V6(address) => self.put(at, &address.octets()),
        }
    }

    pub(super) fn put_ports(self, at: usize, range: PortRange) -> Self {
        self.put_u16(at, range.first).put_u16(at + 2, range.last)
    }

    pub(super) fn u8(&self, at: usize) -> Option<u8> {
        self.as_bytes().get(at).copied()
    }

    pub(crate) fn u16(&self, at: usize) -> Option<u16> {
        self.as_bytes().get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&self, at: usize) -> Option<u32> {
        self.as_bytes().get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
    }

    pub(super) fn ports(&self, at: usize) -> Option<PortRange> {
        let range = PortRange { first: self.u16(at)?, last: self.u16(at + 2)? };
        (range.first <= range.last).then_some(range)
    }

    pub(super) fn port_be(&self, at: usize) -> Option<u16> {
        self.as_bytes().get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
    }

    pub(super) fn address(&self, family: IpFamily, at: usize) -> Option<IpAddr> {
        let bytes = self.as_bytes().get(at..)?;
        Some(match family {
            IpFamily::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
            IpFamily::V6 => IpAddr::from(*bytes.first_chunk::<16>()?),
        })
    }

    /// Returns the text of `length` bytes up to the first zero.
    pub(super) fn text(&self, at: usize, length: usize) -> Option<Cow<'_, str>> {
        let bytes = self.as_bytes().get(at..at + length)?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text))
    }

    /// Reports whether all bytes are zero except those at offsets that `is_used` accepts.
    pub(super) fn is_zero_except(&self, is_used: impl Fn(usize) -> bool) -> bool {
        self.as_bytes().iter().enumerate().all(|(at, byte)| *byte == 0 || is_used(at))
    }
}

/// A mask of an address with all bits.
pub(super) fn all_ones(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => [u8::MAX; 4].into(),
        IpFamily::V6 => [u8::MAX; 16].into(),
    }
}

/// The size of the largest structure, `xt_sctp_info`.
const MAX_LENGTH: usize = 296;
