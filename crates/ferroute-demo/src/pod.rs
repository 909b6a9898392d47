//! What runs in the demo's pods: a small server that tells who asked, and where the question arrived.
//!
//! TCP ports speak HTTP/1.1: every path is answered by a line for people, `/json` by the same for programs. UDP ports
//! send every datagram back, with the line before it; the datagram `/json` is answered like the path.

mod serve;
mod sighting;

use std::{io, io::Write, net::IpAddr, str::FromStr, time::Duration};

use ferroute_core::Protocol;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use sighting::Sighting;

/// A port to listen on, like `80/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    /// The port number.
    pub(crate) port: u16,
    /// TCP or UDP.
    pub(crate) protocol: Protocol,
}

/// Not a port to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid port {0:?} (want one like 80/tcp or 53/udp)")]
pub(crate) struct InvalidListen(String);

/// A pod's server could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    /// There is no runtime, or no way to hear signals.
    #[error("cannot set up the pod")]
    Setup(#[source] io::Error),
    /// A port is taken, or an address not there.
    #[error("cannot listen on {address} port {port}/{protocol}")]
    Listen {
        /// The address.
        address: IpAddr,
        /// The port number.
        port: u16,
        /// Its protocol.
        protocol: Protocol,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Serves as the pod `name` until a signal asks to stop. Says [`READY`] on standard output when all ports are open.
///
/// After the signal it serves for another moment, as a well-behaved pod does, because proxies need that moment to
/// learn that it is about to go.
///
/// # Errors
///
/// When a port cannot be opened.
pub(crate) fn run(name: &str, addresses: &[IpAddr], ports: &[Listen]) -> Result<(), PodError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(PodError::Setup)?;
    runtime.block_on(async {
        let mut stop = signal(SignalKind::terminate()).map_err(PodError::Setup)?;
        for port in ports {
            serve::listen(name, addresses, *port).await?;
        }
        // Whoever started the pod may have stopped listening, which is no reason not to serve.
        let _ = writeln!(io::stdout(), "{READY}");
        stop.recv().await;
        tokio::time::sleep(GRACE).await;
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

/// What a pod says when it takes connections.
pub(crate) const READY: &str = "ready";

/// How long a pod serves on after it was asked to stop.
const GRACE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
