//! `ferroute flows`: its reports equal the counts of clients.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ferroute_testing::NetNs;
use serde_json::Value;

use crate::{
    Case, Mode, WEB,
    cluster::{PORT, pod_addresses},
    http::get,
    in_each_mode, in_every_mode,
    proxy::FERROUTE,
    slices,
    traffic::{self, Flow, Reply},
    wait, web, web_tcp, web_udp,
};

in_every_mode!(
    flows_equal_what_clients_counted,
    events_are_subscribed_only_while_flows_are_read,
    refused_packets_are_flows_with_their_reasons,
    flows_agree_with_what_clients_saw,
);
in_each_mode!(failures_have_their_states, flows_need_no_proxy, translations_of_others_are_no_flows_of_node_ports);

/// `ferroute flows -o json`, which is killed on drop.
struct Reader {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Reader {
    /// Starts the command, and waits until it receives flows.
    fn start(node: &NetNs, arguments: &[&str]) -> Self {
        let mut command = Command::new(FERROUTE);
        command.args(["flows", "-o", "json"]).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = node.run(|| command.spawn()).unwrap();
        let (lines, stdout) = (Arc::<Mutex<Vec<Value>>>::default(), BufReader::new(child.stdout.take().unwrap()));
        let copy = lines.clone();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                copy.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        let reader = Self { child, lines };
        wait("the first line", || {
            reader.lines.lock().unwrap().iter().any(|line| line["start"].is_object()).then_some(())
        });
        reader
    }

    /// Returns the last state of each flow, by its number.
    fn flows(&self) -> BTreeMap<u64, Value> {
        let lines = self.lines.lock().unwrap();
        assert!(lines.iter().all(|line| line["lost"].is_null()), "{lines:?}");
        let flows = lines.iter().map(|line| &line["flow"]).filter(|flow| flow.is_object());
        flows.map(|flow| (flow["id"].as_u64().unwrap(), flow.clone())).collect()
    }

