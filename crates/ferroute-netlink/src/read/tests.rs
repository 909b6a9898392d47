use proptest::prelude::*;

use super::*;

#[test]
fn message_longer_than_the_datagram_ends_parsing() {
    let mut bytes = vec![0; 20];
    bytes[..4].copy_from_slice(&24_u32.to_ne_bytes());
    let mut messages = Messages::new(&bytes);
    assert_eq!(messages.next(), Some(Err(Malformed::Message { claimed: 24, available: 20 })));
    assert_eq!(messages.next(), None);
}

#[test]
fn message_shorter_than_its_header_ends_parsing() {
    for claimed in [0_u32, 15] {
        let mut bytes = vec![0; 20];
        bytes[..4].copy_from_slice(&claimed.to_ne_bytes());
        let want = Malformed::Message { claimed: claimed as usize, available: 20 };
        assert_eq!(Messages::new(&bytes).collect::<Vec<_>>(), [Err(want)]);
    }
}

#[test]
fn message_shorter_than_its_fixed_header_is_an_error() {
    let message = Message { kind: 0x14, flags: 0, sequence: 0, payload: &[0; 7] };
    let error = message.split_header::<8>().unwrap_err();
    assert_eq!(error.to_string(), "netlink message of type 0x0014 is too short (got 7 bytes, want 8)");
}

#[test]
fn last_attribute_may_lack_its_padding_but_not_its_payload() {
    let attribute = |claimed: u16, bytes: usize| {
        let mut attribute = vec![0; bytes];
        attribute[..2].copy_from_slice(&claimed.to_ne_bytes());
        attribute[2..4].copy_from_slice(&3_u16.to_ne_bytes());
        attribute
    };
    let whole = attribute(5, 5);
    assert_eq!(Attributes::new(&whole).collect::<Vec<_>>(), [Ok(Attribute { kind: 3, payload: &[0] })]);
    let cut = attribute(6, 5);
    assert_eq!(Attributes::new(&cut).collect::<Vec<_>>(), [Err(Malformed::Attribute { claimed: 6, available: 5 })]);
}

#[test]
fn flags_are_removed_from_the_attribute_type() {
    let bytes = [4_u16.to_ne_bytes(), 0xc007_u16.to_ne_bytes()].concat();
    assert_eq!(Attributes::new(&bytes).next().unwrap().unwrap().kind, 7);
}

#[test]
fn payload_of_the_wrong_length_is_not_a_number() {
    let attribute = Attribute { kind: 9, payload: &[0, 0, 1] };
    let error = attribute.u32_be().unwrap_err();
    assert_eq!(error.to_string(), "netlink attribute 9 has the wrong length (got 3 bytes, want 4)");
}

#[test]
fn byte_orders_differ() {
    let attribute = Attribute { kind: 1, payload: &[0, 0, 1, 2] };
    assert_eq!((attribute.u32_be(), attribute.u32_ne()), (Ok(258), Ok(u32::from_ne_bytes([0, 0, 1, 2]))));
}

#[test]
fn text_ends_at_the_first_zero_byte_or_at_the_end() {
    let attribute = |payload| Attribute { kind: 1, payload };
    for (payload, text) in [(&b"lo\0junk"[..], "lo"), (b"lo", "lo"), (b"", "")] {
        assert_eq!(attribute(payload).text(), Some(text));
        assert_eq!(attribute(payload).escaped_text(), text);
    }
    assert_eq!(attribute(b"B\xfcro\xff\0").text(), None);
    assert_eq!(attribute(b"B\xfcro\xff\0").escaped_text(), r"B\xfcro\xff");
}

fn walk(attributes: Attributes<'_>, depth: usize) -> usize {
    let mut bytes = 0;
    for attribute in attributes.flatten() {
        bytes += attribute.payload.len();
        _ = (
            attribute.u8(),
            attribute.u16_be(),
            attribute.u64_ne(),
            attribute.text(),
            attribute.escaped_text(),
            attribute.ip(),
        );
        if depth > 0 {
            walk(attribute.nested(), depth - 1);
        }
    }
    bytes
}

proptest! {
    #[test]
    fn parsing_never_panics_and_terminates(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let content: usize = Messages::new(&bytes).flatten().map(|message| message.payload.len()).sum();
        prop_assert!(content <= bytes.len());
        for message in Messages::new(&bytes).flatten() {
            _ = message.split_header::<4>().map(|(_, attributes)| walk(attributes, 3));
        }
        prop_assert!(walk(Attributes::new(&bytes), 3) <= bytes.len());
        prop_assert!(Attributes::new(&bytes).count() <= bytes.len() / 4 + 1);
    }

    #[test]
    fn parsing_a_corrupted_message_never_panics(
        at in 0_usize..64,
        corruption: u8,
        end in 0_usize..64,
    ) {
        let mut request = crate::Request::new(0x0a00, 0, &[0; 4]);
        request.attributes().nest(1).put_str(2, "a chain of some length");
        request.attributes().put_u32_be(3, 7);
        let mut bytes = request.seal(1, 0).unwrap().to_vec();
        let (at, end) = (at % bytes.len(), end % bytes.len());
        bytes[at] = corruption;
        for message in Messages::new(&bytes[..end]).flatten() {
            _ = crate::reply::Reply::parse(message, 0, 0);
            _ = message.split_header::<4>().map(|(_, attributes)| walk(attributes, 3));
        }
    }
}
