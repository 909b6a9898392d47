//! Elements of anybody's sets.

use std::net::IpAddr;

use ferroute_netlink::{Attribute, Error, Malformed, Message, nfnetlink};
use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};

use super::{
    constants::element,
    element::{parse_counter, parse_datum, value_of, values},
    userdata,
};
use crate::{
    kernel::Counter,
    model::{Comment, DataType, Datum, Element, Holds, Interface, Key, Set, SetKind, Value},
};

/// Gathers the elements of a set.
///
/// Ranges are written in two ways: as one element with two keys, or as an element for the first key and one for the key
/// behind the last. The latter can only be joined when all are here.
pub(crate) struct AnyElements<'a> {
    set: &'a Set,
    raw: Vec<Raw>,
    unread: usize,
}

/// An element as the kernel lists it.
struct Raw {
    key: Vec<u8>,
    last: Option<Vec<u8>>,
    /// The key is the first one behind a range.
    ends: bool,
    datum: Option<Datum>,
    comment: Option<Comment>,
    counter: Option<Counter>,
}

/// All elements of a set.
pub(crate) struct Gathered {
    /// Those that can be said here.
    pub(crate) elements: Vec<Element>,
    /// What they have counted.
    pub(crate) counters: Vec<(Key, Counter)>,
    /// The number of others.
    pub(crate) unread: usize,
}

impl<'a> AnyElements<'a> {
    /// None yet, of a set that is declared like this.
    pub(crate) fn new(set: &'a Set) -> Self {
        Self { set, raw: Vec::new(), unread: 0 }
    }

    /// Takes the elements in a message of the kernel.
    pub(crate) fn take(&mut self, message: &Message<'_>) -> Result<(), Error> {
        let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
        for attribute in attributes {
            let attribute = attribute?;
            if attribute.kind == element::ELEMENTS {
                for entry in attribute.nested() {
                    match Raw::parse(&entry?, self.set)? {
                        Some(raw) => self.raw.push(raw),
                        None => self.unread += 1,
                    }
                }
            }
        }
        Ok(())
    }

    /// All that were taken.
    pub(crate) fn finish(self) -> Gathered {
        let Self { set, mut raw, unread } = self;
        let mut gathered = Gathered { elements: Vec::new(), counters: Vec::new(), unread };
        if set.kind != SetKind::Interval {
            for raw in raw {
                let key = values(&raw.key, &set.key);
                gathered.add(raw, key);
            }
            return gathered;
        }
        // Where a range ends, the next may start.
        raw.sort_by(|a, b| (&a.key, !a.ends).cmp(&(&b.key, !b.ends)));
        let ends: Vec<Vec<u8>> = raw.iter().skip(1).map(|next| next.key.clone()).collect();
        for (raw, next) in raw.into_iter().zip(ends.into_iter().map(Some).chain([None])) {
            if raw.ends {
                continue;
            }
            let last = match (&raw.last, next) {
                (Some(last), _) => last.clone(),
                (None, Some(next)) => before(next),
                (None, None) => vec![u8::MAX; raw.key.len()],
            };
            match cover(&set.key, &raw.key, &last) {
                Some(keys) => keys.into_iter().for_each(|key| gathered.add(raw.clone_without_key(), Some(key))),
                None => gathered.unread += 1,
            }
        }
        gathered
    }
}

impl Gathered {
    fn add(&mut self, raw: Raw, key: Option<Key>) {
        let Some(key) = key else {
            self.unread += 1;
            return;
        };
        self.counters.extend(raw.counter.map(|counter| (key.clone(), counter)));
        self.elements.push(Element { key, datum: raw.datum, comment: raw.comment });
    }
}

impl Raw {
    /// `None` if it stands for all keys that are no others, or holds what cannot be said here.
    fn parse(entry: &Attribute<'_>, set: &Set) -> Result<Option<Self>, Malformed> {
        let (mut key, mut last, mut ends, mut datum, mut comment) = (None, None, false, None, None);
        for attribute in entry.nested() {
            let attribute = attribute?;
            match attribute.kind {
                element::KEY => key = value_of(&attribute)?.map(<[u8]>::to_vec),
                element::KEY_END => last = value_of(&attribute)?.map(<[u8]>::to_vec),
                element::FLAGS => ends = attribute.u32_be()? & element::INTERVAL_END != 0,
                element::DATA => datum = parse_datum(&attribute, set)?,
                element::USERDATA => comment = userdata::read_comment(attribute.payload),
                _ => {}
            }
        }
        let Some(key) = key else { return Ok(None) };
        if datum.is_none() && set.holds != Holds::Nothing && !ends {
            return Ok(None);
        }
        Ok(Some(Self { key, last, ends, datum, comment, counter: parse_counter(entry)? }))
    }

    fn clone_without_key(&self) -> Self {
        let Self { ends, datum, comment, counter, .. } = self;
        Self {
            key: Vec::new(),
            last: None,
            ends: *ends,
            datum: datum.clone(),
            comment: comment.clone(),
            counter: *counter,
        }
    }
}

