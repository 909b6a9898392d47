use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use ferroute_netlink::{Attribute, Error, Malformed, Message, Writer};
use ipnet::IpNet;

use super::{
    constants::{LIST_ELEMENT, element, rule, verdict},
    userdata,
};
use crate::kernel::Counter;
use crate::model::{
    Class, DataType, Datum, Element, Fields, Holds, Interface, Key, Name, Set, SetKind, Value, Verdict,
};

/// Raw bytes of a key or datum.
type Bytes = ArrayVec<u8, 64>;

/// Writes an element into a list; for one that is to be removed its key is enough.
pub(super) fn put(list: &mut Writer<'_>, item: &Element, with_content: bool) {
    let mut entry = list.nest(LIST_ELEMENT);
    put_key(&mut entry, &item.key);
    if !with_content {
        return;
    }
    match &item.datum {
        None => {}
        Some(Datum::Fields(fields)) => {
            entry.nest(element::DATA).put_bytes(element::VALUE, &bytes(fields.iter().copied()));
        }
        Some(Datum::Verdict(verdict)) => put_verdict(&mut entry.nest(element::DATA), verdict),
    }
    if let Some(comment) = &item.comment {
        entry.put_bytes(element::USERDATA, &userdata::comment(comment));
    }
}

/// Writes the key of an element.
pub(super) fn put_key(entry: &mut Writer<'_>, key: &Key) {
    entry.nest(element::KEY).put_bytes(element::VALUE, &bytes(key.iter().map(|value| value.first())));
    let is_interval = |value: &Value| matches!(value, Value::Network(_) | Value::Ports(..) | Value::Interfaces(_));
    if key.iter().any(is_interval) {
        entry.nest(element::KEY_END).put_bytes(element::VALUE, &bytes(key.iter().map(|value| value.last())));
    }
}

/// Writes a verdict as data.
pub(super) fn put_verdict(data: &mut Writer<'_>, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Accept => (verdict::ACCEPT, None),
        Verdict::Drop => (verdict::DROP, None),
        Verdict::Return => (verdict::RETURN, None),
        Verdict::Jump(chain) => (verdict::JUMP, Some(chain)),
        Verdict::Goto(chain) => (verdict::GOTO, Some(chain)),
    };
    let mut nest = data.nest(element::VERDICT);
    nest.put_u32_be(element::CODE, code.cast_unsigned());
    if let Some(chain) = chain {
        nest.put_str(element::CHAIN, chain.as_str());
    }
}

/// Calls `each` with the elements in a message of the kernel, of a set that is declared like this, and with what they
/// have counted; with `None` for those that cannot be said here, which another program must have made.
pub(crate) fn parse_elements(
    message: &Message<'_>,
    set: &Set,
    each: &mut dyn FnMut(Option<Element>, Option<Counter>),
) -> Result<(), Error> {
    let (_, attributes) = message.split_header::<{ ferroute_netlink::nfnetlink::HEADER_LENGTH }>()?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == element::ELEMENTS {
            for entry in attribute.nested() {
                let entry = entry?;
                each(parse(&entry, set)?, parse_counter(&entry)?);
            }
        }
    }
    Ok(())
}

fn parse(entry: &Attribute<'_>, set: &Set) -> Result<Option<Element>, Malformed> {
    let (mut first, mut last, mut datum, mut comment) = (None, None, None, None);
    for attribute in entry.nested() {
        let attribute = attribute?;
        match attribute.kind {
            element::KEY => first = value_of(&attribute)?,
            element::KEY_END => last = value_of(&attribute)?,
            element::DATA => datum = parse_datum(&attribute, set)?,
            element::USERDATA => comment = userdata::read_comment(attribute.payload),
            _ => {}
        }
    }
    let Some(mut key) = first.and_then(|bytes| values::<5>(bytes, &set.key)) else { return Ok(None) };
    if set.kind == SetKind::Interval {
        let Some(last) = last.and_then(|bytes| values::<5>(bytes, &set.key)) else { return Ok(None) };
        if !to_network(&mut key, &last) {
            return Ok(None);
        }
    }
    if datum.is_none() && set.holds != Holds::Nothing {
        return Ok(None);
    }
    Ok(Some(Element { key, datum, comment }))
}

pub(super) fn parse_counter(entry: &Attribute<'_>) -> Result<Option<Counter>, Malformed> {
    let Some(expression) = find(entry, element::EXPRESSION)? else { return Ok(None) };
    let Some(data) = find(&expression, rule::EXPRESSION_DATA)? else { return Ok(None) };
    let (packets, bytes) = (find(&data, element::COUNTER_PACKETS)?, find(&data, element::COUNTER_BYTES)?);
    let Some((packets, bytes)) = packets.zip(bytes) else { return Ok(None) };
    Ok(Some(Counter { packets: packets.u64_be()?, bytes: bytes.u64_be()? }))
}

/// Joins the ends of an interval; false if it is no network, or one in other fields than the last.
fn to_network(key: &mut Key, last: &Key) -> bool {
    let same = key.len().saturating_sub(1);
    if key[..same] != last[..same] {
        return false;
    }
    let (Some(&Value::Address(from)), Some(&Value::Address(to))) = (key.last(), last.last()) else { return false };
    let Some(net) = network(from, to) else { return false };
    key[same] = Value::Network(net);
    true
}

