//! The wire format: keys, lengths and numbers.

/// Bytes are not a Kubernetes protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not Kubernetes protobuf")]
pub(crate) struct NotProtobuf;

/// A number with seven bits in each byte, least significant first, received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Varint {
    value: u64,
    bits: u32,
}

/// The encoding of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireType {
    /// A [`Varint`].
    Varint,
    /// This many bytes.
    Fixed(usize),
    /// A length and this many bytes.
    Bytes,
}

impl Varint {
    /// Adds a byte. Returns the number if that was its last byte.
    pub(crate) fn take(&mut self, byte: u8) -> Result<Option<u64>, NotProtobuf> {
        if self.bits >= u64::BITS {
            return Err(NotProtobuf);
        }
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        Ok((byte & 0x80 == 0).then_some(self.value))
    }

    /// Reports whether no byte has been added.
    pub(crate) fn is_new(self) -> bool {
        self == Self::default()
    }

    /// Consumes a number at the front of `bytes`.
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

/// Splits a key into the number of the field and the encoding of its value.
pub(crate) fn key(key: u64) -> Result<(u32, WireType), NotProtobuf> {
    let wire_type = match key & 7 {
        0 => WireType::Varint,
        1 => WireType::Fixed(8),
        2 => WireType::Bytes,
        5 => WireType::Fixed(4),
        // Groups are deprecated.
        _ => return Err(NotProtobuf),
    };
    match u32::try_from(key >> 3) {
        Ok(number) if number > 0 => Ok((number, wire_type)),
        _ => Err(NotProtobuf),
    }
}

/// Returns the bytes of a field; the last one if there are several. `None` if the message has no such field.
pub(crate) fn find(message: &[u8], wanted: u32) -> Result<Option<&[u8]>, NotProtobuf> {
    let (mut rest, mut last) = (message, None);
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
            last = Some(value);
        }
        rest = after;
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_field_with_the_number_counts_among_fields_of_all_types() {
        // 1: varint 300, 2: 8 bytes, 3: 4 bytes, 4: "a", 5: "bc", 4: "d", 4 again as a number.
        let message = b"\x08\xac\x02\x11........\x1d....\x22\x01a\x2a\x02bc\x22\x01d\x20\x07";
        assert_eq!(find(message, 5), Ok(Some(&b"bc"[..])));
        assert_eq!(find(message, 4), Ok(Some(&b"d"[..])));
        assert_eq!(find(message, 1), Ok(None), "not a field of bytes");
        assert_eq!(find(b"", 1), Ok(None));
    }

    #[test]
    fn truncated_and_untyped_fields_are_errors() {
        for message in [&b"\x0a"[..], b"\x0a\x02a", b"\x08", b"\x08\x80", b"\x11.", b"\x0b", b"\x02\x00", b"<html>"] {
            assert_eq!(find(message, 1), Err(NotProtobuf), "{message:?}");
        }
    }

    #[test]
    fn longer_numbers_than_64_bits_are_errors() {
        let number = |mut bytes: &[u8]| Varint::split_off(&mut bytes);
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Ok(u64::MAX));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Err(NotProtobuf));
    }
}
