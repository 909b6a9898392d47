use std::net::SocketAddr;

use ferroute_core::IpFamily;
use ferroute_testing::NetNs;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinHandle,
    time::timeout,
};

use super::*;

/// No test waits that long unless it fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn tcp(endpoints: &[SocketAddr]) -> ListenerSpec {
    ListenerSpec { family: IpFamily::V4, protocol: Protocol::Tcp, endpoints: endpoints.to_vec(), affinity: None }
}

fn udp(endpoints: &[SocketAddr]) -> ListenerSpec {
    ListenerSpec { protocol: Protocol::Udp, ..tcp(endpoints) }
}

fn engine() -> Engine<&'static str> {
    Engine::new(Limits::default(), PortRange::Any)
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Starts an endpoint that sends its name to each client and keeps connections open until the client closes them.
async fn endpoint(name: &'static str) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(at(0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                stream.write_all(name.as_bytes()).await.unwrap();
                stream.read_to_end(&mut Vec::new()).await.ok();
            });
        }
    });
    (address, task)
}

#[tokio::test]
async fn listeners_without_connections_do_not_count() {
    let (a, _) = endpoint("a").await;
    let mut engine = Engine::new(Limits { connections: 2, ..Limits::default() }, PortRange::Any);
    let keys = ["1", "2", "3", "4", "5"];
    let ports = keys.map(|key| engine.set(key, tcp(&[a])).unwrap());
    for (key, port) in keys.iter().zip(ports) {
        assert_eq!(connect(port).await.1, "a");
        until(|| engine.stats(key).unwrap().active == 0).await;
    }
}

/// Returns an address without a listener.
async fn dead_endpoint() -> SocketAddr {
    TcpListener::bind(at(0)).await.unwrap().local_addr().unwrap()
}

/// Waits until a condition is true.
async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("the condition becomes true");
}

/// Connects and returns the connection with the name that the endpoint sends; an empty name if the connection is reset.
async fn connect(port: u16) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(at(port)).await.unwrap();
    let mut name = [0; 16];
    let length = timeout(PATIENCE, stream.read(&mut name)).await.expect("an answer").unwrap_or(0);
    (stream, String::from_utf8_lossy(&name[..length]).into_owned())
}

#[tokio::test]
async fn connections_reach_all_endpoints() {
    let ((a, _), (b, _)) = (endpoint("a").await, endpoint("b").await);
    let mut engine = engine();
    let port = engine.set("web", tcp(&[a, b])).unwrap();
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(connect(port).await.1);
    }
    assert_eq!(names, ["a", "b", "a", "b"]);
    assert_eq!(engine.port(&"web"), Some(port));
}

#[tokio::test]
async fn no_client_is_refused_while_an_endpoint_lives() {
    let (alive, _) = endpoint("alive").await;
    let mut endpoints = vec![alive];
    for _ in 0..5 {
        endpoints.push(dead_endpoint().await);
    }
    let mut engine = engine();
    let port = engine.set("web", tcp(&endpoints)).unwrap();
    for _ in 0..20 {
        assert_eq!(connect(port).await.1, "alive");
    }
    let stats = engine.stats(&"web").unwrap();
    assert_eq!((stats.connections, stats.refused), (20, 0));
    assert_eq!(stats.failed_attempts, 5, "each dead endpoint is tried once, then last");
}

#[test]
fn an_endpoint_that_does_not_answer_is_passed_over() {
    // Packets to the endpoint have a hardware address that no device has.
    let (namespace, neighbour) = (NetNs::new(), NetNs::new());
    namespace.link("eth0", &neighbour, "eth0");
    namespace.add_address("192.0.2.1/24", "eth0");
    namespace.command("ip", &["neigh", "add", "192.0.2.9", "lladdr", "02:00:00:00:00:09", "dev", "eth0"]);
    namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (alive, _) = endpoint("alive").await;
            let mut engine = engine();
            let port = engine.set("web", tcp(&["192.0.2.9:80".parse().unwrap(), alive])).unwrap();
            assert_eq!(connect(port).await.1, "alive");
            assert_eq!(engine.stats(&"web").unwrap().failed_attempts, 1);
        });
    });
}

#[tokio::test]
async fn without_endpoints_connections_are_reset() {
    let mut engine = engine();
    let port = engine.set("web", tcp(&[])).unwrap();
    assert_eq!(connect(port).await.1, "");
    let dead = dead_endpoint().await;
    engine.set("web", tcp(&[dead])).unwrap();
    assert_eq!(connect(port).await.1, "");
    assert_eq!(engine.stats(&"web").unwrap().refused, 2);
}