/// The number below one that has these bytes, the highest first.
fn before(mut bytes: Vec<u8>) -> Vec<u8> {
    for byte in bytes.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != u8::MAX {
            break;
        }
    }
    bytes
}

/// Keys that together are a range in each field; `None` if that cannot be said here.
fn cover(types: &[DataType], first: &[u8], last: &[u8]) -> Option<Vec<Key>> {
    let (first, last) = (values::<FIELDS>(first, types)?, values::<FIELDS>(last, types)?);
    let mut keys = vec![Key::new()];
    for (n, (first, last)) in first.iter().zip(&last).enumerate() {
        let field = cover_field(*first, *last, n + 1 == types.len())?;
        let longer = |key: &Key| {
            field.iter().map(|value| key.iter().copied().chain([*value]).collect::<Key>()).collect::<Vec<_>>()
        };
        keys = keys.iter().flat_map(longer).collect();
        if keys.len() > MOST_KEYS {
            return None;
        }
    }
    Some(keys)
}

/// Values that together are a range. The last field of a set with ranges is always written as one.
fn cover_field(first: Value, last: Value, is_last: bool) -> Option<Vec<Value>> {
    Some(match (first, last) {
        (first, last) if first == last && !(is_last && matches!(first, Value::Address(_))) => vec![first],
        (Value::Address(first), Value::Address(last)) => networks(first, last)?.map(Value::Network).collect(),
        (Value::Port(first), Value::Port(last)) if first <= last => vec![Value::Ports(first, last)],
        (Value::Interface(first), Value::Interface(last)) => vec![Value::Interfaces(prefix(first, last)?)],
        _ => return None,
    })
}

fn networks(first: IpAddr, last: IpAddr) -> Option<impl Iterator<Item = IpNet>> {
    let subnets = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => IpSubnets::from(Ipv4Subnets::new(first, last, 0)),
        (IpAddr::V6(first), IpAddr::V6(last)) => IpSubnets::from(Ipv6Subnets::new(first, last, 0)),
        _ => return None,
    };
    Some(subnets)
}

/// What all names of a range start with, if they are all that start so.
fn prefix(first: Interface, last: Interface) -> Option<Interface> {
    (first.last() == last).then_some(first)
}

/// Fields of a key.
const FIELDS: usize = 5;
/// Keys that one range may be split into.
const MOST_KEYS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(types: &[DataType], first: &[u8], last: &[u8]) -> Option<Vec<String>> {
        let text = |key: &Key| crate::model::join(key, " . ");
        cover(types, first, last).map(|keys| keys.iter().map(text).collect())
    }

    #[test]
    fn a_range_of_addresses_is_the_networks_that_it_consists_of() {
        let of = |first: [u8; 4], last: [u8; 4]| keys(&[DataType::Ipv4Address], &first, &last).unwrap();
        assert_eq!(of([10, 0, 0, 0], [10, 255, 255, 255]), ["10.0.0.0/8"]);
        assert_eq!(of([172, 16, 0, 0], [172, 16, 0, 5]), ["172.16.0.0/30", "172.16.0.4/31"]);
        assert_eq!(of([10, 0, 0, 7], [10, 0, 0, 7]), ["10.0.0.7"]);
        assert_eq!(of([0; 4], [255; 4]), ["0.0.0.0/0"]);
    }

    #[test]
    fn ranges_of_ports_and_interfaces_are_kept_as_they_are() {
        assert_eq!(keys(&[DataType::Port], &[0, 80], &[0, 90]).unwrap(), ["80-90"]);
        assert_eq!(keys(&[DataType::Port], &[0, 80], &[0, 80]).unwrap(), ["80"]);
        let name = Interface::new("cni");
        let one = |name: Interface, last: Interface| keys(&[DataType::Interface], &name.bytes(), &last.bytes());
        assert_eq!(one(name, name.last()).unwrap(), ["\"cni*\""]);
        assert_eq!(one(name, name).unwrap(), ["\"cni\""]);
        assert_eq!(one(name, Interface::new("cnx")), None);
    }

    #[test]
    fn every_field_of_a_key_may_be_a_range() {
        let types = [DataType::Ipv4Address, DataType::Port];
        let (first, last) = ([10, 0, 0, 0, 0, 80, 0, 0], [10, 0, 0, 2, 0, 90, 0, 0]);
        assert_eq!(keys(&types, &first, &last).unwrap(), ["10.0.0.0/31 . 80-90", "10.0.0.2 . 80-90"]);
    }

    #[test]
    fn the_key_before_one_is_one_less() {
        assert_eq!(before(vec![10, 1, 0, 0]), [10, 0, 255, 255]);
        assert_eq!(before(vec![0, 0]), [255, 255]);
    }

    #[test]
    fn the_last_name_with_a_prefix_is_that_before_the_next_prefix() {
        let next = Interface::from_bytes(*b"cnj\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(Interface::new("cni").last().bytes().to_vec(), before(next.bytes().to_vec()));
    }
}
