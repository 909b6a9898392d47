//! An HTTP client that returns every byte, and loopback addresses unique to each test.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    num::NonZeroU16,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

/// Returns a loopback address that no other test uses, with a free port.
pub(crate) fn own_address() -> SocketAddr {
    let [address] = own_ports();
    address
}

/// Returns a loopback address that no other test uses, with several free ports.
pub(crate) fn own_ports<const N: usize>() -> [SocketAddr; N] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 64 | process[2] & 63, process[3], NEXT.fetch_add(1, Ordering::Relaxed));
    // Open simultaneously, so that they differ.
    let open = [(); N].map(|()| TcpListener::bind((address, 0)).expect("an address of 127.0.0.0/8"));
    open.each_ref().map(|listener| listener.local_addr().expect("a bound socket"))
}

/// Returns the port.
pub(crate) fn port(address: SocketAddr) -> NonZeroU16 {
    NonZeroU16::new(address.port()).expect("a bound port")
}

/// A persistent connection.
pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        // Fail rather than hang if the server does not answer.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self(stream))
    }

    /// Sends a request and returns the raw response with its date replaced.
    pub(crate) fn request(&mut self, method: &str, path: &str) -> String {
        write!(self.0, "{method} {path} HTTP/1.1\r\nHost: {path}\r\n\r\n").expect("a request");
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).expect("more of the answer");
            bytes.push(byte[0]);
        }
        let head = String::from_utf8(bytes).expect("text");
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
        let mut body = vec![0; if method == "HEAD" { 0 } else { length.parse().expect("a number") }];
        self.0.read_exact(&mut body).expect("the body");
        let lines = head.split("\r\n").map(|line| if line.starts_with("Date: ") { "Date: <date>" } else { line });
        lines.collect::<Vec<_>>().join("\n") + &String::from_utf8(body).expect("text")
    }

    /// Waits for the next byte and reports whether the server has closed the connection instead.
    pub(crate) fn is_closed(&mut self) -> bool {
        let result = self.0.read_exact(&mut [0]);
        result.is_err_and(|error| matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset))
    }
}

/// Sends a GET request on a new connection.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    Client::connect(address).expect("a connection").request("GET", path)
}

/// Reports whether connections are refused.
pub(crate) fn is_refused(address: SocketAddr) -> bool {
    matches!(TcpStream::connect(address), Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}
