use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};

use serde::{Deserialize, Serialize};

/// An IP family. A dual-stack proxy runs one dataplane per family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IpFamily {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

impl IpFamily {
    /// Both families, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns `IPv4` or `IPv6`, as in the Kubernetes API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns `127.0.0.1` or `::1`.
    pub fn localhost(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// Returns the network of the loopback addresses.
    pub fn loopback(self) -> IpNet {
        let prefix_len = if self == Self::V4 { 8 } else { 128 };
        IpNet::new_assert(self.localhost(), prefix_len).trunc()
    }

    /// Returns the index into arrays with one element per family.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Returns the networks that a range of addresses consists of; `None` if they are of two families.
pub fn networks(first: IpAddr, last: IpAddr) -> Option<IpSubnets> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => Some(Ipv4Subnets::new(first, last, 0).into()),
        (IpAddr::V6(first), IpAddr::V6(last)) => Some(Ipv6Subnets::new(first, last, 0).into()),
        _ => None,
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A transport protocol of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP, the default of the API.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// Returns the name in lower case, as in rules and chain hashes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// Returns the protocol with this IANA number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    /// Returns the IANA protocol number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not a protocol of Services.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported protocol {0:?} (want TCP, UDP or SCTP)")]
pub struct UnknownProtocol(pub String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    /// Parses `TCP`, `UDP` and `SCTP` in upper or lower case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "TCP" | "tcp" => Ok(Self::Tcp),
            "UDP" | "udp" => Ok(Self::Udp),
            "SCTP" | "sctp" => Ok(Self::Sctp),
            _ => Err(UnknownProtocol(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
