//! The memory of idle connections through userspace mode: opens 20,000 connections, or as many as the limit of open
//! files permits, and prints the memory of the relay for each, without the kernel's memory. Clients and servers run in
//! another process of the same program. Requires root.
//!
//! ```text
//! cargo bench -p ferroute-userspace --bench idle
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_testing::{NetNs, anonymous_memory};
use ferroute_userspace::{Engine, Limits, ListenerSpec, PortRange};

fn main() {
    // A connection has two sockets in either process.
    let descriptors = usize::try_from(ferroute_host::raise_descriptor_limit().unwrap()).unwrap();
    let wanted = CONNECTIONS.min(descriptors.saturating_sub(100) / 2);
    if std::env::args().any(|argument| argument == PEERS) {
        return hold_peers(wanted);
    }
    let namespace = NetNs::new();
    namespace.command("sysctl", &["-qw", "net.ipv4.ip_local_port_range=1024 65535"]);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(PEERS).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut peers = namespace.run(|| command.spawn().unwrap());
    let mut from_peers = BufReader::new(peers.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut to_peers = peers.stdin.take().unwrap();
    let endpoint: SocketAddr = from_peers.next().unwrap().parse().unwrap();

    let threads = thread::available_parallelism().unwrap().get().min(4);
    let runtime = namespace
        .run(|| tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap());
    let mut engine = Engine::new(Limits::default(), PortRange::Any);
    let spec =
        ListenerSpec { family: IpFamily::V4, protocol: Protocol::Tcp, endpoints: vec![endpoint], affinity: None };
    let port = namespace.run(|| {
        let _guard = runtime.enter();
        engine.set("idle", spec).unwrap()
    });
    let process = std::process::id();
    let (before, start) = (anonymous_memory(process), Instant::now());
    writeln!(to_peers, "127.0.0.1:{port}").unwrap();
    assert_eq!(from_peers.next().unwrap(), OPEN);
    let took = start.elapsed();
    while engine.stats(&"idle").unwrap().active < wanted as u64 && start.elapsed() < took + PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    let (open, memory) = (engine.stats(&"idle").unwrap().active, anonymous_memory(process) - before);
    println!(
        "{open} idle connections: {:.1} MB of memory, {:.0} bytes each; {:.1} MB for 20,000; opened in {:.1} s",
        memory as f64 / 1e6,
        memory as f64 / open as f64,
        memory as f64 / open as f64 * 20_000.0 / 1e6,
        took.as_secs_f64()
    );
    drop(to_peers);
    peers.wait().unwrap();
    runtime.shutdown_background();
}

/// Opens connections to the address on standard input, and keeps both ends until its end.
fn hold_peers(wanted: usize) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", server.local_addr().unwrap());
    let mut input = std::io::stdin().lines().map(Result::unwrap);
    let relay: SocketAddr = input.next().unwrap().parse().unwrap();
    let open = |_| (TcpStream::connect(relay).unwrap(), server.accept().unwrap().0);
    let connections: Vec<_> = (0..wanted).map(open).collect();
    println!("{OPEN}");
    assert_eq!(input.next(), None);
    drop(connections);
}

const CONNECTIONS: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// The argument of the process of clients and servers.
const PEERS: &str = "peers";
const OPEN: &str = "open";