    /// Waits for this number of flows with a protocol in a state, and returns them. There must not be more with this
    /// protocol.
    #[track_caller]
    fn wait(&self, count: usize, protocol: &str, state: &str) -> Vec<Value> {
        wait(&format!("{count} {protocol} flows that are {state}"), || {
            let flows: Vec<Value> = self.flows().into_values().filter(|flow| flow["protocol"] == protocol).collect();
            assert!(flows.len() <= count, "{} of {count}: {flows:?}", flows.len());
            (flows.len() == count && flows.iter().all(|flow| flow["state"] == state)).then_some(flows)
        })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have exited already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Counts flows by the address that the client used and the endpoint.
fn count(flows: &[Value]) -> BTreeMap<(SocketAddr, Option<SocketAddr>), usize> {
    let mut counts = BTreeMap::new();
    for flow in flows {
        let endpoint = flow["endpoint"].as_object().map(|endpoint| {
            let port = u16::try_from(endpoint["port"].as_u64().unwrap()).unwrap();
            SocketAddr::new(endpoint["address"].as_str().unwrap().parse().unwrap(), port)
        });
        *counts.entry((flow["destination"].as_str().unwrap().parse().unwrap(), endpoint)).or_default() += 1;
    }
    counts
}

/// Returns where the connections of a client that reached a pod are counted.
fn expected(mode: Mode, to: SocketAddr, pod: u8) -> (SocketAddr, Option<SocketAddr>) {
    let address = pod_addresses(pod)[usize::from(to.is_ipv6())];
    // The kernel does not report the endpoint of a connection that a process relays.
    (to, (mode != Mode::Userspace).then(|| SocketAddr::new(address, PORT)))
}

fn flows_equal_what_clients_counted(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1, 2]));
    let node = &case.cluster.node;
    let reader = Reader::start(node, &[]);
    let mut counted = [BTreeMap::new(), BTreeMap::new()];
    for _ in 0..30 {
        for to in web_tcp() {
            *counted[0].entry(expected(mode, to, case.connect(to).unwrap())).or_default() += 1;
        }
    }
    let flows: Vec<(SocketAddr, Flow)> =
        [web_udp(); 5].concat().into_iter().map(|to| (to, Flow::open(&case.cluster.client, to))).collect();
    for (to, flow) in &flows {
        // Further requests belong to the same flow.
        let [pod, again] = [flow.pod(), flow.pod()];
        assert_eq!(pod, again);
        *counted[1].entry(expected(mode, *to, pod)).or_default() += 1;
    }
    let tcp = reader.wait(60, "tcp", "closed");
    assert_eq!(count(&tcp), counted[0]);
    assert_eq!(count(&reader.wait(flows.len(), "udp", "open")), counted[1]);
    for flow in &tcp {
        assert_eq!((&flow["servicePort"], &flow["kind"]), (&"default/web:tcp".into(), &"clusterIp".into()), "{flow}");
        let is_v6 = flow["destination"].as_str().unwrap().starts_with('[');
        assert_eq!(flow["client"]["address"], if is_v6 { "fd00:168::9" } else { "192.168.0.9" }, "{flow}");
        assert_eq!(flow["client"]["kind"], "outside", "{flow}");
        assert!(flow["time"].is_string() && flow["durationSeconds"].is_number(), "{flow}");
        assert!(flow["packets"].is_null(), "the kernel does not count by default: {flow}");
    }
    drop(reader);
    // Flows that the proxy remembers from the time of the reader, and those that the kernel remembers.
    wait("the end of the subscription", || (!is_subscribed(node)).then_some(()));
    for to in web_tcp() {
        case.connect(to).unwrap();
    }
    let run = |arguments: &[&str]| node.command(FERROUTE, &[&["flows", "-o", "json"], arguments].concat());
    let lines = |text: &str| text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    let last = lines(&run(&["--last", "7", "--service", "web:tcp"]));
    assert_eq!(last.iter().filter(|line| line["flow"]["state"] == "closed").count(), 7, "{last:?}");
    let last = lines(&run(&["--last", "999", "--service", "web:tcp"]));
    assert_eq!(last.iter().filter(|line| line["flow"]["state"] == "closed").count(), 60 + web_tcp().len(), "{last:?}");
    let text = run(&["--summary", "--for", "1s"]);
    let summary = lines(&text).into_iter().find(|line| line["summary"].is_object()).unwrap();
    let edges = summary["summary"]["edges"].as_array().unwrap();
    let of_tcp = edges.iter().filter(|edge| edge["servicePort"] == "default/web:tcp");
    assert_eq!(of_tcp.map(|edge| edge["connections"].as_u64().unwrap()).sum::<u64>(), 60, "{text}");
    assert!(edges.iter().all(|edge| edge["refused"] == 0 && edge["unanswered"] == 0), "{text}");
}

/// Reports whether a socket of this namespace is subscribed to events of connections.
fn is_subscribed(namespace: &NetNs) -> bool {
    let sockets = namespace.run(|| fs::read_to_string("/proc/thread-self/net/netlink")).unwrap();
    sockets.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1] == "12" && u32::from_str_radix(fields[3], 16).unwrap() & 0b111 != 0
    })
}

fn events_are_subscribed_only_while_flows_are_read(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let node = &case.cluster.node;
    assert!(!is_subscribed(node));
    let readers = [Reader::start(node, &[]), Reader::start(node, &["--summary", "--for", "100s"])];
    assert!(is_subscribed(node));
    drop(readers);
    wait("the end of the subscription", || (!is_subscribed(node)).then_some(()));
}

/// How long clients wait where no answer is expected. The kernel sends the first packet again after a second.
const SILENCE: Duration = Duration::from_millis(200);

/// Returns a Service with this name and cluster IP, and an endpoint.
fn other(name: &str, address: &str, endpoint: &str, port: u16) -> String {
    let service = WEB
        .replace("name: web}", &format!("name: {name}}}"))
        .replace("10.96.0.1", address)
        .replace(", \"fd00:96::1\"", "")
        .replace(", IPv6", "");
    let slice = slices(name, &[0]).replace("10.244.0.2", endpoint).replace("port: 8080", &format!("port: {port}"));
    format!("---\n{service}{}", slice.split("---\n").take(2).collect::<Vec<_>>().join("---\n"))
}

