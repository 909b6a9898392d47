//! A node of network namespaces, whose kernel tells through which rules packets go.
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
    /// One for each pod that can be an endpoint, with what it listens on.
    listeners: Vec<(SocketAddr, UdpSocket)>,
    trace: Trace,
}

/// What became of a packet.
#[derive(Debug, PartialEq)]
pub struct Sighting {
    /// Every rule that it met, as `table chain: verdict`.
    pub rules: Vec<String>,
    /// Who got it, and the source that they saw.
    pub received: Option<(SocketAddr, IpAddr)>,
}

impl Lab {
    /// Builds the namespaces; `load` puts rules into the node.
    pub fn new(family: IpFamily, load: impl FnOnce(&NetNs)) -> Self {
        let [node, outside] = std::array::from_fn(|_| NetNs::new());
        for setting in [
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.ipv4.conf.all.route_localnet=1",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.default.rp_filter=0",
            // Where the bridge itself obeys iptables, it takes packets out of their way through the host.
            "net.bridge.bridge-nf-call-iptables=0",
            "net.bridge.bridge-nf-call-ip6tables=0",
        ] {
            // -e: kernels without the bridge's part do not have its settings.
            node.command("sysctl", &["-eqw", setting]);
        }
        // The order matters: what is masqueraded on its way to the node itself gets the first device's address.
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

    /// Sends a packet, and tells where it went. `delivered` says whether somebody who listens is to get it.
    pub fn send(
        &mut self,
        world: &World,
        client: &Client,
        source: SocketAddr,
        to: SocketAddr,
        delivered: bool,
    ) -> Sighting {
        let namespace = match client {
            Client::Node => &self.node,
            Client::Elsewhere(_) => &self.outside,
            Client::Pod(address) => {
                let pod = self.pods.iter().find(|(own, _)| own == address);
                pod.map(|(_, namespace)| namespace).expect("the lab has this pod")
            }
        };
        let socket = namespace.run(|| UdpSocket::bind(SocketAddr::new(source.ip(), 0)).unwrap());
        // Packets of one sender stay in order, so those that frame ours tell when the kernel has told everything.
        let near = match client {
            Client::Node => source.ip(),
            Client::Elsewhere(address) | Client::Pod(address) => world.address_towards(*address),
        };
        let frame = |port| drop(socket.send_to(b"frame", SocketAddr::new(near, port)));
        let lines = self.trace.between(
            || frame(READY),
            || {
                // A rule that rejects what the node sends makes the call fail.
                drop(socket.send_to(b"hello", to));
                frame(DONE);
            },
        );
        let mut received = self.received();
        for _ in 0..PATIENCE {
            if received.is_some() || !delivered {
                break;
            }
            thread::sleep(PAUSE);
            received = self.received();
        }
        Sighting { rules: lines.iter().filter_map(|line| met(line, self.family)).collect(), received }
    }

    /// The node, for those who read its rules.
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

/// `nft monitor trace`, running.
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

    /// What is told of packets that `act` sends, given that `ready` sends one to [`READY`] and `act` at last one to
    /// [`DONE`].
    fn between(&self, ready: impl Fn(), act: impl FnOnce()) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        // Until the program listens, it misses packets.
        for tries in 0.. {
            assert!(tries < PATIENCE, "nft tells of no packet");
            ready();
            match self.lines.recv_timeout(PAUSE) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("nft monitor has ended"),
            }
            if lines.last().is_some_and(|line| is_about(line, READY)) {
                break;
            }
        }
        act();
        while !lines.last().is_some_and(|line| is_about(line, DONE)) {
            lines.push(self.lines.recv_timeout(PAUSE * PATIENCE).expect("nft tells of the last packet"));
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

/// `trace id 4b1d ip nat KUBE-SERVICES rule … (verdict jump KUBE-SVC-X)` as `nat KUBE-SERVICES: jump KUBE-SVC-X`.
fn met(line: &str, family: IpFamily) -> Option<String> {
    let mut words = line.strip_prefix("trace id ")?.splitn(5, ' ').skip(1);
    let (spoken, table, chain, rest) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let ours = spoken == ["ip", "ip6"][family.index()];
    let (_, verdict) = rest.strip_prefix("rule ").filter(|_| ours)?.rsplit_once("(verdict ")?;
    Some(format!("{table} {chain}: {}", verdict.trim_end().trim_end_matches(')')))
}

/// Asks the kernel to tell of every UDP packet; the tests send no others.
const TRACE_RULES: &str = "
table inet tracing {
    chain arriving { type filter hook prerouting priority -350; meta l4proto udp meta nftrace set 1; }
    chain sent { type filter hook output priority -350; meta l4proto udp meta nftrace set 1; }
}
";

/// Ports of the packets before and after the one that a test is about.
const READY: u16 = 7;
const DONE: u16 = 9;

/// How long something may take that happens at once: a long time, for a machine under load.
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: u32 = 1500;
