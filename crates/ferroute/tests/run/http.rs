//! As much of HTTP as a load balancer's health check needs.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use ferroute_testing::NetNs;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Asks for a path.
pub(crate) fn get(from: &NetNs, at: SocketAddr, path: &str) -> io::Result<Answer> {
    get_as(from, at, path, "*/*")
}

/// Asks for a path in a form.
pub(crate) fn get_as(from: &NetNs, at: SocketAddr, path: &str, accept: &str) -> io::Result<Answer> {
    let mut stream = from.run(|| TcpStream::connect_timeout(&at, PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let no_http = || io::Error::other(format!("no HTTP: {text:?}"));
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(no_http)?;
    let (_, body) = text.split_once("\r\n\r\n").ok_or_else(no_http)?;
    Ok(Answer { status, body: body.to_owned() })
}

const PATIENCE: Duration = Duration::from_secs(60);
