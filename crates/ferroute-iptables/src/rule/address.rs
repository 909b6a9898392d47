use std::{fmt, net::IpAddr};

use ferroute_core::Protocol;
use ipnet::IpNet;

use crate::spelling;

/// Which addresses match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AddressMatch {
    /// Those of a network; its host bits are zero.
    Net(IpNet),
    /// Those that have these bits under a mask that is no prefix. kube-proxy never writes it.
    Masked {
        /// The bits, zero outside of the mask.
        address: IpAddr,
        /// The mask.
        mask: IpAddr,
    },
}

impl AddressMatch {
    /// Addresses within `net`; `None` if it holds them all, because a rule says nothing then.
    pub fn within(net: IpNet) -> Option<Self> {
        (net.prefix_len() > 0).then(|| Self::Net(net.trunc()))
    }

    /// Whether `address` matches. One of the other family never does.
    pub fn contains(&self, address: IpAddr) -> bool {
        match *self {
            Self::Net(net) => net.contains(&address),
            Self::Masked { address: bits, mask } => match (bits, mask, address) {
                (IpAddr::V4(bits), IpAddr::V4(mask), IpAddr::V4(address)) => {
                    u32::from(address) & u32::from(mask) == u32::from(bits)
                }
                (IpAddr::V6(bits), IpAddr::V6(mask), IpAddr::V6(address)) => {
                    u128::from(address) & u128::from(mask) == u128::from(bits)
                }
                _ => false,
            },
        }
    }
}

impl fmt::Display for AddressMatch {
    /// `10.0.0.0/8`, `fd00::1/128`, `10.0.0.1/255.0.0.255`: always with a length or mask.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => write!(f, "{}/{}", spelling::address(net.addr()), net.prefix_len()),
            Self::Masked { address, mask } => write!(f, "{}/{}", spelling::address(*address), spelling::address(*mask)),
        }
    }
}

/// Which interfaces match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterfaceMatch {
    /// The one with this name.
    Name(Box<str>),
    /// Those whose names start so; written with a `+` at the end.
    Prefix(Box<str>),
}

impl InterfaceMatch {
    /// Whether the interface called `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Name(wanted) => **wanted == *name,
            Self::Prefix(prefix) => name.starts_with(&**prefix),
        }
    }
}

impl fmt::Display for InterfaceMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Prefix(prefix) => write!(f, "{prefix}+"),
        }
    }
}

/// Which protocols match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolMatch {
    /// One that Services know.
    Transport(Protocol),
    /// Any other, as `iptables-save` spells it: `icmp`, `ipv6-icmp`, `41`.
    Other(Box<str>),
}

impl fmt::Display for ProtocolMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(protocol) => f.write_str(protocol.as_str()),
            Self::Other(name) => f.write_str(name),
        }
    }
}
