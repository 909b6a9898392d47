//! The body of a fuzz target, and messages for objects of other programs, for fuzz targets of other crates.

use crate::{Attributes, Batch, Message, Messages, Writer, reply::Reply};

/// Reads bytes as a datagram of the kernel: messages, replies and attributes at every depth.
///
/// # Panics
///
/// If the parts that were read do not cover all bytes of a valid message, or exceed the bytes.
pub fn read_datagram(datagram: &[u8]) {
    let mut read = 0;
    for message in Messages::new(datagram) {
        let Ok(message) = message else { break };
        read += message.payload.len();
        read_message(message);
    }
    assert!(read <= datagram.len(), "{read} bytes of payload in a datagram of {}", datagram.len());
}

fn read_message(message: Message<'_>) {
    for (index, request) in [(0, message.kind), (usize::MAX, 0)] {
        if let Ok(Reply::Refused(refusal)) = Reply::parse(message, index, request) {
            assert!(refusal.errno > 0);
            assert_eq!(refusal.index, index);
        }
    }
    if let Ok((_, attributes)) = message.split_header::<4>() {
        read_attributes(attributes, message.payload.len(), 0);
    }
    if let Ok((_, attributes)) = message.split_header::<16>() {
        read_attributes(attributes, message.payload.len(), 0);
    }
}

fn read_attributes(attributes: Attributes<'_>, available: usize, depth: usize) {
    let mut read = 0;
    for attribute in attributes {
        let Ok(attribute) = attribute else { break };
        read += attribute.payload.len();
        match attribute.ip() {
            Ok(address) => assert_eq!(attribute.payload.len(), if address.is_ipv4() { 4 } else { 16 }),
            Err(_) => assert!(![4, 16].contains(&attribute.payload.len())),
        }
        assert_eq!(attribute.u8().is_ok(), attribute.payload.len() == 1);
        assert_eq!(attribute.u16_be().ok().map(u16::to_be), attribute.u16_ne().ok());
        assert_eq!(attribute.u32_be().ok().map(u32::to_be), attribute.u32_ne().ok());
        assert_eq!(attribute.u64_be().ok().map(u64::to_be), attribute.u64_ne().ok());
        let escaped = attribute.escaped_text();
        assert!(!escaped.contains('\0') && attribute.text().is_none_or(|text| text == escaped));
        if depth < MAX_DEPTH {
            read_attributes(attribute.nested(), attribute.payload.len(), depth + 1);
        }
    }
    assert!(read <= available, "{read} bytes of attributes in {available}");
}

/// The depth of nests that are read; no message of the kernel is deeper.
const MAX_DEPTH: usize = 8;

/// Content of an attribute in messages for objects of other programs: the kernel determines its length and form, and
/// the other program the rest.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// As many bytes.
    Number(usize),
    /// Any number of arbitrary bytes, such as a name, or a word of [`WORDS`].
    Bytes,
    /// Some attributes of any kind and length, such as the data of an expression.
    Attributes,
    /// An address of the family of the message, which begins with the family.
    Address,
    /// Some of these attributes.
    Nest(&'static [Field]),
    /// All of these attributes.
    Whole(&'static [Field]),
    /// Any number of attributes of a kind.
    List(&'static Field),
}

/// An attribute that a message may have: its kind and content.
pub type Field = (u16, Content);

/// Arbitrary bytes that are consumed in order, followed by zeros.
#[derive(Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Returns these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next byte.
    fn next(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    /// Returns all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Returns at most this many bytes.
    fn take(&mut self, number: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(number.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns a message of this kind, with a header of this length, that has the required fields, some of the others,
    /// and some unknown ones.
    pub fn message(&mut self, kind: u16, header: usize, required: &[Field], others: &[Field]) -> Vec<u8> {
        let mut batch = Batch::new();
        let mut bytes = self.exactly(header);
        // `AF_INET` or `AF_INET6`.
        let is_v6 = self.next() & 1 == 1;
        if let Some(family) = bytes.first_mut() {
            *family = if is_v6 { 10 } else { 2 };
        }
        let mut message = batch.message(kind, 0, &bytes);
        required.iter().for_each(|field| self.put(&mut message, field, is_v6));
        self.put_some(&mut message, others, is_v6);
        drop(message);
        // The length is far below the limit.
        batch.as_bytes().map(<[u8]>::to_vec).unwrap_or_default()
    }

    fn exactly(&mut self, number: usize) -> Vec<u8> {
        let mut bytes = self.take(number).to_vec();
        bytes.resize(number, 0);
        bytes
    }

    fn put_some(&mut self, writer: &mut Writer<'_>, fields: &[Field], is_v6: bool) {
        for field in fields {
            let choice = self.next();
            if choice & 1 == 1 {
                self.put(writer, field, is_v6);
            }
            if choice & 0xe0 == 0xe0 {
                self.put(writer, &(UNKNOWN, Content::Bytes), is_v6);
            }
        }
    }

    fn put(&mut self, writer: &mut Writer<'_>, (kind, content): &Field, is_v6: bool) {
        match content {
            Content::Number(length) => writer.put_bytes(*kind, &self.exactly(*length)),
            Content::Address => writer.put_bytes(*kind, &self.exactly(if is_v6 { 16 } else { 4 })),
            Content::Bytes => {
                let choice = usize::from(self.next());
                match choice.checked_sub(128) {
                    Some(word) => writer.put_str(*kind, WORDS[word % WORDS.len()]),
                    None => writer.put_bytes(*kind, self.take(choice % 64)),
                }
            }
            Content::Attributes => {
                let mut nest = writer.nest(*kind);
                for _ in 0..self.next() % 8 {
                    let choice = self.next();
                    let length = LENGTHS[usize::from(choice >> 4) % LENGTHS.len()];
                    nest.put_bytes(u16::from(choice & 0xf), &self.exactly(length));
                }
            }
            Content::Nest(fields) => self.put_some(&mut writer.nest(*kind), fields, is_v6),
            Content::Whole(fields) => {
                let mut nest = writer.nest(*kind);
                fields.iter().for_each(|field| self.put(&mut nest, field, is_v6));
            }
            Content::List(field) => {
                let mut list = writer.nest(*kind);
                for _ in 0..self.next() % 8 {
                    self.put(&mut list, field, is_v6);
                }
            }
        }
    }
}

/// Names that decoders recognise: of expressions, modules, tables and chains.
const WORDS: [&str; 32] = [
    "meta",
    "payload",
    "bitwise",
    "cmp",
    "range",
    "match",
    "target",
    "immediate",
    "counter",
    "limit",
    "log",
    "lookup",
    "ct",
    "nat",
    "masq",
    "numgen",
    "dynset",
    "byteorder",
    "connlimit",
    "fib",
    "set",
    "statistic",
    "DNAT",
    "MASQUERADE",
    "filter",
    "mangle",
    "PREROUTING",
    "KUBE-SERVICES",
    "KUBE-MARK-MASQ",
    "ferroute",
    "services",
    "established",
];

const LENGTHS: [usize; 8] = [0, 1, 2, 4, 4, 8, 16, 20];

/// A kind of attribute that no kernel has.
const UNKNOWN: u16 = 0x1ff;
