//! Reads the ipsets of all programs from the kernel.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ferroute_netlink::{Attributes, Consistency, Error, Message, Protocol, Request, Socket, ipset, nfnetlink};
use ferroute_trace::{Ipset, IpsetEntry, Ipsets};
use ipnet::IpNet;

/// Reads all sets of the calling thread's network namespace.
///
/// # Errors
/// If the kernel does not list them, for example because it has no ipsets.
pub(crate) fn read() -> Result<Ipsets, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    for _ in 0..MAX_ATTEMPTS {
        let mut request = Request::new(ipset::command(ipset::IPSET_CMD_LIST), 0, &ipset::HEADER);
        request.attributes().put_u8(ipset::IPSET_ATTR_PROTOCOL, ipset::IPSET_PROTOCOL_MIN);
        let mut sets = Ipsets::default();
        let consistency = socket.dump(&mut request, |message| {
            if let Some((name, set)) = parse(message)? {
                sets.add(&name, set);
            }
            Ok::<(), Error>(())
        })?;
        if consistency == Consistency::Consistent {
            return Ok(sets);
        }
    }
    Err(Error::Interrupted { kind: ipset::command(ipset::IPSET_CMD_LIST), attempts: MAX_ATTEMPTS })
}

/// Parses a part of a set: the first message about a set has its type, later ones only entries.
fn parse(message: Message<'_>) -> Result<Option<(String, Ipset)>, Error> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let mut name = None;
    let (mut first, mut last, mut is_supported) = (None, None, true);
    let mut set = Ipset {
        kind: String::new(),
        family: None,
        netmask: None,
        markmask: u32::MAX,
        range: None,
        entries: Vec::new(),
    };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            ipset::IPSET_ATTR_SETNAME => name = Some(attribute.escaped_text().into_owned()),
            ipset::IPSET_ATTR_TYPENAME => set.kind = attribute.escaped_text().into_owned(),
            ipset::IPSET_ATTR_FAMILY => {
                set.family = match libc::c_int::from(attribute.u8()?) {
                    libc::AF_INET => Some(IpFamily::V4),
                    libc::AF_INET6 => Some(IpFamily::V6),
                    _ => None,
                }
            }
            ipset::IPSET_ATTR_DATA => {
                for data in attribute.nested() {
                    let data = data?;
                    match data.kind {
                        ipset::IPSET_ATTR_NETMASK => set.netmask = Some(data.u8()?),
                        ipset::IPSET_ATTR_MARKMASK => set.markmask = data.u32_be()?,
                        ipset::IPSET_ATTR_BITMASK => is_supported = false,
                        ipset::IPSET_ATTR_IP => first = ipset::parse_address(data.nested())?.and_then(number),
                        ipset::IPSET_ATTR_IP_TO => last = ipset::parse_address(data.nested())?.and_then(number),
                        ipset::IPSET_ATTR_PORT => first = Some(data.u16_be()?.into()),
                        ipset::IPSET_ATTR_PORT_TO => last = Some(data.u16_be()?.into()),
                        _ => {}
                    }
                }
            }
            ipset::IPSET_ATTR_ADT => {
                for entry in attribute.nested() {
                    set.entries.push(parse_entry(entry?.nested())?);
                }
            }
            _ => {}
        }
    }
    set.range = first.zip(last);
    if !is_supported {
        // It is unknown whether a packet belongs to a set of an unknown type.
        set.kind.clear();
    }
    Ok(name.map(|name| (name, set)))
}

fn number(address: IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(address) => Some(address.into()),
        IpAddr::V6(_) => None,
    }
}

fn parse_entry(attributes: Attributes<'_>) -> Result<IpsetEntry, Error> {
    let mut entry = IpsetEntry::default();
    let (mut first, mut second, mut length, mut second_length) = (None, None, None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            ipset::IPSET_ATTR_IP => first = ipset::parse_address(attribute.nested())?,
            ipset::IPSET_ATTR_IP2 => second = ipset::parse_address(attribute.nested())?,
            ipset::IPSET_ATTR_CIDR => length = Some(attribute.u8()?),
            ipset::IPSET_ATTR_CIDR2 => second_length = Some(attribute.u8()?),
            ipset::IPSET_ATTR_PORT => entry.port = Some(attribute.u16_be()?),
            ipset::IPSET_ATTR_PROTO => entry.protocol = Some(attribute.u8()?),
            ipset::IPSET_ATTR_MARK => entry.mark = Some(attribute.u32_be()?),
            ipset::IPSET_ATTR_IFACE => entry.interface = Some(attribute.escaped_text().into_owned()),
            ipset::IPSET_ATTR_SKBMARK => {
                let both = attribute.u64_be()?;
                entry.packet_mark = Some(((both >> 32) as u32, both as u32));
            }
            ipset::IPSET_ATTR_NAME => entry.set = Some(attribute.escaped_text().into_owned()),
            ipset::IPSET_ATTR_CADT_FLAGS => {
                let flags = attribute.u32_be()?;
                entry.physdev = flags & ipset::IPSET_FLAG_PHYSDEV != 0;
                entry.nomatch = flags & ipset::IPSET_FLAG_NOMATCH != 0;
                entry.wildcard = flags & ipset::IPSET_FLAG_IFACE_WILDCARD != 0;
            }
            _ => {}
        }
    }
    let networks = [(first, length), (second, second_length)];
    entry.networks = networks.into_iter().filter_map(|(address, length)| network(address?, length)).collect();
    Ok(entry)
}

/// Returns a network; without a prefix length, the network of a single address.
fn network(address: IpAddr, length: Option<u8>) -> Option<IpNet> {
    match length {
        Some(length) => IpNet::new(address, length).ok(),
        None => Some(IpNet::from(address)),
    }
}

/// The number of attempts to list the sets while they change.
const MAX_ATTEMPTS: usize = 5;