#[tokio::test]
async fn connections_that_return_do_not_pass_the_same_endpoint_again() {
    let (alive, _) = endpoint("alive").await;
    let mut engine = engine();
    let port = engine.set("loop", tcp(&[])).unwrap();
    engine.set("loop", tcp(&[at(port)])).unwrap();
    assert_eq!(connect(port).await.1, "");
    let stats = engine.stats(&"loop").unwrap();
    assert_eq!((stats.connections, stats.refused), (1, 1));

    engine.set("loop", tcp(&[at(port), alive])).unwrap();
    for _ in 0..6 {
        assert_eq!(connect(port).await.1, "alive");
    }
    let other = engine.set("other", tcp(&[at(port)])).unwrap();
    assert_eq!(connect(other).await.1, "alive", "the address of another Service is an endpoint like any other");
    engine.set("loop", tcp(&[at(other)])).unwrap();
    assert_eq!(connect(port).await.1, "");
    assert_eq!(connect(other).await.1, "");
}

#[tokio::test]
async fn datagrams_that_return_do_not_pass_the_same_endpoint_again() {
    let (alive, _) = udp_endpoint("alive", "127.0.0.1:0").await;
    let mut engine = engine();
    let port = engine.set("loop", udp(&[])).unwrap();
    engine.set("loop", udp(&[at(port)])).unwrap();
    let client = UdpSocket::bind(at(0)).await.unwrap();
    client.send_to(b"lost", at(port)).await.unwrap();
    until(|| engine.stats(&"loop").unwrap().refused > 0).await;
    assert_eq!(engine.stats(&"loop").unwrap().connections, 1);

    engine.set("loop", udp(&[at(port), alive])).unwrap();
    for _ in 0..4 {
        let client = UdpSocket::bind(at(0)).await.unwrap();
        assert_eq!(ask(&client, at(port), b"!").await.0, b"alive!");
    }
}

#[tokio::test]
async fn established_connections_survive_all_changes() {
    let ((a, _), (b, _)) = (endpoint("a").await, endpoint("b").await);
    let mut engine = engine();
    let port = engine.set("web", tcp(&[a])).unwrap();
    let (mut stream, name) = connect(port).await;
    assert_eq!(name, "a");
    assert_eq!(engine.set("web", tcp(&[b])).unwrap(), port, "the port stays");
    assert_eq!(connect(port).await.1, "b");
    engine.close(&"web");
    // The listener's task ends at its next turn.
    while TcpStream::connect(at(port)).await.is_ok() {
        tokio::task::yield_now().await;
    }
    stream.shutdown().await.unwrap();
    assert_eq!(timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap(), 0, "an orderly end");
}

#[tokio::test]
async fn draining_waits_for_connections_until_the_deadline() {
    let (a, _) = endpoint("a").await;
    let mut first = engine();
    let port = first.set("web", tcp(&[a])).unwrap();
    let (stream, _) = connect(port).await;
    assert_eq!(first.drain(Duration::from_millis(50)).await, 1);
    drop(stream);

    let mut second = engine();
    let port = second.set("web", tcp(&[a])).unwrap();
    let (stream, _) = connect(port).await;
    let drain = tokio::spawn(second.drain(PATIENCE));
    drop(stream);
    assert_eq!(timeout(PATIENCE, drain).await.expect("an end before the deadline").unwrap(), 0);
}

/// Like `connect`, from another address of this host.
async fn connect_from(client: u8, port: u16) -> (TcpStream, String) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, client], 0))).unwrap();
    let mut stream = socket.connect(at(port)).await.unwrap();
    let mut name = [0; 16];
    let length = timeout(PATIENCE, stream.read(&mut name)).await.expect("an answer").unwrap_or(0);
    (stream, String::from_utf8_lossy(&name[..length]).into_owned())
}

#[tokio::test]
async fn one_listener_gets_half_of_the_connections() {
    let (a, _) = endpoint("a").await;
    let mut engine = Engine::new(Limits { connections: 4, ..Limits::default() }, PortRange::Any);
    let port = engine.set("flooded", tcp(&[a])).unwrap();
    let other = engine.set("other", tcp(&[a])).unwrap();
    let held = [connect_from(1, port).await, connect_from(2, port).await];
    // The third connection waits in the queue of the listener.
    let mut third = TcpStream::connect(at(port)).await.unwrap();
    assert_eq!(connect_from(3, other).await.1, "a");
    assert_eq!(engine.stats(&"flooded").unwrap().active, 2);
    drop(held);
    let mut name = [0; 1];
    timeout(PATIENCE, third.read_exact(&mut name)).await.expect("its turn").unwrap();
    assert_eq!(&name, b"a");
}

