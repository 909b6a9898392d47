use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::{Attributes, Messages, flags};

#[test]
fn a_message_is_laid_out_as_the_kernel_wants_it() {
    let mut request = Request::new(0x0a0b, flags::CREATE, &[2, 0, 0, 10]);
    request.attributes().put_str(1, "abcd");
    request.attributes().put_u16_be(2, 0x0102);
    let bytes = request.seal(7, flags::ACK).unwrap();
    let mut want = Vec::new();
    want.extend_from_slice(&40_u32.to_ne_bytes());
    want.extend_from_slice(&0x0a0b_u16.to_ne_bytes());
    want.extend_from_slice(&0x0405_u16.to_ne_bytes()); // create, ack, request
    want.extend_from_slice(&7_u32.to_ne_bytes());
    want.extend_from_slice(&[0; 4]);
    want.extend_from_slice(&[2, 0, 0, 10]);
    want.extend_from_slice(&9_u16.to_ne_bytes());
    want.extend_from_slice(&1_u16.to_ne_bytes());
    want.extend_from_slice(b"abcd\0\0\0\0"); // one zero ends the text, three are padding
    want.extend_from_slice(&6_u16.to_ne_bytes());
    want.extend_from_slice(&2_u16.to_ne_bytes());
    want.extend_from_slice(&[1, 2, 0, 0]);
    assert_eq!(bytes, want);
}

#[test]
fn a_request_that_was_sent_one_way_can_be_sent_the_other_way() {
    let mut request = Request::new(1, 0, &[]);
    let asked = |bytes: &[u8]| Messages::new(bytes).next().unwrap().unwrap().flags;
    let dump = libc::NLM_F_DUMP as u16;
    assert_eq!(asked(request.seal(1, dump).unwrap()), REQUEST | dump);
    assert_eq!(asked(request.seal(2, flags::ACK).unwrap()), REQUEST | flags::ACK);
}

#[test]
fn the_last_message_asks_for_an_answer_unless_another_does() {
    let asks = |batch: &mut Batch| -> Vec<bool> {
        batch.want_answer();
        let bytes = batch.seal(1).unwrap();
        Messages::new(bytes).map(|message| message.unwrap().flags & flags::ACK != 0).collect()
    };
    let mut batch = Batch::new();
    for flags in [0, flags::CREATE, 0] {
        drop(batch.message(1, flags, &[]));
    }
    assert_eq!(asks(&mut batch), [false, false, true]);
    batch.clear();
    for flags in [0, flags::ACK, 0] {
        drop(batch.message(1, flags, &[]));
    }
    assert_eq!(asks(&mut batch), [false, true, false]);
}

#[test]
fn a_message_can_be_made_to_ask_for_an_answer_once_it_was_the_last() {
    let mut batch = Batch::new();
    batch.answer_last();
    for kind in [16, 17, 18] {
        batch.message(kind, 0, &[]);
        if kind == 17 {
            batch.answer_last();
            batch.answer_last();
        }
    }
    assert_eq!(batch.want_answer(), 1);
    let flags: Vec<u16> = Messages::new(batch.as_bytes().unwrap()).map(|message| message.unwrap().flags).collect();
    assert_eq!(flags, [crate::write::REQUEST, crate::write::REQUEST | crate::flags::ACK, crate::write::REQUEST]);
}

#[test]
fn the_length_of_what_was_written_is_where_the_next_attribute_starts() {
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
fn nests_close_in_any_depth_and_what_follows_stands_behind_them() {
    let mut batch = Batch::new();
    {
        let mut message = batch.message(1, flags::ACK, &[0; 4]);
        let mut outer = message.nest(1);
        outer.put_u8(2, 9);
        outer.nest(3).put_u32_be(4, 5);
        outer.put_flag(6);
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
fn a_nest_tells_how_much_still_fits_and_a_full_one_can_be_sent() {
    let mut batch = Batch::new();
    let mut message = batch.message(1, 0, &[]);
    let mut nest = message.nest(1);
    assert_eq!(nest.room(), 65_528);
    let mut elements = 0;
    while nest.room() >= 12 {
        nest.put_u64_be(2, 0);
        elements += 1;
    }
    assert_eq!((elements, nest.room()), (5_460, 8));
    nest.put_u32_be(3, 0);
    assert_eq!(nest.room(), 0);
    drop(nest);
    drop(message);
    assert!(batch.seal(1).is_ok());
}

#[test]
fn a_nest_that_is_too_long_is_an_error_that_names_it_and_is_gone_after_clearing() {
    let mut batch = Batch::new();
    drop(batch.message(1, 0, &[]));
    {
        let mut message = batch.message(2, 0, &[]);
        let mut nest = message.nest(5);
        nest.put_bytes(1, &[0; 65_524]);
        nest.put_flag(2);
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
fn a_single_value_that_is_too_long_is_an_error() {
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
    fn what_was_written_is_read_back(
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
            let (header, found) = message.split_header::<4>().unwrap();
            prop_assert_eq!(header, &[1, 2, 3, 4]);
            prop_assert_eq!(&read(found, attributes), attributes);
        }
    }

    #[test]
    fn every_address_is_read_back(address: IpAddr) {
        let mut request = Request::new(1, 0, &[]);
        request.attributes().put_ip(1, address);
        let message = Messages::new(request.seal(1, 0).unwrap()).next().unwrap().unwrap();
        let (_, mut attributes) = message.split_header::<0>().unwrap();
        prop_assert_eq!(attributes.next().unwrap().unwrap().ip(), Ok(address));
    }
}
