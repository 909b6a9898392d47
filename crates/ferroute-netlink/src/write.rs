use std::net::IpAddr;

use crate::attribute_flags;

/// Messages to the kernel in one buffer, to be sent together.
///
/// Writing cannot fail, so that code that encodes objects needs no error handling. If an attribute or message is too
/// long, sending fails.
#[derive(Debug, Default)]
pub struct Batch {
    buffer: Vec<u8>,
    messages: usize,
    /// The number of messages that request an ack.
    acks: usize,
    /// The offset of the last message.
    last: usize,
    oversize: Option<Oversize>,
}

/// An attribute or message is too long for its length field. No message of the batch is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Oversize {
    /// The length of an attribute exceeds 16 bits.
    #[error("attribute {kind} of message {message} has {length} bytes (want at most {MAX_ATTRIBUTE})")]
    Attribute {
        /// The index of its message in the batch.
        message: usize,
        /// The attribute type.
        kind: u16,
        /// The length, including the header of 4 bytes.
        length: usize,
    },
    /// The length of a message exceeds 32 bits.
    #[error("message {message} has {length} bytes (want less than 4 GiB)")]
    Message {
        /// The index in the batch.
        message: usize,
        /// The length, including the header.
        length: usize,
    },
}

/// A single message that the kernel replies to.
#[derive(Debug)]
pub struct Request {
    batch: Batch,
    flags: u16,
}

/// A writer of the attributes of a message or nest. Sets its length when it is dropped.
#[derive(Debug)]
pub struct Writer<'a> {
    batch: &'a mut Batch,
    start: usize,
    frame: Frame,
}

#[derive(Clone, Copy, Debug)]
enum Frame {
    Message,
    Attribute(u16),
}

impl Batch {
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a message with the fixed header of its family (`nfgenmsg`, `genlmsghdr`, `ifaddrmsg`, …). `NLM_F_REQUEST`
    /// is implied. Drop the returned writer if there are no attributes.
    pub fn message(&mut self, kind: u16, flags: u16, header: &[u8]) -> Writer<'_> {
        let start = self.buffer.len();
        self.last = start;
        self.messages += 1;
        self.acks += usize::from(flags & crate::flags::NLM_F_ACK != 0);
        self.buffer.extend_from_slice(&(MESSAGE_HEADER as u32).to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        // The sequence number, set before sending, and the port, set by the kernel.
        self.buffer.extend_from_slice(&[0; 8]);
        self.buffer.extend_from_slice(header);
        self.pad();
        Writer { batch: self, start, frame: Frame::Message }
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.messages
    }

    /// Reports whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Returns the total length of the messages in bytes.
    pub fn byte_length(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the encoded messages, whose sequence numbers are 0 until they are sent, for parsing with
    /// [`Messages`](crate::Messages).
    pub fn as_bytes(&self) -> Result<&[u8], Oversize> {
        self.oversize.map_or(Ok(&self.buffer), Err)
    }

    /// Removes all messages but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        (self.messages, self.acks, self.last, self.oversize) = (0, 0, 0, None);
    }

    /// Requests an ack for the last message so far, as [`crate::flags::NLM_F_ACK`] does.
    pub fn ack_last(&mut self) {
        let flags =
            self.buffer.get(self.last + FLAGS_OFFSET..).and_then(<[u8]>::first_chunk).copied().map(u16::from_ne_bytes);
        if flags.is_some_and(|flags| flags & crate::flags::NLM_F_ACK == 0) {
            self.set_ack_flag();
            self.acks += 1;
        }
    }

    /// Requests an ack for the last message if no message requests one. Returns the number of requested acks.
    pub(crate) fn ensure_ack(&mut self) -> usize {
        if self.acks == 0 && self.messages > 0 {
            self.set_ack_flag();
            return 1;
        }
        self.acks
    }

    fn set_ack_flag(&mut self) {
        // Sets the bit in the host's byte order.
        let ack = crate::flags::NLM_F_ACK.to_ne_bytes();
        for (byte, bits) in self.buffer[self.last + FLAGS_OFFSET..].iter_mut().zip(ack) {
            *byte |= bits;
        }
    }

    /// Returns the encoded messages with the sequence numbers `first`, `first + 1`, ….
    pub(crate) fn seal(&mut self, first: u32) -> Result<&[u8], Oversize> {
        self.as_bytes()?;
        let (mut offset, mut sequence) = (0, first);
        while let Some(length) = self.buffer.get(offset..).and_then(<[u8]>::first_chunk) {
            let length = u32::from_ne_bytes(*length) as usize;
            self.buffer[offset + SEQUENCE_OFFSET..][..4].copy_from_slice(&sequence.to_ne_bytes());
            sequence = sequence.wrapping_add(1);
            offset += length;
        }
        Ok(&self.buffer)
    }

    fn pad(&mut self) {
        self.buffer.resize(self.buffer.len().next_multiple_of(ALIGNMENT), 0);
    }

    fn oversize(&mut self, oversize: Oversize) {
        self.oversize.get_or_insert(oversize);
    }
}

