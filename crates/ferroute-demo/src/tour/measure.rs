//! Connects to Services and counts the replies.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use ferroute_core::Protocol;

use crate::{
    http,
    net::{Namespace, NamespaceError},
    pod::ConnectionInfo,
};

/// The results of a flow's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// The number of connections.
    pub(crate) total: usize,
    /// The number of replies per pod, by short name.
    pub(crate) pods: BTreeMap<String, usize>,
    /// The number of replies per source address that the pods saw.
    pub(crate) sources: BTreeMap<IpAddr, usize>,
    /// The number of failures per reason.
    pub(crate) failures: BTreeMap<String, usize>,
}

impl Tally {
    fn add(&mut self, result: io::Result<ConnectionInfo>) {
        self.total += 1;
        match result {
            Ok(ConnectionInfo { pod, client, address: _ }) => {
                *self.pods.entry(pod).or_default() += 1;
                *self.sources.entry(client.ip()).or_default() += 1;
            }
            Err(error) => *self.failures.entry(describe(&error)).or_default() += 1,
        }
    }
}

/// Makes `count` connections in sequence, each from a new port.
pub(crate) fn measure(
    client: &Namespace,
    destination: SocketAddr,
    protocol: Protocol,
    count: usize,
) -> Result<Tally, NamespaceError> {
    client.run(|| {
        let mut tally = Tally::default();
        for _ in 0..count {
            tally.add(match protocol {
                Protocol::Udp => request_udp(destination),
                _ => request_tcp(destination),
            });
            if tally.pods.is_empty() && tally.total >= MAX_FAILURES {
                break;
            }
        }
        tally
    })
}

fn request_tcp(destination: SocketAddr) -> io::Result<ConnectionInfo> {
    Ok(serde_json::from_slice(&http::get(destination, "/json", TIMEOUT)?.body)?)
}

fn request_udp(destination: SocketAddr) -> io::Result<ConnectionInfo> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect(destination)?;
    socket.send(b"/json")?;
    let mut buffer = [0; 1024];
    let length = loop {
        match socket.recv(&mut buffer) {
            // The kernel does not restart a call with a time limit after the process was stopped.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    Ok(serde_json::from_slice(&buffer[..length])?)
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "refused".into(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "unreachable".into(),
        io::ErrorKind::ConnectionReset => "reset".into(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no reply".into(),
        _ => error.to_string(),
    }
}

/// The timeout of a connection; all machines are local.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The number of failures, without any reply, after which no more connections are made.
const MAX_FAILURES: usize = 3;
