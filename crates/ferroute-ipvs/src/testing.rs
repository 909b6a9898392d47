//! The bodies of fuzz targets.

use ferroute_core::IpFamily;
use ferroute_netlink::{
    Message, Messages,
    ipset::*,
    nfnetlink,
    testing::{Bytes, Content},
};

use crate::{
    device,
    plan::SetKind,
    servers::message::{self as servers, *},
    sets::message as sets,
};

/// Parses the messages of a datagram as answers of every kind, which must not panic.
pub fn parse_messages(datagram: &[u8]) {
    for message in Messages::new(datagram) {
        let Ok(message) = message else { break };
        let _ = servers::parse_family(message);
        let _ = servers::parse_server(message);
        let _ = device::parse_device(message, crate::DUMMY_DEVICE);
        let _ = device::parse_address(message, 1);
        for family in IpFamily::BOTH {
            let _ = servers::parse_real_server(message, family == IpFamily::V4);
            for kind in SetKind::ALL {
                let _ = sets::parse_header(message);
                let _ = sets::parse_entries(message, kind, family);
            }
        }
    }
}

/// Reads these bytes as messages about virtual servers, real servers, ipsets and devices of other programs.
///
/// # Panics
///
/// If a message is an error, which would make a sync fail.
pub fn read_foreign_objects(bytes: &mut Bytes<'_>) {
    const NUMBER: Content = Content::Number(4);
    let server = [(
        IPVS_CMD_ATTR_SERVICE,
        Content::Nest(&[
            (IPVS_SVC_ATTR_AF, Content::Number(2)),
            (IPVS_SVC_ATTR_PROTOCOL, Content::Number(2)),
            (IPVS_SVC_ATTR_ADDR, Content::Number(16)),
            (IPVS_SVC_ATTR_PORT, Content::Number(2)),
            (IPVS_SVC_ATTR_SCHED_NAME, Content::Bytes),
            (IPVS_SVC_ATTR_FLAGS, Content::Number(8)),
            (IPVS_SVC_ATTR_TIMEOUT, NUMBER),
        ]),
    )];
    let real = [(
        IPVS_CMD_ATTR_DEST,
        Content::Nest(&[
            (IPVS_DEST_ATTR_ADDR, Content::Number(16)),
            (IPVS_DEST_ATTR_PORT, Content::Number(2)),
            (IPVS_DEST_ATTR_ADDR_FAMILY, Content::Number(2)),
            (IPVS_DEST_ATTR_FWD_METHOD, NUMBER),
            (IPVS_DEST_ATTR_WEIGHT, NUMBER),
            (IPVS_DEST_ATTR_ACTIVE_CONNS, NUMBER),
            (IPVS_DEST_ATTR_INACT_CONNS, NUMBER),
        ]),
    )];
    let set = [
        (IPSET_ATTR_TYPENAME, Content::Bytes),
        (IPSET_ATTR_FAMILY, Content::Number(1)),
        (IPSET_ATTR_DATA, Content::Nest(&[(IPSET_ATTR_MAXELEM, NUMBER)])),
    ];
    let link = [
        (libc::IFLA_IFALIAS, Content::Bytes),
        (libc::IFLA_LINKINFO, Content::Nest(&[(libc::IFLA_INFO_KIND, Content::Bytes)])),
    ];
    let messages = [
        bytes.message(0, GENL_HDRLEN, &server, &[]),
        bytes.message(0, GENL_HDRLEN, &real, &[]),
        bytes.message(0, nfnetlink::HEADER_LENGTH, &[], &set),
        bytes.message(0, device::LINK_HEADER, &[], &link),
    ]
    .concat();
    let messages: Vec<Message<'_>> = Messages::new(&messages).map(|message| message.expect("valid")).collect();
    let [server, real, set, link] = messages.try_into().expect("four messages");
    assert!(servers::parse_server(server).is_ok(), "{server:?}");
    assert!([true, false].map(|is_ipv4| servers::parse_real_server(real, is_ipv4).is_ok()) == [true; 2], "{real:?}");
    assert!(sets::parse_header(set).is_ok(), "{set:?}");
    assert!(device::parse_device(link, crate::DUMMY_DEVICE).is_ok(), "{link:?}");
}
