use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use ferroute_testing::NetNs;

use super::{ConnectionInfo, Listen, serve};

/// Runs `client` with a pod that listens on 80/tcp and 53/udp, in a new network namespace.
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

/// Sends a request on a persistent connection and returns the body of the response.
fn get(stream: &mut BufReader<TcpStream>, path: &str) -> String {
    write!(stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: web\r\n\r\n").unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the connection was closed");
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
    let json: ConnectionInfo = serde_json::from_str(&get(&mut stream, "/json")).unwrap();
    assert_eq!(json, ConnectionInfo { pod: "web".into(), client, address: server });
}

#[test]
fn persistent_connections_work_over_both_ip_families() {
    with_pod(&["127.0.0.1", "::1"], || {
        check_pages("127.0.0.1:80");
        check_pages("[::1]:80");
    });
}

#[test]
fn pod_without_ipv6_serves_ipv4() {
    with_pod(&["127.0.0.1"], || check_pages("127.0.0.1:80"));
}

#[test]
fn datagrams_are_returned_from_the_address_they_were_sent_to() {
    with_pod(&["127.0.0.1", "127.0.0.2", "::1"], || {
        for server in ["127.0.0.2:53", "[::1]:53"] {
            let server: SocketAddr = server.parse().unwrap();
            // Not the source address that the kernel would select for the server's replies.
            let any = if server.is_ipv4() { "127.0.0.3:0" } else { "[::1]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let client = socket.local_addr().unwrap();
            let request = |text: &str| {
                socket.send_to(text.as_bytes(), server).unwrap();
                let mut buffer = [0; 1024];
                let (length, from) = ferroute_testing::restart(|| socket.recv_from(&mut buffer)).unwrap();
                assert_eq!(from, server);
                String::from_utf8(buffer[..length].to_vec()).unwrap()
            };
            assert_eq!(request("hello"), format!("pod web saw {client} at {server}\nhello"));
            let json: ConnectionInfo = serde_json::from_str(&request("/json")).unwrap();
            assert_eq!(json, ConnectionInfo { pod: "web".into(), client, address: server });
        }
    });
}

#[test]
fn port_in_use_is_an_error() {
    with_pod(&["127.0.0.1"], || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let port = "80/tcp".parse::<Listen>().unwrap();
        let error = runtime.block_on(serve::listen("b", &["127.0.0.1".parse().unwrap()], port)).unwrap_err();
        assert_eq!(error.to_string(), "cannot listen on 0.0.0.0 port 80/tcp");
    });
}

#[test]
fn ports_require_a_supported_protocol() {
    "53/udp".parse::<Listen>().unwrap();
    for text in ["80", "80/", "/tcp", "80/sctp", "80000/tcp", "x/tcp"] {
        assert_eq!(
            text.parse::<Listen>().unwrap_err().to_string(),
            format!("invalid port {text:?} (want one like 80/tcp or 53/udp)")
        );
    }
}
