//! A node made of network namespaces, whose kernel traces the rules that packets match.
//!
//! ```text
//!   outside: 192.168.0.9, pod 10.244.1.1 of another node
//!      │ eth0
//!    node ── cbr0 ── pods 10.244.0.3, 10.244.0.6 and 10.244.0.200
//! ```

use std::{
    io::{BufRead, BufReader},
    net::{IpAddr, SocketAddr, UdpSocket},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use ferroute_core::IpFamily;
use ferroute_testing::NetNs;

use super::world::{Client, World, ip};

pub struct Lab {
    family: IpFamily,
    node: NetNs,
    outside: NetNs,
    pods: Vec<(IpAddr, NetNs)>,
    /// The sockets of the endpoints, with their addresses.
    listeners: Vec<(SocketAddr, UdpSocket)>,
    trace: Trace,
}

/// The observed walk of a packet.
#[derive(Debug, PartialEq)]
pub struct Observation {
    /// Every rule that matched, as `table chain: verdict`.
    pub rules: Vec<String>,
    /// The receiver, and the source that it saw.
    pub received: Option<(SocketAddr, IpAddr)>,
}

impl Lab {
    /// Creates the namespaces; `load` loads rules into the node.
    pub fn new(family: IpFamily, load: impl FnOnce(&NetNs)) -> Self {
        let [node, outside] = std::array::from_fn(|_| NetNs::new());
        for setting in [
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.ipv4.conf.all.route_localnet=1",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.default.rp_filter=0",
            // With br_netfilter, bridged packets would also meet iptables rules.
            "net.bridge.bridge-nf-call-iptables=0",
            "net.bridge.bridge-nf-call-ip6tables=0",
        ] {
            // -e: without br_netfilter these sysctls do not exist.
            node.command("sysctl", &["-eqw", setting]);
        }
        // The order matters: packets to the node itself are masqueraded with the address of the first device.
        node.link("eth0", &outside, "eth0");
        node.command("ip", &["link", "add", "cbr0", "type", "bridge"]);
        node.command("ip", &["link", "set", "cbr0", "up"]);
        node.command("ip", &["link", "add", "eth1", "type", "bridge"]);
        node.command("ip", &["link", "set", "eth1", "up"]);
        for (namespace, device, addresses) in [
            (&node, "eth0", ["192.168.0.1/24", "fd00:168::1/64"].as_slice()),
            (&node, "cbr0", &["10.244.0.1/24", "fd00:244::1/64"]),
            (&node, "eth1", &["192.168.7.1/24", "fd00:7::1/64"]),
            (&outside, "eth0", &["192.168.0.9/24", "fd00:168::9/64", "10.244.1.1/32", "fd00:244:0:1::1/128"]),
        ] {
            addresses.iter().for_each(|address| namespace.add_address(address, device));
        }
        set_gateways(&node, ["192.168.0.9", "fd00:168::9"]);
        set_gateways(&outside, ["192.168.0.1", "fd00:168::1"]);
        let pods = ["3", "6", "200"].map(|number| {
            let (pod, port) = (NetNs::new(), format!("veth{number}"));
            node.link(&port, &pod, "eth0");
            node.command("ip", &["link", "set", &port, "master", "cbr0"]);
            let addresses = [format!("10.244.0.{number}"), format!("fd00:244::{number}")];
            pod.add_address(&format!("{}/24", addresses[0]), "eth0");
            pod.add_address(&format!("{}/64", addresses[1]), "eth0");
            set_gateways(&pod, ["10.244.0.1", "fd00:244::1"]);
            (ip(&addresses[family.index()]), pod)
        });
        load(&node);
        node.feed("nft", &["-f", "-"], TRACE_RULES);
        let trace = Trace::start(&node);
        let listen = |namespace: &NetNs, address, port| {
            let address = SocketAddr::new(address, port);
            let socket = namespace.run(|| UdpSocket::bind(address).unwrap());
            socket.set_nonblocking(true).unwrap();
            (address, socket)
        };
        let [away, own] = match family {
            IpFamily::V4 => ["10.244.1.1", "192.168.0.1"].map(ip),
            IpFamily::V6 => ["fd00:244:0:1::1", "fd00:168::1"].map(ip),
        };
        let mut listeners = vec![listen(&outside, away, 8080), listen(&node, own, 9000)];
        listeners.extend(pods.iter().map(|(address, pod)| listen(pod, *address, 8080)));
        Self { node, outside, pods: pods.into(), listeners, trace, family }
    }

    /// Sends a packet and observes its walk. With `delivered`, waits until a listener receives it.
    pub fn send(
        &mut self,
        world: &World,
        client: &Client,
        source: SocketAddr,
        to: SocketAddr,
        delivered: bool,
    ) -> Observation {
        let namespace = match client {
            Client::Node => &self.node,
            Client::Elsewhere(_) => &self.outside,
            Client::Pod(address) => {
                let pod = self.pods.iter().find(|(own, _)| own == address);
                pod.map(|(_, namespace)| namespace).expect("the lab has this pod")
            }
        };
        let socket = namespace.run(|| UdpSocket::bind(SocketAddr::new(source.ip(), 0)).unwrap());
        // Packets of one sender stay in order, so the trace of the packet is between those of two framing packets.
        let near = match client {
            Client::Node => source.ip(),
            Client::Elsewhere(address) | Client::Pod(address) => world.address_towards(*address),
        };
        let frame = |port| drop(socket.send_to(b"frame", SocketAddr::new(near, port)));
        let lines = self.trace.between(
            || frame(READY),
            || {
                // If a rule rejects a packet that the node sends, the call fails.
                drop(socket.send_to(b"hello", to));
                frame(DONE);
            },
        );
        let mut received = self.received();
        for _ in 0..MAX_POLLS {
            if received.is_some() || !delivered {
                break;
            }
            thread::sleep(PAUSE);
            received = self.received();
        }
        Observation { rules: lines.iter().filter_map(|line| traced_rule(line, self.family)).collect(), received }
    }

    /// Returns the node's namespace.
    pub fn node(&self) -> &NetNs {
        &self.node
    }

    fn received(&self) -> Option<(SocketAddr, IpAddr)> {
        self.listeners.iter().find_map(|(address, socket)| {
            let (_, from) = socket.recv_from(&mut [0; 16]).ok()?;
            Some((*address, from.ip()))
        })
    }
}

fn set_gateways(namespace: &NetNs, gateways: [&str; 2]) {
    for (gateway, family) in gateways.iter().zip(["-4", "-6"]) {
        namespace.command("ip", &[family, "route", "add", "default", "via", gateway]);
    }
}

/// A running `nft monitor trace`.
struct Trace {
    program: Child,
    lines: Receiver<String>,
}

impl Trace {
    fn start(node: &NetNs) -> Self {
        let mut program = node.run(|| {
            let mut command = Command::new("nft");
            command.args(["monitor", "trace"]).stdout(Stdio::piped()).spawn().expect("this test needs nft")
        });
        let output = program.stdout.take().unwrap();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                _ = sender.send(line);
            }
        });
        Self { program, lines }
    }

    /// Returns the trace of the packets that `act` sends. `ready` sends a packet to [`READY`], and `act` ends with a
    /// packet to [`DONE`].
    fn between(&self, ready: impl Fn(), act: impl FnOnce()) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        // The program misses packets until it listens.
        for tries in 0.. {
            assert!(tries < MAX_POLLS, "nft monitor printed no packet");
            ready();
            match self.lines.recv_timeout(PAUSE) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("nft monitor ended"),
            }
            if lines.last().is_some_and(|line| is_about(line, READY)) {
                break;
            }
        }
        act();
        while !lines.last().is_some_and(|line| is_about(line, DONE)) {
            lines.push(self.lines.recv_timeout(PAUSE * MAX_POLLS).expect("nft monitor prints the last packet"));
        }
        let id = |line: &str| line.split(' ').nth(2).unwrap_or_default().to_owned();
        let framing = lines.iter().filter(|line| is_about(line, READY) || is_about(line, DONE));
        let frames: Vec<String> = framing.map(|line| id(line)).collect();
        lines.retain(|line| !frames.contains(&id(line)));
        lines
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        _ = self.program.kill();
        _ = self.program.wait();
    }
}

