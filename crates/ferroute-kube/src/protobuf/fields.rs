//! Keys, lengths and numbers, of which every message is made.

/// What should be a message is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no protobuf of Kubernetes")]
pub(crate) struct NotProtobuf;

/// A number of which each byte holds seven bits, the lowest ones first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Varint {
    value: u64,
    bits: u32,
}

/// How the value of a field is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireType {
    /// A [`Varint`].
    Varint,
    /// So many bytes.
    Fixed(usize),
    /// A length and as many bytes.
    Bytes,
}

impl Varint {
    /// Takes a byte; gives the number when that was its last one.
    pub(crate) fn take(&mut self, byte: u8) -> Result<Option<u64>, NotProtobuf> {
        if self.bits >= u64::BITS {
            return Err(NotProtobuf);
        }
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        Ok((byte & 0x80 == 0).then_some(self.value))
    }

    /// Whether it has taken none yet.
    pub(crate) fn is_new(self) -> bool {
        self == Self::default()
    }

    /// Takes a number off the front.
    fn split_off(bytes: &mut &[u8]) -> Result<u64, NotProtobuf> {
        let mut varint = Self::default();
        while let Some((&byte, rest)) = bytes.split_first() {
            *bytes = rest;
            if let Some(number) = varint.take(byte)? {
                return Ok(number);
            }
        }
        Err(NotProtobuf)
    }
}

/// Takes a key apart into the field's number and what follows it.
pub(crate) fn key(key: u64) -> Result<(u32, WireType), NotProtobuf> {
    let wire_type = match key & 7 {
        0 => WireType::Varint,
        1 => WireType::Fixed(8),
        2 => WireType::Bytes,
        5 => WireType::Fixed(4),
        // Groups are long out of use.
        _ => return Err(NotProtobuf),
    };
    match u32::try_from(key >> 3) {
        Ok(number) if number > 0 => Ok((number, wire_type)),
        _ => Err(NotProtobuf),
    }
}

/// The bytes of a field; those of the last one if there are several. `None`: the message has no such field.
pub(crate) fn find(message: &[u8], wanted: u32) -> Result<Option<&[u8]>, NotProtobuf> {
    let (mut rest, mut found) = (message, None);
    while !rest.is_empty() {
        let (number, wire_type) = key(Varint::split_off(&mut rest)?)?;
        let length = match wire_type {
            WireType::Varint => {
                Varint::split_off(&mut rest)?;
                continue;
            }
            WireType::Fixed(length) => length,
            WireType::Bytes => usize::try_from(Varint::split_off(&mut rest)?).map_err(|_| NotProtobuf)?,
        };
        let (value, after) = rest.split_at_checked(length).ok_or(NotProtobuf)?;
        if number == wanted && wire_type == WireType::Bytes {
            found = Some(value);
        }
        rest = after;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_among_others_of_all_types_and_the_last_one_counts() {
        // 1: varint 300, 2: 8 bytes, 3: 4 bytes, 4: "a", 5: "bc", 4: "d", 4 again as a number.
        let message = b"\x08\xac\x02\x11........\x1d....\x22\x01a\x2a\x02bc\x22\x01d\x20\x07";
        assert_eq!(find(message, 5), Ok(Some(&b"bc"[..])));
        assert_eq!(find(message, 4), Ok(Some(&b"d"[..])));
        assert_eq!(find(message, 1), Ok(None), "it holds no bytes");
        assert_eq!(find(b"", 1), Ok(None));
    }

    #[test]
    fn what_breaks_off_or_has_no_type_is_no_message() {
        for message in [&b"\x0a"[..], b"\x0a\x02a", b"\x08", b"\x08\x80", b"\x11.", b"\x0b", b"\x02\x00", b"<html>"] {
            assert_eq!(find(message, 1), Err(NotProtobuf), "{message:?}");
        }
    }

    #[test]
    fn numbers_have_64_bits() {
        let number = |mut bytes: &[u8]| Varint::split_off(&mut bytes);
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Ok(u64::MAX));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Err(NotProtobuf));
    }
}