#[tokio::test]
async fn idle_connections_of_one_client_leave_some_for_others() {
    let (a, _) = endpoint("a").await;
    let mut engine = Engine::new(Limits { connections: 40, ..Limits::default() }, PortRange::Any);
    let ports = ["web", "shop"].map(|key| engine.set(key, tcp(&[a])).unwrap());
    let (mut held, mut resets) = (Vec::new(), 0);
    for port in ports.iter().cycle().take(60) {
        let (stream, name) = connect_from(1, *port).await;
        if name.is_empty() { resets += 1 } else { held.push(stream) }
    }
    assert_eq!((held.len(), resets), (20, 40), "half of each listener's half");
    assert_eq!(["web", "shop"].map(|key| engine.stats(&key).unwrap().limited).iter().sum::<u64>(), 40);
    for port in ports {
        assert_eq!(connect_from(2, port).await.1, "a", "another client is served");
    }
    held.clear();
    until(|| ["web", "shop"].iter().all(|key| engine.stats(key).unwrap().active == 0)).await;
    assert_eq!(connect_from(1, ports[0]).await.1, "a", "the client has its share again");
}

#[tokio::test]
async fn connection_without_data_ends_and_a_busy_one_does_not() {
    let (echo, _) = echo_endpoint().await;
    let limits = Limits { tcp_timeout: Duration::from_millis(200), ..Limits::default() };
    let mut engine = Engine::new(limits, PortRange::Any);
    let port = engine.set("web", tcp(&[echo])).unwrap();
    let mut idle = TcpStream::connect(at(port)).await.unwrap();
    let mut busy = TcpStream::connect(at(port)).await.unwrap();
    let end = async {
        loop {
            let mut byte = [0];
            tokio::select! {
                end = idle.read(&mut byte) => return end,
                () = tokio::time::sleep(Duration::from_millis(20)) => {
                    busy.write_all(b"x").await.unwrap();
                    busy.read_exact(&mut byte).await.unwrap();
                }
            }
        }
    };
    let end = timeout(PATIENCE, end).await.expect("the end of the idle connection");
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    busy.write_all(b"y").await.unwrap();
    let mut byte = [0];
    busy.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"y");
}

/// Starts an endpoint that returns the data that it receives.
async fn echo_endpoint() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind(at(0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await.ok();
            });
        }
    });
    (address, task)
}

#[tokio::test]
async fn clients_with_affinity_stay_at_their_endpoint() {
    let ((a, _), (b, _)) = (endpoint("a").await, endpoint("b").await);
    let mut engine = engine();
    let spec = ListenerSpec { affinity: Some(Duration::from_secs(600)), ..tcp(&[a, b]) };
    let port = engine.set("web", spec).unwrap();
    let first = connect(port).await.1;
    for _ in 0..3 {
        assert_eq!(connect(port).await.1, first);
    }
}

#[tokio::test]
async fn listeners_use_the_range_of_ports() {
    let free = dead_endpoint().await.port();
    let mut engine = Engine::new(Limits::default(), PortRange::Within(free..=free));
    assert_eq!(engine.set("a", tcp(&[])).unwrap(), free);
    assert!(matches!(engine.set("b", tcp(&[])), Err(OpenError::Listen(_))));
    assert_eq!(engine.set("c", udp(&[])).unwrap(), free, "ports of other protocols are free");
}

#[tokio::test]
async fn sctp_is_not_supported() {
    let spec = ListenerSpec { protocol: Protocol::Sctp, ..tcp(&[]) };
    assert!(matches!(engine().set("web", spec), Err(OpenError::UnsupportedProtocol(Protocol::Sctp))));
}

/// Starts a UDP endpoint that answers each datagram with its name and the datagram.
async fn udp_endpoint(name: &'static str, address: &str) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind(address).await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut buffer = vec![0; 65_535];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let answer = [name.as_bytes(), &buffer[..length]].concat();
            socket.send_to(&answer, client).await.unwrap();
        }
    });
    (address, task)
}

/// Sends a datagram and returns the answer and its source.
async fn ask(client: &UdpSocket, to: SocketAddr, question: &[u8]) -> (Vec<u8>, SocketAddr) {
    client.send_to(question, to).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let (length, from) = timeout(PATIENCE, client.recv_from(&mut buffer)).await.expect("an answer").unwrap();
    buffer.truncate(length);
    (buffer, from)
}

