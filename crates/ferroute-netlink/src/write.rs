use std::net::IpAddr;

use crate::attribute_flags;

/// Messages for the kernel, one behind the other in one buffer, to be sent together.
///
/// Writing cannot fail, so code that describes an object needs no error handling; what does not fit into its frame is
/// remembered and makes the sending fail.
#[derive(Debug, Default)]
pub struct Batch {
    buffer: Vec<u8>,
    messages: usize,
    /// How many of them ask for an answer.
    acks: usize,
    /// Where the last one starts.
    last: usize,
    oversize: Option<Oversize>,
}

/// Something was written that has no room in a netlink frame. Nothing of the batch is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Oversize {
    /// The length of an attribute is a 16-bit number.
    #[error("attribute {kind} of message {message} has {length} bytes (want at most {MAX_ATTRIBUTE})")]
    Attribute {
        /// Position of its message in the batch.
        message: usize,
        /// The attribute's kind.
        kind: u16,
        /// Its length with its 4 bytes of header.
        length: usize,
    },
    /// The length of a message is a 32-bit number.
    #[error("message {message} has {length} bytes (want less than 4 GiB)")]
    Message {
        /// Position in the batch.
        message: usize,
        /// Its length with its header.
        length: usize,
    },
}

/// A message that is sent alone and answered.
#[derive(Debug)]
pub struct Request {
    batch: Batch,
    flags: u16,
}

/// Writes the attributes of a message or of a nest. The length of what it has written is put into the frame when it is
/// dropped.
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
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a message with the fixed header that its family asks for (`nfgenmsg`, `genlmsghdr`, `ifaddrmsg`, …). «Is a
    /// request» need not be among the flags. The returned writer may be dropped at once if there are no attributes.
    pub fn message(&mut self, kind: u16, flags: u16, header: &[u8]) -> Writer<'_> {
        let start = self.buffer.len();
        self.last = start;
        self.messages += 1;
        self.acks += usize::from(flags & crate::flags::ACK != 0);
        self.buffer.extend_from_slice(&(MESSAGE_HEADER as u32).to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
        // Sequence number, set when it is sent, and the sender's port, which the kernel fills in.
        self.buffer.extend_from_slice(&[0; 8]);
        self.buffer.extend_from_slice(header);
        self.pad();
        Writer { batch: self, start, frame: Frame::Message }
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.messages
    }

    /// No message was written.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Size of all messages in bytes.
    pub fn byte_length(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes as they were written; sequence numbers are 0 until they are sent. For looking at them with
    /// [`Messages`](crate::Messages).
    pub fn as_bytes(&self) -> Result<&[u8], Oversize> {
        self.oversize.map_or(Ok(&self.buffer), Err)
    }

    /// Forgets all messages but keeps the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        (self.messages, self.acks, self.last, self.oversize) = (0, 0, 0, None);
    }

    /// Makes the last message so far ask for an answer, as [`crate::flags::ACK`] does: for callers who see only behind a
    /// message that it was the last one.
    pub fn answer_last(&mut self) {
        let flags =
            self.buffer.get(self.last + FLAGS_AT..).and_then(<[u8]>::first_chunk).copied().map(u16::from_ne_bytes);
        if flags.is_some_and(|flags| flags & crate::flags::ACK == 0) {
            self.set_answer();
            self.acks += 1;
        }
    }

    /// Makes the last message ask for an answer if none does, and returns how many do.
    pub(crate) fn want_answer(&mut self) -> usize {
        if self.acks == 0 && self.messages > 0 {
            self.set_answer();
            return 1;
        }
        self.acks
    }

    fn set_answer(&mut self) {
        // Asking is one bit, set in the byte that holds it in the host's byte order.
        let answer = crate::flags::ACK.to_ne_bytes();
        for (byte, bits) in self.buffer[self.last + FLAGS_AT..].iter_mut().zip(answer) {
            *byte |= bits;
        }
    }

    /// The bytes, with the sequence numbers `first`, `first + 1`, … in the messages.
    pub(crate) fn seal(&mut self, first: u32) -> Result<&[u8], Oversize> {
        self.as_bytes()?;
        let (mut offset, mut sequence) = (0, first);
        while let Some(length) = self.buffer.get(offset..).and_then(<[u8]>::first_chunk) {
            let length = u32::from_ne_bytes(*length) as usize;
            self.buffer[offset + SEQUENCE_AT..][..4].copy_from_slice(&sequence.to_ne_bytes());
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
    /// A message without attributes yet. Which answer it wants is said by the method of [`crate::Socket`] that sends it.
    pub fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut batch = Batch::new();
        batch.message(kind, flags, header);
        Self { batch, flags }
    }

    /// Adds attributes behind those that are there.
    pub fn attributes(&mut self) -> Writer<'_> {
        Writer { batch: &mut self.batch, start: 0, frame: Frame::Message }
    }

    /// The bytes, with flags that say which answer is wanted.
    pub(crate) fn seal(&mut self, sequence: u32, answer: u16) -> Result<&[u8], Oversize> {
        let flags = self.flags | REQUEST | answer;
        self.batch.buffer[FLAGS_AT..][..2].copy_from_slice(&flags.to_ne_bytes());
        self.batch.seal(sequence)
    }

    pub(crate) fn kind(&self) -> u16 {
        u16::from_ne_bytes([self.batch.buffer[KIND_AT], self.batch.buffer[KIND_AT + 1]])
    }
}

