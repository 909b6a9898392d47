use std::{fmt, net::IpAddr, str::FromStr};

/// IPv4 or IPv6. A dual-stack proxy is two proxies side by side, one per family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both families, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family that `address` belongs to.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// As Kubernetes spells it: `IPv4` or `IPv6`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Position in an array that holds one value per family.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Transport protocol of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP, the default.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Lower case, as rules and chain hashes spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// IANA protocol number.
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

/// The text is not the name of a protocol that Services know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported protocol {0:?} (want TCP, UDP or SCTP)")]
pub struct UnknownProtocol(pub String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    /// Reads `TCP`, `UDP` and `SCTP` in either case.
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
