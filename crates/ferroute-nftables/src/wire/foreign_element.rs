//! Elements of other programs' sets.

use ferroute_core::networks;
use ferroute_netlink::{Attribute, Error, Malformed, Message, nfnetlink};

use super::{
    constants::*,
    decode,
    element::{parse_counter, parse_datum, value_of, values},
    userdata,
};
use crate::{
    kernel::{Counter, ReadElements},
    model::{Comment, Data, DataType, Element, IfName, Key, Set, SetData, SetKind, Value},
};

/// Decodes the elements of a set.
///
/// The kernel lists a range either as one element with two keys, or as one element with the first key and one with the
/// first key after the range. The latter can be joined only when all elements have been received.
pub(crate) struct AnyElements<'a> {
    set: &'a Set,
    raw: Vec<RawElement>,
    undecoded: usize,
}

/// An element as the kernel lists it.
struct RawElement {
    /// Empty for the element that matches all other keys.
    key: Vec<u8>,
    last: Option<Vec<u8>>,
    /// Whether the key is the first one after a range.
    is_range_end: bool,
    data: Option<Data>,
    comment: Option<Comment>,
    counter: Option<Counter>,
    condition: Option<Box<str>>,
}

/// The elements of a set.
pub(crate) struct DecodedElements {
    /// The elements that the model can represent, in the order of their addition if they are concatenated ranges.
    pub(crate) elements: Vec<Element>,
    /// Their counters.
    pub(crate) counters: Vec<(Key, Counter)>,
    /// Their other properties.
    pub(crate) read: ReadElements,
}

impl<'a> AnyElements<'a> {
    /// Returns a decoder for a set with this declaration.
    pub(crate) fn new(set: &'a Set) -> Self {
        Self { set, raw: Vec::new(), undecoded: 0 }
    }

