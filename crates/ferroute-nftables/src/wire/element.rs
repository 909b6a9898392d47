use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use arrayvec::ArrayVec;
use ferroute_netlink::{Attribute, Error, Malformed, Message, Writer, nfnetlink};
use ipnet::IpNet;

use super::decode::{index_name, number};
use super::{
    constants::*,
    listing::limit_in,
    object::{COUNTER, nfproto},
    userdata,
};
use crate::kernel::{Counter, OnElement};
use crate::model::{
    ClassId, Data, DataType, Element, IfName, KEY_FIELDS, Key, Name, Set, SetData, SetKind, TableId, Value, Values,
    Verdict,
};

/// The encoding of a key or of data: as long as the longest key. The kernel refuses an element with more than 64 bytes.
type Bytes = ArrayVec<u8, { KEY_FIELDS * 16 }>;

/// Writes an element into a list. A deletion needs only its key.
pub(super) fn put(list: &mut Writer<'_>, item: &Element, with_content: bool) {
    let mut entry = list.nest(NFTA_LIST_ELEM);
    put_key(&mut entry, &item.key);
    if !with_content {
        return;
    }
    match &item.data {
        None => {}
        Some(Data::Values(fields)) => {
            entry.nest(NFTA_SET_ELEM_DATA).put_bytes(NFTA_DATA_VALUE, &bytes(fields.iter().copied()));
        }
        Some(Data::Verdict(verdict)) => put_verdict(&mut entry.nest(NFTA_SET_ELEM_DATA), verdict),
    }
    if let Some(comment) = &item.comment {
        entry.put_bytes(NFTA_SET_ELEM_USERDATA, &userdata::comment(comment));
    }
}

/// Writes the key of an element.
pub(super) fn put_key(entry: &mut Writer<'_>, key: &Key) {
    entry.nest(NFTA_SET_ELEM_KEY).put_bytes(NFTA_DATA_VALUE, &bytes(key.iter().map(|value| value.first())));
    let is_interval =
        |value: &Value| matches!(value, Value::Network(_) | Value::PortRange(..) | Value::IfNamePrefix(_));
    if key.iter().any(is_interval) {
        entry.nest(NFTA_SET_ELEM_KEY_END).put_bytes(NFTA_DATA_VALUE, &bytes(key.iter().map(|value| value.last())));
    }
}

/// Writes a verdict as data.
pub(super) fn put_verdict(data: &mut Writer<'_>, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Accept => (NF_ACCEPT, None),
        Verdict::Drop => (NF_DROP, None),
        Verdict::Return => (NFT_RETURN, None),
        Verdict::Continue => (libc::NFT_CONTINUE, None),
        Verdict::Jump(chain) => (NFT_JUMP, Some(chain)),
        Verdict::Goto(chain) => (NFT_GOTO, Some(chain)),
    };
    let mut nest = data.nest(NFTA_DATA_VERDICT);
    nest.put_u32_be(NFTA_VERDICT_CODE, code.cast_unsigned());
    if let Some(chain) = chain {
        nest.put_str(NFTA_VERDICT_CHAIN, chain.as_str());
    }
}

/// Calls `on_element` with the elements in a message of the kernel, for a set with this declaration.
pub(crate) fn parse_elements(message: &Message<'_>, set: &Set, on_element: &mut OnElement<'_>) -> Result<(), Error> {
    let (_, attributes) = message.split_header::<{ ferroute_netlink::nfnetlink::HEADER_LENGTH }>()?;
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == NFTA_SET_ELEM_LIST_ELEMENTS {
            for entry in attribute.nested() {
                let entry = entry?;
                on_element(parse(&entry, set)?, parse_counter(&entry)?);
            }
        }
    }
    Ok(())
}

