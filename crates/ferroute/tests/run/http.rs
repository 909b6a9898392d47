//! A minimal HTTP client.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use ferroute_testing::NetNs;

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Requests a path.
pub(crate) fn get(from: &NetNs, at: SocketAddr, path: &str) -> io::Result<Response> {
    get_as(from, at, path, "*/*")
}

/// Requests a path with an `Accept` header.
pub(crate) fn get_as(from: &NetNs, at: SocketAddr, path: &str, accept: &str) -> io::Result<Response> {
    let mut stream = from.run(|| TcpStream::connect_timeout(&at, TIMEOUT))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let not_http = || io::Error::other(format!("not an HTTP response: {text:?}"));
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(not_http)?;
    let (_, body) = text.split_once("\r\n\r\n").ok_or_else(not_http)?;
    Ok(Response { status, body: body.to_owned() })
}

const TIMEOUT: Duration = Duration::from_secs(60);
