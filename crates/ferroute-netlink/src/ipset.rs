//! Messages for ipsets (`include/uapi/linux/netfilter/ipset/ip_set.h`). Numbers in attributes require the flag
//! [`NLA_F_NET_BYTEORDER`](crate::attribute_flags::NLA_F_NET_BYTEORDER).

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

// Commands.

/// Creates a set.
pub const IPSET_CMD_CREATE: u8 = 2;
/// Destroys a set.
pub const IPSET_CMD_DESTROY: u8 = 3;
/// Exchanges the entries of two sets.
pub const IPSET_CMD_SWAP: u8 = 6;
/// Lists sets with their entries.
pub const IPSET_CMD_LIST: u8 = 7;
/// Adds an entry.
pub const IPSET_CMD_ADD: u8 = 9;
/// Deletes an entry.
pub const IPSET_CMD_DEL: u8 = 10;
/// Tests whether a set has an entry.
pub const IPSET_CMD_TEST: u8 = 11;
/// Returns the supported revisions of a type.
pub const IPSET_CMD_TYPE: u8 = 13;
/// Returns the number of the set with a name. Requires version 7 of the protocol.
pub const IPSET_CMD_GET_BYNAME: u8 = 14;
/// Returns the name of the set with a number. Requires version 7 of the protocol.
pub const IPSET_CMD_GET_BYINDEX: u8 = 15;

// Attributes of messages.

/// The version of the protocol, in all messages.
pub const IPSET_ATTR_PROTOCOL: u16 = 1;
/// The name of a set.
pub const IPSET_ATTR_SETNAME: u16 = 2;
/// The name of a type.
pub const IPSET_ATTR_TYPENAME: u16 = 3;
/// The second set of `IPSET_CMD_SWAP`.
pub const IPSET_ATTR_SETNAME2: u16 = 3;
/// The revision of a type.
pub const IPSET_ATTR_REVISION: u16 = 4;
/// The address family of a set.
pub const IPSET_ATTR_FAMILY: u16 = 5;
/// Flags of a command.
pub const IPSET_ATTR_FLAGS: u16 = 6;
/// The settings of a set, or an entry.
pub const IPSET_ATTR_DATA: u16 = 7;
/// Several entries.
pub const IPSET_ATTR_ADT: u16 = 8;
/// The number of a set.
pub const IPSET_ATTR_INDEX: u16 = 11;

// Attributes within `IPSET_ATTR_DATA` and `IPSET_ATTR_ADT`.

/// The first address of an entry.
pub const IPSET_ATTR_IP: u16 = 1;
/// The last address of a range.
pub const IPSET_ATTR_IP_TO: u16 = 2;
/// The length of the first network.
pub const IPSET_ATTR_CIDR: u16 = 3;
/// A port, or the first one of a range.
pub const IPSET_ATTR_PORT: u16 = 4;
/// The last port of a range.
pub const IPSET_ATTR_PORT_TO: u16 = 5;
/// A protocol.
pub const IPSET_ATTR_PROTO: u16 = 7;
/// Flags of a set or an entry.
pub const IPSET_ATTR_CADT_FLAGS: u16 = 8;
/// A packet mark.
pub const IPSET_ATTR_MARK: u16 = 10;
/// The mask of packet marks, in the settings of a set.
pub const IPSET_ATTR_MARKMASK: u16 = 11;
/// The bits of addresses that count, in the settings of a set.
pub const IPSET_ATTR_BITMASK: u16 = 12;
/// The initial size of the hash table, in the settings of a set.
pub const IPSET_ATTR_HASHSIZE: u16 = 18;
/// The name of another set, in an entry of a set of sets.
pub const IPSET_ATTR_NAME: u16 = 18;
/// The maximum number of entries, in the settings of a set.
pub const IPSET_ATTR_MAXELEM: u16 = 19;
/// The length of networks, in the settings of a set.
pub const IPSET_ATTR_NETMASK: u16 = 20;
/// The second address of an entry.
pub const IPSET_ATTR_IP2: u16 = 20;
/// The length of the second network.
pub const IPSET_ATTR_CIDR2: u16 = 21;
/// The name of an interface.
pub const IPSET_ATTR_IFACE: u16 = 23;
/// The mark that entries assign to packets, and its mask.
pub const IPSET_ATTR_SKBMARK: u16 = 27;

// Attributes within addresses.

/// An IPv4 address, within an attribute of an address.
pub const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
/// An IPv6 address, likewise.
pub const IPSET_ATTR_IPADDR_IPV6: u16 = 2;

/// Flag of `IPSET_CMD_LIST`: without entries.
pub const IPSET_FLAG_LIST_HEADER: u32 = 1 << 2;
/// Flag of an entry: its interface is a port of a bridge.
pub const IPSET_FLAG_PHYSDEV: u32 = 1 << 1;
/// Flag of an entry: it is an exception.
pub const IPSET_FLAG_NOMATCH: u32 = 1 << 2;
/// Flag of an entry: its interface is a prefix.
pub const IPSET_FLAG_IFACE_WILDCARD: u32 = 1 << 7;

/// A rule refers to the set.
pub const IPSET_ERR_BUSY: i32 = 4100;
/// The types of two sets cannot be exchanged, because rules match them differently.
pub const IPSET_ERR_TYPE_MISMATCH: i32 = 4102;
/// The set or entry exists, or does not.
pub const IPSET_ERR_EXIST: i32 = 4103;
/// The set has its maximum number of entries.
pub const IPSET_ERR_HASH_FULL: i32 = 4352;

/// Version 6 of the protocol, which every kernel supports.
pub const IPSET_PROTOCOL_MIN: u8 = 6;
/// Version 7, which only adds commands.
pub const IPSET_PROTOCOL: u8 = 7;
