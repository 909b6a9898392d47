//! What operators ask over HTTP.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::Value;

use ferroute_testing::NetNs;

use crate::{
    Case, Mode,
    http::{Answer, get, get_as},
    in_each_mode,
    lab::Lab,
    proxy::{FERROUTE, Files, Proxy, run_command},
    slices, traffic, wait, web, web_tcp,
};

in_each_mode!(metrics_follow_what_happens, pages_tell_of_the_proxy, receipts_and_changes_tell_of_services);

fn ask(case: &Case, path: &str) -> Answer {
    ask_on(&case.lab.node, path)
}

fn ask_on(node: &NetNs, path: &str) -> Answer {
    get(node, METRICS, path).unwrap()
}

/// Where operators ask.
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// All metrics at one moment.
pub(crate) struct Metrics(String);

impl Metrics {
    /// Those of the proxy on a node.
    pub(crate) fn on(node: &NetNs) -> Self {
        Self(ask_on(node, "/metrics").body)
    }

    fn of(case: &Case) -> Self {
        Self::on(&case.lab.node)
    }

    /// The value of a metric with these labels, if it is there.
    fn find(&self, name: &str) -> Option<f64> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// The value of a metric with these labels.
    #[track_caller]
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.find(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Syncs of IPv4, of a kind.
    #[track_caller]
    fn syncs(&self, kind: &str) -> f64 {
        self.get(&format!("kubeproxy_sync_{kind}proxy_rules_duration_seconds_count{{ip_family=\"IPv4\"}}"))
    }
}

fn json(case: &Case, path: &str) -> Value {
    serde_json::from_str(&ask(case, path).body).unwrap()
}

fn metrics_follow_what_happens(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let first = Metrics::of(&case);
    assert_eq!(first.get("ferroute_in_force{ip_family=\"IPv6\"}"), 1.0);
    assert!(first.syncs("full_") >= 1.0);
    assert_eq!(first.get("kubeproxy_sync_proxy_rules_endpoint_changes_total"), 2.0, "a slice for each family");

    case.files.apply(&web(&[1, 2]));
    let then = wait("the change in force", || {
        let now = Metrics::of(&case);
        let is_seen = now.get("kubeproxy_sync_proxy_rules_endpoint_changes_total") == 4.0;
        let is_pending = now.get("kubeproxy_sync_proxy_rules_endpoint_changes_pending") > 0.0;
        (is_seen && !is_pending).then_some(now)
    });
    assert!(then.syncs("") > first.syncs(""));
    assert_eq!(then.syncs(""), then.syncs("full_") + then.find(PARTIAL).unwrap_or_default());
    assert!(then.get("process_resident_memory_bytes") > 1e6);
    assert!(then.get("go_goroutines") >= 2.0, "the source is followed, and this question is answered");
    assert_eq!(then.get("go_threads"), then.get("process_threads"));
    assert!(then.get("kubeproxy_proxy_healthz_total{code=\"200\"}") > 0.0, "the lab has asked");
    match mode {
        Mode::Iptables => {
            let saved = ["iptables-save", "ip6tables-save"].map(|program| case.lab.node.command(program, &[])).concat();
            let rules = saved.lines().filter(|line| line.starts_with("-A KUBE-")).count();
            let series = ["filter", "nat"].into_iter().flat_map(|table| {
                ["IPv4", "IPv6"].map(|family| format!("{{ip_family=\"{family}\",table=\"{table}\"}}"))
            });
            let told: f64 = series.map(|of| then.get(&format!("kubeproxy_sync_proxy_rules_iptables_total{of}"))).sum();
            assert_eq!(told, rules as f64);
            let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}";
            assert_eq!(then.get(failures), 0.0);
        }
        Mode::Nftables => {
            let failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"}";
            assert_eq!(then.get(failures), 0.0);
            let progress = then.get("ferroute_sync_progress_service_ports{ip_family=\"IPv4\"}");
            assert_eq!(progress, then.get("ferroute_sync_progress_service_ports_wanted{ip_family=\"IPv4\"}"));
        }
    }
}

/// Syncs of IPv4 that wrote changes only.
const PARTIAL: &str = "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";

