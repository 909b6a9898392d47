use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::{Attributes, Messages, flags};

#[test]
fn message_has_the_kernels_layout() {
    let mut request = Request::new(0x0a0b, flags::NLM_F_CREATE, &[2, 0, 0, 10]);
    request.attributes().put_str(1, "abcd");
    request.attributes().put_u16_be(2, 0x0102);
    let bytes = request.seal(7, flags::NLM_F_ACK).unwrap();
    let mut want = Vec::new();
    want.extend_from_slice(&40_u32.to_ne_bytes());
    want.extend_from_slice(&0x0a0b_u16.to_ne_bytes());
    want.extend_from_slice(&0x0405_u16.to_ne_bytes()); // create, ack, request
    want.extend_from_slice(&7_u32.to_ne_bytes());
    want.extend_from_slice(&[0; 4]);
    want.extend_from_slice(&[2, 0, 0, 10]);
    want.extend_from_slice(&9_u16.to_ne_bytes());
    want.extend_from_slice(&1_u16.to_ne_bytes());
    want.extend_from_slice(b"abcd\0\0\0\0"); // a terminating zero and three bytes of padding
    want.extend_from_slice(&6_u16.to_ne_bytes());
    want.extend_from_slice(&2_u16.to_ne_bytes());
    want.extend_from_slice(&[1, 2, 0, 0]);
    assert_eq!(bytes, want);
}

#[test]
fn request_can_be_sent_again_with_other_flags() {
    let mut request = Request::new(1, 0, &[]);
    let flags_of = |bytes: &[u8]| Messages::new(bytes).next().unwrap().unwrap().flags;
    let dump = libc::NLM_F_DUMP as u16;
    assert_eq!(flags_of(request.seal(1, dump).unwrap()), NLM_F_REQUEST | dump);
    assert_eq!(flags_of(request.seal(2, flags::NLM_F_ACK).unwrap()), NLM_F_REQUEST | flags::NLM_F_ACK);
}

#[test]
fn last_message_requests_an_ack_unless_another_does() {
    let requests_ack = |batch: &mut Batch| -> Vec<bool> {
        batch.ensure_ack();
        let bytes = batch.seal(1).unwrap();
        Messages::new(bytes).map(|message| message.unwrap().flags & flags::NLM_F_ACK != 0).collect()
    };
    let mut batch = Batch::new();
    for flags in [0, flags::NLM_F_CREATE, 0] {
        drop(batch.message(1, flags, &[]));
    }
    assert_eq!(requests_ack(&mut batch), [false, false, true]);
    batch.clear();
    for flags in [0, flags::NLM_F_ACK, 0] {
        drop(batch.message(1, flags, &[]));
    }
    assert_eq!(requests_ack(&mut batch), [false, true, false]);
}

#[test]
fn ack_can_be_requested_for_the_last_message_so_far() {
    let mut batch = Batch::new();
    batch.ack_last();
    for kind in [16, 17, 18] {
        batch.message(kind, 0, &[]);
        if kind == 17 {
            batch.ack_last();
            batch.ack_last();
        }
    }
    assert_eq!(batch.ensure_ack(), 1);
    let flags: Vec<u16> = Messages::new(batch.as_bytes().unwrap()).map(|message| message.unwrap().flags).collect();
    assert_eq!(
        flags,
        [
            crate::write::NLM_F_REQUEST,
            crate::write::NLM_F_REQUEST | crate::flags::NLM_F_ACK,
            crate::write::NLM_F_REQUEST
        ]
    );
}

#[test]
fn length_is_the_offset_of_the_next_attribute() {
    let mut batch = Batch::new();
    let mut message = batch.message(16, 0, &[0; 4]);
    assert_eq!(message.length(), 20);
    message.put_u8(1, 7);
    assert_eq!(message.length(), 28);
    let mut nest = message.nest(2);
    assert_eq!(nest.length(), 4);
    nest.put_u32_be(1, 7);
    assert_eq!(nest.length(), 12);
}

#[test]
fn nests_of_any_depth_end_before_the_next_attribute() {
    let mut batch = Batch::new();
    {
        let mut message = batch.message(1, flags::NLM_F_ACK, &[0; 4]);
        let mut outer = message.nest(1);
        outer.put_u8(2, 9);
        outer.nest(3).put_u32_be(4, 5);
        outer.put_bytes(6, &[]);
        drop(outer);
        message.put_u64_be(7, 8);
    }
    drop(batch.message(2, 0, &[]));
    let bytes = batch.seal(100).unwrap();
    let messages: Vec<_> = Messages::new(bytes).map(Result::unwrap).collect();
    assert_eq!(
        messages.iter().map(|message| (message.kind, message.sequence)).collect::<Vec<_>>(),
        [(1, 100), (2, 101)]
    );
    let (_, attributes) = messages[0].split_header::<4>().unwrap();
    let attributes: Vec<_> = attributes.map(Result::unwrap).collect();
    assert_eq!(attributes.iter().map(|attribute| attribute.kind).collect::<Vec<_>>(), [1, 7]);
    assert_eq!(attributes[1].u64_be(), Ok(8));
    let inside: Vec<_> = attributes[0].nested().map(Result::unwrap).collect();
    assert_eq!(inside.iter().map(|attribute| attribute.kind).collect::<Vec<_>>(), [2, 3, 6]);
    assert_eq!(inside[0].u8(), Ok(9));
    assert_eq!(inside[1].nested().next().unwrap().unwrap().u32_be(), Ok(5));
    assert_eq!(inside[2].payload, []);
}

