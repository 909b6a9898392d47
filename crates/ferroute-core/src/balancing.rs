//! The method that chooses the endpoint of a new connection, per Service.

use std::{
    fmt,
    num::{NonZeroU16, NonZeroU32},
};

use serde::{Deserialize, Serialize};

/// Balancing of connections among the endpoints of a Service, as requested by its annotations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// Method; `None` for the default of the mode.
    pub method: Option<Method>,
    /// The size of the table of the methods that hash.
    pub table_size: TableSize,
    /// The failed connections for which an endpoint gets no connections for a while; TCP only. `None` for the default of
    /// the cluster, which [`BalancingDefaults`] replaces.
    pub passive_ejection: Option<Ejection>,
    /// Seconds in which a new endpoint reaches its full share of the connections.
    pub slow_start: Option<NonZeroU32>,
    /// Number of connections of an endpoint in the node's zone for each connection of an endpoint elsewhere.
    pub zone_weight: Option<NonZeroU16>,
    /// Seconds after which open connections to a terminating endpoint end; `None` if they may stay.
    pub drain_timeout: Option<NonZeroU32>,
}

/// Defaults for Services whose annotations do not set these values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalancingDefaults {
    /// Method; `None` for the default of the mode.
    pub method: Option<Method>,
    /// Whether connections without a reply eject an endpoint.
    pub passive_ejection: bool,
}

/// The failed connections for which an endpoint gets no connections for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ejection {
    /// None: no endpoint is ejected.
    Off,
    /// Those without a reply.
    Unanswered,
    /// Those without a reply, and those that the endpoint refuses with a reset.
    Refused,
}

/// The part of its weight with which an endpoint takes part: from 1 to 16 sixteenths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Share(u8);

/// A method that chooses the endpoint of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Any endpoint, each with the same probability.
    Random,
    /// In turn.
    RoundRobin,
    /// By a hash of the client's address: a client reaches the same endpoint through every node.
    SourceHash,
    /// By a hash of the client's address and port: a connection reaches the same endpoint through every node.
    SourcePortHash,
    /// The endpoint with the fewest connections.
    LeastConnections,
}

/// The number of positions of a hash table: a power of two from 1,024 to 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableSize(u32);

impl Balancing {
    /// Reports whether endpoints whose connections fail get no connections for a while.
    pub fn ejects(&self) -> bool {
        self.passive_ejection.is_some_and(|ejection| ejection != Ejection::Off)
    }

    /// Applies the defaults of the cluster.
    pub fn set_defaults(&mut self, defaults: &BalancingDefaults) {
        self.method = self.method.or(defaults.method);
        self.passive_ejection = self.passive_ejection.or(defaults.passive_ejection.then_some(Ejection::Unanswered));
    }
}

impl Ejection {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Off, Self::Unanswered, Self::Refused];

    /// Returns the value of the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "false",
            Self::Unanswered => "true",
            Self::Refused => "refused",
        }
    }
}

impl Share {
    /// The whole weight.
    pub const FULL: Self = Self(16);

    /// Returns a share of this many sixteenths; `None` for zero and for more than sixteen.
    pub fn new(sixteenths: u8) -> Option<Self> {
        (1..=Self::FULL.0).contains(&sixteenths).then_some(Self(sixteenths))
    }

    /// Returns the sixteenths.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Returns this share of another one, at least a sixteenth.
    #[must_use]
    pub fn of(self, other: Self) -> Self {
        let sixteenths = u16::from(self.0) * u16::from(other.0) / u16::from(Self::FULL.0);
        Self(u8::try_from(sixteenths).map_or(Self::FULL.0, |sixteenths| sixteenths.max(1)))
    }
}

impl TryFrom<u8> for Share {
    type Error = String;

    fn try_from(sixteenths: u8) -> Result<Self, String> {
        Self::new(sixteenths).ok_or_else(|| format!("invalid share {sixteenths} (want 1 to {})", Self::FULL.0))
    }
}

impl From<Share> for u8 {
    fn from(share: Share) -> Self {
        share.0
    }
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 5] =
        [Self::Random, Self::RoundRobin, Self::SourceHash, Self::SourcePortHash, Self::LeastConnections];

    /// Returns the name in annotations and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::SourceHash => "source-hash",
            Self::SourcePortHash => "source-port-hash",
            Self::LeastConnections => "least-connections",
        }
    }

    /// Returns the method with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }

    /// Returns the method that corresponds to a scheduler of the kernel's ipvs; `None` if none does.
    pub fn from_scheduler(name: &str) -> Option<Self> {
        match name {
            "rr" | "wrr" => Some(Self::RoundRobin),
            "lc" | "wlc" => Some(Self::LeastConnections),
            "sh" => Some(Self::SourceHash),
            "mh" => Some(Self::SourcePortHash),
            _ => None,
        }
    }

    /// Reports whether the method looks up a hash in a table of endpoints.
    pub fn hashes(self) -> bool {
        matches!(self, Self::SourceHash | Self::SourcePortHash)
    }
}

impl TableSize {
    /// All sizes.
    pub const ALL: [Self; 7] =
        [Self(1 << 10), Self(1 << 11), Self(1 << 12), Self(1 << 13), Self(1 << 14), Self(1 << 15), Self(1 << 16)];

    /// Returns a size; `None` if the number is not a valid size.
    pub fn new(size: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.0 == size)
    }

    /// Returns the smallest size that is at least `size`, or the largest.
    pub fn at_least(size: usize) -> Self {
        Self::ALL.into_iter().find(|known| known.get() >= size).unwrap_or(Self::MAX)
    }

    /// Returns the number of positions.
    pub fn get(self) -> usize {
        // At most 2¹⁶.
        self.0 as usize
    }

    /// The largest size.
    pub const MAX: Self = Self(1 << 16);
}

impl Default for TableSize {
    /// Returns the smallest size with which the shares of 100 endpoints differ by at most 3 %, and with which adding or
    /// removing an endpoint moves at most 1.25 times the unavoidable number of clients.
    fn default() -> Self {
        Self(1 << 15)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for TableSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
