use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::write::{ALIGNMENT, ATTRIBUTE_HEADER, FLAGS_AT, KIND_AT, MESSAGE_HEADER, SEQUENCE_AT};

/// Bytes that do not follow the rules of netlink, or not those of the message that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A message ends before its header does, or goes on behind the end of what was received.
    #[error("malformed netlink message (says {says} bytes, {left} are there)")]
    Message {
        /// What its length field says; 0 where not even that field is whole.
        says: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// A message is too short for the fixed header that its kind has.
    #[error("netlink message of kind {kind:#06x} is too short (got {got} bytes, want {want})")]
    Header {
        /// The kind of the message.
        kind: u16,
        /// Bytes that are there.
        got: usize,
        /// Bytes of the fixed header.
        want: usize,
    },
    /// The same as [`Malformed::Message`], for an attribute.
    #[error("malformed netlink attribute (says {says} bytes, {left} are there)")]
    Attribute {
        /// What its length field says; 0 where not even its header is whole.
        says: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// An attribute has another length than its type.
    #[error("netlink attribute {kind} has a wrong length (got {got} bytes, want {want})")]
    Value {
        /// The attribute's kind.
        kind: u16,
        /// Bytes of its content.
        got: usize,
        /// Bytes of the type that was asked for.
        want: usize,
    },
    /// An attribute should be text but is not UTF-8.
    #[error("netlink attribute {kind} is not text")]
    Text {
        /// The attribute's kind.
        kind: u16,
    },
    /// An attribute that the message cannot do without is not there.
    #[error("netlink attribute {kind} is missing in a message of kind {message:#06x}")]
    Missing {
        /// The kind of the message.
        message: u16,
        /// The attribute's kind.
        kind: u16,
    },
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// What it is; the meaning depends on the protocol.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// Number of the request that it answers; 0 for news that nobody asked for.
    pub sequence: u32,
    /// Everything behind the netlink header.
    pub payload: &'a [u8],
}

/// The messages of one received datagram. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

/// An attribute: a kind and some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// What it is, without the flag bits; the meaning depends on where it stands.
    pub kind: u16,
    /// Its content, without padding.
    pub payload: &'a [u8],
}

/// The attributes of a message or of a nest. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    /// Parts the fixed header of `N` bytes that this kind of message has from its attributes.
    pub fn split_header<const N: usize>(&self) -> Result<(&'a [u8; N], Attributes<'a>), Malformed> {
        let too_short = Malformed::Header { kind: self.kind, got: self.payload.len(), want: N };
        let header = self.payload.first_chunk().ok_or(too_short)?;
        // The header is padded; a message may end right behind it, without the padding.
        let attributes = self.payload.get(N.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Ok((header, Attributes::new(attributes)))
    }

    /// The error to return for an attribute that should be there.
    pub fn missing(&self, kind: u16) -> Malformed {
        Malformed::Missing { message: self.kind, kind }
    }
}

impl<'a> Messages<'a> {
    /// Reads what one call of `receive` has brought.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.rest);
        let says = read_u32(bytes, 0).map_or(0, |length| length as usize);
        let malformed = Malformed::Message { says, left: bytes.len() };
        let header = || Some((read_u16(bytes, KIND_AT)?, read_u16(bytes, FLAGS_AT)?, read_u32(bytes, SEQUENCE_AT)?));
        let (Some((kind, flags, sequence)), Some(payload)) = (header(), bytes.get(MESSAGE_HEADER..says)) else {
            return Some(Err(malformed));
        };
        self.rest = bytes.get(says.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(Ok(Message { kind, flags, sequence, payload }))
    }
}

impl<'a> Attributes<'a> {
    /// Reads the content of a nest, or what follows a message's fixed header.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.rest);
        let says = read_u16(bytes, 0).map_or(0, usize::from);
        let malformed = Malformed::Attribute { says, left: bytes.len() };
        let (Some(kind), Some(payload)) = (read_u16(bytes, 2), bytes.get(ATTRIBUTE_HEADER..says)) else {
            return Some(Err(malformed));
        };
        self.rest = bytes.get(says.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(Ok(Attribute { kind: kind & libc::NLA_TYPE_MASK as u16, payload }))
    }
}

impl<'a> Attribute<'a> {
    /// An 8-bit number.
    pub fn u8(&self) -> Result<u8, Malformed> {
        self.array().map(u8::from_ne_bytes)
    }

    /// A 16-bit number in network byte order.
    pub fn u16_be(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// A 16-bit number in the host's byte order.
    pub fn u16_ne(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    /// A 32-bit number in network byte order.
    pub fn u32_be(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// A 32-bit number in the host's byte order.
    pub fn u32_ne(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    /// A 64-bit number in network byte order.
    pub fn u64_be(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 64-bit number in the host's byte order.
    pub fn u64_ne(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    /// An address: IPv4 if there are 4 bytes, else IPv6.
    pub fn ip(&self) -> Result<IpAddr, Malformed> {
        match self.payload.first_chunk::<4>() {
            Some(octets) if self.payload.len() == 4 => Ok(Ipv4Addr::from(*octets).into()),
            _ => self.array::<16>().map(|octets| Ipv6Addr::from(octets).into()),
        }
    }

    /// A text up to its first zero byte.
    pub fn str(&self) -> Result<&'a str, Malformed> {
        let text = self.payload.split(|byte| *byte == 0).next().unwrap_or_default();
        str::from_utf8(text).map_err(|_| Malformed::Text { kind: self.kind })
    }

    /// The attributes within.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }

    /// Exactly `N` bytes.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        let wrong = Malformed::Value { kind: self.kind, got: self.payload.len(), want: N };
        self.payload.try_into().map_err(|_| wrong)
    }
}

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests;
