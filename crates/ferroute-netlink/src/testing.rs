//! The body of a fuzz target.

use crate::{Attributes, Message, Messages, reply::Reply};

/// Reads bytes as a datagram of the kernel: messages, replies and attributes at every depth.
///
/// # Panics
///
/// Not all bytes of a valid message are covered by what was read, or more than the bytes was read.
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