fn failures_have_their_states(mode: Mode) {
    let shut = other("shut", "10.96.0.2", "10.244.0.2", 9);
    let gone = other("gone", "10.96.0.3", "10.244.0.77", 8080);
    let case = Case::new(mode, &format!("{}{shut}{gone}", web(&[0])));
    let reader = Reader::start(&case.cluster.node, &["--failed"]);
    case.connect(web_tcp()[0]).unwrap();
    let connect = |to: &str, time| {
        let to = to.parse().unwrap();
        case.cluster.client.run(|| traffic::open_flow_here(to, time).unwrap_err())
    };
    for _ in 0..4 {
        assert_eq!(connect("10.96.0.2:80", traffic::TIMEOUT).kind(), std::io::ErrorKind::ConnectionRefused);
    }
    for _ in 0..2 {
        connect("10.96.0.3:80", SILENCE);
    }
    let flows = wait("all failures", || Some(reader.flows()).filter(|flows| flows.len() == 6));
    let states = |service: &str| -> Vec<String> {
        let of_service = flows.values().filter(|flow| flow["servicePort"] == format!("default/{service}:tcp"));
        of_service.map(|flow| flow["state"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(states("shut"), ["refused"; 4]);
    assert_eq!(states("gone"), ["unanswered"; 2]);
}

/// Services whose connections are refused: without endpoints, with policy Local and endpoints on other nodes only, and
/// with source ranges.
const REFUSING: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec:
  clusterIP: 10.96.0.4
  clusterIPs: [10.96.0.4, "fd00:96::4"]
  ipFamilies: [IPv4, IPv6]
  type: NodePort
  externalIPs: [198.51.100.4]
  ports: [{name: tcp, port: 80, nodePort: 30004}, {name: udp, port: 53, nodePort: 30053, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec:
  clusterIP: 10.96.0.5
  type: NodePort
  externalTrafficPolicy: Local
  ports: [{name: tcp, port: 80, nodePort: 30005}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: elsewhere-0, labels: {kubernetes.io/service-name: elsewhere}}
addressType: IPv4
ports: [{name: tcp, port: 8080}]
endpoints: [{addresses: [10.244.0.2], nodeName: node-2}]
---
apiVersion: v1
kind: Service
metadata: {name: ranged, annotations: {ferroute.io/source-ranges-scope: node-ports}}
spec:
  clusterIP: 10.96.0.6
  type: LoadBalancer
  loadBalancerSourceRanges: [203.0.113.0/24, 192.168.0.1/32]
  ports: [{name: tcp, port: 80, nodePort: 30006}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.6}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ranged-0, labels: {kubernetes.io/service-name: ranged}}
addressType: IPv4
ports: [{name: tcp, port: 8080}]
endpoints: [{addresses: [10.244.0.2], nodeName: node-1}]
"#;

/// Flows that must be reported, by Service, reason and state.
type Refused = BTreeMap<(String, String, String), usize>;

/// Opens connections that must be refused, and adds the flows that must be reported.
fn refuse(expected: &mut Refused, from: &NetNs, to: &str, count: usize, flow: (&str, &str, &str)) {
    let to: SocketAddr = to.parse().unwrap();
    let (service, reason, state) = flow;
    // A client over IPv6 waits although its connection is rejected.
    let is_refused = state == "rejected" && to.is_ipv4();
    let time = if is_refused { traffic::TIMEOUT } else { SILENCE };
    for _ in 0..count {
        let error = from.run(|| traffic::open_flow_here(to, time).unwrap_err());
        assert_eq!(error.kind() == std::io::ErrorKind::ConnectionRefused, is_refused, "{to}: {error}");
    }
    *expected.entry((service.to_owned(), reason.to_owned(), state.to_owned())).or_default() += count;
}

fn refused_packets_are_flows_with_their_reasons(mode: Mode) {
    let case = Case::new(mode, &format!("{}{REFUSING}", web(&[0])));
    let (client, node) = (&case.cluster.client, &case.cluster.node);
    let reader = Reader::start(node, &["--failed"]);
    let mut expected = Refused::new();
    let empty = ("default/empty:tcp", "noEndpoints", "rejected");
    let elsewhere = ("default/elsewhere:tcp", "noLocalEndpoints", "dropped");
    let ranged = ("default/ranged:tcp", "sourceRanges", "dropped");
    for to in ["10.96.0.4:80", "[fd00:96::4]:80", "198.51.100.4:80", "192.168.0.1:30004"] {
        refuse(&mut expected, client, to, 3, empty);
    }
    refuse(&mut expected, client, "192.168.0.1:30005", 2, elsewhere);
    refuse(&mut expected, client, "198.51.100.6:80", 2, ranged);
    // Pods and the node itself.
    refuse(&mut expected, &case.cluster.pods, "10.96.0.4:80", 2, empty);
    refuse(&mut expected, node, "10.96.0.4:80", 2, empty);
    if mode == Mode::Nftables {
        refuse(&mut expected, client, "10.96.0.1:81", 2, ("default/web", "unknownPort", "rejected"));
        // Node ports with source ranges.
        refuse(&mut expected, client, "192.168.0.1:30006", 2, ranged);
        assert_eq!(traffic::connect(node, "192.168.0.1:30006".parse().unwrap()).unwrap(), 0);
    }
    // An address of the node that does not serve node ports in nftables mode, where no rule refuses the connections.
    let other_address = "10.244.0.1:30004";
    match mode {
        Mode::Nftables => refuse(&mut Refused::new(), node, other_address, 2, empty),
        _ => refuse(&mut expected, node, other_address, 2, empty),
    }
    // A connection whose first segment is repeated after a second counts once, as does a socket that sends two
    // datagrams.
    let to: SocketAddr = "198.51.100.6:80".parse().unwrap();
    client.run(|| traffic::open_flow_here(to, Duration::from_millis(1500)).unwrap_err());
    *expected.get_mut(&("default/ranged:tcp".into(), "sourceRanges".into(), "dropped".into())).unwrap() += 1;
    let udp = Flow::open(client, "10.96.0.4:53".parse().unwrap());
    assert_eq!([udp.request(), udp.request()], [Reply::Rejected; 2]);
    expected.insert(("default/empty:udp".into(), "noEndpoints".into(), "rejected".into()), 1);
    // Other connections are served.
    case.connect(web_tcp()[0]).unwrap();
    assert_eq!(traffic::connect(node, to).unwrap(), 0, "the node is in the source ranges");
    let count = |flows: &BTreeMap<u64, Value>| {
        let mut counts = Refused::new();
        for flow in flows.values() {
            let [service, reason, state] =
                ["servicePort", "reason", "state"].map(|field| flow[field].as_str().unwrap_or("-").to_owned());
            *counts.entry((service, reason, state)).or_default() += 1;
        }
        counts
    };
    let total = expected.values().sum::<usize>();
    wait("all refused connections", || (reader.flows().len() >= total).then_some(()));
    assert_eq!(count(&reader.flows()), expected);
    // Connections to a Service are refused as soon as it loses its endpoints, and no longer once it has endpoints
    // again.
    case.files.apply(&format!("{}{REFUSING}", web(&[])));
    wait("the rejection in the flows", || {
        // Connections are served until the change is applied, and the rules that report a rejection are written after
        // those that reject.
        _ = case.connect(web_tcp()[0]);
        reader.flows().values().any(|flow| flow["servicePort"] == "default/web:tcp").then_some(())
    });
    let rules = || node.command("nft", &["list", "tables"]);
    assert!(rules().contains("ferroute-refused"), "{}", rules());
    drop(reader);
    wait("the end of the rules", || (!rules().contains("ferroute-refused")).then_some(()));
}

/// Returns a Service with these annotations, a node port and an endpoint.
fn limited(name: &str, address: &str, node_port: u16, annotations: &str) -> String {
    other(name, address, "10.244.0.2", 8080)
        .replace(&format!("{{name: {name}}}"), &format!("{{name: {name}, annotations: {{{annotations}}}}}"))
        .replace("port: 80}", &format!("port: 80, nodePort: {node_port}}}"))
        .replace("spec:\n", "spec:\n  type: NodePort\n")
}

#[test]
fn connections_beyond_limits_are_flows() {
    let rate = limited("rate", "10.96.0.2", 30002, "ferroute.io/max-new-connections: 3/minute");
    let drop_further = "ferroute.io/max-new-connections-per-client: 1/hour, ferroute.io/over-limit: drop";
    let dropping = limited("dropping", "10.96.0.3", 30003, drop_further);
    let filtered = limited("filtered", "10.96.0.7", 30007, "ferroute.io/max-connections: \"9\"")
        .replace("10.244.0.2", "10.244.0.3");
    let case = Case::new(Mode::Nftables, &format!("{}{rate}{dropping}{filtered}", web(&[0, 1])));
    let (client, node) = (&case.cluster.client, &case.cluster.node);
    let reader = Reader::start(node, &["--state", "rejected", "--state", "dropped"]);
    // Another program drops connections that are within the limit.
    node.command(
        "nft",
        &["add table ip filter; add chain ip filter forward { type filter hook forward priority 0; }; \
        add rule ip filter forward ip daddr 10.244.0.3 drop"],
    );
    let served = |from: &NetNs, to: &str, limit: usize| {
        let to = to.parse().unwrap();
        let connect = |number| {
            let time = if number < limit { traffic::TIMEOUT } else { SILENCE };
            from.run(|| traffic::open_flow_here(to, time).is_ok())
        };
        assert_eq!((0..6).filter(|number| connect(*number)).count(), limit, "{to}");
    };
    served(client, "10.96.0.2:80", 3);
    served(node, "10.96.0.2:80", 0);
    served(client, "192.168.0.1:30003", 1);
    served(client, "10.96.0.7:80", 0);
    for to in web_tcp() {
        case.connect(to).unwrap();
    }
    let flows = wait("all refused connections", || Some(reader.flows()).filter(|flows| flows.len() >= 14));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(reader.flows().len(), flows.len());
    let mut counts = BTreeMap::<[String; 4], usize>::new();
    for flow in flows.values() {
        let fields = ["servicePort", "kind", "reason", "state"].map(|field| flow[field].as_str().unwrap().to_owned());
        *counts.entry(fields).or_default() += 1;
    }
    let expected = [
        (["default/dropping:tcp", "nodePort", "limit", "dropped"], 5),
        (["default/rate:tcp", "clusterIp", "limit", "rejected"], 9),
    ];
    assert_eq!(counts, expected.map(|(fields, count)| (fields.map(str::to_owned), count)).into());
}

fn translations_of_others_are_no_flows_of_node_ports(mode: Mode) {
    let case = Case::new(mode, &format!("{}{}", web(&[0]), limited("ported", "10.96.0.8", 30008, "")));
    let node = &case.cluster.node;
    let rule = "add table ip other; add chain ip other nat { type nat hook prerouting priority -100; }; \
                add rule ip other nat ip daddr 198.51.100.99 tcp dport 30008 dnat to 10.244.0.2:8080";
    node.command("nft", &[rule]);
    let reader = Reader::start(node, &[]);
    for to in ["198.51.100.99:30008", "192.168.0.1:30008"] {
        assert_eq!(case.connect(to.parse().unwrap()).unwrap(), 0);
    }
    let flows = reader.wait(1, "tcp", "closed");
    assert_eq!((&flows[0]["kind"], &flows[0]["destination"]), (&"nodePort".into(), &"192.168.0.1:30008".into()));
}

/// Use of a connection by a client.
#[derive(Clone, Copy, Debug)]
enum Use {
    Close,
    Reset,
}

/// Opens a connection from this thread's network namespace, and returns the result for the client: `closed`, `reset`,
/// `refused` or, within the time, `unanswered`.
fn use_here(to: SocketAddr, time: Duration, how: Use) -> &'static str {
    let mut stream = match traffic::open_flow_here(to, time) {
        Ok(stream) => stream,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => return "refused",
        // A process that relays connections reset it immediately.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return "reset",
        // The node reports that no host has the endpoint's address, after neighbour discovery has failed.
        Err(error) if matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::HostUnreachable) => {
            return "unanswered";
        }
        Err(error) => panic!("{to}: {error}"),
    };
    stream.set_read_timeout(Some(traffic::TIMEOUT)).unwrap();
    // The line of a pod. A process that relays connections closes them if the endpoint refuses.
    let mut line = [0; 64];
    match (ferroute_testing::restart(|| stream.read(&mut line)), how) {
        (Ok(0), _) => "closed",
        (Ok(_), Use::Close) => "closed",
        (Ok(_), Use::Reset) => {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            "reset"
        }
        (Err(error), _) if error.kind() == std::io::ErrorKind::ConnectionReset => "reset",
        (Err(error), _) => panic!("{to}: {error}"),
    }
}

fn flows_agree_with_what_clients_saw(mode: Mode) {
    let shut = other("shut", "10.96.0.2", "10.244.0.2", 9);
    let gone = other("gone", "10.96.0.3", "10.244.0.77", 8080);
    let case = Case::new(mode, &format!("{}{shut}{gone}{REFUSING}", web(&[0, 1, 2])));
    let reader = Reader::start(&case.cluster.node, &[]);
    // Some of the first packets are sent again.
    let silence = Duration::from_millis(1300);
    let destinations = [
        ("default/web:tcp", "10.96.0.1:80", 10, traffic::TIMEOUT),
        ("default/web:tcp", "[fd00:96::1]:80", 5, traffic::TIMEOUT),
        ("default/shut:tcp", "10.96.0.2:80", 4, traffic::TIMEOUT),
        ("default/gone:tcp", "10.96.0.3:80", 1, silence),
        ("default/empty:tcp", "10.96.0.4:80", 4, traffic::TIMEOUT),
        ("default/elsewhere:tcp", "192.168.0.1:30005", 1, silence),
        ("default/ranged:tcp", "198.51.100.6:80", 1, silence),
    ];
    let seen = Mutex::new(BTreeMap::<(String, &str), usize>::new());
    std::thread::scope(|scope| {
        for client in 0..4 {
            let seen = &seen;
            let work = move || {
                for round in 0..2 {
                    for (service, to, count, time) in destinations {
                        for number in 0..count {
                            let how = if (client + round + number) % 3 == 0 { Use::Reset } else { Use::Close };
                            let saw = use_here(to.parse().unwrap(), time, how);
                            *seen.lock().unwrap().entry((service.to_owned(), saw)).or_default() += 1;
                        }
                    }
                }
            };
            let from = if client == 3 { &case.cluster.node } else { &case.cluster.client };
            scope.spawn(move || from.run(work));
        }
    });
    let seen = seen.into_inner().unwrap();
    // A client cannot distinguish a rejected connection from a refused one, nor a dropped one from one without an answer.
    let as_seen = |flow: &Value| match flow["state"].as_str().unwrap() {
        "rejected" => "refused".to_owned(),
        "dropped" => "unanswered".to_owned(),
        state => state.to_owned(),
    };
    let count = || {
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for flow in reader.flows().values() {
            *counts.entry((flow["servicePort"].as_str().unwrap().to_owned(), as_seen(flow))).or_default() += 1;
        }
        counts
    };
    let expected: BTreeMap<(String, String), usize> =
        seen.iter().map(|((service, saw), count)| ((service.clone(), (*saw).to_owned()), *count)).collect();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while count() != expected && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(count(), expected);
    // Each kind occurs.
    for saw in ["closed", "reset", "refused", "unanswered"] {
        assert!(seen.keys().any(|(_, kind)| *kind == saw), "{saw}: {seen:?}");
    }
}

fn flows_need_no_proxy(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0]));
    assert!(case.proxy.stop("TERM").success());
    let manifests = case.files.manifests();
    let node = &case.cluster.node;
    let of_services =
        Reader::start(node, &["--manifests", manifests.to_str().unwrap(), "--hostname-override", "node-1"]);
    let of_all = Reader::start(node, &["--hostname-override", "node-1"]);
    for to in web_tcp() {
        case.connect(to).unwrap();
    }
    for (reader, service) in [(of_services, Value::from("default/web:tcp")), (of_all, Value::Null)] {
        let flows = reader.wait(2, "tcp", "closed");
        let expected = web_tcp().map(|to| (expected(mode, to, 0), 1)).into_iter().collect();
        assert_eq!(count(&flows), expected);
        assert!(flows.iter().all(|flow| flow["servicePort"] == service), "{flows:?}");
    }
}

