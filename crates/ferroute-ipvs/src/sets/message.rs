//! Netlink messages for ipsets.

use std::{fmt, net::IpAddr};

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{
    Attributes, Error, Message, Writer, attribute_flags::NLA_F_NET_BYTEORDER as NET_BYTEORDER, ipset::*, nfnetlink,
};
use ipnet::IpNet;

use crate::plan::{Entry, ServerKey, SetKind, SetType};

/// Writes the attributes that name a set and describe an entry.
pub(super) fn write_entry(attributes: &mut Writer<'_>, name: &str, entry: Entry) {
    attributes.put_u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
    attributes.put_str(IPSET_ATTR_SETNAME, name);
    let mut data = attributes.nest(IPSET_ATTR_DATA);
    let service = |data: &mut Writer<'_>, key: ServerKey| {
        write_address(data, IPSET_ATTR_IP, key.address);
        data.put_u8(IPSET_ATTR_PROTO, key.protocol.number());
        data.put_u16_be(IPSET_ATTR_PORT | NET_BYTEORDER, key.port);
    };
    match entry {
        Entry::Address(address) => write_address(&mut data, IPSET_ATTR_IP, address),
        Entry::Port(port) => data.put_u16_be(IPSET_ATTR_PORT | NET_BYTEORDER, port),
        Entry::Service(key) => service(&mut data, key),
        Entry::ServiceAndAddress(key, address) => {
            service(&mut data, key);
            write_address(&mut data, IPSET_ATTR_IP2, address);
        }
        Entry::ServiceAndNetwork(key, net) | Entry::ServiceExceptNetwork(key, net) => {
            service(&mut data, key);
            write_address(&mut data, IPSET_ATTR_IP2, net.addr());
            data.put_u8(IPSET_ATTR_CIDR2, net.prefix_len());
            if matches!(entry, Entry::ServiceExceptNetwork(..)) {
                data.put_u32_be(IPSET_ATTR_CADT_FLAGS | NET_BYTEORDER, IPSET_FLAG_NOMATCH);
            }
        }
    }
}

fn write_address(data: &mut Writer<'_>, attribute: u16, address: IpAddr) {
    let kind = match address {
        IpAddr::V4(_) => IPSET_ATTR_IPADDR_IPV4,
        IpAddr::V6(_) => IPSET_ATTR_IPADDR_IPV6,
    };
    data.nest(attribute).put_ip(kind | NET_BYTEORDER, address);
}

/// Parses the entries in a message of a list.
pub(crate) fn parse_entries(message: Message<'_>, kind: SetKind, family: IpFamily) -> Result<Vec<Entry>, Error> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let mut entries = Vec::new();
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == IPSET_ATTR_ADT {
            for data in attribute.nested() {
                entries.extend(parse_entry(data?.nested(), kind, family)?);
            }
        }
    }
    Ok(entries)
}

/// The settings of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetHeader {
    /// The name of its type.
    pub(super) set_type: Box<str>,
    /// The address family; `AF_UNSPEC` for sets of ports.
    pub(super) family: u8,
    /// The maximum number of entries; `None` for types without one.
    pub(super) capacity: Option<u32>,
}

impl SetHeader {
    /// Reports whether the set has this type and family.
    pub(super) fn is_of(&self, set_type: SetType, family: IpFamily) -> bool {
        *self.set_type == *set_type.as_str() && self.family == type_family(set_type, family)
    }
}

impl fmt::Display for SetHeader {
    /// Writes `hash:ip,port family inet maxelem 65536`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.set_type)?;
        match i32::from(self.family) {
            libc::AF_INET => f.write_str(" family inet")?,
            libc::AF_INET6 => f.write_str(" family inet6")?,
            _ => {}
        }
        self.capacity.map_or(Ok(()), |capacity| write!(f, " maxelem {capacity}"))
    }
}

/// Parses the header of a list.
pub(crate) fn parse_header(message: Message<'_>) -> Result<SetHeader, Error> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let mut header = SetHeader { set_type: "".into(), family: 0, capacity: None };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IPSET_ATTR_TYPENAME => header.set_type = attribute.text().unwrap_or_default().into(),
            IPSET_ATTR_FAMILY => header.family = attribute.u8()?,
            IPSET_ATTR_DATA => {
                for data in attribute.nested() {
                    let data = data?;
                    if data.kind == IPSET_ATTR_MAXELEM {
                        header.capacity = Some(data.u32_be()?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(header)
}

fn parse_entry(attributes: Attributes<'_>, kind: SetKind, family: IpFamily) -> Result<Option<Entry>, Error> {
    let (mut address, mut second, mut port, mut protocol) = (None, None, None, None);
    let (mut length, mut is_exception) = (if family == IpFamily::V4 { 32 } else { 128 }, false);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IPSET_ATTR_IP => address = parse_address(attribute.nested())?,
            IPSET_ATTR_IP2 => second = parse_address(attribute.nested())?,
            IPSET_ATTR_PORT => port = Some(attribute.u16_be()?),
            IPSET_ATTR_PROTO => protocol = Protocol::from_number(attribute.u8()?),
            IPSET_ATTR_CIDR2 => length = attribute.u8()?,
            IPSET_ATTR_CADT_FLAGS => is_exception = attribute.u32_be()? & IPSET_FLAG_NOMATCH != 0,
            _ => {}
        }
    }
    let service = || Some(ServerKey { address: address?, port: port?, protocol: protocol? });
    Ok(match kind.set_type() {
        SetType::Address => address.map(Entry::Address),
        SetType::Port => port.map(Entry::Port),
        SetType::Service => service().map(Entry::Service),
        SetType::ServiceAndAddress => {
            service().zip(second).map(|(key, address)| Entry::ServiceAndAddress(key, address))
        }
        SetType::ServiceAndNetwork => service().zip(second).and_then(|(key, address)| {
            let net = IpNet::new(address, length).ok()?;
            Some(match is_exception {
                true => Entry::ServiceExceptNetwork(key, net),
                false => Entry::ServiceAndNetwork(key, net),
            })
        }),
    })
}

/// Returns the address family of a lookup of a type: the type of ports has none.
pub(super) fn type_family(set_type: SetType, family: IpFamily) -> u8 {
    let family = match (set_type, family) {
        (SetType::Port, _) => libc::AF_UNSPEC,
        (_, IpFamily::V4) => libc::AF_INET,
        (_, IpFamily::V6) => libc::AF_INET6,
    };
    family as u8
}

/// Returns the revision of a type that ipset 6.34 of 2017 supports.
pub(super) fn revision(set_type: SetType) -> u8 {
    match set_type {
        SetType::Address => 4,
        SetType::Service | SetType::ServiceAndAddress => 5,
        SetType::ServiceAndNetwork => 7,
        SetType::Port => 3,
    }
}
