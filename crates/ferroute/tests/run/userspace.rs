//! userspace mode: features that require a process in the data path, and the lifecycle of this process.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use ferroute_testing::NetNs;
use ferroute_userspace::{OpenListener, running_workers};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    Case, Cluster, Files, Mode, Proxy, WEB,
    cluster::PORT,
    http::get,
    proxy::{FERROUTE, healthz},
    rules, slices,
    status::METRICS,
    traffic::{Connection, Flow, connect},
    wait, web, web_tcp, web_udp,
};

/// Returns the listeners of all workers on a node.
fn listeners(node: &NetNs) -> Vec<OpenListener> {
    node.run(|| running_workers().unwrap().iter_mut().flat_map(|worker| worker.listeners().unwrap()).collect())
}

/// Returns the number of workers on a node.
fn workers(node: &NetNs) -> usize {
    node.run(|| running_workers().unwrap().len())
}

/// An address of the pods' namespace on which nothing listens.
const CLOSED: [&str; 2] = ["10.244.0.250", "fd00:244::250"];

#[test]
fn clients_do_not_see_endpoints_that_refuse() {
    let mut yaml = web(&[0]);
    for (pod, closed) in ["10.244.0.2", "fd00:244::2"].into_iter().zip(CLOSED) {
        let line = format!("- {{addresses: [\"{pod}\"], nodeName: node-1}}\n");
        yaml = yaml.replace(&line, &format!("{line}{}", line.replace(pod, closed)));
    }
    let case = Case::new(Mode::Userspace, &yaml);
    assert!(listeners(&case.cluster.node).iter().all(|listener| listener.endpoints.len() == 2));
    for to in web_tcp() {
        for _ in 0..6 {
            assert_eq!(case.connect(to).unwrap(), 0, "{to}");
        }
    }
    for to in web_udp() {
        // The first datagram is lost if its endpoint is the one that refuses.
        assert_eq!(Flow::open(&case.cluster.client, to).pod(), 0);
    }
    let failed: u64 = listeners(&case.cluster.node).iter().map(|listener| listener.stats.failed_attempts).sum();
    assert!(failed > 0);
}

