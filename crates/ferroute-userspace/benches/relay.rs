//! Compares the relay with nftables mode, whose connections stay in the kernel, and with the simplest relay that
//! splices: two threads per connection. All are measured in one run, in network namespaces; only the ratios are
//! meaningful. Requires root.
//!
//! ```text
//! cargo bench -p ferroute-userspace --bench relay
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is an interactive program")]

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use ferroute_core::{
    IpFamily, Protocol,
    testing::{endpoint, entry, node, port_name, service_port, table},
};
use ferroute_nftables::{
    kernel::{Kernel, NetlinkKernel},
    plan::{NftablesSettings, render},
};
use ferroute_testing::NetNs;
use ferroute_userspace::{Engine, Limits, ListenerSpec, PortRange};
use nix::{
    fcntl::{OFlag, SpliceFFlags, splice},
    unistd::pipe2,
};

fn main() {
    let [node_ns, client, pods] = std::array::from_fn(|_| NetNs::new());
    for (machine, device, network) in [(&client, "client", "192.168.0"), (&pods, "pods", "10.244.0")] {
        node_ns.link(device, machine, "eth0");
        node_ns.add_address(&format!("{network}.1/24"), device);
        machine.add_address(&format!("{network}.2/24"), "eth0");
        machine.command("ip", &["route", "add", "default", "via", &format!("{network}.1")]);
    }
    node_ns.command("sysctl", &["-qw", "net.ipv4.ip_forward=1"]);
    for machine in [&node_ns, &client, &pods] {
        let settings = ["net.ipv4.ip_local_port_range=1024 65535", "net.ipv4.tcp_tw_reuse=1"];
        settings.iter().for_each(|setting| _ = machine.command("sysctl", &["-qw", setting]));
    }
    let sink = serve(&pods, SINK, |mut stream, total| {
        let mut buffer = vec![0; 1 << 18];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            total.fetch_add(length as u64, Relaxed);
        }
    });
    serve(&pods, ECHO, |mut stream, _| {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_ok() {
            // The client may have exited.
            _ = stream.write_all(&byte);
        }
    });

    // nftables mode: a cluster IP for each server, with a pod as the endpoint.
    let entries = [SINK, ECHO].map(|port| {
        let service = service_port(&format!("10.96.0.1:{port}"));
        (port_name(&format!("bench/s{port}:tcp")), entry(service, [endpoint(&format!("10.244.0.2:{port}"))]))
    });
    let table = table(IpFamily::V4, node("node-1"), entries);
    let settings = NftablesSettings::default();
    let addresses = ["192.168.0.1".parse().unwrap(), "10.244.0.1".parse().unwrap()];
    node_ns.run(|| NetlinkKernel::open().unwrap().commit(&render(&table, &settings, &addresses)).unwrap());

    // The relays, behind a DNAT as in userspace mode. Their threads inherit the namespace, from which they connect to
    // endpoints.
    let threads = thread::available_parallelism().unwrap().get().min(4);
    let runtime = node_ns
        .run(|| tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap());
    let mut engine = Engine::new(Limits::default(), PortRange::Any);
    let mut rules = "table ip bench { chain to { type nat hook prerouting priority -90; ".to_owned();
    for port in [SINK, ECHO] {
        let spec = ListenerSpec {
            family: IpFamily::V4,
            protocol: Protocol::Tcp,
            endpoints: vec![SocketAddr::from(([10, 244, 0, 2], port))],
            affinity: None,
        };
        let relay = node_ns.run(|| {
            let _guard = runtime.enter();
            engine.set(port, spec).unwrap()
        });
        rules.push_str(&format!("ip daddr 10.96.0.2 tcp dport {port} dnat to 192.168.0.1:{relay}; "));
        let plain = plain_splice(&node_ns, SocketAddr::from(([10, 244, 0, 2], port)));
        rules.push_str(&format!("ip daddr 10.96.0.3 tcp dport {port} dnat to 192.168.0.1:{plain}; "));
    }
    rules.push_str("}\n}\n");
    node_ns.feed("nft", &["-f", "-"], &rules);

    println!("| path | throughput | new connections per second |\n| --- | --- | --- |");
    for (name, address) in [
        ("nftables mode", [10, 96, 0, 1]),
        ("userspace mode", [10, 96, 0, 2]),
        ("plain splice, threads", [10, 96, 0, 3]),
    ] {
        let bytes = throughput(&client, SocketAddr::from((address, SINK)), &sink);
        let rate = connections(&client, SocketAddr::from((address, ECHO)));
        println!("| {name} | {:.1} Gbit/s | {rate:.0} |", bytes * 8.0 / 1e9);
    }
    runtime.shutdown_background();
    std::process::exit(0);
}

