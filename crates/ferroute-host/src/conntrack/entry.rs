use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime},
};

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
    /// Whether packets may still be exchanged. False for a TCP connection that both sides have closed, or that one side
    /// has reset, whose entry expires later. Entries of other protocols are open until they expire.
    pub is_open: bool,
    /// Whether there has been a reply.
    pub is_answered: bool,
}

/// An entry with its state, as listed or as part of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The addresses.
    pub entry: Entry,
    /// Identifier that distinguishes the entry from a later one with the same addresses.
    pub id: u32,
    /// Whether packets of both directions have been seen, except for a packet that ended the connection.
    pub is_answered: bool,
    /// The state of a TCP connection; `None` for other protocols, and in events that do not concern it.
    pub tcp: Option<TcpState>,
    /// The packets and bytes of both directions; `None` if the kernel does not count them (`nf_conntrack_acct`), and in events
    /// other than the last one.
    pub traffic: Option<Traffic>,
    /// The time of the first packet; `None` if the kernel does not record it (`nf_conntrack_timestamp`).
    pub started: Option<SystemTime>,
    /// The time of the event; `None` if the kernel does not record it (Linux 6.14 with `nf_conntrack_timestamp`).
    pub reported: Option<SystemTime>,
}

/// The state of a TCP connection, as far as it matters to its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// The client has sent its first segment.
    SynSent,
    /// Segments may be exchanged.
    Open,
    /// Both sides have closed the connection.
    Closed,
    /// One side has reset the connection.
    Reset,
}

/// Packets and bytes of both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of packets.
    pub packets: u64,
    /// The number of bytes in these packets, headers of the network layer included.
    pub bytes: u64,
}

/// An entry with the attributes that identify it to the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedEntry<'a> {
    pub(super) connection: Connection,
    /// The original tuple's nested attributes, as received.
    tuple: &'a [u8],
    /// [`Connection::id`], as received.
    id: &'a [u8],
    /// The conntrack zone, unless it is the default zone.
    zone: Option<&'a [u8]>,
}

impl<'a> ListedEntry<'a> {
    /// Returns `None` for other messages and for entries of another family or protocol; without `protocol`, of protocols that
    /// Services do not have.
    pub(super) fn parse(
        message: Message<'a>,
        family: IpFamily,
        protocol: Option<Protocol>,
    ) -> Result<Option<Self>, Malformed> {
        let (header, _) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
        let kind = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW);
        if message.kind != kind || header[0] != address_family(family) {
            return Ok(None);
        }
        let has_protocol = |listed: &Self| protocol.is_none_or(|protocol| listed.connection.entry.protocol == protocol);
        Ok(Self::parse_any(message)?.filter(has_protocol))
    }

    /// Returns `None` for entries of protocols that Services do not have.
    pub(crate) fn parse_any(message: Message<'a>) -> Result<Option<Self>, Malformed> {
        let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
        let (mut original, mut reply, mut id, mut zone) = (None, None, None, None);
        let (mut status, mut tcp, mut traffic) = (0, None, None::<Traffic>);
        let (mut started, mut reported) = (None, None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                CTA_TUPLE_ORIG => original = Some(attribute),
                CTA_TUPLE_REPLY => reply = Some(attribute),
                CTA_STATUS => status = attribute.u32_be()?,
                CTA_PROTOINFO => tcp = tcp_state(attribute)?,
                CTA_COUNTERS_ORIG | CTA_COUNTERS_REPLY => add_traffic(traffic.get_or_insert_default(), attribute)?,
                CTA_TIMESTAMP => {
                    if let Some(time) = attribute.nested().first(CTA_TIMESTAMP_START)? {
                        started = since_epoch(time.u64_be()?);
                    }
                }
                CTA_TIMESTAMP_EVENT => reported = since_epoch(attribute.u64_be()?),
                CTA_ID => id = Some(attribute),
                CTA_ZONE => zone = Some(attribute.payload),
                _ => {}
            }
        }
        let original_attribute = original.ok_or(message.missing(CTA_TUPLE_ORIG))?;
        let Some((protocol, original)) = Tuple::parse(original_attribute, message)? else { return Ok(None) };
        let reply_attribute = reply.ok_or(message.missing(CTA_TUPLE_REPLY))?;
        let Some((_, reply)) = Tuple::parse(reply_attribute, message)? else { return Ok(None) };
        let id = id.ok_or(message.missing(CTA_ID))?;
        let entry = Entry {
            protocol,
            original_source: original.source,
            original_destination: original.destination,
            reply_source: reply.source,
            reply_destination: reply.destination,
            is_open: !matches!(tcp, Some(TcpState::Closed | TcpState::Reset)),
            is_answered: status & IPS_SEEN_REPLY != 0,
        };
        let is_answered = entry.is_answered;
        let connection = Connection { entry, id: id.u32_be()?, is_answered, tcp, traffic, started, reported };
        Ok(Some(Self { connection, tuple: original_attribute.payload, id: id.payload, zone }))
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

impl Entry {
    /// Writes the original tuple, by which the kernel finds the entry.
    pub(super) fn write_tuple(&self, writer: &mut Writer<'_>) {
        let (source, destination) = (self.original_source, self.original_destination);
        let mut tuple = writer.nest(CTA_TUPLE_ORIG);
        let mut addresses = tuple.nest(CTA_TUPLE_IP);
        let kinds = match source.ip() {
            IpAddr::V4(_) => [CTA_IP_V4_SRC, CTA_IP_V4_DST],
            IpAddr::V6(_) => [CTA_IP_V6_SRC, CTA_IP_V6_DST],
        };
        addresses.put_ip(kinds[0], source.ip());
        addresses.put_ip(kinds[1], destination.ip());
        drop(addresses);
        let mut transport = tuple.nest(CTA_TUPLE_PROTO);
        transport.put_u8(CTA_PROTO_NUM, self.protocol.number());
        transport.put_u16_be(CTA_PROTO_SRC_PORT, source.port());
        transport.put_u16_be(CTA_PROTO_DST_PORT, destination.port());
    }
}