#[test]
fn top_counts_flows_where_rules_do_not_count() {
    let idle = other("idle", "10.96.0.2", "10.244.0.3", 8080);
    let case = Case::new(Mode::Nftables, &format!("{}{idle}", web(&[0])));
    let row = top(&case, web_tcp()[0]);
    assert_eq!(row, ["default/web:tcp", "10.244.0.2:8080", "100", "%", "[fd00:244::2]:8080", "0", "%"]);
    let text = case.cluster.node.command(FERROUTE, &["top", "--once", "--interval", "1s"]);
    assert!(text.contains("default/idle:tcp  10.244.0.3:8080 0 %"), "endpoints without connections: {text}");
    wait("the end of the subscription", || (!is_subscribed(&case.cluster.node)).then_some(()));
}

#[test]
fn top_counts_refused_connections_in_userspace_mode() {
    let shut = other("shut", "10.96.0.2", "10.244.0.2", 9);
    let case = Case::new(Mode::Userspace, &format!("{}{shut}", web(&[0])));
    assert_eq!(top(&case, "10.96.0.2:80".parse().unwrap()), ["default/shut:tcp", "10.244.0.2:9", "100", "%"]);
}

/// Returns the first row of `top`, without the rate, while a client opens connections.
fn top(case: &Case, to: SocketAddr) -> Vec<String> {
    let done = AtomicBool::new(false);
    let text = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // It may be refused.
                _ = case.connect(to);
            }
        });
        let text = case.cluster.node.command(FERROUTE, &["top", "--once", "--interval", "1s"]);
        done.store(true, Ordering::Relaxed);
        text
    });
    let columns: Vec<&str> = text.lines().nth(2).unwrap_or_default().split_whitespace().collect();
    assert!(columns[0].parse::<f64>().unwrap() > 0.0, "{text}");
    columns[1..].iter().map(|column| (*column).to_owned()).collect()
}

