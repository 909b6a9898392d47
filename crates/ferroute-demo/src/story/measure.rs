//! Makes the connections.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use ferroute_core::Protocol;

use super::flows::Flow;
use crate::{
    http,
    net::{Namespace, NamespaceError},
    pod::Sighting,
};

/// What became of a flow's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) tried: usize,
    /// How many each pod answered, by its short name.
    pub(crate) pods: BTreeMap<String, usize>,
    /// How many came from each address, as the pods see it.
    pub(crate) sources: BTreeMap<IpAddr, usize>,
    /// How many failed, by reason.
    pub(crate) failures: BTreeMap<String, usize>,
}

impl Tally {
    fn add(&mut self, outcome: io::Result<Sighting>) {
        self.tried += 1;
        match outcome {
            Ok(Sighting { pod, client, address: _ }) => {
                *self.pods.entry(pod).or_default() += 1;
                *self.sources.entry(client.ip()).or_default() += 1;
            }
            Err(error) => *self.failures.entry(describe(&error)).or_default() += 1,
        }
    }
}

/// Makes so many connections, one after the other, each from a port of its own.
pub(crate) fn measure(client: &Namespace, flow: &Flow, count: usize) -> Result<Tally, NamespaceError> {
    client.run(|| {
        let mut tally = Tally::default();
        for _ in 0..count {
            tally.add(match flow.protocol {
                Protocol::Udp => ask_udp(flow.destination),
                _ => ask_tcp(flow.destination),
            });
            // One that cannot work need not be tried a hundred times.
            if tally.pods.is_empty() && tally.tried >= HOPELESS {
                break;
            }
        }
        tally
    })
}

fn ask_tcp(destination: SocketAddr) -> io::Result<Sighting> {
    Ok(serde_json::from_slice(&http::get(destination, "/json", TIMEOUT)?.body)?)
}

fn ask_udp(destination: SocketAddr) -> io::Result<Sighting> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect(destination)?;
    socket.send(b"/json")?;
    let mut buffer = [0; 1024];
    let length = socket.recv(&mut buffer)?;
    Ok(serde_json::from_slice(&buffer[..length])?)
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "refused".into(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer".into(),
        _ => error.to_string(),
    }
}

/// Everything is on one machine.
const TIMEOUT: Duration = Duration::from_secs(2);

/// After so many failures and no success at all there will be none.
const HOPELESS: usize = 3;
