//! Alerts and dashboard of `deploy/monitoring` against the metrics of the program.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ferroute_testing::NetNs;
use serde_json::Value;

use crate::{
    Mode, api,
    cluster::pod_addresses,
    proxy::Files,
    status::Metrics,
    traffic::{Connection, connect},
    wait, web, web_tcp,
};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

const RULES: &str = "deploy/monitoring/rules.yaml";
const DASHBOARD: &str = "deploy/monitoring/dashboard.json";

/// A proxy with all metrics: endpoints come and go, one drains, connections are counted, and watches end.
struct Busy {
    case: api::Case,
    /// To the endpoint that terminates.
    _open: Vec<Connection>,
    changes: usize,
}

impl Busy {
    fn start(mode: Mode) -> Self {
        let mut case = api::Case::launch(mode, &["--nftables-connection-counters", "10"], |server| {
            api::apply(server, &Files::node_manifest(""));
            api::apply(server, &web(&[0]));
        });
        case.proxy.wait_synced(&case.cluster.node);
        let open = web_tcp().map(|to| Connection::open(&case.cluster.client, to).unwrap()).into();
        Self { case, _open: open, changes: 0 }
    }

    /// Causes some activity of every kind.
    fn work(&mut self) {
        self.changes += 1;
        let other = 1 + u8::try_from(self.changes % 2).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let trigger =
            format!("annotations: {{endpoints.kubernetes.io/last-change-trigger-time: \"{}\"}}", rfc3339(now));
        let yaml = web(&[0, other]).replace("labels: {kubernetes.io/", &format!("{trigger}, labels: {{kubernetes.io/"));
        let yaml = pod_addresses(0).iter().fold(yaml, |yaml, address| {
            let endpoint = format!("{{addresses: [\"{address}\"], ");
            yaml.replace(
                &endpoint,
                &format!("{endpoint}conditions: {{ready: false, serving: true, terminating: true}}, "),
            )
        });
        self.case.apply(&yaml);
        self.case.server.cut_watches();
        // The other endpoint may be changing at this time.
        for to in web_tcp() {
            _ = connect(&self.case.cluster.client, to);
        }
    }

    /// Makes the proxy write an Event, the only requests besides watches that a running proxy sends. Each Event is for
    /// another Service, because similar ones are combined.
    fn cause_event(&self, number: u8) {
        self.case.apply(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: ignored-{number}}}\n\
             spec: {{clusterIP: 10.96.9.{number}, externalIPs: [127.0.0.1], ports: [{{port: 80}}]}}\n"
        ));
    }
}

/// Formats seconds since 1970.
fn rfc3339(seconds: u64) -> String {
    let output = Command::new("date").args(["-u", "-d", &format!("@{seconds}"), "+%FT%TZ"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns the names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let prefixes = ["ferroute_", "kubeproxy_", "rest_client_", "process_", "go_", "kubernetes_"];
    words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))).map(str::to_owned).collect()
}

/// Returns the queries of all panels with their titles.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            all.push((panel["title"].as_str().unwrap().to_owned(), query.to_owned()));
        }
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

#[test]
fn alerts_and_panels_use_metrics_that_exist() {
    let mut exposed = BTreeSet::new();
    for mode in [Mode::Iptables, Mode::Nftables] {
        let mut busy = Busy::start(mode);
        let text = wait("a count of open connections", || {
            busy.work();
            let Metrics(text) = Metrics::read(&busy.case.cluster.node);
            text.contains("ferroute_draining_connections").then_some(text)
        });
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        exposed.extend(samples.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned));
    }
    let queries = panels().into_iter().map(|(_, query)| query);
    let used: BTreeSet<String> = queries.chain([read(RULES)]).flat_map(|text| metrics_in(&text)).collect();
    assert!(used.len() > 30, "{used:?}");
    assert_eq!(used.difference(&exposed).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn each_alert_has_a_runbook_and_a_test() {
    let values = |text: &str, key: &str| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix(key));
        lines.map(|value| value.trim().to_owned()).collect()
    };
    let rules = read(RULES);
    let alerts = values(&rules, "alert:");
    let runbooks: BTreeSet<_> = alerts.iter().map(|alert| format!("docs/runbooks/{alert}.md")).collect();
    assert_eq!(values(&rules, "runbook_url:"), runbooks);
    assert_eq!(values(&read("deploy/monitoring/rules.test.yaml"), "alertname:"), alerts);
    let files = fs::read_dir(repository().join("docs/runbooks")).unwrap();
    let files = files.map(|file| format!("docs/runbooks/{}", file.unwrap().file_name().to_str().unwrap()));
    assert_eq!(files.collect::<BTreeSet<_>>(), runbooks);
    for (runbook, alert) in runbooks.iter().zip(&alerts) {
        let text = read(runbook);
        assert!(text.starts_with(&format!("# {alert}\n")), "{runbook}");
    }
}

/// A Prometheus that reads the metrics of a node every second, which is stopped on drop.
struct Prometheus {
    child: Child,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn start(node: &NetNs) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("prometheus.yml");
        let text = "global: {scrape_interval: 1s, evaluation_interval: 1s}\nscrape_configs:\n- job_name: node\n  \
                    static_configs: [{targets: ['127.0.0.1:10249']}]\n";
        fs::write(&config, format!("{text}rule_files: ['{}']\n", repository().join(RULES).display())).unwrap();
        let mut command = Command::new(program("prometheus"));
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
        command.arg(format!("--web.listen-address={PROMETHEUS}")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = node.run(|| command.spawn()).expect("Prometheus is installed");
        Self { child, _directory: directory }
    }

    /// Returns the values of a query; none if there is no answer.
    fn query(node: &NetNs, query: &str) -> Vec<f64> {
        let mut command = Command::new(program("promtool"));
        command.args(["query", "instant", "--format=json", &format!("http://{PROMETHEUS}"), query]);
        let output = node.run(|| command.output()).unwrap();
        let samples: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let values = samples.as_array().into_iter().flatten().filter_map(|sample| sample["value"][1].as_str());
        values.map(|value| value.parse().unwrap()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have exited already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns a program of Prometheus, from the directory into which `make test-monitoring` has unpacked it.
fn program(name: &str) -> PathBuf {
    std::env::var_os("PROMETHEUS_PROGRAMS").map_or_else(|| name.into(), |directory| Path::new(&directory).join(name))
}

const PROMETHEUS: &str = "127.0.0.1:9090";

#[test]
#[ignore = "requires Prometheus: make test-monitoring"]
fn every_panel_has_data_and_no_alert_is_active() {
    let mut busy = Busy::start(Mode::Nftables);
    let _prometheus = Prometheus::start(&busy.case.cluster.node);
    let mut missing: Vec<_> = panels()
        .into_iter()
        .map(|(title, query)| {
            let query = query.replace("$__rate_interval", "15s").replace("$job", ".*").replace("$instance", ".*");
            assert!(!query.contains('$'), "{query}");
            (title, query)
        })
        .collect();
    let start = Instant::now();
    for number in 1.. {
        missing.retain(|(_, query)| {
            !Prometheus::query(&busy.case.cluster.node, query).iter().any(|value| value.is_finite())
        });
        if missing.is_empty() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(300), "no data: {missing:#?}");
        (0..4).for_each(|_| busy.work());
        busy.cause_event(number);
    }
    assert_eq!(Prometheus::query(&busy.case.cluster.node, "ALERTS{alertstate=\"firing\"}"), [0.0; 0]);
}