    /// Adds the elements of a message.
    pub(crate) fn decode(&mut self, message: &Message<'_>) -> Result<(), Error> {
        let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
        for attribute in attributes {
            let attribute = attribute?;
            if attribute.kind == NFTA_SET_ELEM_LIST_ELEMENTS {
                for entry in attribute.nested() {
                    match RawElement::parse(&entry?, self.set)? {
                        Some(raw) => self.raw.push(raw),
                        None => self.undecoded += 1,
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns all elements.
    pub(crate) fn finish(self) -> DecodedElements {
        let Self { set, mut raw, undecoded } = self;
        let read = ReadElements { undecoded, ..ReadElements::default() };
        let mut decoded = DecodedElements { elements: Vec::new(), counters: Vec::new(), read };
        if set.kind != SetKind::Interval {
            for raw in raw {
                let key = if raw.key.is_empty() { Some(Key::new()) } else { values(&raw.key, &set.key) };
                decoded.add(raw, key);
            }
            return decoded;
        }
        for raw in raw.extract_if(.., |raw| raw.key.is_empty()) {
            decoded.add(raw, Some(Key::new()));
        }
        let is_concatenated = set.key.len() > 1;
        if !is_concatenated {
            // The key after a range may be the first key of another range.
            raw.sort_by(|a, b| (&a.key, !a.is_range_end).cmp(&(&b.key, !b.is_range_end)));
        }
        let is_range_end: Vec<Vec<u8>> = raw.iter().skip(1).map(|next| next.key.clone()).collect();
        for (raw, next) in raw.into_iter().zip(is_range_end.into_iter().map(Some).chain([None])) {
            if raw.is_range_end {
                continue;
            }
            let last = match (&raw.last, next) {
                (Some(last), _) => last.clone(),
                (None, _) if is_concatenated => raw.key.clone(),
                (None, Some(next)) => before(next),
                (None, None) => vec![u8::MAX; raw.key.len()],
            };
            match cover(&set.key, &raw.key, &last) {
                Some(keys) => keys.into_iter().for_each(|key| decoded.add(raw.clone_without_key(), Some(key))),
                None => decoded.read.undecoded += 1,
            }
        }
        decoded
    }
}

impl DecodedElements {
    fn add(&mut self, raw: RawElement, key: Option<Key>) {
        let Some(key) = key else {
            self.read.undecoded += 1;
            return;
        };
        self.read.conditions.extend(raw.condition.map(|condition| (key.clone(), condition)));
        self.counters.extend(raw.counter.map(|counter| (key.clone(), counter)));
        self.elements.push(Element { key, data: raw.data, comment: raw.comment });
    }
}

impl RawElement {
    /// Parses an element; `None` for data that the model cannot represent.
    fn parse(entry: &Attribute<'_>, set: &Set) -> Result<Option<Self>, Malformed> {
        let (mut key, mut last, mut is_range_end, mut data, mut comment) = (None, None, false, None, None);
        let mut is_catch_all = false;
        for attribute in entry.nested() {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_SET_ELEM_KEY => key = value_of(&attribute)?.map(<[u8]>::to_vec),
                NFTA_SET_ELEM_KEY_END => last = value_of(&attribute)?.map(<[u8]>::to_vec),
                NFTA_SET_ELEM_FLAGS => {
                    let flags = attribute.u32_be()?;
                    is_range_end = flags & NFT_SET_ELEM_INTERVAL_END != 0;
                    is_catch_all = flags & NFT_SET_ELEM_CATCHALL != 0;
                }
                NFTA_SET_ELEM_DATA => data = parse_datum(&attribute, set)?,
                NFTA_SET_ELEM_USERDATA => comment = userdata::read_comment(attribute.payload),
                _ => {}
            }
        }
        let Some(key) = key.or_else(|| is_catch_all.then(Vec::new)) else { return Ok(None) };
        if data.is_none() && set.data != SetData::None && !is_range_end {
            return Ok(None);
        }
        let (counter, condition) = (parse_counter(entry)?, decode::element_condition(entry));
        Ok(Some(Self { key, last, is_range_end, data, comment, counter, condition }))
    }

    fn clone_without_key(&self) -> Self {
        let Self { is_range_end, data, comment, counter, condition, .. } = self;
        Self {
            key: Vec::new(),
            last: None,
            is_range_end: *is_range_end,
            data: data.clone(),
            comment: comment.clone(),
            counter: *counter,
            condition: condition.clone(),
        }
    }
}

/// Subtracts one from a big-endian number.
fn before(mut bytes: Vec<u8>) -> Vec<u8> {
    for byte in bytes.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != u8::MAX {
            break;
        }
    }
    bytes
}

/// Returns keys that together cover a range in each field; `None` if the model cannot represent it.
fn cover(types: &[DataType], first: &[u8], last: &[u8]) -> Option<Vec<Key>> {
    let (first, last) = (values::<MAX_FIELDS>(first, types)?, values::<MAX_FIELDS>(last, types)?);
    let mut keys = vec![Key::new()];
    for (n, (first, last)) in first.iter().zip(&last).enumerate() {
        let field = cover_field(*first, *last, n + 1 == types.len())?;
        let longer = |key: &Key| {
            field.iter().map(|value| key.iter().copied().chain([*value]).collect::<Key>()).collect::<Vec<_>>()
        };
        keys = keys.iter().flat_map(longer).collect();
        if keys.len() > MAX_KEYS {
            return None;
        }
    }
    Some(keys)
}

/// Returns values that together cover a range. The last field of an interval set is always a range.
fn cover_field(first: Value, last: Value, is_last: bool) -> Option<Vec<Value>> {
    Some(match (first, last) {
        (first, last) if first == last && !(is_last && matches!(first, Value::Address(_))) => vec![first],
        (Value::Address(first), Value::Address(last)) => networks(first, last)?.map(Value::Network).collect(),
        (Value::Port(first), Value::Port(last)) if first <= last => vec![Value::PortRange(first, last)],
        (Value::Protocol(first), Value::Protocol(last)) if first <= last => {
            vec![Value::OtherRange(first.into(), last.into())]
        }
        (Value::Other(first), Value::Other(last)) if first <= last => vec![Value::OtherRange(first, last)],
        (Value::IfName(first), Value::IfName(last)) => vec![Value::IfNamePrefix(prefix(first, last)?)],
        _ => return None,
    })
}

/// Returns the common prefix of a range of names, if the range contains all names with this prefix.
fn prefix(first: IfName, last: IfName) -> Option<IfName> {
    (first.last() == last).then_some(first)
}

/// `NFT_SET_ELEM_CATCHALL`.
const NFT_SET_ELEM_CATCHALL: u32 = 2;
/// The maximum number of fields of a key.
const MAX_FIELDS: usize = 5;
/// The maximum number of keys that a range is split into.
const MAX_KEYS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(types: &[DataType], first: &[u8], last: &[u8]) -> Option<Vec<String>> {
        let text = |key: &Key| crate::model::join(key, " . ");
        cover(types, first, last).map(|keys| keys.iter().map(text).collect())
    }

    #[test]
    fn address_range_is_split_into_networks() {
        let of = |first: [u8; 4], last: [u8; 4]| keys(&[DataType::Ipv4Addr], &first, &last).unwrap();
        assert_eq!(of([10, 0, 0, 0], [10, 255, 255, 255]), ["10.0.0.0/8"]);
        assert_eq!(of([172, 16, 0, 0], [172, 16, 0, 5]), ["172.16.0.0/30", "172.16.0.4/31"]);
        assert_eq!(of([10, 0, 0, 7], [10, 0, 0, 7]), ["10.0.0.7"]);
        assert_eq!(of([0; 4], [255; 4]), ["0.0.0.0/0"]);
    }

    #[test]
    fn port_and_interface_ranges_stay_ranges() {
        assert_eq!(keys(&[DataType::InetService], &[0, 80], &[0, 90]).unwrap(), ["80-90"]);
        assert_eq!(keys(&[DataType::InetService], &[0, 80], &[0, 80]).unwrap(), ["80"]);
        let name = IfName::new("cni");
        let one = |name: IfName, last: IfName| keys(&[DataType::IfName], &name.bytes(), &last.bytes());
        assert_eq!(one(name, name.last()).unwrap(), ["\"cni*\""]);
        assert_eq!(one(name, name).unwrap(), ["\"cni\""]);
        assert_eq!(one(name, IfName::new("cnx")), None);
    }

    #[test]
    fn every_field_of_a_key_may_be_a_range() {
        let types = [DataType::Ipv4Addr, DataType::InetService];
        let (first, last) = ([10, 0, 0, 0, 0, 80, 0, 0], [10, 0, 0, 2, 0, 90, 0, 0]);
        assert_eq!(keys(&types, &first, &last).unwrap(), ["10.0.0.0/31 . 80-90", "10.0.0.2 . 80-90"]);
    }

    #[test]
    fn key_before_another_is_one_less() {
        assert_eq!(before(vec![10, 1, 0, 0]), [10, 0, 255, 255]);
        assert_eq!(before(vec![0, 0]), [255, 255]);
    }

    #[test]
    fn last_name_with_a_prefix_precedes_the_next_prefix() {
        let next = IfName::from_bytes(*b"cnj\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(IfName::new("cni").last().bytes().to_vec(), before(next.bytes().to_vec()));
    }
}
