use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use ferroute_core::{IpFamily, NodePortMatch};
use socket2::{Domain, Socket, Type};

/// Addresses of the host to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListenScope {
    /// All addresses of both families, through one socket.
    Any,
    /// All addresses of one family.
    AnyOf(IpFamily),
    /// One address.
    Address(IpAddr),
    /// One address that the host may lack: connections arrive once it is an address of the host, or routed to it.
    Floating(IpAddr),
}

/// Reason why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    /// Address and port.
    pub address: SocketAddr,
    /// Error of the kernel.
    #[source]
    pub source: io::Error,
}

impl ListenScope {
    /// Returns the scope of a configured bind address. As in Go, and thus in kube-proxy, an unspecified address of either
    /// family means all addresses of both.
    pub fn from_bind_address(address: IpAddr) -> Self {
        if address.is_unspecified() { Self::Any } else { Self::Address(address) }
    }

    /// Returns the scopes of health-check node ports: the node port addresses of the served families.
    pub fn for_node_ports(matches: &[(IpFamily, NodePortMatch)]) -> Vec<Self> {
        if IpFamily::BOTH.into_iter().all(|family| matches.contains(&(family, NodePortMatch::AnyLocal))) {
            return vec![Self::Any];
        }
        let mut scopes: Vec<Self> = matches
            .iter()
            .flat_map(|(family, addresses)| match addresses {
                NodePortMatch::AnyLocal => vec![Self::AnyOf(*family)],
                NodePortMatch::Addresses(addresses) => addresses.iter().copied().map(Self::Address).collect(),
            })
            .collect();
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    }

    /// Returns the scope of an address that the host may lack, unless it is already covered by `scopes`.
    pub(crate) fn for_floating(address: IpAddr, scopes: &[Self]) -> Option<Self> {
        let same = [Self::Any, Self::AnyOf(IpFamily::of(address)), Self::Address(address)];
        (!scopes.iter().any(|scope| same.contains(scope))).then_some(Self::Floating(address))
    }

    /// Returns the socket address to bind.
    pub fn with_port(self, port: u16) -> SocketAddr {
        let address = match self {
            Self::Any | Self::AnyOf(IpFamily::V6) => Ipv6Addr::UNSPECIFIED.into(),
            Self::AnyOf(IpFamily::V4) => Ipv4Addr::UNSPECIFIED.into(),
            Self::Address(address) | Self::Floating(address) => address,
        };
        SocketAddr::new(address, port)
    }
}

/// Opens a TCP port. On a kernel without IPv6, [`ListenScope::Any`] opens the IPv4 port alone.
///
/// A port that another program has just closed can be opened immediately (`SO_REUSEADDR`).
pub fn listen(scope: ListenScope, port: u16) -> Result<TcpListener, ListenError> {
    match open(scope, port) {
        // Fails only on a kernel without IPv6; if IPv6 is disabled by sysctl, the socket can be opened.
        Err(error) if scope == ListenScope::Any && error.source.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            open(ListenScope::AnyOf(IpFamily::V4), port)
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
            // The default depends on net.ipv6.bindv6only.
            socket.set_only_v6(scope != ListenScope::Any)?;
        }
        if let ListenScope::Floating(address) = scope {
            match IpFamily::of(address) {
                IpFamily::V4 => socket.set_freebind_v4(true)?,
                IpFamily::V6 => socket.set_freebind_v6(true)?,
            }
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    socket().map_err(|source| ListenError { address, source })
}

/// Maximum length of the accept queue.
const BACKLOG: i32 = 128;

#[cfg(test)]
mod tests;