#[test]
fn connections_without_a_reachable_endpoint_are_reset() {
    let yaml = web(&[0]).replace("10.244.0.2", CLOSED[0]);
    let case = Case::new(Mode::Userspace, &yaml);
    let error = case.connect(web_tcp()[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn session_affinity_is_by_client() {
    let service = WEB.replace("spec:\n", "spec:\n  sessionAffinity: ClientIP\n");
    let case = Case::new(Mode::Userspace, &format!("{service}{}", slices("web", &[0, 1, 2])));
    for to in web_tcp() {
        let pods: BTreeSet<u8> = (0..9).map(|_| case.connect(to).unwrap()).collect();
        assert_eq!(pods.len(), 1, "{to}");
    }
}

#[test]
fn ports_of_listeners_are_reached_by_way_of_services_only() {
    let case = Case::new(Mode::Userspace, &web(&[0]));
    let listeners = listeners(&case.cluster.node);
    let port = |address: &str| {
        let is_ipv4 = !address.contains(':');
        let mut tcp = listeners.iter().filter(|listener| listener.key.contains("/tcp"));
        tcp.find(|listener| listener.key.starts_with("IPv4") == is_ipv4).unwrap().port
    };
    for address in ["192.168.0.1", "fd00:168::1"] {
        let to = SocketAddr::new(address.parse().unwrap(), port(address));
        let result = case.cluster.client.run(|| TcpStream::connect_timeout(&to, Duration::from_millis(300)));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut, "{to}");
        // Packets of the node itself never leave it.
        assert_eq!(connect(&case.cluster.node, to).unwrap(), 0);
    }
    for to in web_tcp() {
        assert_eq!(case.connect(to).unwrap(), 0);
    }
}

/// Packets to listeners pass INPUT, where firewalls have rules for the host's own services.
#[test]
fn firewalls_in_input_do_not_refuse_services() {
    let case = Case::new(Mode::Userspace, &web(&[0]));
    let node = &case.cluster.node;
    let firewall: String = ["ip", "ip6"]
        .map(|family| {
            // The neighbours' addresses are resolved by ICMPv6.
            let rules =
                ["iif lo accept", "meta l4proto ipv6-icmp accept", "ct state established,related accept", "reject"];
            let rules = rules.map(|rule| format!("add rule {family} filter INPUT {rule}\n")).concat();
            format!("chain {family} filter INPUT {{ policy drop; }}\n{rules}")
        })
        .concat();
    let all_are_accepted = || web_tcp().iter().all(|to| case.connect(*to).is_ok());
    node.feed("nft", &["-f", "-"], &firewall);
    assert!(all_are_accepted());
    // A firewall that starts after the proxy, and replaces all rules of INPUT.
    let flush = "flush chain ip filter INPUT\nflush chain ip6 filter INPUT\n";
    node.feed("nft", &["-f", "-"], &format!("{flush}{firewall}"));
    wait("connections", || all_are_accepted().then_some(()));
}

#[test]
fn dead_worker_is_replaced_and_rules_follow() {
    let case = Case::new(Mode::Userspace, &web(&[0, 1]));
    let before: Vec<u16> = listeners(&case.cluster.node).iter().map(|listener| listener.port).collect();
    let pid = case.cluster.node.run(|| running_workers().unwrap()[0].process_id());
    // A child of the proxy, which has not been waited for.
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    case.proxy.wait_log("worker has ended");
    wait("a connection", || web_tcp().iter().all(|to| case.connect(*to).is_ok()).then_some(()));
    let after: Vec<u16> = listeners(&case.cluster.node).iter().map(|listener| listener.port).collect();
    assert!(after.len() == before.len() && after != before);
}

/// A stopped worker does not respond, and its sockets stay open.
#[test]
fn hung_worker_is_reported_killed_and_replaced() {
    let case = Case::new(Mode::Userspace, &web(&[0]));
    let pid = case.cluster.node.run(|| running_workers().unwrap()[0].process_id());
    assert_eq!(get(&case.cluster.node, healthz(), "/healthz").unwrap().status, 200);
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    wait("bad health", || (get(&case.cluster.node, healthz(), "/healthz").unwrap().status == 503).then_some(()));
    case.proxy.wait_log("does not answer; killing it");
    for to in web_tcp() {
        wait("the other worker", || case.connect(to).ok().filter(|pod| *pod == 0));
    }
    wait("good health", || (get(&case.cluster.node, healthz(), "/healthz").unwrap().status == 200).then_some(()));
    assert_eq!(workers(&case.cluster.node), 1);
}

#[test]
fn worker_is_confined_and_does_not_keep_the_proxys_standard_error() {
    let mut case = Case::new(Mode::Userspace, &web(&[0]));
    let pid = case.cluster.node.run(|| running_workers().unwrap()[0].process_id());
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    // CAP_NET_ADMIN is bit 12 (`include/uapi/linux/capability.h`).
    let net_admin = format!("{:016x}", 1_u64 << 12);
    assert_eq!([field("CapEff:"), field("CapPrm:")], [net_admin.clone(), net_admin]);
    assert_eq!((field("CapInh:"), field("NoNewPrivs:")), (format!("{:016x}", 0), "1".to_owned()));
    assert_eq!(field("Seccomp:"), "2", "a filter of system calls");
    assert!(case.proxy.stop("TERM").success());
    let stderr = || std::fs::read_link(format!("/proc/{pid}/fd/2")).unwrap();
    wait("another standard error", || (stderr() == Path::new("/dev/null")).then_some(()));
    assert_eq!(case.connect(web_tcp()[0]).unwrap(), 0, "it goes on serving");
}

#[test]
fn draining_worker_is_replaced_and_keeps_its_connections() {
    let case = Case::new(Mode::Userspace, &web(&[0]));
    let mut connection = Connection::open(&case.cluster.client, web_tcp()[0]).unwrap();
    let pid = case.cluster.node.run(|| running_workers().unwrap()[0].process_id());
    // As by an administrator, while the proxy runs.
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    wait("another worker", || (workers(&case.cluster.node) == 2).then_some(()));
    wait("a new connection", || web_tcp().iter().all(|to| case.connect(*to).is_ok()).then_some(()));
    connection.echo("still here").unwrap();
    drop(connection);
    wait("the end of the first worker", || (workers(&case.cluster.node) == 1).then_some(()));
    assert_eq!(case.connect(web_tcp()[0]).unwrap(), 0);
}

#[test]
fn ports_are_those_of_the_range() {
    let range = "portRange: 41000-41001\n";
    let other = "---\napiVersion: v1\nkind: Service\nmetadata: {name: other}\n\
                 spec: {clusterIP: 10.96.0.2, ports: [{name: tcp, port: 80}]}\n";
    let third = other.replace("other", "third").replace("10.96.0.2", "10.96.0.3");
    let yaml = format!("{}{other}{}{third}{}", web(&[0]), slices("other", &[1]), slices("third", &[2]));
    let case = Case::with_settings(Mode::Userspace, &yaml, range);
    let listeners = listeners(&case.cluster.node);
    assert!(listeners.iter().all(|listener| (41000..=41001).contains(&listener.port)), "{listeners:?}");
    // Two of three TCP ports have a listener. Connections to the third are rejected, not dropped.
    let connect = |address: &str| case.connect(format!("{address}:80").parse().unwrap());
    let results = ["10.96.0.1", "10.96.0.2", "10.96.0.3"].map(connect);
    let refused: Vec<ErrorKind> = results.iter().filter_map(|result| Some(result.as_ref().err()?.kind())).collect();
    assert_eq!(refused, [ErrorKind::ConnectionRefused]);
    case.proxy.wait_log("no free port from 41000 to 41001");
}

#[test]
fn sctp_is_rejected_and_logged() {
    let sctp = "---\napiVersion: v1\nkind: Service\nmetadata: {name: signalling}\n\
                spec: {clusterIP: 10.96.0.9, ports: [{name: tcp, port: 80, protocol: SCTP}]}\n";
    let slices =
        slices("signalling", &[0]).replace("{name: tcp, port: 8080}", "{name: tcp, port: 8080, protocol: SCTP}");
    let case = Case::new(Mode::Userspace, &format!("{}{sctp}{slices}", web(&[0])));
    case.proxy.wait_log_line(&["does not support SCTP", "default/signalling:tcp"]);
    assert_eq!(case.proxy.log().matches("does not support SCTP").count(), 1, "logged once");
    let rules = case.rules().concat();
    assert!(rules.contains("-d 10.96.0.9/32 -p sctp") && rules.contains("REJECT"), "{rules}");
    assert_eq!(case.connect(web_tcp()[0]).unwrap(), 0);
}

#[test]
fn worker_ends_with_its_last_connection_after_a_switch() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let mut proxy = Proxy::start(&cluster.node, &files, Mode::Userspace);
    let mut connection = Connection::open(&cluster.client, web_tcp()[0]).unwrap();
    assert!(proxy.stop("TERM").success());
    let _proxy = Proxy::start(&cluster.node, &files, Mode::Nftables);
    wait("the end of its listeners", || listeners(&cluster.node).is_empty().then_some(()));
    // The rules lead to it no more.
    assert_eq!(connect(&cluster.client, web_tcp()[0]).unwrap(), 0);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(workers(&cluster.node), 1);
    connection.echo("still here").unwrap();
    drop(connection);
    wait("the end of the worker", || (workers(&cluster.node) == 0).then_some(()));
}

#[test]
fn cleanup_ends_the_worker() {
    let mut case = Case::new(Mode::Userspace, &web(&[0]));
    assert!(case.proxy.stop("TERM").success());
    assert_eq!(workers(&case.cluster.node), 1);
    case.cluster.node.command(FERROUTE, &["run", "--cleanup"]);
    assert_eq!(rules::of_proxy(&case.cluster.node, Mode::Userspace), Vec::<String>::new());
    wait("the end of the worker", || (workers(&case.cluster.node) == 0).then_some(()));
}

#[test]
fn connections_are_counted_by_endpoint() {
    let case = Case::new(Mode::Userspace, &web(&[0, 1]));
    for _ in 0..6 {
        case.connect(web_tcp()[0]).unwrap();
    }
    let listeners = listeners(&case.cluster.node);
    let tcp = listeners.iter().find(|listener| listener.key == "IPv4 default/web:tcp/tcp").unwrap();
    assert_eq!((tcp.service_port(), &tcp.connections[..], tcp.stats.connections), ("default/web:tcp", &[3, 3][..], 6));
    // Without connections in its interval, the table is empty.
    case.cluster.node.command(FERROUTE, &["top", "--once", "--interval", "1s"]);
}

#[test]
fn metrics_count_connections_and_bytes_by_service_port() {
    let case = Case::new(Mode::Userspace, &web(&[0]));
    let mut connection = Connection::open(&case.cluster.client, web_tcp()[0]).unwrap();
    connection.echo("four").unwrap();
    case.connect(web_tcp()[0]).unwrap();
    let labels = "ip_family=\"IPv4\",protocol=\"tcp\",service_port=\"default/web:tcp\"";
    let lines = [
        format!("ferroute_userspace_open_connections{{{labels}}} 1"),
        format!("ferroute_userspace_connections_total{{{labels}}} 2"),
        // "four\n" and "hello\n"; each connection starts with the pod's address.
        format!("ferroute_userspace_bytes_total{{direction=\"to_endpoint\",{labels}}} 11"),
        format!("ferroute_userspace_bytes_total{{direction=\"to_client\",{labels}}} {}", 11 + 2 * "10.244.0.2\n".len()),
        format!("ferroute_userspace_refused_total{{{labels}}} 0"),
    ];
    wait("the counts", || {
        let body = get(&case.cluster.node, METRICS, "/metrics").unwrap().body;
        lines.iter().all(|line| body.lines().any(|metric| metric == line)).then_some(())
    });
}

#[test]
fn kernel_is_compared_and_traced_with_the_listeners_of_the_worker() {
    let case = Case::new(Mode::Userspace, &web(&[0, 1]));
    let manifests = case.files.manifests();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(FERROUTE);
        command.args(arguments).args(["--hostname-override", "node-1", "--proxy-mode", "userspace", "--manifests"]);
        command.arg(&manifests);
        let output = case.cluster.node.run(|| command.output()).unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, text, errors) = run(&["diff"]);
    assert_eq!(status, Some(0), "{text}{errors}");
    let (status, text, errors) = run(&["trace", "--kernel", "--from", "192.168.0.9", "--to", "10.96.0.1:80"]);
    assert_eq!(status, Some(0), "{text}{errors}");
    for pod in ["10.244.0.2", "10.244.0.3"] {
        assert!(text.contains("connect to one of 2") && text.contains(&format!("{pod}:{PORT}")), "{text}");
    }
}
