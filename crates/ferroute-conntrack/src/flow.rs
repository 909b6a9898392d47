use std::net::{IpAddr, SocketAddr};

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{Attribute, Malformed, Message, Writer, nfnetlink};

/// An entry of the connection table, as both directions of its packets look.
///
/// Without address translation the reply is the original the other way round. Where a service was chosen, the client
/// sends to `original_destination`, the frontend, and the answers come from `reply_source`, the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The transport protocol.
    pub protocol: Protocol,
    /// Where the client's packets come from.
    pub original_source: SocketAddr,
    /// Where the client sends them.
    pub original_destination: SocketAddr,
    /// Where the answers come from, on their way.
    pub reply_source: SocketAddr,
    /// Where the answers are sent. Differs from `original_source` where the client's address is masqueraded.
    pub reply_destination: SocketAddr,
}

/// A flow and what the kernel needs to find it again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowEntry<'a> {
    pub(crate) flow: Flow,
    /// The attributes of the original direction, as they came.
    tuple: &'a [u8],
    /// The number that tells it from a later flow with the same addresses and ports.
    id: &'a [u8],
    /// The part of the table that it is in, unless that is the usual one.
    zone: Option<&'a [u8]>,
}

impl<'a> FlowEntry<'a> {
    /// `None` for anything but a flow of this family and protocol.
    pub(crate) fn parse(message: Message<'a>, family: IpFamily, protocol: Protocol) -> Result<Option<Self>, Malformed> {
        let (header, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
        if message.kind != nfnetlink::kind(nfnetlink::CONNTRACK, NEW) || header[0] != family_number(family) {
            return Ok(None);
        }
        let (mut original, mut reply, mut id, mut zone) = (None, None, None, None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                TUPLE_ORIGINAL => original = Some(attribute),
                TUPLE_REPLY => reply = Some(attribute),
                ID => id = Some(attribute.payload),
                ZONE => zone = Some(attribute.payload),
                _ => {}
            }
        }
        let original_attribute = original.ok_or(message.missing(TUPLE_ORIGINAL))?;
        let Some(original) = Direction::parse(original_attribute, message, protocol)? else { return Ok(None) };
        let reply_attribute = reply.ok_or(message.missing(TUPLE_REPLY))?;
        let Some(reply) = Direction::parse(reply_attribute, message, protocol)? else { return Ok(None) };
        let flow = Flow {
            protocol,
            original_source: original.source,
            original_destination: original.destination,
            reply_source: reply.source,
            reply_destination: reply.destination,
        };
        let id = id.ok_or(message.missing(ID))?;
        Ok(Some(Self { flow, tuple: original_attribute.payload, id, zone }))
    }

    /// Writes what names this flow. A message to delete without a tuple would empty the whole table; this one has it.
    pub(crate) fn write_identity(&self, writer: &mut Writer<'_>) {
        writer.put_bytes(TUPLE_ORIGINAL | ferroute_netlink::attribute_flags::NESTED, self.tuple);
        writer.put_bytes(ID, self.id);
        if let Some(zone) = self.zone {
            writer.put_bytes(ZONE, zone);
        }
    }
}

/// One direction of a flow.
struct Direction {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Direction {
    /// `None` for another protocol, which need not have ports.
    fn parse(tuple: Attribute<'_>, message: Message<'_>, wanted: Protocol) -> Result<Option<Self>, Malformed> {
        let (mut addresses, mut ports) = ((None, None), (None, None));
        let mut protocol = None;
        for part in tuple.nested() {
            let part = part?;
            for attribute in part.nested() {
                let attribute = attribute?;
                match (part.kind, attribute.kind) {
                    (TUPLE_IP, IPV4_SOURCE | IPV6_SOURCE) => addresses.0 = Some(attribute.ip()?),
                    (TUPLE_IP, IPV4_DESTINATION | IPV6_DESTINATION) => addresses.1 = Some(attribute.ip()?),
                    (TUPLE_PROTOCOL, PROTOCOL_NUMBER) => protocol = Some(attribute.u8()?),
                    (TUPLE_PROTOCOL, SOURCE_PORT) => ports.0 = Some(attribute.u16_be()?),
                    (TUPLE_PROTOCOL, DESTINATION_PORT) => ports.1 = Some(attribute.u16_be()?),
                    _ => {}
                }
            }
        }
        if protocol != Some(wanted.number()) {
            return Ok(None);
        }
        let end = |(address, port): (Option<IpAddr>, Option<u16>)| {
            let address = address.ok_or(message.missing(TUPLE_IP))?;
            Ok(SocketAddr::new(address, port.ok_or(message.missing(TUPLE_PROTOCOL))?))
        };
        let (source, destination) = (end((addresses.0, ports.0))?, end((addresses.1, ports.1))?);
        Ok(Some(Self { source, destination }))
    }
}

/// `AF_INET` or `AF_INET6`.
pub(crate) fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => libc::AF_INET as u8,
        IpFamily::V6 => libc::AF_INET6 as u8,
    }
}

// Commands and attributes of `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.
const NEW: u8 = 0;
pub(crate) const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
pub(crate) const TUPLE_PROTOCOL: u16 = 2;
const IPV4_SOURCE: u16 = 1;
const IPV4_DESTINATION: u16 = 2;
const IPV6_SOURCE: u16 = 3;
const IPV6_DESTINATION: u16 = 4;
pub(crate) const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

#[cfg(test)]
mod tests;
