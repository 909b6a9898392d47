//! A client that shows every byte, and loopback addresses that no other test has.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    num::NonZeroU16,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

/// An address on loopback that is this test's alone, with a port that is free on it.
pub(crate) fn own_address() -> SocketAddr {
    let [address] = own_ports();
    address
}

/// An address on loopback that is this test's alone, with several ports that are free on it.
pub(crate) fn own_ports<const N: usize>() -> [SocketAddr; N] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 64 | process[2] & 63, process[3], NEXT.fetch_add(1, Ordering::Relaxed));
    // All are open at once, so that they differ.
    let open = [(); N].map(|()| TcpListener::bind((address, 0)).expect("loopback has the whole network"));
    open.each_ref().map(|listener| listener.local_addr().expect("it is bound"))
}

/// The port as the crate takes it.
pub(crate) fn port(address: SocketAddr) -> NonZeroU16 {
    NonZeroU16::new(address.port()).expect("the kernel gives no port 0")
}

/// The address as the crate takes it.
pub(crate) fn ip(address: SocketAddr) -> IpAddr {
    address.ip()
}

/// A connection that takes several requests.
pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        // For a server that does not answer, where the test would hang.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self(stream))
    }

    /// Asks, and returns the whole answer as it came, but for the date.
    pub(crate) fn ask(&mut self, method: &str, path: &str) -> String {
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

    /// The server has closed it.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Asks on a connection of its own.
pub(crate) fn ask(address: SocketAddr, path: &str) -> String {
    Client::connect(address).expect("a connection").ask("GET", path)
}

/// Nobody listens.
pub(crate) fn is_refused(address: SocketAddr) -> bool {
    matches!(TcpStream::connect(address), Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}
