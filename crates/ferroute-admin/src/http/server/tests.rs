use std::{
    sync::Mutex,
    task::{Context, Poll},
};

use hyper::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    sync::mpsc,
    task::JoinHandle,
};

use super::*;
use crate::http::{Budget, text};

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";

/// Accepts the connections and errors that the test sends.
struct Script(mpsc::UnboundedReceiver<io::Result<(DuplexStream, IpAddr)>>);

impl Accept for Script {
    type Stream = DuplexStream;

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(DuplexStream, IpAddr)>> {
        match self.0.poll_recv(context) {
            Poll::Ready(Some(accepted)) => Poll::Ready(accepted),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// A server with in-memory connections.
struct Bench {
    accepted: mpsc::UnboundedSender<io::Result<(DuplexStream, IpAddr)>>,
    server: JoinHandle<Infallible>,
}

impl Bench {
    fn new(limits: Limits, handler: impl Handler) -> Self {
        Self::with_budget(limits, Budget::default(), handler)
    }

    fn with_budget(limits: Limits, budget: Budget, handler: impl Handler) -> Self {
        let (accepted, script) = mpsc::unbounded_channel();
        let server = tokio::spawn(serve(Script(script), Arc::new(handler), limits, OpenSockets::new(budget)));
        Self { accepted, server }
    }

    /// A server with this many connections.
    fn with_connections(connections: usize) -> Self {
        let budget = Budget { connections, ..Budget::default() };
        Self::with_budget(Limits::default(), budget, |request: &Request| {
            text(StatusCode::OK, format!("{} {}", request.method, request.uri))
        })
    }

    fn echo(limits: Limits) -> Self {
        Self::new(limits, |request: &Request| text(StatusCode::OK, format!("{} {}", request.method, request.uri)))
    }

    fn connect(&self) -> DuplexStream {
        self.connect_from([192, 0, 2, 1])
    }

    fn connect_from(&self, peer: [u8; 4]) -> DuplexStream {
        // Small, so that a client that does not read blocks the server.
        let (client, server) = duplex(256);
        self.accepted.send(Ok((server, peer.into()))).expect("the server runs");
        client
    }

    fn fail(&self, error: io::Error) {
        self.accepted.send(Err(error)).expect("the server runs");
    }
}

/// Reads one response and returns its body.
async fn answer(client: &mut DuplexStream) -> String {
    let mut text = Vec::new();
    loop {
        text.push(client.read_u8().await.expect("more of the answer"));
        let Some(head) = std::str::from_utf8(&text).expect("text").strip_suffix("\r\n\r\n") else { continue };
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
        let mut body = vec![0; length.parse().expect("a number")];
        client.read_exact(&mut body).await.expect("the body");
        return String::from_utf8(body).expect("text");
    }
}

/// Reads until the server closes the connection.
async fn rest(client: &mut DuplexStream) -> String {
    let mut text = Vec::new();
    // A reset ends the connection as well.
    let _ = timeout(Duration::from_secs(60), client.read_to_end(&mut text)).await.expect("the server closes");
    String::from_utf8(text).expect("text")
}

fn short() -> Limits {
    Limits { head: Duration::from_millis(50), accept_pause: Duration::from_millis(1), ..Limits::default() }
}

#[tokio::test]
async fn connection_serves_several_requests() {
    let bench = Bench::echo(Limits::default());
    let mut client = bench.connect();
    for _ in 0..3 {
        client.write_all(GET).await.expect("a request");
        assert_eq!(answer(&mut client).await, "GET /a");
    }
}

#[tokio::test]
async fn half_closed_connection_is_answered() {
    let bench = Bench::echo(Limits::default());
    let mut client = bench.connect();
    client.write_all(GET).await.expect("a request");
    client.shutdown().await.expect("half of the connection");
    assert!(rest(&mut client).await.ends_with("GET /a"));
}

#[tokio::test]
async fn head_response_has_content_length_and_no_body() {
    let bench = Bench::echo(Limits::default());
    let mut client = bench.connect();
    client.write_all(b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("a request");
    let all = rest(&mut client).await;
    assert!(all.contains("Content-Length: 7\r\n") && all.ends_with("\r\n\r\n"), "{all}");
}

#[tokio::test]
async fn slow_and_idle_connections_are_closed() {
    let bench = Bench::echo(short());
    let mut slow = bench.connect();
    slow.write_all(&GET[..10]).await.expect("a part of a request");
    assert!(!rest(&mut slow).await.contains("200 OK"));
    let mut silent = bench.connect();
    assert_eq!(rest(&mut silent).await, "");
    let mut idle = bench.connect();
    idle.write_all(GET).await.expect("a request");
    answer(&mut idle).await;
    assert_eq!(rest(&mut idle).await, "");
}

#[tokio::test]
async fn invalid_and_oversized_heads_are_rejected() {
    let bench = Bench::echo(Limits::default());
    let mut invalid = bench.connect();
    invalid.write_all(b"\0\xff\x16\x03\x01 invalid\r\n\r\n").await.expect("a write");
    assert!(rest(&mut invalid).await.starts_with("HTTP/1.1 400 "));
    let (mut large, mut large_writer) = tokio::io::split(bench.connect());
    let writing = tokio::spawn(async move {
        let line = format!("GET /a HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(64 * 1024));
        // The server closes the connection in the middle.
        let _ = large_writer.write_all(line.as_bytes()).await;
    });
    let mut all = Vec::new();
    let _ = large.read_to_end(&mut all).await;
    assert!(all.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&all));
    writing.await.expect("a writer");
}

#[tokio::test]
async fn new_connection_replaces_the_oldest_at_the_limit() {
    // Half of them for one client.
    let bench = Bench::with_connections(4);
    let mut held = [bench.connect(), bench.connect()];
    for client in &mut held {
        client.write_all(GET).await.expect("a request");
        answer(client).await;
    }
    let mut third = bench.connect();
    third.write_all(GET).await.expect("a request");
    assert_eq!(answer(&mut third).await, "GET /a");
    let [oldest, younger] = &mut held;
    assert_eq!(rest(oldest).await, "");
    younger.write_all(GET).await.expect("a request");
    assert_eq!(answer(younger).await, "GET /a");
}

#[tokio::test]
async fn connections_of_other_clients_stay_at_the_limit() {
    let bench = Bench::with_connections(6);
    let mut checker = bench.connect_from([192, 0, 2, 9]);
    checker.write_all(GET).await.expect("a request");
    answer(&mut checker).await;
    let mut flood = Vec::new();
    for number in 0..30 {
        flood.push(bench.connect_from([192, 0, 2, number % 2]));
        tokio::task::yield_now().await;
    }
    checker.write_all(GET).await.expect("a request");
    assert_eq!(answer(&mut checker).await, "GET /a");
    assert_eq!(rest(&mut flood[0]).await, "");
}

#[tokio::test]
async fn closed_connections_do_not_count_towards_the_limit() {
    let bench = Bench::with_connections(4);
    let mut lasting = bench.connect();
    lasting.write_all(GET).await.expect("a request");
    answer(&mut lasting).await;
    for _ in 0..5 {
        let mut client = bench.connect();
        client.write_all(b"GET /a HTTP/1.0\r\n\r\n").await.expect("a request");
        rest(&mut client).await;
        drop(client);
        tokio::task::yield_now().await;
    }
    lasting.write_all(GET).await.expect("a request");
    assert_eq!(answer(&mut lasting).await, "GET /a");
}

#[tokio::test]
async fn accept_errors_do_not_stop_the_server() {
    let bench = Bench::echo(short());
    let mut before = bench.connect();
    before.write_all(GET).await.expect("a request");
    answer(&mut before).await;
    for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ECONNABORTED, libc::EMFILE] {
        bench.fail(io::Error::from_raw_os_error(code));
    }
    let mut after = bench.connect();
    after.write_all(GET).await.expect("a request");
    assert_eq!(answer(&mut after).await, "GET /a");
}

#[tokio::test]
async fn connections_are_closed_after_lifetime_and_grace() {
    let limits = Limits { lifetime: Duration::from_millis(50), grace: Duration::from_millis(50), ..Limits::default() };
    let bench = Bench::new(limits, |_: &Request| text(StatusCode::OK, vec![b'x'; 4096]));
    let mut idle = bench.connect();
    assert_eq!(rest(&mut idle).await, "");
    let mut stuck = bench.connect();
    stuck.write_all(GET).await.expect("a request");
    // Reads nothing until the server has closed the connection.
    while stuck.write_all(b"x").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(rest(&mut stuck).await.len() < 4096);
}

#[tokio::test]
async fn handler_panic_closes_only_its_connection() {
    let panics = Mutex::new(1);
    let bench = Bench::new(Limits::default(), move |_: &Request| {
        let mut left = panics.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *left > 0 {
            *left -= 1;
            panic!("a bug in a handler (this is a test)");
        }
        text(StatusCode::OK, "fine")
    });
    let mut first = bench.connect();
    first.write_all(GET).await.expect("a request");
    assert_eq!(rest(&mut first).await, "");
    let mut second = bench.connect();
    second.write_all(GET).await.expect("a request");
    assert_eq!(answer(&mut second).await, "fine");
}

#[tokio::test]
async fn stopping_the_server_closes_every_connection() {
    let bench = Bench::echo(Limits::default());
    let mut client = bench.connect();
    client.write_all(GET).await.expect("a request");
    answer(&mut client).await;
    bench.server.abort();
    assert_eq!(rest(&mut client).await, "");
}
