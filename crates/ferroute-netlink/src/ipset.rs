//! Messages about ipsets (`include/uapi/linux/netfilter/ipset/ip_set.h`), as far as several crates use them. Numbers in
//! attributes require the flag [`NLA_F_NET_BYTEORDER`](crate::attribute_flags::NLA_F_NET_BYTEORDER).

use std::net::IpAddr;

use crate::{Attributes, Error, nfnetlink};

/// The header of all messages.
pub const HEADER: [u8; nfnetlink::HEADER_LENGTH] = nfnetlink::header(libc::AF_UNSPEC as u8, 0, 0);

/// Returns the message type of a command.
pub const fn command(command: u8) -> u16 {
    nfnetlink::kind(nfnetlink::NFNL_SUBSYS_IPSET, command)
}

/// Returns the address in the attributes of an `IPSET_ATTR_IP` or a similar attribute; `None` if there is none.
///
/// # Errors
/// The attributes are malformed.
pub fn parse_address(attributes: Attributes<'_>) -> Result<Option<IpAddr>, Error> {
    for attribute in attributes {
        let attribute = attribute?;
        if [IPSET_ATTR_IPADDR_IPV4, IPSET_ATTR_IPADDR_IPV6].contains(&attribute.kind) {
            return Ok(Some(attribute.ip()?));
        }
    }
    Ok(None)
}

/// Returns the number of the set with a name. Requires version 7 of the protocol.
pub const IPSET_CMD_GET_BYNAME: u8 = 14;
/// Returns the name of the set with a number. Requires version 7 of the protocol.
pub const IPSET_CMD_GET_BYINDEX: u8 = 15;

/// The version of the protocol, in all messages.
pub const IPSET_ATTR_PROTOCOL: u16 = 1;
/// The name of a set.
pub const IPSET_ATTR_SETNAME: u16 = 2;
/// The number of a set.
pub const IPSET_ATTR_INDEX: u16 = 11;

/// An IPv4 address, within an attribute of an address.
pub const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
/// An IPv6 address, likewise.
pub const IPSET_ATTR_IPADDR_IPV6: u16 = 2;

/// Version 6 of the protocol, which every kernel supports.
pub const IPSET_PROTOCOL_MIN: u8 = 6;
/// Version 7, which only adds commands.
pub const IPSET_PROTOCOL: u8 = 7;
