use std::{
    borrow::Cow,
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::write::{ALIGNMENT, ATTRIBUTE_HEADER, FLAGS_OFFSET, MESSAGE_HEADER, SEQUENCE_OFFSET, TYPE_OFFSET};

/// Bytes that violate the netlink format, or that are not the expected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The length of a message is smaller than its header or exceeds the received bytes.
    #[error("malformed netlink message (length field {claimed}, {available} bytes available)")]
    Message {
        /// The value of the length field; 0 if it is incomplete.
        claimed: usize,
        /// The number of bytes that are available.
        available: usize,
    },
    /// A message is shorter than the fixed header of its type.
    #[error("netlink message of type {kind:#06x} is too short (got {got} bytes, want {want})")]
    Header {
        /// The message type.
        kind: u16,
        /// The length of the payload.
        got: usize,
        /// The length of the fixed header.
        want: usize,
    },
    /// The length of an attribute is smaller than its header or exceeds the remaining bytes.
    #[error("malformed netlink attribute (length field {claimed}, {available} bytes available)")]
    Attribute {
        /// The value of the length field; 0 if the header is incomplete.
        claimed: usize,
        /// The number of bytes that are available.
        available: usize,
    },
    /// The length of an attribute does not match its data type.
    #[error("netlink attribute {kind} has the wrong length (got {got} bytes, want {want})")]
    Value {
        /// The attribute type.
        kind: u16,
        /// The length of the payload.
        got: usize,
        /// The length of the data type.
        want: usize,
    },
    /// A required attribute is missing.
    #[error("netlink attribute {kind} is missing in a message of type {message:#06x}")]
    Missing {
        /// The message type.
        message: u16,
        /// The attribute type.
        kind: u16,
    },
}

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The message type (`nlmsg_type`); its meaning depends on the protocol.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// The sequence number of the request that this message replies to; 0 for notifications.
    pub sequence: u32,
    /// The bytes after the netlink header.
    pub payload: &'a [u8],
}

/// An iterator over the messages of a datagram. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The attribute type without flags (`nla_type`); its meaning depends on the message or nest.
    pub kind: u16,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

/// An iterator over the attributes of a message or nest. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    /// Splits the payload into the fixed header of `N` bytes and the attributes.
    pub fn split_header<const N: usize>(&self) -> Result<(&'a [u8; N], Attributes<'a>), Malformed> {
        let too_short = Malformed::Header { kind: self.kind, got: self.payload.len(), want: N };
        let header = self.payload.first_chunk().ok_or(too_short)?;
        // The header is padded, but a message without attributes may end without the padding.
        let attributes = self.payload.get(N.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Ok((header, Attributes::new(attributes)))
    }

    /// Returns the first attribute of a kind after a fixed header of `N` bytes.
    ///
    /// # Errors
    /// If the message is malformed or has no such attribute.
    pub fn attribute<const N: usize>(&self, kind: u16) -> Result<Attribute<'a>, Malformed> {
        self.split_header::<N>()?.1.first(kind)?.ok_or_else(|| self.missing(kind))
    }

    /// Returns the error for a missing required attribute.
    pub fn missing(&self, kind: u16) -> Malformed {
        Malformed::Missing { message: self.kind, kind }
    }
}

impl<'a> Messages<'a> {
    /// Parses a received datagram.
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
        let claimed = read_u32(bytes, 0).map_or(0, |length| length as usize);
        let malformed = Malformed::Message { claimed, available: bytes.len() };
        let header =
            || Some((read_u16(bytes, TYPE_OFFSET)?, read_u16(bytes, FLAGS_OFFSET)?, read_u32(bytes, SEQUENCE_OFFSET)?));
        let (Some((kind, flags, sequence)), Some(payload)) = (header(), bytes.get(MESSAGE_HEADER..claimed)) else {
            return Some(Err(malformed));
        };
        self.rest = bytes.get(claimed.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(Ok(Message { kind, flags, sequence, payload }))
    }
}

impl<'a> Attributes<'a> {
    /// Parses the payload of a nest, or the bytes after the fixed header of a message.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the first attribute of a kind; `None` if there is none.
    ///
    /// # Errors
    /// If an attribute before it is malformed.
    pub fn first(self, kind: u16) -> Result<Option<Attribute<'a>>, Malformed> {
        for attribute in self {
            let attribute = attribute?;
            if attribute.kind == kind {
                return Ok(Some(attribute));
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.rest);
        let claimed = read_u16(bytes, 0).map_or(0, usize::from);
        let malformed = Malformed::Attribute { claimed, available: bytes.len() };
        let (Some(kind), Some(payload)) = (read_u16(bytes, 2), bytes.get(ATTRIBUTE_HEADER..claimed)) else {
            return Some(Err(malformed));
        };
        self.rest = bytes.get(claimed.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(Ok(Attribute { kind: kind & libc::NLA_TYPE_MASK as u16, payload }))
    }
}

impl<'a> Attribute<'a> {
    /// Returns an 8-bit number.
    pub fn u8(&self) -> Result<u8, Malformed> {
        self.array().map(u8::from_ne_bytes)
    }

    /// Returns a 16-bit number in network byte order.
    pub fn u16_be(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// Returns a 16-bit number in the host's byte order.
    pub fn u16_ne(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    /// Returns a 32-bit number in network byte order.
    pub fn u32_be(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// Returns a 32-bit number in the host's byte order.
    pub fn u32_ne(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Returns a 64-bit number in network byte order.
    pub fn u64_be(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Returns a 64-bit number in the host's byte order.
    pub fn u64_ne(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Returns an address: IPv4 if the payload has 4 bytes, else IPv6.
    pub fn ip(&self) -> Result<IpAddr, Malformed> {
        match self.payload.first_chunk::<4>() {
            Some(octets) if self.payload.len() == 4 => Ok(Ipv4Addr::from(*octets).into()),
            _ => self.array::<16>().map(|octets| Ipv6Addr::from(octets).into()),
        }
    }

    /// Returns a text, up to the first zero byte; `None` if it is not UTF-8. This is not an error, because names of
    /// other programs' objects may contain any bytes.
    pub fn text(&self) -> Option<&'a str> {
        str::from_utf8(self.text_bytes()).ok()
    }

    /// Returns a text, up to the first zero byte, with bytes that are not UTF-8 as `\xfc`, so that it does not equal
    /// any name of Ferroute's objects.
    pub fn escaped_text(&self) -> Cow<'a, str> {
        if let Some(text) = self.text() {
            return text.into();
        }
        let mut escaped = String::new();
        for chunk in self.text_bytes().utf8_chunks() {
            escaped.push_str(chunk.valid());
            chunk.invalid().iter().for_each(|byte| _ = write!(escaped, "\\x{byte:02x}"));
        }
        escaped.into()
    }

    fn text_bytes(&self) -> &'a [u8] {
        self.payload.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Returns the nested attributes.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }

    /// Returns a payload of exactly `N` bytes.
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