/// The network of all addresses from the first to the last, if there is one.
fn network(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let number = |address| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    };
    let in_common = (number(first) ^ number(last)).leading_zeros();
    let bits = if first.is_ipv4() { 32 } else { 128 };
    let net = IpNet::new(first, u8::try_from(in_common.min(bits)).ok()?).ok()?;
    (net.network() == first && net.broadcast() == last).then_some(net)
}

pub(super) fn parse_datum(data: &Attribute<'_>, set: &Set) -> Result<Option<Datum>, Malformed> {
    match &set.holds {
        Holds::Nothing => Ok(None),
        Holds::Values(types) => {
            let fields: Option<Fields> = value_of(data)?.and_then(|bytes| values(bytes, types));
            Ok(fields.map(Datum::Fields))
        }
        Holds::Verdicts => Ok(parse_verdict(data)?.map(Datum::Verdict)),
    }
}

pub(super) fn parse_verdict(data: &Attribute<'_>) -> Result<Option<Verdict>, Malformed> {
    let (mut code, mut chain) = (None, None);
    for attribute in data.nested() {
        let attribute = attribute?;
        if attribute.kind != element::VERDICT {
            continue;
        }
        for attribute in attribute.nested() {
            let attribute = attribute?;
            match attribute.kind {
                element::CODE => code = Some(attribute.u32_be()?.cast_signed()),
                element::CHAIN => chain = Some(Name::from(attribute.str()?)),
                _ => {}
            }
        }
    }
    Ok(match (code, chain) {
        (Some(verdict::ACCEPT), _) => Some(Verdict::Accept),
        (Some(verdict::DROP), _) => Some(Verdict::Drop),
        (Some(verdict::RETURN), _) => Some(Verdict::Return),
        (Some(verdict::JUMP), Some(chain)) => Some(Verdict::Jump(chain)),
        (Some(verdict::GOTO), Some(chain)) => Some(Verdict::Goto(chain)),
        _ => None,
    })
}

pub(super) fn value_of<'a>(nest: &Attribute<'a>) -> Result<Option<&'a [u8]>, Malformed> {
    Ok(find(nest, element::VALUE)?.map(|attribute| attribute.payload))
}

/// The first attribute of a kind in a nest.
fn find<'a>(nest: &Attribute<'a>, kind: u16) -> Result<Option<Attribute<'a>>, Malformed> {
    for attribute in nest.nested() {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute));
        }
    }
    Ok(None)
}

/// Values as the kernel has them in registers: one alone as it is, several each in registers of its own.
pub(super) fn bytes(values: impl ExactSizeIterator<Item = Value>) -> Bytes {
    let several = values.len() > 1;
    let mut bytes = Bytes::new();
    for value in values {
        let full = "bug: no key has more than 64 bytes";
        match value {
            Value::Address(IpAddr::V4(address)) => bytes.try_extend_from_slice(&address.octets()).expect(full),
            Value::Address(IpAddr::V6(address)) => bytes.try_extend_from_slice(&address.octets()).expect(full),
            Value::Network(_) | Value::Ports(..) | Value::Interfaces(_) => {
                unreachable!("bug: intervals are written as their ends")
            }
            Value::Number(number) => bytes.try_extend_from_slice(&number.to_ne_bytes()).expect(full),
            Value::Interface(name) => bytes.try_extend_from_slice(&name.bytes()).expect(full),
            Value::Protocol(number) => bytes.push(number),
            Value::Port(port) => bytes.try_extend_from_slice(&port.to_be_bytes()).expect(full),
            Value::Class(Class(number)) => bytes.try_extend_from_slice(&number.to_ne_bytes()).expect(full),
        }
        while several && bytes.len() % 4 != 0 {
            bytes.push(0);
        }
    }
    bytes
}

/// The opposite of [`bytes`]; `None` if the length is not that of the types.
pub(super) fn values<const N: usize>(bytes: &[u8], types: &[DataType]) -> Option<ArrayVec<Value, N>> {
    if bytes.len() != crate::model::length(types) || types.len() > N {
        return None;
    }
    let mut rest = bytes;
    let mut values = ArrayVec::new();
    for data_type in types {
        values.push(match data_type {
            DataType::Ipv4Address => Value::Address(Ipv4Addr::from(*rest.first_chunk::<4>()?).into()),
            DataType::Ipv6Address => Value::Address(Ipv6Addr::from(*rest.first_chunk::<16>()?).into()),
            DataType::Protocol => Value::Protocol(*rest.first()?),
            DataType::Port => Value::Port(u16::from_be_bytes(*rest.first_chunk()?)),
            DataType::Class => Value::Class(Class(u32::from_ne_bytes(*rest.first_chunk()?))),
            DataType::Number => Value::Number(u32::from_ne_bytes(*rest.first_chunk()?)),
            DataType::Interface => Value::Interface(Interface::from_bytes(*rest.first_chunk()?)),
        });
        rest = rest.get(data_type.room()..).unwrap_or_default();
    }
    Some(values)
}
