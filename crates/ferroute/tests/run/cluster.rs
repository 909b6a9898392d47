//! A client, a node and the pods behind it, each in its own network namespace.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    thread::JoinHandle,
};

use ferroute_testing::NetNs;
use tokio::{io::AsyncWriteExt, sync::oneshot};

/// A node with a client on one side and pods on the other.
pub(crate) struct Cluster {
    /// The proxy runs here. Addresses: 192.168.0.1 and fd00:168::1, and the first address of each pod network.
    pub(crate) node: NetNs,
    /// Addresses: 192.168.0.9 and fd00:168::9. All routes lead through the node.
    pub(crate) client: NetNs,
    /// Namespace with the addresses of all pods.
    pub(crate) pods: NetNs,
    _servers: Servers,
}

/// The number of pods.
pub(crate) const PODS: u8 = 3;
/// The port of the pods' servers.
pub(crate) const PORT: u16 = 8080;

/// Returns the IPv4 and IPv6 addresses of a pod. All pods share one namespace, because only their addresses matter in
/// these tests.
pub(crate) fn pod_addresses(pod: u8) -> [IpAddr; 2] {
    [Ipv4Addr::new(10, 244, 0, 2 + pod).into(), Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 2 + u16::from(pod)).into()]
}

/// Returns the pod with this address.
pub(crate) fn pod_at(address: &str) -> Option<u8> {
    let address: IpAddr = address.parse().ok()?;
    (0..PODS).find(|pod| pod_addresses(*pod).contains(&address))
}

impl Cluster {
    /// Creates the namespaces and starts the pods' servers.
    pub(crate) fn new() -> Self {
        let [node, client, pods] = std::array::from_fn(|_| NetNs::new());
        for machine in [&node, &client, &pods] {
            // IPv6 neighbour discovery does not work before duplicate address detection ends, which takes a second.
            machine.command("sysctl", &["-qw", "net.ipv6.conf.default.accept_dad=0"]);
        }
        for setting in [
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            // The kernel must not suppress rejections of frequent requests.
            "net.ipv4.icmp_ratelimit=0",
            "net.ipv6.icmp.ratelimit=0",
        ] {
            node.command("sysctl", &["-qw", setting]);
        }
        for (machine, device, network, host) in
            [(&client, "client", ["192.168.0", "fd00:168:"], 9), (&pods, "pods", ["10.244.0", "fd00:244:"], 250)]
        {
            node.link(device, machine, "eth0");
            let [v4, v6] = network;
            node.add_address(&format!("{v4}.1/24"), device);
            node.add_address(&format!("{v6}:1/64"), device);
            machine.add_address(&format!("{v4}.{host}/24"), "eth0");
            machine.add_address(&format!("{v6}:{host}/64"), "eth0");
            machine.command("ip", &["route", "add", "default", "via", &format!("{v4}.1")]);
            machine.command("ip", &["route", "add", "default", "via", &format!("{v6}:1")]);
        }
        // Packets to Service addresses without a matching rule go back to the client.
        for gateway in ["192.168.0.9", "fd00:168::9"] {
            node.command("ip", &["route", "add", "default", "via", gateway]);
        }
        for pod in 0..PODS {
            let [v4, v6] = pod_addresses(pod);
            pods.add_address(&format!("{v4}/24"), "eth0");
            pods.add_address(&format!("{v6}/64"), "eth0");
        }
        let servers = Servers::start(&pods);
        Self { node, client, pods, _servers: servers }
    }
}

/// The servers of all pods, which stop on drop. TCP servers send a line with the pod's address and then echo all data. UDP
/// servers reply with the pod's address and the received datagram.
struct Servers {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    fn start(pods: &NetNs) -> Self {
        let (stop, stopped) = oneshot::channel();
        let addresses = (0..PODS).flat_map(pod_addresses).map(|address| SocketAddr::from((address, PORT)));
        let sockets: Vec<_> = addresses
            .map(|address| {
                let open = || Ok((std::net::TcpListener::bind(address)?, std::net::UdpSocket::bind(address)?));
                pods.run(|| io::Result::unwrap(open()))
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                for (listener, socket) in sockets {
                    listener.set_nonblocking(true).unwrap();
                    socket.set_nonblocking(true).unwrap();
                    tokio::spawn(serve_tcp(tokio::net::TcpListener::from_std(listener).unwrap()));
                    tokio::spawn(serve_udp(tokio::net::UdpSocket::from_std(socket).unwrap()));
                }
                // The sender is dropped when the test ends.
                _ = stopped.await;
            });
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and missing replies have failed the test.
            _ = thread.join();
        }
    }
}

async fn serve_tcp(listener: tokio::net::TcpListener) {
    let greeting = format!("{}\n", listener.local_addr().unwrap().ip());
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let greeting = greeting.clone();
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            to.write_all(greeting.as_bytes()).await?;
            tokio::io::copy(&mut from, &mut to).await
        });
    }
}

async fn serve_udp(socket: tokio::net::UdpSocket) {
    let address = socket.local_addr().unwrap().ip();
    let mut buffer = [0; 16];
    loop {
        // An error reports that an earlier reply was rejected.
        if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let request = String::from_utf8_lossy(&buffer[..length]);
            _ = socket.send_to(format!("{address} {request}").as_bytes(), from).await;
        }
    }
}
