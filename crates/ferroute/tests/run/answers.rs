//! Commands on a node without any flags, which refer to the proxy that runs there.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::{
    Case, Cluster, Mode,
    cluster::{PORT, pod_addresses},
    http::get,
    in_every_mode,
    proxy::{FERROUTE, Files, Proxy, run_command},
    wait, web,
};

in_every_mode!(commands_without_flags_answer_for_the_running_proxy, flags_override_facts_of_the_running_proxy,);

/// Runs a command on the node.
fn run(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = cluster.node.try_command(FERROUTE, arguments);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Services that the proxy does not serve, or serves like a Service of another type.
const OTHERS: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: pending}
spec: {type: LoadBalancer, clusterIP: 10.96.0.7, ports: [{port: 80, nodePort: 30007}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: bad}
spec: {clusterIP: 10.96.0.8, ports: [{port: 80}], sessionAffinity: Cookie}
"#;

#[test]
fn page_of_a_running_proxy_has_services_that_are_not_served() {
    let case = Case::new(Mode::Nftables, &format!("{}{OTHERS}", web(&[0])));
    let node = &case.cluster.node;
    let at = "127.0.0.1:8249".parse().unwrap();
    let mut command = Command::new(FERROUTE);
    command.args(["ui", "--listen", "127.0.0.1:8249"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut ui = node.run(|| command.spawn()).unwrap();
    let services = wait("the page", || {
        let text = get(node, at, "/api/v1/services").ok()?.body;
        Some(serde_json::from_str::<Value>(&text).unwrap()["services"].as_array().unwrap().clone())
    });
    let overview: Value = serde_json::from_str(&get(node, at, "/api/v1/overview").unwrap().body).unwrap();
    ui.kill().unwrap();
    ui.wait().unwrap();
    let rows: Vec<[&str; 3]> =
        services.iter().map(|row| ["name", "type", "state"].map(|field| row[field].as_str().unwrap())).collect();
    let expected = [
        ["default/bad", "ClusterIP", "invalid"],
        ["default/headless", "ClusterIP", "notServed"],
        ["default/pending", "LoadBalancer", "served"],
        ["default/web", "ClusterIP", "served"],
    ];
    assert_eq!(rows, expected);
    assert_eq!((&overview["source"], &overview["counts"]["invalid"]), (&"node".into(), &1.into()));
    // The place of an invalid Service is that in the proxy's manifests.
    let (_, text, error) = run(&case.cluster, &["explain", "service", "default/bad"]);
    assert!(text.contains("invalid in ") && text.contains(".yaml:"), "{text}{error}");
}

/// The calls of all commands without flags, and their exit status on a healthy node.
const CALLS: [(&[&str], i32); 8] = [
    (&["explain", "service", "default/web"], 0),
    (&["diff"], 0),
    (&["trace", "--from", "192.168.0.9", "--to", "default/web:80"], 0),
    (&["trace", "--from", "192.168.0.9", "--to", "default/web:80", "--kernel"], 0),
    (&["preflight"], 0),
    (&["doctor"], 0),
    (&["render"], 0),
    (&["top", "--once", "--interval", "10ms"], 0),
];

fn commands_without_flags_answer_for_the_running_proxy(mode: Mode) {
    let files = Files::new();
    files.apply(&web(&[0, 1]));
    let cluster = Cluster::new();
    // In nftables mode, `top` requires it.
    let mut command = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let mut proxy = Proxy::spawn(&cluster.node, command.args(["--nftables-connection-counters", "100"]));
    proxy.wait_synced(&cluster.node);
    let line = format!("running proxy: node node-1, {} mode", mode.as_str());
    for (call, expected) in CALLS {
        let (status, text, error) = run(&cluster, call);
        assert_eq!(status, Some(expected), "{call:?}: {text}{error}");
        let first = text.lines().next().unwrap_or_default();
        assert_eq!(first.trim_start_matches("# "), line, "{call:?}: {text}");
        if call == ["render"] {
            continue;
        }
        let (status, text, error) = run(&cluster, &[call, &["-o", "json"]].concat());
        assert_eq!(status, Some(expected), "{call:?}: {text}{error}");
        let report: Value = serde_json::from_str(&text).unwrap();
        let about = &report["about"];
        assert_eq!((&about["proxy"], &about["node"]["value"]), (&"running".into(), &"node-1".into()), "{about}");
        assert_eq!((&about["mode"]["value"], &about["mode"]["from"]), (&mode.as_str().into(), &"proxy".into()));
    }
    let (_, explained, _) = run(&cluster, &["explain", "service", "default/web"]);
    assert!(explained.contains(&format!("{}:{PORT}", pod_addresses(0)[0])), "{explained}");
    assert!(!explained.contains("not read"), "{explained}");
    let (_, rates, _) = run(&cluster, &["top", "--once", "--interval", "10ms"]);
    assert!(rates.contains("default/web:tcp"), "{rates}");
    let (_, preflight, _) = run(&cluster, &["preflight"]);
    let switch = format!("switch from {mode} to {mode} mode\n\nno differences\n", mode = mode.as_str());
    assert!(preflight.ends_with(&switch), "{preflight}");
}

fn flags_override_facts_of_the_running_proxy(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let other = mode.other().as_str();
    let about = |arguments: &[&str]| {
        let (_, text, error) = run(&case.cluster, &[&["diff", "-o", "json"], arguments].concat());
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{error}"));
        report["about"].clone()
    };
    let fact = |value: &str, from: &str| serde_json::json!({"value": value, "from": from});
    let of_proxy = || fact("the running proxy", "proxy");
    let with_mode = about(&["--proxy-mode", other]);
    assert_eq!(with_mode["mode"], fact(other, "given"));
    assert_eq!((&with_mode["objects"], &with_mode["configuration"]), (&of_proxy(), &of_proxy()), "{with_mode}");

    let manifests = case.files.manifests();
    let manifests = manifests.to_str().unwrap();
    let with_objects = about(&["--manifests", manifests]);
    assert_eq!(with_objects["objects"], fact(manifests, "given"));
    assert_eq!(with_objects["mode"], fact(mode.as_str(), "proxy"));

    // If a file has no mode and no node, those of the running proxy are used.
    let config = case.files.path("other.yaml");
    let text =
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n";
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let with_config = about(&["--config", config]);
    assert_eq!(with_config["configuration"], fact(config, "given"));
    assert_eq!((&with_config["mode"], &with_config["node"]), (&fact(mode.as_str(), "proxy"), &fact("node-1", "proxy")));

    let (status, _, error) = run(&case.cluster, &["render", "--hostname-override", "node-2"]);
    assert!(status == Some(1) && error.contains("no Node node-2 in the running proxy"), "{error}");
}

#[test]
fn without_a_proxy_commands_say_what_they_assume() {
    let mut case = Case::new(Mode::Nftables, &web(&[0]));
    assert!(case.proxy.stop("TERM").success());
    let manifests = case.files.manifests();
    let (status, text, error) =
        run(&case.cluster, &["diff", "--manifests", manifests.to_str().unwrap(), "--proxy-mode", "nftables"]);
    assert!(status.is_some_and(|status| status < 2), "{text}{error}");
    let line = text.lines().next().unwrap();
    assert!(line.starts_with("no Ferroute proxy runs here: node "), "{line}");
    assert!(line.contains("(assumed), nftables mode (given), objects of "), "{line}");
    assert!(line.ends_with(", default configuration (assumed)"), "{line}");
    // Rules of another proxy, such as kube-proxy, look the same.
    let (status, text, error) = run(&case.cluster, &["diff", "--manifests", manifests.to_str().unwrap()]);
    assert!(
        text.contains(", nftables mode (of the rules in the kernel), ") && status.is_some_and(|status| status < 2),
        "{text}{error}"
    );
    for (call, _) in CALLS.into_iter().filter(|(call, _)| ["explain", "diff", "render"].contains(&call[0])) {
        let (status, _, error) = run(&case.cluster, call);
        assert!(status != Some(0) && error.contains("no Ferroute proxy runs here"), "{call:?}: {error}");
    }
}
