//! Health checks of load balancers and the kubelet.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

use socket2::{Domain, Socket, Type};

use crate::{
    Case, Mode,
    cluster::Cluster,
    http::{Response, get},
    in_each_mode,
    proxy::{FERROUTE, Files, Proxy, healthz},
    slices, traffic, wait, web, web_tcp,
};

in_each_mode!(
    healthz_follows_the_node,
    health_check_node_ports_follow_local_endpoints,
    idle_connections_do_not_exhaust_descriptors,
);

fn healthz_follows_the_node(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let status = |path| get(&case.cluster.node, healthz(), path).unwrap().status;
    assert_eq!([status("/healthz"), status("/livez"), status("/metricz")], [200, 200, 404]);
    case.files.apply_node("{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}");
    wait("unhealthy", || (status("/healthz") == 503).then_some(()));
    assert_eq!(status("/livez"), 200);
    case.files.apply_node("");
    wait("healthy", || (status("/healthz") == 200).then_some(()));
    let metrics = get(&case.cluster.node, "127.0.0.1:10249".parse().unwrap(), "/metrics").unwrap().body;
    for (probe, code) in [("healthz", 200), ("healthz", 503), ("livez", 200)] {
        let counter = format!("kubeproxy_proxy_{probe}_total{{code=\"{code}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&*counter));
        assert!(line.unwrap().parse::<u32>().unwrap() > 0, "{counter}");
    }
    assert!(metrics.contains("kubeproxy_proxy_livez_total{code=\"503\"} 0\n"), "{metrics}");
}

fn health_check_node_ports_follow_local_endpoints(mode: Mode) {
    let case = Case::new(mode, &balanced(&[0, 1]));
    let port = health_check_port();
    let check = || get(&case.cluster.client, port, "/").ok();
    #[track_caller]
    fn wait_for(check: impl Fn() -> Option<Response>, status: u16, count: usize) {
        wait(&format!("{status} with {count} endpoints"), || {
            let response = check()?;
            let is_count = response.body.contains(&format!("\"localEndpoints\": {count},"));
            (response.status == status && is_count).then_some(())
        });
    }
    wait_for(check, 200, 2);
    case.files.apply(&balanced(&[0]));
    wait_for(check, 200, 1);
    case.files.apply(&balanced(&[0, 1]).replace("node-1", "node-2"));
    wait_for(check, 503, 0);
    case.files.apply(&balanced(&[0, 1, 2]));
    wait_for(check, 200, 3);
    case.files.apply(&web(&[0]));
    wait("the port to close", || check().is_none().then_some(()));
}

/// A client with several addresses holds more connections to a health-check node port than the proxy has descriptors.
fn idle_connections_do_not_exhaust_descriptors(mode: Mode) {
    let files = Files::new();
    files.apply(&format!("{}---\n{}", balanced(&[0]), web(&[0])));
    let cluster = Cluster::new();
    let limited = format!("ulimit -n {DESCRIPTORS}; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &limited, "sh", FERROUTE, "run", "--manifests"]).arg(files.manifests());
    command.arg("--config").arg(files.config(mode));
    let mut proxy = Proxy::spawn(&cluster.node, &mut command);
    proxy.wait_synced(&cluster.node);
    let connect = || cluster.client.run(|| TcpStream::connect_timeout(&health_check_port(), TIMEOUT));
    let mut checker = wait("the port to open", || connect().ok());

    let addresses = (20..20 + CLIENTS).map(|host| format!("192.168.0.{host}"));
    let mut held = Vec::new();
    for address in addresses {
        cluster.client.add_address(&format!("{address}/24"), "eth0");
        for _ in 0..2 * DESCRIPTORS / usize::from(CLIENTS) {
            let connect = || {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                socket.bind(&SocketAddr::new(address.parse().unwrap(), 0).into())?;
                socket.connect(&health_check_port().into())?;
                io::Result::Ok(socket)
            };
            held.push(cluster.client.run(connect).unwrap());
        }
    }
    // The listen queue is accepted in order, so that this is answered after all of them have been accepted.
    assert_eq!(get(&cluster.client, health_check_port(), "/").unwrap().status, 200);
    assert_eq!(get(&cluster.node, healthz(), "/healthz").unwrap().status, 200);
    // Connections of a client that has only one stay open.
    write!(checker, "GET / HTTP/1.0\r\n\r\n").unwrap();
    checker.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = String::new();
    checker.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
    files.apply(&format!("{}---\n{}", balanced(&[0]), web(&[1])));
    for to in web_tcp() {
        wait("the change", || (traffic::connect(&cluster.client, to).ok()? == 1).then_some(()));
    }
    drop(held);
}

/// Far more than the proxy needs, and fewer than the clients use.
const DESCRIPTORS: usize = 128;

const CLIENTS: u8 = 8;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a Service with a health-check node port and these pods.
fn balanced(pods: &[u8]) -> String {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: balanced}\n\
         spec: {type: LoadBalancer, clusterIP: 10.96.0.3, externalTrafficPolicy: Local, healthCheckNodePort: 30500,\
         ports: [{name: tcp, port: 80, nodePort: 30080}]}\n";
    format!("{service}{}", slices("balanced", pods))
}

fn health_check_port() -> SocketAddr {
    "192.168.0.1:30500".parse().unwrap()
}
