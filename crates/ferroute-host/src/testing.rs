//! The bodies of fuzz targets.

use ferroute_core::{IpFamily, Protocol};
use ferroute_netlink::{
    Message, Messages, nfnetlink,
    testing::{Bytes, Content, Field},
};

use crate::{
    addresses,
    conntrack::{self, entry::*},
    counters, generation, listeners, local_peer, routes,
};

/// Parses the messages of a datagram as answers of every kind.
///
/// # Panics
///
/// If a conntrack entry was parsed without the tuple that identifies it: deleting such an entry would flush the table.
pub fn parse_messages(datagram: &[u8]) {
    for message in Messages::new(datagram) {
        let Ok(message) = message else { break };
        let _ = addresses::parse(message);
        let _ = counters::parse(message);
        let _ = generation::parse(message);
        let _ = listeners::parse(message);
        let _ = routes::parse_link(message);
        let _ = routes::parse_tunnel_device(message);
        let _ = routes::parse_route(message);
        for family in IpFamily::BOTH {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                conntrack::check_deletion(message, family, protocol);
            }
        }
    }
}

/// Reads messages for addresses, interfaces, routes, sockets and connections of other programs, and the names of their
/// sockets, which consist of these bytes.
///
/// # Panics
///
/// If a message is an error, which would make a sync fail.
pub fn read_foreign_objects(bytes: &mut Bytes<'_>) {
    const NUMBER: Content = Content::Number(4);
    let address =
        [(libc::IFA_ADDRESS, Content::Address), (libc::IFA_LOCAL, Content::Address), (libc::IFA_FLAGS, NUMBER)];
    let link = [
        (libc::IFLA_IFNAME, Content::Bytes),
        (libc::IFLA_MASTER, NUMBER),
        (libc::IFLA_GROUP, NUMBER),
        (libc::IFLA_LINKINFO, Content::Nest(&[(libc::IFLA_INFO_KIND, Content::Bytes)])),
        (libc::IFLA_IFALIAS, Content::Bytes),
    ];
    let route = [
        (libc::RTA_DST, Content::Address),
        (libc::RTA_TABLE, NUMBER),
        (libc::RTA_OIF, NUMBER),
        (libc::RTA_PREFSRC, Content::Address),
        (libc::RTA_PRIORITY, NUMBER),
        (libc::RTA_GATEWAY, Content::Address),
    ];
    const TUPLE: Content = Content::Whole(&[
        (CTA_TUPLE_IP, Content::Whole(&[(CTA_IP_V4_SRC, Content::Address), (CTA_IP_V4_DST, Content::Address)])),
        (
            CTA_TUPLE_PROTO,
            Content::Whole(&[
                (CTA_PROTO_NUM, Content::Number(1)),
                (CTA_PROTO_SRC_PORT, Content::Number(2)),
                (CTA_PROTO_DST_PORT, Content::Number(2)),
            ]),
        ),
    ]);
    let tuples = [(CTA_TUPLE_ORIG, TUPLE), (CTA_TUPLE_REPLY, TUPLE), (CTA_ID, NUMBER)];
    let connection = [
        (CTA_STATUS, NUMBER),
        (CTA_ZONE, Content::Number(2)),
        (
            CTA_PROTOINFO,
            Content::Nest(&[(CTA_PROTOINFO_TCP, Content::Nest(&[(CTA_PROTOINFO_TCP_STATE, Content::Number(1))]))]),
        ),
        (CTA_COUNTERS_ORIG, Content::Nest(&[(CTA_COUNTERS_BYTES, Content::Number(8))])),
        (CTA_TIMESTAMP, Content::Nest(&[(CTA_TIMESTAMP_START, Content::Number(8))])),
    ];
    let mut next = |kind, header, fields: &[Field]| bytes.message(kind, header, &[], fields);
    let messages = [
        next(libc::RTM_NEWADDR, addresses::IFADDRMSG_LENGTH, &address),
        next(libc::RTM_NEWLINK, routes::IFINFOMSG_LENGTH, &link),
        next(libc::RTM_NEWROUTE, routes::RTMSG_LENGTH, &route),
        next(0, listeners::INET_DIAG_MSG_LENGTH, &[]),
        bytes.message(0, nfnetlink::HEADER_LENGTH, &tuples, &connection),
    ]
    .concat();
    let messages: Vec<Message<'_>> = Messages::new(&messages).map(|message| message.expect("valid")).collect();
    let [address, link, route, socket, connection] = messages.try_into().expect("five messages");
    assert!(addresses::parse(address).is_ok() && routes::parse_address(address).is_ok(), "{address:?}");
    assert!(routes::parse_link(link).is_ok() && routes::parse_interface(link).is_ok(), "{link:?}");
    assert!(routes::parse_tunnel_device(link).is_ok(), "{link:?}");
    assert!(routes::parse_route(route).is_ok() && routes::parse_next_hops(route).is_ok(), "{route:?}");
    assert!(listeners::parse(socket).is_ok(), "{socket:?}");
    assert!(ListedEntry::parse_any(connection).is_ok(), "{connection:?}");
    let line = bytes.rest();
    assert!(local_peer::socket_name(line, "peer").is_none_or(|name| name.starts_with(b"peer")), "{line:?}");
}
