//! Numbers of transport protocols.

use ferroute_core::Protocol;

use crate::ProtocolMatch;

/// Returns a protocol's number; `None` for unknown names.
pub(super) fn number(protocol: &ProtocolMatch) -> Option<u8> {
    match protocol {
        ProtocolMatch::Transport(protocol) => Some(protocol.number()),
        ProtocolMatch::Other(name) => {
            NAMES.iter().find(|(_, known)| *known == &**name).map(|(number, _)| *number).or_else(|| name.parse().ok())
        }
    }
}

/// Returns the protocol with a number.
pub(super) fn from_number(number: u8) -> ProtocolMatch {
    let name = || match NAMES.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => (*name).into(),
        None => number.to_string().into(),
    };
    Protocol::from_number(number).map_or_else(|| ProtocolMatch::Other(name()), ProtocolMatch::Transport)
}

/// Protocols, other than those of Services, that `iptables-save` prints by name.
const NAMES: [(u8, &str); 11] = [
    (1, "icmp"),
    (2, "igmp"),
    (33, "dccp"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (58, "ipv6-icmp"),
    (103, "pim"),
    (108, "ipcomp"),
    (112, "vrrp"),
    (136, "udplite"),
];
