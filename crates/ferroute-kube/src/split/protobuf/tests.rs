use ferroute_config::MediaType;
use proptest::prelude::*;
use serde_json::json;

use super::super::{SplitError, Splitter};

/// Feeds bytes in chunks of these sizes, in turn, and returns the objects.
fn split(splitter: &mut Splitter, bytes: &[u8], sizes: &[usize]) -> Result<Vec<Vec<u8>>, SplitError> {
    let (mut objects, mut rest) = (Vec::new(), bytes);
    for size in sizes.iter().cycle() {
        let (mut chunk, tail) = rest.split_at((*size).min(rest.len()));
        while let Some(object) = splitter.next(&mut chunk)? {
            objects.push(object.to_vec());
        }
        if tail.is_empty() {
            return Ok(objects);
        }
        rest = tail;
    }
    unreachable!("sizes are never empty")
}

/// Encodes a field of bytes.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut length = value.len();
    let mut field = vec![number << 3 | 2];
    while length >= 0x80 {
        field.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    [&*field, value].concat()
}

fn list(fields: &[Vec<u8>]) -> Vec<u8> {
    [&b"k8s\0"[..], &field(1, b"type"), &field(2, &fields.concat()), &field(3, b""), &field(4, b"")].concat()
}

fn split_list(bytes: &[u8]) -> Result<Vec<Vec<u8>>, SplitError> {
    split(&mut Splitter::list(MediaType::Protobuf), bytes, &[usize::MAX])
}

#[test]
fn items_and_metadata_may_be_in_any_order_among_unknown_fields() {
    let number = vec![9 << 3, 0xac, 0x02];
    let fixed = [&[8 << 3 | 1][..], b"8 bytes.", &[7 << 3 | 5], b"four"].concat();
    let fields =
        [field(2, b"one"), number, field(1, b"meta"), fixed, field(2, b""), field(10, b"new"), field(2, b"two")];
    let mut splitter = Splitter::list(MediaType::Protobuf);
    assert_eq!(splitter.list_envelope(), None);
    let objects = split(&mut splitter, &list(&fields), &[usize::MAX]).unwrap();
    assert_eq!(objects, [&b"one"[..], b"", b"two"]);
    assert_eq!(splitter.list_envelope(), Some(&b"meta"[..]));
}

#[test]
fn empty_list_has_an_envelope() {
    let mut splitter = Splitter::list(MediaType::Protobuf);
    assert_eq!(split(&mut splitter, &list(&[]), &[usize::MAX]).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(splitter.list_envelope(), Some(&b""[..]));
}

#[test]
fn truncated_list_has_no_envelope() {
    let whole = list(&[field(1, b"meta"), field(2, b"one"), field(2, b"two")]);
    // After the list, two empty fields of two bytes follow.
    for length in 0..whole.len() - 4 {
        let mut splitter = Splitter::list(MediaType::Protobuf);
        split(&mut splitter, &whole[..length], &[usize::MAX]).unwrap();
        assert_eq!(splitter.list_envelope(), None, "{length} bytes");
    }
}

#[test]
fn invalid_lists_are_errors() {
    let too_long = field(2, &[field(1, b"meta"), vec![2 << 3 | 2, 9], b"short".to_vec()].concat());
    let cut_key = field(2, &[0x80]);
    let bad = [
        &b"<html>"[..],
        b"k8s\x01",
        b"k8s\0\x07",
        &[&b"k8s\0"[..], &too_long].concat(),
        &[&b"k8s\0"[..], &cut_key, b"\x01"].concat(),
    ];
    for bytes in bad {
        let error = split_list(bytes).unwrap_err();
        assert_eq!(error.to_string(), "not Kubernetes protobuf", "{bytes:?}");
    }
}

#[test]
fn too_long_objects_are_errors() {
    // 32 MiB.
    let item = b"k8s\0\x12\xff\xff\xff\xff\x07\x12\x80\x80\x80\x10";
    assert_eq!(split_list(item), Err(SplitError::TooLong));
    let mut frames = Splitter::stream(MediaType::Protobuf);
    assert_eq!(split(&mut frames, &[2, 0, 0, 0, 0], &[1]), Err(SplitError::TooLong));
}

#[test]
fn truncation_within_a_message_is_detected() {
    let mut splitter = Splitter::stream(MediaType::Protobuf);
    let bytes = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c";
    for (length, within, count) in
        [(0, false, 0), (2, true, 0), (5, true, 0), (6, false, 1), (10, false, 2), (15, false, 3)]
    {
        splitter = if length == 0 { splitter } else { Splitter::stream(MediaType::Protobuf) };
        assert_eq!(split(&mut splitter, &bytes[..length], &[usize::MAX]).unwrap().len(), count);
        assert_eq!(splitter.is_within_object(), within, "after {length} bytes");
    }
}

proptest! {
    #[test]
    fn objects_do_not_depend_on_chunk_sizes(
        objects in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..6),
        sizes in prop::collection::vec(1usize..40, 1..8),
    ) {
        let frames: Vec<u8> = objects.iter().flat_map(|object| {
            let length = u32::try_from(object.len()).unwrap().to_be_bytes();
            [&length[..], object].concat()
        }).collect();
        prop_assert_eq!(&split(&mut Splitter::stream(MediaType::Protobuf), &frames, &sizes).unwrap(), &objects);

        let metadata = json!({"resourceVersion": "7"}).to_string();
        let fields: Vec<_> = objects.iter().map(|object| field(2, object)).chain([field(1, metadata.as_bytes())]).collect();
        let mut splitter = Splitter::list(MediaType::Protobuf);
        prop_assert_eq!(&split(&mut splitter, &list(&fields), &sizes).unwrap(), &objects);
        prop_assert_eq!(splitter.list_envelope(), Some(metadata.as_bytes()));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), sizes in prop::collection::vec(1usize..40, 1..8)) {
        let enveloped = [&b"k8s\0"[..], &bytes].concat();
        let _ = split(&mut Splitter::list(MediaType::Protobuf), &enveloped, &sizes);
        let _ = split(&mut Splitter::stream(MediaType::Protobuf), &bytes, &sizes);
    }
}
