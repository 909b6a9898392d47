use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Asks for a page over a new connection, which the answer ends. Just enough HTTP for servers of our own.
pub(crate) fn get(address: SocketAddr, path: &str, timeout: Duration) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

fn parse(answer: &[u8]) -> Option<Answer> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: answer[end + 4..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        let answer = parse(b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}\r\n\r\n").unwrap();
        assert_eq!(answer, Answer { status: 503, body: b"{}\r\n\r\n".to_vec() });
    }

    #[test]
    fn what_is_not_http_is_no_answer() {
        for text in ["", "hello", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 fine\r\n\r\n"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