#[test]
fn nest_reports_its_remaining_bytes_and_can_be_filled() {
    let mut batch = Batch::new();
    let mut message = batch.message(1, 0, &[]);
    let mut nest = message.nest(1);
    assert_eq!(nest.remaining(), 65_528);
    let mut elements = 0;
    while nest.remaining() >= 12 {
        nest.put_u64_be(2, 0);
        elements += 1;
    }
    assert_eq!((elements, nest.remaining()), (5_460, 8));
    nest.put_u32_be(3, 0);
    assert_eq!(nest.remaining(), 0);
    drop(nest);
    drop(message);
    assert!(batch.seal(1).is_ok());
}

#[test]
fn oversized_nest_is_an_error_until_the_batch_is_cleared() {
    let mut batch = Batch::new();
    drop(batch.message(1, 0, &[]));
    {
        let mut message = batch.message(2, 0, &[]);
        let mut nest = message.nest(5);
        nest.put_bytes(1, &[0; 65_524]);
        nest.put_bytes(2, &[]);
    }
    drop(batch.message(3, 0, &[]));
    let want = Oversize::Attribute { message: 1, kind: 5, length: 65_536 };
    assert_eq!(batch.seal(1), Err(want));
    assert_eq!(want.to_string(), "attribute 5 of message 1 has 65536 bytes (want at most 65535)");
    batch.clear();
    drop(batch.message(1, 0, &[]));
    assert_eq!((batch.len(), batch.seal(1).map(<[u8]>::len)), (1, Ok(16)));
}

#[test]
fn oversized_attribute_is_an_error() {
    let mut request = Request::new(1, 0, &[]);
    request.attributes().put_bytes(3, &[0; 65_531]);
    assert!(request.seal(1, 0).is_ok());
    request.attributes().put_bytes(3, &[0; 65_532]);
    assert_eq!(request.seal(1, 0), Err(Oversize::Attribute { message: 0, kind: 3, length: 65_536 }));
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Bytes(Vec<u8>),
    Nest(Vec<(u16, Content)>),
}

fn content() -> impl Strategy<Value = Content> {
    let bytes = prop::collection::vec(any::<u8>(), 0..20).prop_map(Content::Bytes);
    bytes.prop_recursive(3, 30, 5, |inner| prop::collection::vec((0_u16..0x3fff, inner), 0..5).prop_map(Content::Nest))
}

fn write(writer: &mut Writer<'_>, attributes: &[(u16, Content)]) {
    for (kind, content) in attributes {
        match content {
            Content::Bytes(bytes) => writer.put_bytes(*kind, bytes),
            Content::Nest(inner) => write(&mut writer.nest(*kind), inner),
        }
    }
}

fn read(attributes: Attributes<'_>, like: &[(u16, Content)]) -> Vec<(u16, Content)> {
    let read = |(attribute, (_, like)): (Result<crate::Attribute<'_>, _>, &(u16, Content))| {
        let attribute = attribute.unwrap();
        let content = match like {
            Content::Bytes(_) => Content::Bytes(attribute.payload.to_vec()),
            Content::Nest(inner) => Content::Nest(self::read(attribute.nested(), inner)),
        };
        (attribute.kind, content)
    };
    assert_eq!(attributes.clone().count(), like.len());
    attributes.zip(like).map(read).collect()
}

proptest! {
    #[test]
    fn written_attributes_are_read_back(
        messages in prop::collection::vec((16..u16::MAX, prop::collection::vec((0_u16..0x3fff, content()), 0..5)), 1..5),
    ) {
        let mut batch = Batch::new();
        for (kind, attributes) in &messages {
            write(&mut batch.message(*kind, 0, &[1, 2, 3, 4]), attributes);
        }
        let count = batch.len();
        let bytes = batch.seal(40).unwrap();
        prop_assert_eq!(Messages::new(bytes).count(), count);
        for (index, (message, (kind, attributes))) in Messages::new(bytes).zip(&messages).enumerate() {
            let message = message.unwrap();
            prop_assert_eq!((message.kind, message.sequence), (*kind, 40 + index as u32));
            let (header, parsed) = message.split_header::<4>().unwrap();
            prop_assert_eq!(header, &[1, 2, 3, 4]);
            prop_assert_eq!(&read(parsed, attributes), attributes);
        }
    }

    #[test]
    fn addresses_are_read_back(address: IpAddr) {
        let mut request = Request::new(1, 0, &[]);
        request.attributes().put_ip(1, address);
        let message = Messages::new(request.seal(1, 0).unwrap()).next().unwrap().unwrap();
        let (_, mut attributes) = message.split_header::<0>().unwrap();
        prop_assert_eq!(attributes.next().unwrap().unwrap().ip(), Ok(address));
    }
}