#[test]
fn page_gets_flows_only_while_it_reads_them() {
    let case = Case::new(Mode::Nftables, &web(&[0]));
    let node = &case.cluster.node;
    let listen = "127.0.0.1:8249";
    let mut command = Command::new(FERROUTE);
    command.args(["ui", "--listen", listen]).stdin(Stdio::null()).stdout(Stdio::null());
    let ui = Reader { child: node.run(|| command.spawn()).unwrap(), lines: Arc::default() };
    let at: SocketAddr = listen.parse().unwrap();
    let flows = || serde_json::from_str::<Value>(&get(node, at, "/api/v1/flows").ok()?.body).ok();
    let before = wait("the page", flows);
    assert_eq!((&before["available"], &before["flows"]), (&false.into(), &Value::Array(Vec::new())));
    assert!(!is_subscribed(node));
    let mut events = node.run(|| TcpStream::connect(at)).unwrap();
    events.write_all(format!("GET /api/v1/flows/events HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes()).unwrap();
    wait("the subscription", || is_subscribed(node).then_some(()));
    wait("flows", || flows().filter(|flows| flows["available"] == true));
    for to in web_tcp() {
        case.connect(to).unwrap();
    }
    let after = wait("two closed flows and a summary", || {
        flows().filter(|flows| {
            let states: Vec<&Value> = flows["flows"].as_array().unwrap().iter().map(|flow| &flow["state"]).collect();
            states == ["closed", "closed"] && flows["summary"]["edges"].as_array().is_some_and(|edges| edges.len() == 2)
        })
    });
    assert_eq!(after["flows"][0]["servicePort"], "default/web:tcp");
    // The events contained the same.
    events.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut received = Vec::new();
    wait("the events", || {
        // A timeout is no end.
        _ = events.read_to_end(&mut received);
        let text = String::from_utf8_lossy(&received);
        ["flows-start", "flows", "flows-summary"]
            .iter()
            .all(|event| text.contains(&format!("event: {event}\n")))
            .then_some(())
    });
    drop(events);
    wait("the end of the subscription", || (!is_subscribed(node)).then_some(()));
    drop(ui);
}
