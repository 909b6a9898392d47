use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Waker},
};

use hyper::StatusCode;

use super::*;
use crate::http::{Request, text};

const LOCALHOST: ListenScope = ListenScope::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));

fn get(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.rsplit("\r\n").next().unwrap_or_default().to_owned())
}

fn respond(word: &'static str) -> Arc<dyn Handler> {
    Arc::new(move |_: &Request| text(StatusCode::OK, word))
}

fn open() -> (TcpListener, SocketAddr) {
    let listener = listen(LOCALHOST, 0).expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    (listener, address)
}

#[test]
fn one_thread_serves_many_ports() {
    let http = HttpThread::start(Budget::default()).expect("a thread");
    let ((one, one_address), (two, two_address)) = (open(), open());
    let _one = http.serve(one, respond("one"), Limits::default()).expect("a server");
    let _two = http.serve(two, respond("two"), Limits::default()).expect("a server");
    assert_eq!(get(one_address).expect("an answer"), "one");
    assert_eq!(get(two_address).expect("an answer"), "two");
}

#[test]
fn dropping_a_server_frees_its_port_and_keeps_other_servers() {
    let http = HttpThread::start(Budget::default()).expect("a thread");
    let ((one, address), (two, two_address)) = (open(), open());
    let server = http.serve(one, respond("one"), Limits::default()).expect("a server");
    let _two = http.serve(two, respond("two"), Limits::default()).expect("a server");
    let mut kept = TcpStream::connect(address).expect("a connection");
    assert_eq!(get(address).expect("an answer"), "one");
    drop(server);
    assert_eq!(get(address).map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionRefused));
    let mut left = Vec::new();
    // Either EOF or a reset.
    let _ = kept.read_to_end(&mut left);
    assert_eq!(left, b"");
    let again = listen(LOCALHOST, address.port()).expect("the port");
    let _again = http.serve(again, respond("again"), Limits::default()).expect("a server");
    assert_eq!(get(address).expect("an answer"), "again");
    assert_eq!(get(two_address).expect("an answer"), "two");
}

#[test]
fn dropping_the_thread_stops_its_servers() {
    let http = HttpThread::start(Budget::default()).expect("a thread");
    let (listener, address) = open();
    let server = http.serve(listener, respond("one"), Limits::default()).expect("a server");
    assert_eq!(get(address).expect("an answer"), "one");
    drop(http);
    assert_eq!(get(address).map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionRefused));
    drop(server);
}

#[test]
fn taken_port_is_reported_and_retried_until_free() {
    let http = HttpThread::start(Budget::default()).expect("a thread");
    let (taken, address) = open();
    let failures = Arc::new(AtomicUsize::new(0));
    let (sender, errors) = mpsc::channel();
    let _server = http.serve_when_free(
        LOCALHOST,
        address.port(),
        respond("at last"),
        Limits::default(),
        Duration::from_millis(5),
        {
            let failures = Arc::clone(&failures);
            move |error| {
                failures.fetch_add(1, Ordering::Relaxed);
                // The test may have finished.
                let _ = sender.send(error.to_string());
            }
        },
    );
    for _ in 0..3 {
        let message = errors.recv().expect("a failure");
        assert_eq!(message, format!("cannot listen on {address}"));
    }
    drop(taken);
    let answer = loop {
        match get(address) {
            Ok(answer) => break answer,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!(answer, "at last");
    assert!(failures.load(Ordering::Relaxed) >= 3);
}

/// A server that is dropped before its task has run must not report too early that its port is free.
#[test]
fn work_is_dropped_before_its_guard_whether_it_has_begun_or_not() {
    struct Logged(&'static str, mpsc::Sender<&'static str>);
    impl Drop for Logged {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }
    for has_begun in [false, true] {
        let (sender, dropped) = mpsc::channel();
        let listener = Logged("work", sender.clone());
        let work = async move {
            let _listener = listener;
            std::future::pending::<()>().await;
        };
        let mut task = Box::pin(guarded(work, Logged("guard", sender)));
        if has_begun {
            assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        drop(task);
        assert_eq!(dropped.iter().collect::<Vec<_>>(), ["work", "guard"], "has begun: {has_begun}");
    }
}
