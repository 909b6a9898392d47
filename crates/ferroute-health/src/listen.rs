use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use ferroute_core::{IpFamily, NodePortMatch};
use socket2::{Domain, Socket, Type};

/// On which of the host's addresses to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListenScope {
    /// All of both families, through one socket.
    All,
    /// All of one family.
    AllOf(IpFamily),
    /// This one.
    One(IpAddr),
}

/// A port could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}")]
pub struct ListenError {
    /// Where.
    pub address: SocketAddr,
    /// What came in the way.
    #[source]
    pub source: io::Error,
}

impl ListenScope {
    /// What a configured address means: in Go, and so in kube-proxy, an unspecified address of either family stands for
    /// all of both.
    pub fn of(address: IpAddr) -> Self {
        if address.is_unspecified() { Self::All } else { Self::One(address) }
    }

    /// Where health-check node ports answer: on the addresses that node ports answer on in the families that are
    /// served.
    pub fn of_node_ports(matches: &[(IpFamily, NodePortMatch)]) -> Vec<Self> {
        if IpFamily::BOTH.into_iter().all(|family| matches.contains(&(family, NodePortMatch::AnyLocal))) {
            return vec![Self::All];
        }
        let mut scopes: Vec<Self> = matches
            .iter()
            .flat_map(|(family, addresses)| match addresses {
                NodePortMatch::AnyLocal => vec![Self::AllOf(*family)],
                NodePortMatch::Addresses(addresses) => addresses.iter().copied().map(Self::One).collect(),
            })
            .collect();
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    }

    /// The address to bind.
    pub fn with_port(self, port: u16) -> SocketAddr {
        let address = match self {
            Self::All | Self::AllOf(IpFamily::V6) => Ipv6Addr::UNSPECIFIED.into(),
            Self::AllOf(IpFamily::V4) => Ipv4Addr::UNSPECIFIED.into(),
            Self::One(address) => address,
        };
        SocketAddr::new(address, port)
    }
}

impl fmt::Display for ListenScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all addresses"),
            Self::AllOf(family) => write!(f, "all {family} addresses"),
            Self::One(address) => address.fmt(f),
        }
    }
}

/// Opens a TCP port, on a host without IPv6 that of IPv4 alone where all addresses are asked for.
///
/// A port that another program has just closed can be opened at once (`SO_REUSEADDR`).
pub fn listen(scope: ListenScope, port: u16) -> Result<TcpListener, ListenError> {
    match open(scope, port) {
        // A kernel without IPv6 at all; one where it is merely switched off takes the socket.
        Err(error) if scope == ListenScope::All && error.source.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            open(ListenScope::AllOf(IpFamily::V4), port)
        }
        result => result,
    }
}

fn open(scope: ListenScope, port: u16) -> Result<TcpListener, ListenError> {
    let address = scope.with_port(port);
    let socket = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // The system's default may be either.
            socket.set_only_v6(scope != ListenScope::All)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    socket().map_err(|source| ListenError { address, source })
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

#[cfg(test)]
mod tests;
