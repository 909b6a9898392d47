use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use super::*;

fn member(contents: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(contents).unwrap();
    encoder.finish().unwrap()
}

/// Decompresses input that arrives in these parts. Returns the contents after each part.
fn decode<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> io::Result<Vec<Vec<u8>>> {
    let mut decoder = Decoder::default();
    let mut contents = Vec::new();
    parts
        .into_iter()
        .map(|part| {
            decoder.input = Bytes::copy_from_slice(part);
            while decoder.has_input() {
                contents.extend_from_slice(&decoder.next()?);
            }
            Ok(contents.clone())
        })
        .collect()
}

proptest! {
    #[test]
    fn members_in_any_parts_lead_to_the_contents(
        objects in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 1..6),
        size in 1..700_usize,
    ) {
        let compressed = objects.iter().flat_map(|object| member(object)).collect::<Vec<_>>();
        let contents = decode(compressed.chunks(size)).unwrap().pop().unwrap();
        prop_assert_eq!(contents, objects.concat());
    }
}

#[test]
fn object_is_returned_as_soon_as_its_member_has_arrived() {
    let members = [member(b"one"), member(b"two"), member(b"three")];
    let contents = decode(members.iter().map(Vec::as_slice)).unwrap();
    assert_eq!(contents, [&b"one"[..], b"onetwo", b"onetwothree"]);
}

#[test]
fn flushed_part_of_a_member_is_returned() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(b"one").unwrap();
    encoder.flush().unwrap();
    assert_eq!(decode([encoder.get_ref().as_slice()]).unwrap(), [b"one"]);
}

#[test]
fn expansion_is_bounded() {
    let bomb = member(&vec![0; 64 << 20]);
    let mut decoder = Decoder { input: bomb.into(), ..Decoder::default() };
    let mut total = 0;
    while decoder.has_input() {
        let part = decoder.next().unwrap();
        assert!(part.len() <= 5 << 20, "{}", part.len());
        total += part.len();
    }
    assert_eq!(total, 64 << 20);
}

#[test]
fn damaged_input_is_an_error() {
    let mut damaged = member(&[7; 1000]);
    let last = damaged.len() - 5;
    damaged[last] ^= 1;
    // A checksum is checked when the next member begins.
    let second = member(b"two");
    for input in [
        b"not gzip, but text".to_vec(),
        [damaged, second].concat(),
        [member(b"one"), b"not a second member".to_vec()].concat(),
    ] {
        assert!(decode([&*input]).is_err(), "{input:?}");
    }
}