impl Request {
    /// Returns a message without attributes. The method of [`crate::Socket`] that sends it adds the flags for its
    /// reply.
    pub fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut batch = Batch::new();
        batch.message(kind, flags, header);
        Self { batch, flags }
    }

    /// Returns a writer that appends attributes.
    pub fn attributes(&mut self) -> Writer<'_> {
        Writer { batch: &mut self.batch, start: 0, frame: Frame::Message }
    }

    /// Returns the encoded message with these flags added.
    pub(crate) fn seal(&mut self, sequence: u32, reply_flags: u16) -> Result<&[u8], Oversize> {
        let flags = self.flags | NLM_F_REQUEST | reply_flags;
        self.batch.buffer[FLAGS_OFFSET..][..2].copy_from_slice(&flags.to_ne_bytes());
        self.batch.seal(sequence)
    }

    /// The message type.
    pub fn kind(&self) -> u16 {
        u16::from_ne_bytes([self.batch.buffer[TYPE_OFFSET], self.batch.buffer[TYPE_OFFSET + 1]])
    }
}

impl Writer<'_> {
    /// Writes an 8-bit number.
    pub fn put_u8(&mut self, kind: u16, value: u8) {
        self.put_bytes(kind, &[value]);
    }

    /// Writes a 16-bit number in network byte order.
    pub fn put_u16_be(&mut self, kind: u16, value: u16) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    /// Writes a 16-bit number in the host's byte order.
    pub fn put_u16_ne(&mut self, kind: u16, value: u16) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    /// Writes a 32-bit number in network byte order.
    pub fn put_u32_be(&mut self, kind: u16, value: u32) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    /// Writes a 32-bit number in the host's byte order.
    pub fn put_u32_ne(&mut self, kind: u16, value: u32) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    /// Writes a 64-bit number in network byte order.
    pub fn put_u64_be(&mut self, kind: u16, value: u64) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    /// Writes a 64-bit number in the host's byte order.
    pub fn put_u64_ne(&mut self, kind: u16, value: u64) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    /// Writes the 4 or 16 bytes of an address.
    pub fn put_ip(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.put_bytes(kind, &address.octets()),
            IpAddr::V6(address) => self.put_bytes(kind, &address.octets()),
        }
    }

    /// Writes a text with a terminating zero byte.
    pub fn put_str(&mut self, kind: u16, text: &str) {
        self.put(kind, &[text.as_bytes(), &[0]]);
    }

    /// Writes raw bytes.
    pub fn put_bytes(&mut self, kind: u16, bytes: &[u8]) {
        self.put(kind, &[bytes]);
    }

    /// Starts a nested attribute, which ends when the returned writer is dropped.
    pub fn nest(&mut self, kind: u16) -> Writer<'_> {
        let start = self.batch.buffer.len();
        self.batch.buffer.extend_from_slice(&(ATTRIBUTE_HEADER as u16).to_ne_bytes());
        self.batch.buffer.extend_from_slice(&(kind | attribute_flags::NLA_F_NESTED).to_ne_bytes());
        Writer { batch: self.batch, start, frame: Frame::Attribute(kind) }
    }

    /// Returns the number of bytes that still fit into this nest (64 KiB) or message (4 GiB), for callers that split
    /// long lists. Enclosing nests have separate limits. An attribute takes 4 bytes more than its payload and is padded
    /// to a multiple of 4.
    pub fn remaining(&self) -> usize {
        let most = match self.frame {
            Frame::Message => u32::MAX as usize,
            Frame::Attribute(_) => MAX_ATTRIBUTE,
        };
        // All attributes are padded, so the bytes after the last multiple cannot be used.
        (most / ALIGNMENT * ALIGNMENT).saturating_sub(self.length())
    }

    /// Returns the length of the message or nest so far, with its header. The next attribute of a message has this
    /// offset, by which the kernel identifies it in extended acks.
    pub fn length(&self) -> usize {
        self.batch.buffer.len() - self.start
    }

    fn put(&mut self, kind: u16, parts: &[&[u8]]) {
        let length = ATTRIBUTE_HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let Ok(framed) = u16::try_from(length) else {
            let message = self.batch.messages - 1;
            self.batch.oversize(Oversize::Attribute { message, kind, length });
            return;
        };
        self.batch.buffer.extend_from_slice(&framed.to_ne_bytes());
        self.batch.buffer.extend_from_slice(&kind.to_ne_bytes());
        for part in parts {
            self.batch.buffer.extend_from_slice(part);
        }
        self.batch.pad();
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let (length, message) = (self.length(), self.batch.messages - 1);
        match self.frame {
            Frame::Message => match u32::try_from(length) {
                Ok(framed) => self.batch.buffer[self.start..][..4].copy_from_slice(&framed.to_ne_bytes()),
                Err(_) => self.batch.oversize(Oversize::Message { message, length }),
            },
            Frame::Attribute(kind) => match u16::try_from(length) {
                Ok(framed) => self.batch.buffer[self.start..][..2].copy_from_slice(&framed.to_ne_bytes()),
                Err(_) => self.batch.oversize(Oversize::Attribute { message, kind, length }),
            },
        }
    }
}

/// The alignment of messages and attributes (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
pub(crate) const ALIGNMENT: usize = 4;
/// The length of `struct nlmsghdr`.
pub(crate) const MESSAGE_HEADER: usize = size_of::<libc::nlmsghdr>();
/// The length of `struct nlattr`.
pub(crate) const ATTRIBUTE_HEADER: usize = size_of::<libc::nlattr>();
/// The maximum length of an attribute with its header: `nla_len` has 16 bits.
const MAX_ATTRIBUTE: usize = u16::MAX as usize;
const NLM_F_REQUEST: u16 = libc::NLM_F_REQUEST as u16;
/// Offsets in `struct nlmsghdr`.
pub(crate) const TYPE_OFFSET: usize = 4;
pub(crate) const FLAGS_OFFSET: usize = 6;
pub(crate) const SEQUENCE_OFFSET: usize = 8;

#[cfg(test)]
mod tests;
