//! Translations of addresses and ports in rules of other programs.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{
    Name,
    foreign::{Elements, Operand, key_text, set_text},
};

/// A kind of translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatKind {
    /// `dnat`.
    Destination,
    /// `snat`.
    Source,
    /// `redirect`.
    Redirect,
}

/// What an address and a port are translated to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatTarget {
    /// Constants.
    Constants {
        /// The first and the last address; `None` keeps the address.
        addresses: Option<(IpAddr, IpAddr)>,
        /// The first and the last port; `None` keeps the port.
        ports: Option<(u16, u16)>,
    },
    /// `prefix`: a network, which keeps the host part of the address.
    Network(IpNet),
    /// The data of a map.
    Map {
        /// The key.
        key: Vec<Operand>,
        /// Map from keys of this type to addresses, ports, both, or networks.
        map: Name,
        /// The address or port that is not in the data of `map`.
        other: Option<NatPart>,
        /// `prefix`: the data are networks.
        prefix: bool,
    },
}

/// The part of a translation that is not in the data of its map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatPart {
    /// An address.
    Address(IpAddr),
    /// A port.
    Port(u16),
    /// The port in the data of another map.
    PortOf {
        /// The fields of the key.
        key: Vec<Operand>,
        /// The map.
        map: Name,
    },
}

impl NatKind {
    /// Returns the statement.
    pub fn name(self) -> &'static str {
        match self {
            Self::Destination => "dnat",
            Self::Source => "snat",
            Self::Redirect => "redirect",
        }
    }
}

impl NatTarget {
    /// Returns the statement in `nft` syntax, without flags.
    pub(super) fn text(&self, kind: NatKind, family: IpFamily, elements: &Elements<'_>) -> String {
        let name = kind.name();
        match self {
            Self::Constants { addresses, ports } => match constants_text(*addresses, *ports) {
                None => name.to_owned(),
                Some(to) => format!("{name} to {to}"),
            },
            Self::Network(net) => format!("{name} prefix to {net}"),
            Self::Map { key, map, other, prefix } => {
                let ip = super::family_name(family);
                let of = if kind == NatKind::Redirect { String::new() } else { format!(" {ip}") };
                let prefix = if *prefix { " prefix" } else { "" };
                let set = |map: &Name, key: &[Operand]| set_text(map, key, family, elements);
                let (before, after) = match other {
                    None => (String::new(), String::new()),
                    Some(NatPart::Address(IpAddr::V6(address))) => (format!("[{address}]:"), String::new()),
                    Some(NatPart::Address(address)) => (format!("{address}:"), String::new()),
                    Some(NatPart::Port(port)) => (String::new(), format!(":{port}")),
                    Some(NatPart::PortOf { key, map }) => {
                        (String::new(), format!(":{} map {}", key_text(key, family), set(map, key)))
                    }
                };
                format!("{name}{of}{prefix} to {before}{} map {}{after}", key_text(key, family), set(map, key))
            }
        }
    }
}

fn constants_text(addresses: Option<(IpAddr, IpAddr)>, ports: Option<(u16, u16)>) -> Option<String> {
    Some(match (addresses, ports) {
        (None, None) => return None,
        (None, Some(ports)) => format!(":{}", range_text(ports)),
        (Some(addresses), None) => range_text(addresses),
        (Some((first, last)), Some((from, to))) if first == last && from == to => {
            SocketAddr::new(first, from).to_string()
        }
        (Some(addresses @ (IpAddr::V6(_), _)), Some(ports)) => {
            format!("[{}]:{}", range_text(addresses), range_text(ports))
        }
        (Some(addresses), Some(ports)) => format!("{}:{}", range_text(addresses), range_text(ports)),
    })
}

pub(super) fn range_text<T: fmt::Display + PartialEq>((first, last): (T, T)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// The flags of translations that `nft` prints as words (`NF_NAT_RANGE_*` of `include/uapi/linux/netfilter/nf_nat.h`).
pub const NAT_FLAGS: [(u32, &str); 3] = [(1 << 2, "random"), (1 << 4, "fully-random"), (1 << 3, "persistent")];

/// Returns the words of flags, after a space.
pub(super) fn flags_text(flags: u32) -> String {
    let words = NAT_FLAGS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, word)| *word);
    let words = words.collect::<Vec<_>>().join(",");
    if words.is_empty() { words } else { format!(" {words}") }
}
