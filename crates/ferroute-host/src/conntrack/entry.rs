use std::net::{IpAddr, SocketAddr};

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{Attribute, Malformed, Message, Writer, nfnetlink};

/// A conntrack entry, identified by the tuples of both directions.
///
/// Without address translation the reply tuple is the inverse of the original one. For a connection to a Service, clients
/// send to `original_destination`, the frontend, and replies have `reply_source`, the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The source of the client's packets.
    pub original_source: SocketAddr,
    /// The destination of the client's packets before translation.
    pub original_destination: SocketAddr,
    /// The source of the replies before translation.
    pub reply_source: SocketAddr,
    /// The destination of the replies. Differs from `original_source` where the client's address is masqueraded.
    pub reply_destination: SocketAddr,
    /// Whether packets may still be exchanged: false for a TCP connection that both sides have closed, or one has reset,
    /// whose entry expires later. Entries of other protocols are open until they expire.
    pub is_open: bool,
}

/// An entry with the attributes that identify it to the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedEntry<'a> {
    pub(super) entry: Entry,
    /// The original tuple's nested attributes, as received.
    tuple: &'a [u8],
    /// Distinguishes the entry from a later one with the same tuples.
    id: &'a [u8],
    /// The conntrack zone, unless it is the default zone.
    zone: Option<&'a [u8]>,
}

impl<'a> ListedEntry<'a> {
    /// Returns `None` for other messages and for entries of another family or protocol.
    pub(super) fn parse(message: Message<'a>, family: IpFamily, protocol: Protocol) -> Result<Option<Self>, Malformed> {
        let (header, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
        let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW);
        if message.kind != kind || header[0] != address_family(family) {
            return Ok(None);
        }
        let (mut original, mut reply, mut id, mut zone) = (None, None, None, None);
        let mut is_open = true;
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                CTA_TUPLE_ORIG => original = Some(attribute),
                CTA_TUPLE_REPLY => reply = Some(attribute),
                CTA_PROTOINFO => is_open = !is_closed_tcp(attribute)?,
                CTA_ID => id = Some(attribute.payload),
                CTA_ZONE => zone = Some(attribute.payload),
                _ => {}
            }
        }
        let original_attribute = original.ok_or(message.missing(CTA_TUPLE_ORIG))?;
        let Some(original) = Tuple::parse(original_attribute, message, protocol)? else { return Ok(None) };
        let reply_attribute = reply.ok_or(message.missing(CTA_TUPLE_REPLY))?;
        let Some(reply) = Tuple::parse(reply_attribute, message, protocol)? else { return Ok(None) };
        let entry = Entry {
            protocol,
            original_source: original.source,
            original_destination: original.destination,
            reply_source: reply.source,
            reply_destination: reply.destination,
            is_open,
        };
        let id = id.ok_or(message.missing(CTA_ID))?;
        Ok(Some(Self { entry, tuple: original_attribute.payload, id, zone }))
    }

    /// Writes the attributes that identify the entry. The tuple is essential: a delete request without one flushes the
    /// whole table.
    pub(super) fn write_key(&self, writer: &mut Writer<'_>) {
        writer.put_bytes(CTA_TUPLE_ORIG | ferroute_netlink::attribute_flags::NLA_F_NESTED, self.tuple);
        writer.put_bytes(CTA_ID, self.id);
        if let Some(zone) = self.zone {
            writer.put_bytes(CTA_ZONE, zone);
        }
    }
}

/// Source and destination of one direction.
struct Tuple {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Tuple {
    /// Returns `None` for protocols other than `expected`, which need not have ports.
    fn parse(tuple: Attribute<'_>, message: Message<'_>, expected: Protocol) -> Result<Option<Self>, Malformed> {
        let (mut addresses, mut ports) = ((None, None), (None, None));
        let mut protocol = None;
        for part in tuple.nested() {
            let part = part?;
            for attribute in part.nested() {
                let attribute = attribute?;
                match (part.kind, attribute.kind) {
                    (CTA_TUPLE_IP, CTA_IP_V4_SRC | CTA_IP_V6_SRC) => addresses.0 = Some(attribute.ip()?),
                    (CTA_TUPLE_IP, CTA_IP_V4_DST | CTA_IP_V6_DST) => addresses.1 = Some(attribute.ip()?),
                    (CTA_TUPLE_PROTO, CTA_PROTO_NUM) => protocol = Some(attribute.u8()?),
                    (CTA_TUPLE_PROTO, CTA_PROTO_SRC_PORT) => ports.0 = Some(attribute.u16_be()?),
                    (CTA_TUPLE_PROTO, CTA_PROTO_DST_PORT) => ports.1 = Some(attribute.u16_be()?),
                    _ => {}
                }
            }
        }
        if protocol != Some(expected.number()) {
            return Ok(None);
        }
        let socket_address = |(address, port): (Option<IpAddr>, Option<u16>)| {
            let address = address.ok_or(message.missing(CTA_TUPLE_IP))?;
            Ok(SocketAddr::new(address, port.ok_or(message.missing(CTA_TUPLE_PROTO))?))
        };
        let source = socket_address((addresses.0, ports.0))?;
        let destination = socket_address((addresses.1, ports.1))?;
        Ok(Some(Self { source, destination }))
    }
}

/// Reports whether the protocol's state is that of a TCP connection that both sides have closed, or one has reset.
fn is_closed_tcp(protocol_state: Attribute<'_>) -> Result<bool, Malformed> {
    for protocol in protocol_state.nested() {
        let protocol = protocol?;
        for attribute in protocol.nested() {
            let attribute = attribute?;
            if (protocol.kind, attribute.kind) == (CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_STATE) {
                return Ok(CLOSED_TCP_STATES.contains(&attribute.u8()?));
            }
        }
    }
    Ok(false)
}

/// Returns `AF_INET` or `AF_INET6`.
pub(super) fn address_family(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => libc::AF_INET as u8,
        IpFamily::V6 => libc::AF_INET6 as u8,
    }
}

// include/uapi/linux/netfilter/nfnetlink_conntrack.h
const IPCTNL_MSG_CT_NEW: u8 = 0;
pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
const CTA_PROTOINFO: u16 = 4;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
pub(super) const CTA_TUPLE_IP: u16 = 1;
pub(super) const CTA_TUPLE_PROTO: u16 = 2;
pub(super) const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
pub(super) const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;

/// `TCP_CONNTRACK_LAST_ACK`, `TIME_WAIT` and `CLOSE` of include/uapi/linux/netfilter/nf_conntrack_tcp.h.
const CLOSED_TCP_STATES: [u8; 3] = [6, 7, 8];

#[cfg(test)]
mod tests;