fn pages_tell_of_the_proxy(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let name = match mode {
        Mode::Iptables => "iptables",
        Mode::Nftables => "nftables",
    };
    let body = |path: &str| ask(&case, path).body;
    assert_eq!([body("/healthz"), body("/proxyMode")], ["ok", name]);
    assert_eq!(json(&case, "/configz")["kubeproxy.config.k8s.io"]["mode"], name);
    assert!(body("/statusz").starts_with("\nkube-proxy statusz\n"));
    assert!(body("/flagz").lines().any(|line| line.starts_with("config=/")), "{}", body("/flagz"));
    let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
    let flagz: Value = serde_json::from_str(&get_as(&case.lab.node, METRICS, "/flagz", accept).unwrap().body).unwrap();
    assert!(flagz["flags"]["config"].as_str().is_some_and(|path| path.starts_with('/')), "{flagz}");
    assert_eq!(get_as(&case.lab.node, METRICS, "/statusz", accept).unwrap().status, 406);
    let profiles = ask(&case, "/debug/pprof/heap");
    assert!(profiles.status == 404 && profiles.body.starts_with("no profiles"), "{profiles:?}");
    assert_eq!(ask(&case, "/nothing").status, 404);
}

fn receipts_and_changes_tell_of_services(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let receipt = || json(&case, "/services?namespace=default&name=web")["services"][0].clone();
    let last_change =
        |receipt: &Value| receipt["families"]["IPv4"]["inForce"]["lastChange"].as_str().map(str::to_owned);
    let first = receipt();
    assert_eq!(first["families"]["IPv6"]["pending"], false, "{first}");
    let since = last_change(&first).unwrap();
    assert_eq!(json(&case, "/changes")["changes"].as_array().unwrap().len(), 0, "what was there before is no change");

    case.files.apply(&web(&[1]));
    let second = wait("a later change", || Some(receipt()).filter(|now| last_change(now) > Some(since.clone())));
    assert_eq!(second["families"]["IPv4"]["pending"], false);
    let changes = json(&case, "/changes");
    let slice = changes["changes"].as_array().unwrap().iter().find(|change| change["kind"] == "EndpointSlice").unwrap();
    assert_eq!((&slice["name"], &slice["namespace"]), (&"web".into(), &"default".into()));
    let seconds = |part: &str| slice["seconds"][part].as_f64().unwrap();
    assert!(seconds("total") >= seconds("sync") && seconds("sync") >= seconds("kernel"), "{slice}");

    case.files.apply(&slices("web", &[1]));
    wait("the end of its receipt", || json(&case, "/services")["services"].as_array()?.is_empty().then_some(()));
}

#[test]
fn connections_are_counted_by_service_port_and_endpoint_where_that_is_asked_for() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let mut command = run_command(FERROUTE, &files.manifests(), &files.config(Mode::Nftables));
    let mut proxy = Proxy::spawn(&lab.node, command.args(["--nftables-connection-counters", "10"]));
    proxy.wait_in_force(&lab.node);
    for _ in 0..3 {
        traffic::connect(&lab.client, web_tcp()[0]).unwrap();
    }
    let port = "ip_family=\"IPv4\",service_port=\"default/web:tcp\"";
    let endpoint = "endpoint=\"10.244.0.2:8080\"";
    let lines = [
        format!("ferroute_connections_total{{{port}}} 3"),
        format!("ferroute_endpoint_connections_total{{{endpoint},{port}}} 3"),
    ];
    wait("three connections", || {
        let body = ask_on(&lab.node, "/metrics").body;
        lines.iter().all(|line| body.lines().any(|found| found == line)).then_some(())
    });
    // Another program reads the same counters, from the kernel.
    let told = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !told.load(Ordering::Relaxed) {
                traffic::connect(&lab.client, web_tcp()[0]).unwrap();
            }
        });
        let output = lab.node.try_command(FERROUTE, &["top", "--once", "--interval", "300ms"]);
        told.store(true, Ordering::Relaxed);
        output
    });
    let text = String::from_utf8(output.stdout).unwrap();
    let busy = text.lines().nth(1).unwrap_or_default();
    let words: Vec<&str> = busy.split_whitespace().collect();
    assert_eq!(words.get(1..5).unwrap_or_default(), ["default/web:tcp", "10.244.0.2:8080", "100", "%"], "{text}");
}
