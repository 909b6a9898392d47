use ferroute_core::Method;

use super::RealServers;

/// A scheduler of the kernel that a Service uses in place of the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// `wrr`: real servers in turn, in proportion to their weights.
    RoundRobin,
    /// `wlc`: the real server with the fewest connections relative to its weight.
    LeastConnections,
    /// `mh`: Maglev hashing of the client's address. Unlike with `sh`, adding or removing a real server moves few
    /// clients, and nodes with the same real servers choose the same one for most clients.
    SourceHash,
    /// `mh` with the flag `mh-port`: of the client's address and port.
    SourcePortHash,
}

impl Scheduler {
    /// All schedulers.
    pub const ALL: [Self; 4] = [Self::RoundRobin, Self::LeastConnections, Self::SourceHash, Self::SourcePortHash];

    /// Returns the kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "wrr",
            Self::LeastConnections => "wlc",
            Self::SourceHash | Self::SourcePortHash => "mh",
        }
    }

    /// Returns the scheduler of a method.
    pub(super) fn of_method(method: Method) -> Option<Self> {
        match method {
            Method::Random => None,
            Method::RoundRobin => Some(Self::RoundRobin),
            Method::SourceHash => Some(Self::SourceHash),
            Method::SourcePortHash => Some(Self::SourcePortHash),
            Method::LeastConnections => Some(Self::LeastConnections),
        }
    }

    /// Returns the scheduler of real servers whose Service requests no method, if they have weights that the configured
    /// scheduler ignores: its counterpart that uses weights.
    pub(super) fn with_weights(configured: &str, real_servers: &RealServers) -> Option<Self> {
        let counterpart = match configured {
            "rr" => Self::RoundRobin,
            "lc" => Self::LeastConnections,
            _ => return None,
        };
        real_servers.has_weights().then_some(counterpart)
    }
}