/// Starts a server with a thread per connection. Returns its counter.
fn serve(namespace: &NetNs, port: u16, each: fn(TcpStream, &AtomicU64)) -> Arc<AtomicU64> {
    let listener = namespace.run(|| TcpListener::bind(("0.0.0.0", port)).unwrap());
    let counter = Arc::new(AtomicU64::new(0));
    let shared = counter.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, counter) = (stream.unwrap(), shared.clone());
            let small = thread::Builder::new().stack_size(1 << 16);
            // Without a thread, the connection ends, which the measurement shows.
            _ = small.spawn(move || each(stream, &counter));
        }
    });
    counter
}

/// Starts a relay with two threads per connection, and returns its port.
fn plain_splice(namespace: &NetNs, endpoint: SocketAddr) -> u16 {
    let listener = namespace.run(|| TcpListener::bind("0.0.0.0:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    namespace.run(|| {
        thread::spawn(move || {
            for client in listener.incoming() {
                thread::spawn(move || {
                    let client = client.unwrap();
                    let Ok(server) = TcpStream::connect(endpoint) else { return };
                    let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    let back = thread::spawn(move || pump(&server, &client));
                    pump(&from, &to);
                    back.join().unwrap();
                });
            }
        });
    });
    port
}

fn pump(from: &TcpStream, to: &TcpStream) {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
    while let Ok(mut rest @ 1..) = splice(from, None, &write, None, 1 << 16, SpliceFFlags::SPLICE_F_MOVE) {
        while rest > 0 {
            match splice(&read, None, to, None, rest, SpliceFFlags::SPLICE_F_MOVE) {
                Ok(sent @ 1..) => rest -= sent,
                _ => return,
            }
        }
    }
    // It may be closed already.
    _ = to.shutdown(Shutdown::Write);
}

/// Returns the bytes per second that the sink receives over two connections.
fn throughput(client: &NetNs, to: SocketAddr, sink: &AtomicU64) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..2)
        .map(|_| {
            let stop = stop.clone();
            client.run(|| {
                let mut stream = TcpStream::connect(to).unwrap();
                thread::spawn(move || {
                    let block = vec![0; 1 << 18];
                    while !stop.load(Relaxed) {
                        stream.write_all(&block).unwrap();
                    }
                })
            })
        })
        .collect();
    thread::sleep(WARM_UP);
    let (start, before) = (Instant::now(), sink.load(Relaxed));
    thread::sleep(DURATION);
    let bytes = (sink.load(Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Relaxed);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    bytes
}

/// Returns the connections per second of eight clients, each of which exchanges a byte.
fn connections(client: &NetNs, to: SocketAddr) -> f64 {
    let start = Instant::now();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            client.run(|| {
                thread::spawn(move || {
                    let mut count = 0_u64;
                    while start.elapsed() < DURATION {
                        let mut stream = TcpStream::connect(to).unwrap();
                        stream.write_all(b"x").unwrap();
                        let mut byte = [0];
                        stream.read_exact(&mut byte).unwrap();
                        count += 1;
                    }
                    count
                })
            })
        })
        .collect();
    let count: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    count as f64 / start.elapsed().as_secs_f64()
}

const SINK: u16 = 5001;
const ECHO: u16 = 5002;
const WARM_UP: Duration = Duration::from_millis(500);
const DURATION: Duration = Duration::from_secs(3);
