//! Metrics and status pages.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use ferroute_testing::NetNs;
use serde_json::Value;

use crate::{
    Case, Mode,
    cluster::{Cluster, PORT, pod_addresses},
    http::{Response, get, get_as},
    in_each_mode,
    proxy::{FERROUTE, Files, Proxy, run_command},
    refused, rules, slices,
    traffic::{self, Connection},
    wait, web, web_tcp,
};

in_each_mode!(
    metrics_follow_changes,
    pages_describe_the_proxy,
    receipts_and_changes_describe_services,
    open_connections_to_terminating_endpoints_are_counted,
);

fn request(case: &Case, path: &str) -> Response {
    request_on(&case.cluster.node, path)
}

fn request_on(node: &NetNs, path: &str) -> Response {
    get(node, METRICS, path).unwrap()
}

/// The default address of metrics and status pages.
pub(crate) const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// A snapshot of all metrics.
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// Reads the metrics of the proxy on a node.
    pub(crate) fn read(node: &NetNs) -> Self {
        Self(request_on(node, "/metrics").body)
    }

    fn read_from(case: &Case) -> Self {
        Self::read(&case.cluster.node)
    }

    /// Returns the value of a metric with these labels, if it exists.
    fn find(&self, name: &str) -> Option<f64> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Returns the value of a metric with these labels.
    #[track_caller]
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.find(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Returns the number of IPv4 syncs of a kind.
    #[track_caller]
    fn syncs(&self, kind: &str) -> f64 {
        self.get(&format!("kubeproxy_sync_{kind}proxy_rules_duration_seconds_count{{ip_family=\"IPv4\"}}"))
    }
}

/// Returns the problems that `ferroute status` shows on a node, as JSON and as text.
pub(crate) fn problems(cluster: &Cluster) -> Vec<String> {
    let (_, lines, status) = refused::run(cluster, &["status"]);
    let problems = status["problems"].as_array().into_iter().flatten();
    let problems: Vec<String> = problems.map(|problem| problem.as_str().unwrap().to_owned()).collect();
    assert_eq!(lines.lines().filter(|line| line.starts_with("problem: ")).count(), problems.len(), "{lines}");
    problems
}

fn json(case: &Case, path: &str) -> Value {
    serde_json::from_str(&request(case, path).body).unwrap()
}

fn metrics_follow_changes(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let first = Metrics::read_from(&case);
    assert_eq!(first.get("ferroute_applied{ip_family=\"IPv6\"}"), 1.0);
    assert!(first.syncs("full_") >= 1.0);
    assert_eq!(first.get("kubeproxy_sync_proxy_rules_endpoint_changes_total"), 2.0, "one slice per IP family");

    case.files.apply(&web(&[1, 2]));
    let second = wait("the sync of the change", || {
        let now = Metrics::read_from(&case);
        let is_seen = now.get("kubeproxy_sync_proxy_rules_endpoint_changes_total") == 4.0;
        let is_pending = now.get("kubeproxy_sync_proxy_rules_endpoint_changes_pending") > 0.0;
        (is_seen && !is_pending).then_some(now)
    });
    assert!(second.syncs("") > first.syncs(""));
    assert_eq!(second.syncs(""), second.syncs("full_") + second.find(PARTIAL).unwrap_or_default());
    assert!(second.get("process_resident_memory_bytes") > 1e6);
    assert!(second.get("go_goroutines") >= 2.0, "the source and this request");
    assert_eq!(second.get("go_threads"), second.get("process_threads"));
    assert!(second.get("kubeproxy_proxy_healthz_total{code=\"200\"}") > 0.0, "wait_synced requests it");
    match mode {
        Mode::Iptables | Mode::Userspace => {
            let saved = rules::saved(&case.cluster.node).concat();
            let rules = saved.lines().filter(|line| line.starts_with("-A KUBE-")).count();
            let series = ["filter", "nat"].into_iter().flat_map(|table| {
                ["IPv4", "IPv6"].map(|family| format!("{{ip_family=\"{family}\",table=\"{table}\"}}"))
            });
            let total: f64 =
                series.map(|labels| second.get(&format!("kubeproxy_sync_proxy_rules_iptables_total{labels}"))).sum();
            assert_eq!(total, rules as f64);
            let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}";
            assert_eq!(second.get(failures), 0.0);
        }
        Mode::Nftables => {
            let failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"}";
            assert_eq!(second.get(failures), 0.0);
            let progress = second.get("ferroute_sync_progress_service_ports{ip_family=\"IPv4\"}");
            assert_eq!(progress, second.get("ferroute_sync_progress_service_ports_wanted{ip_family=\"IPv4\"}"));
        }
    }
}