/// Adds the sets and keys of the elements of a table that a notification is about; none if it is about other objects.
///
/// # Errors
/// If the notification is malformed.
pub(crate) fn changed_elements(
    message: Message<'_>,
    table: &TableId,
    sets: &[Set],
    changed: &mut HashSet<(Name, Key)>,
) -> Result<(), Error> {
    const fn kind(command: u8) -> u16 {
        nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, command)
    }
    const NEW_ELEMENT: u16 = kind(NFT_MSG_NEWSETELEM);
    const DELETED_ELEMENT: u16 = kind(NFT_MSG_DELSETELEM);
    if !matches!(message.kind, NEW_ELEMENT | DELETED_ELEMENT) {
        return Ok(());
    }
    let (header, _) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let text = |kind| message.attribute::<{ nfnetlink::HEADER_LENGTH }>(kind);
    if header[0] != nfproto(table.family) || text(NFTA_SET_ELEM_LIST_TABLE)?.text() != Some(table.name.as_str()) {
        return Ok(());
    }
    let set = text(NFTA_SET_ELEM_LIST_SET)?;
    let Some(set) = sets.iter().find(|own| set.text() == Some(own.name.as_str())) else { return Ok(()) };
    parse_elements(&message, set, &mut |element, _| {
        changed.extend(element.map(|element| (set.name.clone(), element.key)));
    })
}

fn parse(entry: &Attribute<'_>, set: &Set) -> Result<Option<Element>, Malformed> {
    let (mut first, mut last, mut data, mut comment) = (None, None, None, None);
    for attribute in entry.nested() {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_SET_ELEM_KEY => first = value_of(&attribute)?,
            NFTA_SET_ELEM_KEY_END => last = value_of(&attribute)?,
            NFTA_SET_ELEM_DATA => data = parse_datum(&attribute, set)?,
            NFTA_SET_ELEM_USERDATA => comment = userdata::read_comment(attribute.payload),
            // Each element has its own limit, which equals that of the set unless another program added it.
            NFTA_SET_ELEM_EXPR if set.limit.is_some() && limit_in(&attribute)? != set.limit => return Ok(None),
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
    if data.is_none() && set.data != SetData::None {
        return Ok(None);
    }
    Ok(Some(Element { key, data, comment }))
}

pub(super) fn parse_counter(entry: &Attribute<'_>) -> Result<Option<Counter>, Malformed> {
    let Some(expression) = entry.nested().first(NFTA_SET_ELEM_EXPR)? else { return Ok(None) };
    let name = expression.nested().first(NFTA_EXPR_NAME)?.and_then(|name| name.text());
    if name != Some(COUNTER) {
        return Ok(None);
    }
    let Some(data) = expression.nested().first(NFTA_EXPR_DATA)? else { return Ok(None) };
    let (packets, bytes) = (data.nested().first(NFTA_COUNTER_PACKETS)?, data.nested().first(NFTA_COUNTER_BYTES)?);
    let Some((packets, bytes)) = packets.zip(bytes) else { return Ok(None) };
    Ok(Some(Counter { packets: packets.u64_be()?, bytes: bytes.u64_be()? }))
}

/// Converts the range of the last field to a network. Returns false if it is not a network, or if another field has a
/// range.
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

/// Returns the network with this first and last address, if there is one.
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

pub(super) fn parse_datum(data: &Attribute<'_>, set: &Set) -> Result<Option<Data>, Malformed> {
    match &set.data {
        SetData::None => Ok(None),
        SetData::Values(types) => {
            let fields: Option<Values> = value_of(data)?.and_then(|bytes| values(bytes, types));
            Ok(fields.map(Data::Values))
        }
        SetData::Verdict => Ok(parse_verdict(data)?.map(Data::Verdict)),
    }
}

pub(super) fn parse_verdict(data: &Attribute<'_>) -> Result<Option<Verdict>, Malformed> {
    let (mut code, mut chain) = (None, None);
    for attribute in data.nested() {
        let attribute = attribute?;
        if attribute.kind != NFTA_DATA_VERDICT {
            continue;
        }
        for attribute in attribute.nested() {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_VERDICT_CODE => code = Some(attribute.u32_be()?.cast_signed()),
                NFTA_VERDICT_CHAIN => chain = Some(super::listing::name_of(&attribute)),
                _ => {}
            }
        }
    }
    Ok(match (code, chain) {
        (Some(NF_ACCEPT), _) => Some(Verdict::Accept),
        (Some(NF_DROP), _) => Some(Verdict::Drop),
        (Some(NFT_RETURN), _) => Some(Verdict::Return),
        (Some(NFT_JUMP), Some(chain)) => Some(Verdict::Jump(chain)),
        (Some(NFT_GOTO), Some(chain)) => Some(Verdict::Goto(chain)),
        (Some(libc::NFT_CONTINUE), _) => Some(Verdict::Continue),
        _ => None,
    })
}