/// Source and destination of one direction.
struct Tuple {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Tuple {
    /// Returns `None` for protocols that Services do not have, which need not have ports.
    fn parse(tuple: Attribute<'_>, message: Message<'_>) -> Result<Option<(Protocol, Self)>, Malformed> {
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
        let Some(protocol) = protocol.and_then(Protocol::from_number) else { return Ok(None) };
        let socket_address = |(address, port): (Option<IpAddr>, Option<u16>)| {
            let address = address.ok_or(message.missing(CTA_TUPLE_IP))?;
            Ok(SocketAddr::new(address, port.ok_or(message.missing(CTA_TUPLE_PROTO))?))
        };
        let source = socket_address((addresses.0, ports.0))?;
        let destination = socket_address((addresses.1, ports.1))?;
        Ok(Some((protocol, Self { source, destination })))
    }
}

/// Returns the state of a TCP connection; `None` for other protocols.
fn tcp_state(protocol_state: Attribute<'_>) -> Result<Option<TcpState>, Malformed> {
    let Some(tcp) = protocol_state.nested().first(CTA_PROTOINFO_TCP)? else { return Ok(None) };
    let state = tcp.nested().first(CTA_PROTOINFO_TCP_STATE)?.map(|state| state.u8()).transpose()?;
    Ok(state.map(|state| match state {
        TCP_CONNTRACK_SYN_SENT | TCP_CONNTRACK_SYN_SENT2 => TcpState::SynSent,
        TCP_CONNTRACK_LAST_ACK | TCP_CONNTRACK_TIME_WAIT => TcpState::Closed,
        TCP_CONNTRACK_CLOSE => TcpState::Reset,
        _ => TcpState::Open,
    }))
}

fn add_traffic(traffic: &mut Traffic, direction: Attribute<'_>) -> Result<(), Malformed> {
    for counter in direction.nested() {
        let counter = counter?;
        match counter.kind {
            CTA_COUNTERS_PACKETS => traffic.packets = traffic.packets.saturating_add(counter.u64_be()?),
            CTA_COUNTERS_BYTES => traffic.bytes = traffic.bytes.saturating_add(counter.u64_be()?),
            _ => {}
        }
    }
    Ok(())
}

/// Returns a time in nanoseconds since 1970; `None` for 0, which the kernel sends for times that it did not record.
fn since_epoch(nanoseconds: u64) -> Option<SystemTime> {
    (nanoseconds != 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))
}

/// Returns `AF_INET` or `AF_INET6`.
pub(super) fn address_family(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => libc::AF_INET as u8,
        IpFamily::V6 => libc::AF_INET6 as u8,
    }
}

// include/uapi/linux/netfilter/nfnetlink_conntrack.h
pub(super) const IPCTNL_MSG_CT_NEW: u8 = 0;
pub(crate) const CTA_TUPLE_ORIG: u16 = 1;
pub(crate) const CTA_TUPLE_REPLY: u16 = 2;
pub(crate) const CTA_STATUS: u16 = 3;
pub(crate) const CTA_PROTOINFO: u16 = 4;
pub(crate) const CTA_COUNTERS_ORIG: u16 = 9;
pub(crate) const CTA_COUNTERS_REPLY: u16 = 10;
pub(crate) const CTA_ID: u16 = 12;
pub(crate) const CTA_ZONE: u16 = 18;
pub(crate) const CTA_TIMESTAMP: u16 = 20;
pub(crate) const CTA_TIMESTAMP_EVENT: u16 = 27;
pub(crate) const CTA_COUNTERS_PACKETS: u16 = 1;
pub(crate) const CTA_COUNTERS_BYTES: u16 = 2;
pub(crate) const CTA_TIMESTAMP_START: u16 = 1;
pub(crate) const CTA_TUPLE_IP: u16 = 1;
pub(crate) const CTA_TUPLE_PROTO: u16 = 2;
pub(crate) const CTA_IP_V4_SRC: u16 = 1;
pub(crate) const CTA_IP_V4_DST: u16 = 2;
pub(crate) const CTA_IP_V6_SRC: u16 = 3;
pub(crate) const CTA_IP_V6_DST: u16 = 4;
pub(crate) const CTA_PROTO_NUM: u16 = 1;
pub(crate) const CTA_PROTO_SRC_PORT: u16 = 2;
pub(crate) const CTA_PROTO_DST_PORT: u16 = 3;
pub(crate) const CTA_PROTOINFO_TCP: u16 = 1;
pub(crate) const CTA_PROTOINFO_TCP_STATE: u16 = 1;

// include/uapi/linux/netfilter/nf_conntrack_common.h
pub(super) const IPS_SEEN_REPLY: u32 = 1 << 1;

// include/uapi/linux/netfilter/nf_conntrack_tcp.h
const TCP_CONNTRACK_SYN_SENT: u8 = 1;
const TCP_CONNTRACK_LAST_ACK: u8 = 6;
const TCP_CONNTRACK_TIME_WAIT: u8 = 7;
const TCP_CONNTRACK_CLOSE: u8 = 8;
const TCP_CONNTRACK_SYN_SENT2: u8 = 9;

#[cfg(test)]
mod tests;