/// The number of partial IPv4 syncs.
const PARTIAL: &str = "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";

fn pages_describe_the_proxy(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let name = match mode {
        Mode::Iptables => "iptables",
        Mode::Nftables => "nftables",
        Mode::Userspace => "userspace",
    };
    let body = |path: &str| request(&case, path).body;
    assert_eq!([body("/healthz"), body("/proxyMode")], ["ok", name]);
    assert_eq!(json(&case, "/configz")["kubeproxy.config.k8s.io"]["mode"], name);
    assert!(body("/statusz").starts_with("\nkube-proxy statusz\n"));
    assert!(body("/flagz").lines().any(|line| line.starts_with("config=/")), "{}", body("/flagz"));
    let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
    let flagz: Value =
        serde_json::from_str(&get_as(&case.cluster.node, METRICS, "/flagz", accept).unwrap().body).unwrap();
    assert!(flagz["flags"]["config"].as_str().is_some_and(|path| path.starts_with('/')), "{flagz}");
    assert_eq!(get_as(&case.cluster.node, METRICS, "/statusz", accept).unwrap().status, 406);
    let profiles = request(&case, "/debug/pprof/heap");
    assert_eq!(profiles.status, 404, "{profiles:?}");
    assert_eq!(["/nothing", "/services", "/changes"].map(|path| request(&case, path).status), [404; 3]);
}

fn receipts_and_changes_describe_services(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let mut command = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let mut proxy = Proxy::spawn(&cluster.node, command.arg("--enable-service-status"));
    proxy.wait_synced(&cluster.node);
    let case = Case { proxy, files, cluster, mode };
    let receipt = || json(&case, "/services?namespace=default&name=web")["services"][0].clone();
    let last_change =
        |receipt: &Value| receipt["families"]["IPv4"]["applied"]["lastChange"].as_str().map(str::to_owned);
    let first = receipt();
    assert_eq!(first["families"]["IPv6"]["pending"], false, "{first}");
    let since = last_change(&first).unwrap();
    assert_eq!(
        json(&case, "/changes")["changes"].as_array().unwrap().len(),
        0,
        "objects of the initial list are not changes"
    );

    case.files.apply(&web(&[1]));
    let second = wait("a later change", || Some(receipt()).filter(|now| last_change(now) > Some(since.clone())));
    assert_eq!(second["families"]["IPv4"]["pending"], false);
    let changes = json(&case, "/changes");
    let slice = changes["changes"].as_array().unwrap().iter().find(|change| change["kind"] == "EndpointSlice").unwrap();
    assert_eq!((&slice["name"], &slice["namespace"]), (&"web".into(), &"default".into()));
    let seconds = |part: &str| slice["seconds"][part].as_f64().unwrap();
    assert!(seconds("total") >= seconds("sync") && seconds("sync") >= seconds("kernel"), "{slice}");

    case.files.apply(&slices("web", &[1]));
    wait("removal of the receipt", || json(&case, "/services")["services"].as_array()?.is_empty().then_some(()));
}

