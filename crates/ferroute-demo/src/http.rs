use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Sends a GET request over a new connection. Supports only what the demo's own servers require.
pub(crate) fn get(address: SocketAddr, path: &str, timeout: Duration) -> io::Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    parse(&response).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP response"))
}

fn parse(response: &[u8]) -> Option<Response> {
    let end = response.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&response[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, body: response[end + 4..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_has_status_and_body() {
        let response = parse(b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}\r\n\r\n").unwrap();
        assert_eq!(response, Response { status: 503, body: b"{}\r\n\r\n".to_vec() });
    }

    #[test]
    fn other_text_is_no_response() {
        for text in ["", "hello", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 fine\r\n\r\n"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