impl Writer<'_> {
    /// An attribute that says something by being there.
    pub fn put_flag(&mut self, kind: u16) {
        self.put_bytes(kind, &[]);
    }

    /// An 8-bit number.
    pub fn put_u8(&mut self, kind: u16, value: u8) {
        self.put_bytes(kind, &[value]);
    }

    /// A 16-bit number in network byte order.
    pub fn put_u16_be(&mut self, kind: u16, value: u16) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    /// A 16-bit number in the host's byte order.
    pub fn put_u16_ne(&mut self, kind: u16, value: u16) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    /// A 32-bit number in network byte order.
    pub fn put_u32_be(&mut self, kind: u16, value: u32) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    /// A 32-bit number in the host's byte order.
    pub fn put_u32_ne(&mut self, kind: u16, value: u32) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    /// A 64-bit number in network byte order.
    pub fn put_u64_be(&mut self, kind: u16, value: u64) {
        self.put_bytes(kind, &value.to_be_bytes());
    }

    /// A 64-bit number in the host's byte order.
    pub fn put_u64_ne(&mut self, kind: u16, value: u64) {
        self.put_bytes(kind, &value.to_ne_bytes());
    }

    /// The 4 or 16 bytes of an address.
    pub fn put_ip(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.put_bytes(kind, &address.octets()),
            IpAddr::V6(address) => self.put_bytes(kind, &address.octets()),
        }
    }

    /// A text, ended by a zero byte. The kernel reads no further than a zero byte within.
    pub fn put_str(&mut self, kind: u16, text: &str) {
        self.put(kind, &[text.as_bytes(), &[0]]);
    }

    /// Raw bytes.
    pub fn put_bytes(&mut self, kind: u16, bytes: &[u8]) {
        self.put(kind, &[bytes]);
    }

    /// Starts an attribute that holds attributes. It ends when the returned writer is dropped.
    pub fn nest(&mut self, kind: u16) -> Writer<'_> {
        let start = self.batch.buffer.len();
        self.batch.buffer.extend_from_slice(&(ATTRIBUTE_HEADER as u16).to_ne_bytes());
        self.batch.buffer.extend_from_slice(&(kind | attribute_flags::NESTED).to_ne_bytes());
        Writer { batch: self.batch, start, frame: Frame::Attribute(kind) }
    }

    /// Bytes that still fit: a nest holds less than 64 KiB, a message less than 4 GiB; what this one stands in has its
    /// own limit. An attribute takes 4 bytes more than its content and is padded to a multiple of 4. For callers that
    /// split long lists over several messages.
    pub fn room(&self) -> usize {
        let most = match self.frame {
            Frame::Message => u32::MAX as usize,
            Frame::Attribute(_) => MAX_ATTRIBUTE,
        };
        // Everything in a frame is padded, so the bytes that are left behind the last multiple cannot be used.
        (most / ALIGNMENT * ALIGNMENT).saturating_sub(self.length())
    }

    /// Bytes of the message or nest so far, with its header. An attribute of a message that is begun now stands at this
    /// offset of it, which is how the kernel names attributes that it refuses.
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

/// Everything starts at a multiple of this many bytes.
pub(crate) const ALIGNMENT: usize = 4;
/// Bytes of a message's header (`struct nlmsghdr`).
pub(crate) const MESSAGE_HEADER: usize = size_of::<libc::nlmsghdr>();
/// Bytes of an attribute's header (`struct nlattr`).
pub(crate) const ATTRIBUTE_HEADER: usize = size_of::<libc::nlattr>();
/// Longest attribute, header and content: `nla_len` has 16 bits.
const MAX_ATTRIBUTE: usize = u16::MAX as usize;
const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
/// Offsets of fields of `struct nlmsghdr`.
pub(crate) const KIND_AT: usize = 4;
pub(crate) const FLAGS_AT: usize = 6;
pub(crate) const SEQUENCE_AT: usize = 8;

#[cfg(test)]
mod tests;