fn open_connections_to_terminating_endpoints_are_counted(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let [v4, v6] = web_tcp();
    // Random choice practically always includes both endpoints.
    let mut connections: Vec<_> = [[v4; 20], [v6; 20]]
        .concat()
        .into_iter()
        .map(|to| (to, Connection::open(&case.cluster.client, to).unwrap()))
        .collect();
    assert!(!Metrics::read_from(&case).0.contains("ferroute_draining_connections"));

    let [address_v4, address_v6] = pod_addresses(0);
    let terminating = [address_v4, address_v6].iter().fold(web(&[0, 1]), |yaml, address| {
        let endpoint = format!("{{addresses: [\"{address}\"], ");
        yaml.replace(&endpoint, &format!("{endpoint}conditions: {{ready: false, serving: true, terminating: true}}, "))
    });
    case.files.apply(&terminating);
    let open = |connections: &[(SocketAddr, Connection)], to| {
        connections.iter().filter(|(frontend, connection)| *frontend == to && connection.pod == 0).count()
    };
    let counted = |family: &str| {
        let labels = format!("{{ip_family=\"{family}\",service_port=\"default/web:tcp\"}}");
        Metrics::read_from(&case).find(&format!("ferroute_draining_connections{labels}"))
    };
    #[track_caller]
    fn wait_counts(counted: impl Fn(&str) -> Option<f64>, open: [usize; 2]) {
        let expected = open.map(|count| Some(count as f64));
        let is_reached = || (["IPv4", "IPv6"].map(&counted) == expected).then_some(());
        wait(&format!("{open:?} open connections"), is_reached);
    }
    wait_counts(counted, [v4, v6].map(|to| open(&connections, to)));
    assert_eq!(Metrics::read_from(&case).get("ferroute_terminating_endpoints{ip_family=\"IPv4\"}"), 2.0, "TCP and UDP");
    let explain = || {
        let mut command = Command::new(FERROUTE);
        command.args(["explain", "service", "default/web", "--manifests"]).arg(case.files.manifests());
        String::from_utf8(case.cluster.node.run(|| command.output()).unwrap().stdout).unwrap()
    };
    let line = format!("{address_v4}:{PORT} (terminating, {} still open)", open(&connections, v4));
    assert!(explain().contains(&line), "{line}\n{}", explain());

    let closed = connections.iter().position(|(to, connection)| *to == v4 && connection.pod == 0).unwrap();
    connections.remove(closed);
    wait_counts(counted, [v4, v6].map(|to| open(&connections, to)));
    connections.retain(|(_, connection)| connection.pod != 0);
    wait_counts(counted, [0, 0]);
    case.files.apply(&web(&[1]));
    wait("the end of the drain", || counted("IPv4").or(counted("IPv6")).is_none().then_some(()));
    for (_, connection) in &mut connections {
        connection.echo("still here").unwrap();
    }
}

#[test]
fn connection_counters_are_per_service_port_and_endpoint() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let mut command = run_command(FERROUTE, &files.manifests(), &files.config(Mode::Nftables));
    let mut proxy = Proxy::spawn(&cluster.node, command.args(["--nftables-connection-counters", "10"]));
    proxy.wait_synced(&cluster.node);
    for _ in 0..3 {
        traffic::connect(&cluster.client, web_tcp()[0]).unwrap();
    }
    let port = "ip_family=\"IPv4\",service_port=\"default/web:tcp\"";
    let endpoint = "endpoint=\"10.244.0.2:8080\"";
    let lines = [
        format!("ferroute_connections_total{{{port}}} 3"),
        format!("ferroute_endpoint_connections_total{{{endpoint},{port}}} 3"),
    ];
    wait("three connections", || {
        let body = request_on(&cluster.node, "/metrics").body;
        lines.iter().all(|line| body.lines().any(|metric| metric == line)).then_some(())
    });
    // `ferroute top` reads the same counters from the kernel.
    let done = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                traffic::connect(&cluster.client, web_tcp()[0]).unwrap();
            }
        });
        let output = cluster.node.try_command(FERROUTE, &["top", "--once", "--interval", "300ms"]);
        done.store(true, Ordering::Relaxed);
        output
    });
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().nth(2).unwrap_or_default();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns.get(1..5).unwrap_or_default(), ["default/web:tcp", "10.244.0.2:8080", "100", "%"], "{text}");
}
