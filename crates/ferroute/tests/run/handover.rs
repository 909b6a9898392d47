//! UDP responses that are outstanding while their flow is handed over in userspace mode.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use ferroute_testing::{NetNs, restart};
use ferroute_userspace::running_workers;

use crate::{
    Case, Cluster, Mode,
    cluster::{PORT, pod_addresses},
    slices, wait,
};

/// UDP servers of a pod, which hold responses back until the test requests them.
struct Server([UdpSocket; 2]);

impl Server {
    fn open(cluster: &Cluster, pod: u8) -> Self {
        Self(pod_addresses(pod).map(|address| open(&cluster.pods, SocketAddr::from((address, HELD_PORT)))))
    }

    /// Waits for a request in each IP family.
    fn receive(&self) -> Requests<'_> {
        Requests(self.0.each_ref().map(|socket| (socket, restart(|| socket.recv_from(&mut [0; 16])).unwrap().1)))
    }
}

/// Requests that a server has received.
struct Requests<'a>([(&'a UdpSocket, SocketAddr); 2]);

impl Requests<'_> {
    fn answer(self, text: &str) {
        for (socket, from) in self.0 {
            socket.send_to(text.as_bytes(), from).unwrap();
        }
    }
}

/// A UDP socket of the client for each IP family.
struct Client([UdpSocket; 2]);

impl Client {
    fn open(cluster: &Cluster) -> Self {
        Self(["10.96.0.7:53", "[fd00:96::7]:53"].map(|service| {
            let any = if service.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = open(&cluster.client, any.parse().unwrap());
            socket.connect(service).unwrap();
            socket
        }))
    }

    fn ask(&self) {
        self.0.iter().for_each(|socket| assert_eq!(socket.send(b"question").unwrap(), 8));
    }

    #[track_caller]
    fn expect(&self, answer: &str) {
        for socket in &self.0 {
            let mut buffer = [0; 16];
            let length = restart(|| socket.recv(&mut buffer)).expect("a response");
            assert_eq!(&buffer[..length], answer.as_bytes());
        }
    }
}

fn open(namespace: &NetNs, address: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind(address)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

/// Returns a UDP Service with these pods.
fn held(pods: &[u8]) -> String {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: held}\nspec:\n  \
                   clusterIP: 10.96.0.7\n  clusterIPs: [10.96.0.7, \"fd00:96::7\"]\n  ipFamilies: [IPv4, IPv6]\n  \
                   ports: [{name: udp, port: 53, protocol: UDP}]\n";
    let slices = slices("held", pods).replace(&format!("port: {PORT}"), &format!("port: {HELD_PORT}"));
    format!("{service}{slices}")
}

/// Starts userspace mode, in which a flow without datagrams lasts longer than a test.
fn start(pods: &[u8]) -> Case {
    Case::with_settings(Mode::Userspace, &held(pods), "udpIdleTimeout: 10m\n")
}

fn has_listeners(case: &Case) -> bool {
    case.cluster
        .node
        .run(|| running_workers().unwrap().iter_mut().any(|worker| !worker.listeners().unwrap().is_empty()))
}

#[test]
fn response_of_removed_endpoint_arrives() {
    let case = start(&[0]);
    let (old, new, client) =
        (Server::open(&case.cluster, 0), Server::open(&case.cluster, 1), Client::open(&case.cluster));
    client.ask();
    let held = old.receive();
    case.files.apply(&self::held(&[1]));
    case.wait_gone(0);
    held.answer("old");
    client.expect("old");
    client.ask();
    new.receive().answer("new");
    client.expect("new");
}

#[test]
fn responses_of_both_endpoints_arrive_after_a_removal() {
    let case = start(&[0]);
    let (old, new, client) =
        (Server::open(&case.cluster, 0), Server::open(&case.cluster, 1), Client::open(&case.cluster));
    client.ask();
    let held = old.receive();
    case.files.apply(&self::held(&[1]));
    case.wait_gone(0);
    client.ask();
    new.receive().answer("new");
    client.expect("new");
    held.answer("old");
    client.expect("old");
}

#[test]
fn response_arrives_after_the_end_of_the_service_and_later_requests_are_rejected() {
    let case = start(&[0]);
    let (server, client) = (Server::open(&case.cluster, 0), Client::open(&case.cluster));
    client.ask();
    let held = server.receive();
    case.files.apply(&self::held(&[]));
    wait("the end of the listeners", || (!has_listeners(&case)).then_some(()));
    held.answer("late");
    client.expect("late");
    for socket in &client.0 {
        wait("the rejection", || {
            let result = socket.send(b"question");
            result.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused).then_some(())
        });
    }
}

#[test]
fn responses_arrive_across_switches_of_modes() {
    let mut case = start(&[0]);
    let (server, client) = (Server::open(&case.cluster, 0), Client::open(&case.cluster));
    for mode in [Mode::Nftables, Mode::Userspace, Mode::Iptables, Mode::Userspace, Mode::Userspace] {
        client.ask();
        let held = server.receive();
        assert!(case.proxy.stop("TERM").success());
        case.start_again(mode);
        if mode == Mode::Userspace {
            wait("listeners", || has_listeners(&case).then_some(()));
        } else {
            wait("the end of the listeners", || (!has_listeners(&case)).then_some(()));
        }
        held.answer("late");
        client.expect("late");
        // The flow follows the new rules once it is quiet, and then the old process is not needed any more.
        let workers = usize::from(mode == Mode::Userspace);
        wait("the end of the old process", || {
            (case.cluster.node.run(|| running_workers().unwrap().len()) == workers).then_some(())
        });
    }
    client.ask();
    server.receive().answer("last");
    client.expect("last");
}

const HELD_PORT: u16 = 8081;