#[tokio::test]
async fn a_udp_client_keeps_its_endpoint_while_datagrams_pass() {
    let ((a, _), (b, _)) = (udp_endpoint("a", "127.0.0.1:0").await, udp_endpoint("b", "127.0.0.1:0").await);
    let mut engine = engine();
    let port = engine.set("dns", udp(&[a, b])).unwrap();
    let [first, second] = [UdpSocket::bind(at(0)).await.unwrap(), UdpSocket::bind(at(0)).await.unwrap()];
    for question in [&b"1"[..], b"2"] {
        assert_eq!(ask(&first, at(port), question).await.0, [b"a", question].concat());
        assert_eq!(ask(&second, at(port), question).await.0, [b"b", question].concat());
    }
    assert_eq!(engine.stats(&"dns").unwrap().active, 2);
}

#[tokio::test]
async fn udp_answers_come_from_the_address_that_was_asked() {
    let (a, _) = udp_endpoint("a", "127.0.0.1:0").await;
    let mut engine = engine();
    let port = engine.set("dns", udp(&[a])).unwrap();
    // All of 127.0.0.0/8 is local; if the response did not keep the address, its source would be 127.0.0.1.
    let asked = SocketAddr::from(([127, 0, 0, 53], port));
    let client = UdpSocket::bind(at(0)).await.unwrap();
    assert_eq!(ask(&client, asked, b"?").await, (b"a?".to_vec(), asked));

    let (a, _) = udp_endpoint("a", "[::1]:0").await;
    let port = engine.set("dns6", ListenerSpec { family: IpFamily::V6, ..udp(&[a]) }).unwrap();
    let asked: SocketAddr = ([0, 0, 0, 0, 0, 0, 0, 1], port).into();
    let client = UdpSocket::bind("[::1]:0").await.unwrap();
    assert_eq!(ask(&client, asked, b"?").await, (b"a?".to_vec(), asked));
}

#[tokio::test]
async fn udp_clients_of_removed_endpoints_get_another_one() {
    let ((a, _), (b, _)) = (udp_endpoint("a", "127.0.0.1:0").await, udp_endpoint("b", "127.0.0.1:0").await);
    let mut engine = engine();
    let port = engine.set("dns", udp(&[a])).unwrap();
    let client = UdpSocket::bind(at(0)).await.unwrap();
    assert_eq!(ask(&client, at(port), b"1").await.0, b"a1");
    engine.set("dns", udp(&[b])).unwrap();
    assert_eq!(ask(&client, at(port), b"2").await.0, b"b2");
}

#[tokio::test]
async fn udp_clients_of_refusing_endpoints_get_another_one() {
    let dead = UdpSocket::bind(at(0)).await.unwrap().local_addr().unwrap();
    let (alive, _) = udp_endpoint("alive", "127.0.0.1:0").await;
    let mut engine = engine();
    let port = engine.set("dns", udp(&[dead, alive])).unwrap();
    let client = UdpSocket::bind(at(0)).await.unwrap();
    // Only the response of the endpoint's host shows that the port is closed; until then datagrams are lost.
    client.send_to(b"lost", at(port)).await.unwrap();
    until(|| engine.stats(&"dns").unwrap().failed_attempts > 0).await;
    assert_eq!(ask(&client, at(port), b"!").await.0, b"alive!");
}

#[tokio::test]
async fn idle_udp_flows_end_and_their_number_is_limited() {
    let (a, _) = udp_endpoint("a", "127.0.0.1:0").await;
    let limits = Limits { flows: 2, udp_timeout: Duration::from_millis(200), ..Limits::default() };
    let mut engine = Engine::new(limits, PortRange::Any);
    let port = engine.set("dns", udp(&[a])).unwrap();
    let [first, second] = [UdpSocket::bind(at(0)).await.unwrap(), UdpSocket::bind(at(0)).await.unwrap()];
    assert_eq!(ask(&first, at(port), b"1").await.0, b"a1");
    second.send_to(b"dropped", at(port)).await.unwrap();
    until(|| engine.stats(&"dns").unwrap().refused > 0).await;
    until(|| engine.stats(&"dns").unwrap().active == 0).await;
    assert_eq!(ask(&second, at(port), b"2").await.0, b"a2");
}

#[tokio::test]
async fn the_longest_datagrams_pass() {
    let (a, _) = udp_endpoint("", "127.0.0.1:0").await;
    let mut engine = engine();
    let port = engine.set("dns", udp(&[a])).unwrap();
    let client = UdpSocket::bind(at(0)).await.unwrap();
    // The longest payload in IPv4: 65,535 less the headers of IP and UDP.
    let question: Vec<u8> = (0..65_507).map(|index| index as u8).collect();
    assert!(ask(&client, at(port), &question).await.0 == question);
}