fn is_about(line: &str, port: u16) -> bool {
    line.contains(" packet: ") && line.contains(&format!(" udp dport {port} "))
}

/// Parses `trace id 4b1d ip nat KUBE-SERVICES rule … (verdict jump KUBE-SVC-X)` to `nat KUBE-SERVICES: jump KUBE-SVC-X`.
fn traced_rule(line: &str, family: IpFamily) -> Option<String> {
    let mut words = line.strip_prefix("trace id ")?.splitn(5, ' ').skip(1);
    let (keyword, table, chain, rest) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let is_family = keyword == ["ip", "ip6"][family.index()];
    let (_, verdict) = rest.strip_prefix("rule ").filter(|_| is_family)?.rsplit_once("(verdict ")?;
    Some(format!("{table} {chain}: {}", verdict.trim_end().trim_end_matches(')')))
}

/// Makes the kernel trace every UDP packet; the tests send no other packets.
const TRACE_RULES: &str = "
table inet tracing {
    chain arriving { type filter hook prerouting priority -350; meta l4proto udp meta nftrace set 1; }
    chain sent { type filter hook output priority -350; meta l4proto udp meta nftrace set 1; }
}
";

/// Ports of the framing packets.
const READY: u16 = 7;
const DONE: u16 = 9;

/// The polling interval, and the number of polls before a test fails: generous, for machines under load.
const PAUSE: Duration = Duration::from_millis(20);
const MAX_POLLS: u32 = 1500;
