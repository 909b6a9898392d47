use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use ferroute_testing::NetNs;

use super::{Listen, Sighting, serve};

/// Runs `client` against a pod that listens on 80/tcp and 53/udp, in a network namespace of their own.
fn with_pod(addresses: &[&str], client: impl FnOnce() + Send + 'static) {
    let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    NetNs::new().run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for port in ["80/tcp", "53/udp"] {
                serve::listen("web", &addresses, port.parse().unwrap()).await.unwrap();
            }
            tokio::task::spawn_blocking(client).await.unwrap();
        });
    });
}

/// The body of the next answer on a connection that goes on.
fn get(stream: &mut BufReader<TcpStream>, path: &str) -> String {
    write!(stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: web\r\n\r\n").unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the connection has ended");
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn check_pages(server: &str) {
    let stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (client, server) = (stream.local_addr().unwrap(), server.parse::<SocketAddr>().unwrap());
    let mut stream = BufReader::new(stream);
    let line = format!("pod web saw {client} at {server}\n");
    assert_eq!(get(&mut stream, "/"), line);
    assert_eq!(get(&mut stream, "/any/where?at=all"), line);
    let json: Sighting = serde_json::from_str(&get(&mut stream, "/json")).unwrap();
    assert_eq!(json, Sighting { pod: "web".into(), client, address: server });
}

#[test]
fn one_connection_can_ask_for_many_pages_over_either_family() {
    with_pod(&["127.0.0.1", "::1"], || {
        check_pages("127.0.0.1:80");
        check_pages("[::1]:80");
    });
}

#[test]
fn a_pod_without_ipv6_serves_ipv4() {
    with_pod(&["127.0.0.1"], || check_pages("127.0.0.1:80"));
}

#[test]
fn datagrams_come_back_from_the_address_that_was_asked() {
    with_pod(&["127.0.0.1", "127.0.0.2", "::1"], || {
        for server in ["127.0.0.2:53", "[::1]:53"] {
            let server: SocketAddr = server.parse().unwrap();
            // A socket that is bound to another address than the server's own choice would be.
            let any = if server.is_ipv4() { "127.0.0.3:0" } else { "[::1]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let client = socket.local_addr().unwrap();
            let ask = |question: &str| {
                socket.send_to(question.as_bytes(), server).unwrap();
                let mut buffer = [0; 1024];
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                assert_eq!(from, server);
                String::from_utf8(buffer[..length].to_vec()).unwrap()
            };
            assert_eq!(ask("hello"), format!("pod web saw {client} at {server}\nhello"));
            let json: Sighting = serde_json::from_str(&ask("/json")).unwrap();
            assert_eq!(json, Sighting { pod: "web".into(), client, address: server });
        }
    });
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_so() {
    with_pod(&["127.0.0.1"], || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let port = "80/tcp".parse::<Listen>().unwrap();
        let error = runtime.block_on(serve::listen("b", &["127.0.0.1".parse().unwrap()], port)).unwrap_err();
        assert_eq!(error.to_string(), "cannot listen on 0.0.0.0 port 80/tcp");
    });
}

#[test]
fn ports_are_written_with_a_protocol_that_pods_speak() {
    "53/udp".parse::<Listen>().unwrap();
    for text in ["80", "80/", "/tcp", "80/sctp", "80000/tcp", "x/tcp"] {
        assert_eq!(
            text.parse::<Listen>().unwrap_err().to_string(),
            format!("invalid port {text:?} (want one like 80/tcp or 53/udp)")
        );
    }
}
