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
    load_balancer_addresses_answer_health_checks,
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

/// Some load balancers send health checks to their own addresses, which their agents route to the node. Node ports are restricted
/// to the primary addresses.
fn load_balancer_addresses_answer_health_checks(mode: Mode) {
    let (service, slices) = balanced(&[0, 1]).split_once("---").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let service =
        service.replace("clusterIP: 10.96.0.3", "clusterIP: 10.96.0.3, clusterIPs: [10.96.0.3, \"fd00:96::3\"]");
    let ingress = "status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {ip: \"2001:db8::1\"}]}}\n";
    let case = Case::with_settings(mode, &format!("{service}{ingress}---{slices}"), "nodePortAddresses: [primary]\n");
    let status = |at: &str| get(&case.cluster.client, at.parse().unwrap(), "/").ok().map(|response| response.status);
    wait("the node's port", || (status("192.168.0.1:30500")? == 200).then_some(()));
    for (address, at) in [("198.51.100.1", "198.51.100.1:30500"), ("2001:db8::1", "[2001:db8::1]:30500")] {
        // The address need not belong to the host before; in mode nftables, no other address answers.
        case.cluster.node.command("ip", &["route", "add", "local", address, "dev", "client"]);
        wait(at, || (status(at)? == 200).then_some(()));
    }
    let explained = explain(&case, "balanced");
    for address in ["192.168.0.1", "fd00:168::1", "198.51.100.1", "2001:db8::1"] {
        let health = explained.lines().skip_while(|line| !line.contains("health check")).take(3).collect::<String>();
        assert!(health.contains(address), "{explained}");
    }
    case.files.apply(&web(&[0]));
    wait("the ports to close", || {
        let at = ["192.168.0.1:30500", "198.51.100.1:30500", "[2001:db8::1]:30500"];
        at.iter().all(|at| status(at).is_none()).then_some(())
    });
}

fn explain(case: &Case, service: &str) -> String {
    let output = case.cluster.node.try_command(FERROUTE, &["explain", "service", service]);
    String::from_utf8(output.stdout).unwrap()
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
    // The only connection of a client stays open.
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