pub(super) fn value_of<'a>(nest: &Attribute<'a>) -> Result<Option<&'a [u8]>, Malformed> {
    Ok(nest.nested().first(NFTA_DATA_VALUE)?.map(|attribute| attribute.payload))
}

/// Encodes values as the kernel has them in registers; of a range, the first value. In a concatenation, each value
/// starts at a register.
pub(super) fn bytes(values: impl ExactSizeIterator<Item = Value>) -> Bytes {
    let several = values.len() > 1;
    let mut bytes = Bytes::new();
    for value in values {
        match value {
            Value::Address(IpAddr::V4(address)) => bytes.extend(address.octets()),
            Value::Address(IpAddr::V6(address)) => bytes.extend(address.octets()),
            Value::Network(net) => bytes.extend(self::bytes([Value::Address(net.network())].into_iter())),
            Value::PortRange(port, _) | Value::Port(port) => bytes.extend(port.to_be_bytes()),
            Value::Integer(number) | Value::ClassId(ClassId(number)) => bytes.extend(number.to_ne_bytes()),
            Value::IfName(name) | Value::IfNamePrefix(name) => bytes.extend(name.bytes()),
            Value::Protocol(number) => bytes.push(number),
            // Only in sets of other programs, which are not written.
            Value::Other(number) | Value::OtherRange(number, _) => bytes.extend(number.to_be_bytes()),
        }
        while several && bytes.len() % 4 != 0 {
            bytes.push(0);
        }
    }
    bytes
}

/// Decodes values, the inverse of [`bytes`]; `None` if the length does not match the types.
pub(super) fn values<const N: usize>(bytes: &[u8], types: &[DataType]) -> Option<ArrayVec<Value, N>> {
    if bytes.len() != crate::model::length(types) || types.len() > N {
        return None;
    }
    let mut rest = bytes;
    let mut values = ArrayVec::new();
    for data_type in types {
        values.push(match data_type {
            DataType::Ipv4Addr => Value::Address(Ipv4Addr::from(*rest.first_chunk::<4>()?).into()),
            DataType::Ipv6Addr => Value::Address(Ipv6Addr::from(*rest.first_chunk::<16>()?).into()),
            DataType::InetProto => Value::Protocol(*rest.first()?),
            DataType::InetService => Value::Port(u16::from_be_bytes(*rest.first_chunk()?)),
            DataType::ClassId => Value::ClassId(ClassId(u32::from_ne_bytes(*rest.first_chunk()?))),
            DataType::Integer => Value::Integer(u32::from_ne_bytes(*rest.first_chunk()?)),
            DataType::IfName => Value::IfName(IfName::from_bytes(*rest.first_chunk()?)),
            DataType::IfIndex => Value::IfName(index_name(number(rest.get(..4)?, true)?)),
            DataType::Other { length, host_order } => {
                Value::Other(number(rest.get(..usize::from(*length))?, *host_order)?)
            }
        });
        rest = rest.get(data_type.padded_length()..).unwrap_or_default();
    }
    Some(values)
}
