//! The server in the demo's pods: it reports the client's and the local address of each connection.
//!
//! TCP ports serve HTTP/1.1: a line of text for every path, and JSON for `/json`. UDP ports echo every datagram after a line
//! of text, and respond to the datagram `/json` with JSON.

mod serve;

use std::{
    fmt,
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use ferroute_core::Protocol;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

/// A connection as the pod sees it, after all address translation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConnectionInfo {
    /// The pod's name.
    pub(crate) pod: String,
    /// The source of the connection.
    pub(crate) client: SocketAddr,
    /// The local address of the connection.
    pub(crate) address: SocketAddr,
}

impl fmt::Display for ConnectionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {} saw {} at {}", self.pod, self.client, self.address)
    }
}

/// A port to listen on, such as `80/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    /// The port number.
    pub(crate) port: u16,
    /// TCP or UDP.
    pub(crate) protocol: Protocol,
}

/// An invalid port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid port {0:?} (want one like 80/tcp or 53/udp)")]
pub(crate) struct InvalidListen(String);

/// An error of a pod's server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    /// The runtime or the signal handler could not be set up.
    #[error("cannot set up the pod")]
    Setup(#[source] io::Error),
    /// A port could not be opened.
    #[error("cannot listen on {address} port {port}/{protocol}")]
    Listen {
        /// The address.
        address: IpAddr,
        /// The port number.
        port: u16,
        /// The protocol.
        protocol: Protocol,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Runs the pod `name` until SIGTERM. Prints [`READY`] when all ports are open.
///
/// After the signal, the pod serves for another second, in which proxies remove its endpoints.
///
/// # Errors
///
/// If a port cannot be opened.
pub(crate) fn run(name: &str, addresses: &[IpAddr], ports: &[Listen]) -> Result<(), PodError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(PodError::Setup)?;
    runtime.block_on(async {
        let mut stop = signal(SignalKind::terminate()).map_err(PodError::Setup)?;
        for port in ports {
            serve::listen(name, addresses, *port).await?;
        }
        // The supervisor may have closed the pipe.
        let _ = writeln!(io::stdout(), "{READY}");
        stop.recv().await;
        tokio::time::sleep(GRACE_PERIOD).await;
        Ok(())
    })
}

impl FromStr for Listen {
    type Err = InvalidListen;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidListen(text.to_owned());
        let (port, protocol) = text.split_once('/').ok_or_else(invalid)?;
        let port = port.parse().map_err(|_| invalid())?;
        match protocol.parse().map_err(|_| invalid())? {
            Protocol::Sctp => Err(invalid()),
            protocol => Ok(Self { port, protocol }),
        }
    }
}

/// The line that a pod prints when all ports are open.
pub(crate) const READY: &str = "ready";

/// The time that a pod continues to serve after SIGTERM.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
