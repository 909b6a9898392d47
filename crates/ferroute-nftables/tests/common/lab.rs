//! A node, its Pods and an external client, each in a separate network namespace.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use ferroute_testing::{NetNs, restart};

/// The network namespaces.
pub struct Lab {
    /// The node with the rules.
    pub node: NetNs,
    /// An external client at [`CLIENT`], whose gateway is the node's address 192.168.0.1.
    pub client: NetNs,
    /// Pod `i` has [`pod_ip`] and replies on TCP and UDP port 8080 with its number and the client's address.
    pub pods: Vec<NetNs>,
    /// The node's default gateway, which drops everything.
    _void: NetNs,
}

/// The result of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// This Pod replied and saw this source.
    Pod(usize, IpAddr),
    /// The connection was refused.
    Refused,
    /// There was no reply.
    Silence,
}

/// The external client's address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 9);
/// The port of the Pods' servers.
pub const PORT: u16 = 8080;

/// Returns the address of a Pod.
pub fn pod_ip(pod: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, pod as u8, 2)
}

/// Returns the IPv6 address of a Pod.
pub fn pod_ip6(pod: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x244, 0, pod as u16, 0, 0, 0, 2)
}

impl Lab {
    /// Creates the namespaces and starts servers in the Pods.
    pub fn new(pods: usize) -> Self {
        let [node, client, void] = std::array::from_fn(|_| NetNs::new());
        let pods: Vec<NetNs> = (0..pods).map(|_| NetNs::new()).collect();
        let ip = |ns: &NetNs, arguments: &str| {
            ns.command("ip", &arguments.split(' ').collect::<Vec<_>>());
        };
        let sysctl = |ns: &NetNs, setting: &str| {
            ns.command("sysctl", &["-qw", setting]);
        };
        sysctl(&node, "net.ipv4.ip_forward=1");
        sysctl(&node, "net.ipv6.conf.all.forwarding=1");
        // Rejections must not be rate-limited.
        for setting in ["net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"] {
            sysctl(&node, setting);
        }
        // Addresses are usable immediately.
        for ns in pods.iter().chain([&node, &void]) {
            sysctl(ns, "net.ipv6.conf.default.accept_dad=0");
        }
        node.link("outside", &client, "eth0");
        ip(&node, "addr add 192.168.0.1/24 dev outside");
        ip(&client, "addr add 192.168.0.9/24 dev eth0");
        ip(&client, "route add default via 192.168.0.1");
        // Packets that no rule handles are lost.
        node.link("void", &void, "eth0");
        for (ns, device, number) in [(&node, "void", 1), (&void, "eth0", 2)] {
            ip(ns, &format!("addr add 10.99.0.{number}/24 dev {device}"));
            ns.add_address(&format!("fd00:99::{number}/64"), device);
        }
        ip(&node, "route add default via 10.99.0.2");
        ip(&node, "-6 route add default via fd00:99::2");
        for (i, pod) in pods.iter().enumerate() {
            node.link(&format!("pod{i}"), pod, "eth0");
            ip(&node, &format!("addr add 10.244.{i}.1/24 dev pod{i}"));
            ip(pod, &format!("addr add 10.244.{i}.2/24 dev eth0"));
            ip(pod, &format!("route add default via 10.244.{i}.1"));
            node.add_address(&format!("fd00:244:0:{i}::1/64"), &format!("pod{i}"));
            pod.add_address(&format!("fd00:244:0:{i}::2/64"), "eth0");
            ip(pod, &format!("-6 route add default via fd00:244:0:{i}::1"));
            serve(pod, i);
        }
        Self { node, client, pods, _void: void }
    }
}

/// Answers on TCP and UDP until the test ends.
fn serve(pod: &NetNs, number: usize) {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
    let (listener, socket) = pod.run(|| (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap()));
    thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            _ = stream.write_all(format!("{number} {}", peer.ip().to_canonical()).as_bytes());
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            _ = socket.send_to(format!("{number} {}", peer.ip().to_canonical()).as_bytes(), peer);
        }
    });
}

/// Connects by TCP and returns the outcome.
pub fn tcp(from: &NetNs, to: &str) -> Outcome {
    let to: SocketAddr = to.parse().unwrap();
    from.run(|| {
        let mut answer = String::new();
        let connected = TcpStream::connect_timeout(&to, TIMEOUT).and_then(|mut stream| {
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.read_to_string(&mut answer)
        });
        outcome(connected.map(|_| answer))
    })
}

/// Sends a datagram from a new socket and waits for the reply.
pub fn udp(from: &NetNs, to: &str) -> Outcome {
    let to: SocketAddr = to.parse().unwrap();
    from.run(|| {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut buffer = [0; 128];
        let received =
            socket.connect(to).and_then(|()| socket.send(b"?")).and_then(|_| restart(|| socket.recv(&mut buffer)));
        outcome(received.map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned()))
    })
}

fn outcome(answer: std::io::Result<String>) -> Outcome {
    match answer {
        Ok(text) => {
            let (pod, source) = text.split_once(' ').unwrap_or_else(|| panic!("unexpected reply {text:?}"));
            Outcome::Pod(pod.parse().unwrap(), source.parse().unwrap())
        }
        // Sending a datagram that the local output hook rejects fails with `EPERM`.
        Err(error) if [ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied].contains(&error.kind()) => {
            Outcome::Refused
        }
        Err(error) if [ErrorKind::TimedOut, ErrorKind::WouldBlock].contains(&error.kind()) => Outcome::Silence,
        Err(error) => panic!("cannot connect: {error}"),
    }
}

/// Long enough for a reply on the same machine under load; only a missing reply takes this long.
const TIMEOUT: Duration = Duration::from_secs(2);
