//! Services that are not applied, or not completely: all commands give the same answer.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{
    Case, Cluster, Files, Mode, Proxy, WEB,
    cluster::pod_addresses,
    http::get,
    programs::Programs,
    proxy::{FERROUTE, run_command},
    status::METRICS,
    traffic::connect,
    wait, web, web_tcp,
};

/// Runs a command on the node. Returns the exit status, the text and the report.
pub(crate) fn run(cluster: &Cluster, arguments: &[&str]) -> (i32, String, Value) {
    let output = cluster.node.try_command(FERROUTE, arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let json = cluster.node.try_command(FERROUTE, &[arguments, &["-o", "json"]].concat()).stdout;
    let json = serde_json::from_slice(&json).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"));
    (output.status.code().unwrap(), text, json)
}

/// Returns the state of a Service on the page of the node.
fn state_on_page(cluster: &Cluster, service: &str) -> Value {
    let at = "127.0.0.1:8249".parse().unwrap();
    let mut command = Command::new(FERROUTE);
    command.args(["ui", "--listen", "127.0.0.1:8249"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut ui = cluster.node.run(|| command.spawn()).unwrap();
    let text = wait("the page", || get(&cluster.node, at, "/api/v1/services").ok()).body;
    ui.kill().unwrap();
    ui.wait().unwrap();
    let page: Value = serde_json::from_str(&text).unwrap();
    page["services"].as_array().unwrap().iter().find(|row| row["name"] == service).unwrap()["state"].clone()
}

#[test]
fn commands_agree_while_rules_are_refused() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let refused = pod_addresses(1)[0];
    // Refuses all rules with an endpoint, as the kernel does with a line.
    let fault = format!(
        "t=$(mktemp); cat > $t; line=$(grep -nm1 'to-destination {refused}:' $t | cut -d: -f1); exec < $t; rm $t; \
         if [ -n \"$line\" ]; then echo \"iptables-restore: line $line failed\" >&2; exit 1; fi"
    );
    let programs = Programs::new(&files, &["iptables-restore"], &fault);
    programs.set_faulty(true);
    let mut command = run_command(FERROUTE, &files.manifests(), &files.config(Mode::Iptables));
    command.args(["--iptables-programs", "--enable-service-status"]).env("PATH", programs.path());
    let mut proxy = Proxy::spawn(&cluster.node, &mut command);
    proxy.wait_synced(&cluster.node);
    let [v4, v6] = web_tcp();
    let versions = || run(&cluster, &["status", "--service", "default/web"]);
    let (status, text, _) = versions();
    assert!(status == 0 && text.contains("applied:    yes"), "{text}");
    assert_eq!(state_on_page(&cluster, "default/web"), "served");

    files.apply(&web(&[1]));
    let (status, text, json) = wait("the refusal", || Some(versions()).filter(|(.., json)| json["refused"] == true));
    assert_eq!((status, &json["served"], &json["applied"]), (1, &true.into(), &false.into()), "{json}");
    assert!(text.contains("applied:    no: the kernel refuses rules of the Service"), "{text}");
    // IPv6 has the new endpoint, and IPv4 the last accepted one.
    wait("the new endpoint of IPv6", || (connect(&cluster.client, v6).ok()? == 1).then_some(()));
    assert_eq!(connect(&cluster.client, v4).unwrap(), 0, "{}", proxy.log());
    let services: Value = serde_json::from_str(&get(&cluster.node, METRICS, "/services").unwrap().body).unwrap();
    let families = &services["services"][0]["families"];
    assert_eq!((&families["IPv4"]["refused"], &families["IPv4"]["pending"]), (&true.into(), &true.into()));
    assert_eq!((&families["IPv6"]["refused"], &families["IPv6"]["pending"]), (&Value::Null, &false.into()));

    let problem = "the IPv4 rules of default/web:tcp (tcp) are not applied: the kernel refuses the new rules (";
    let (status, text, json) = run(&cluster, &["status"]);
    assert!(status == 0 && text.contains(&format!("problem:    {problem}")), "{text}");
    assert_eq!(json["pending"], 1, "{json}");
    let (_, text, json) = run(&cluster, &["doctor", "--no-connect"]);
    assert!(text.contains(&format!("the running proxy reports: {problem}")), "{text}");
    assert!(json["findings"].as_array().unwrap().iter().any(|finding| finding["check"] == "running-proxy"), "{json}");
    let (_, text, json) = run(&cluster, &["explain", "service", "default/web"]);
    assert!(text.contains("not applied: the kernel refuses the new rules (") && text.contains("stay active"), "{text}");
    for port in json["ports"].as_array().unwrap() {
        let not_applied = &port["notApplied"];
        assert_eq!(not_applied["keepsRules"] == true, port["family"] == "IPv4", "{port}");
        assert_eq!(not_applied["error"].is_string(), port["family"] == "IPv4", "{port}");
    }
    for (to, is_refused) in [(v4, true), (v6, false)] {
        let from = if is_refused { "192.168.0.9" } else { "fd00:168::9" };
        let (_, text, json) = run_trace(&cluster, from, &to.to_string());
        assert_eq!(text.contains("note: the rules of default/web:tcp are not applied: "), is_refused, "{text}");
        assert_eq!(json["notApplied"].is_object(), is_refused, "{text}");
    }
    let (status, text, json) = run(&cluster, &["diff"]);
    assert!(status == 1 && text.contains("    not applied: the kernel refuses the new rules ("), "{text}");
    let reports = json["reports"].as_array().unwrap();
    let findings: Vec<&Value> = reports.iter().flat_map(|report| report["findings"].as_array().unwrap()).collect();
    assert!(!findings.is_empty() && findings.iter().all(|finding| finding["notApplied"].is_object()), "{json}");
    assert_eq!(state_on_page(&cluster, "default/web"), "notApplied");

    programs.set_faulty(false);
    files.apply(&web(&[1, 1]));
    wait("the end of the refusal", || (versions().0 == 0).then_some(()));
    assert_eq!(connect(&cluster.client, v4).unwrap(), 1);
    let (_, text, json) = run(&cluster, &["status"]);
    assert!(json["pending"] == 0 && !text.contains("problem:"), "{text}");
    assert_eq!(run(&cluster, &["diff"]).0, 0);
    assert!(!run(&cluster, &["explain", "service", "default/web"]).1.contains("not applied"));
    assert_eq!(state_on_page(&cluster, "default/web"), "served");
}

fn run_trace(cluster: &Cluster, from: &str, to: &str) -> (i32, String, Value) {
    run(cluster, &["trace", "--from", from, "--to", to])
}

#[test]
fn service_with_too_many_endpoints_is_limited() {
    let service = WEB.replace("{name: web}", "{name: web, annotations: {ferroute.io/load-balancing: round-robin}}");
    let endpoints: String =
        (0..2100).map(|n| format!("- {{addresses: [10.244.{}.{}]}}\n", 1 + n / 200, 1 + n % 200)).collect();
    let slices = [("a", 0..1000), ("b", 1000..2000), ("c", 2000..2100)].map(|(name, part)| {
        let lines: Vec<&str> = endpoints.lines().collect();
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}, labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\n\
             ports: [{{name: tcp, port: 8080}}]\nendpoints:\n{}\n",
            lines[part].join("\n")
        )
    });
    let case = Case::new(Mode::Nftables, &format!("{service}{}", slices.concat()));
    let (status, text, json) = run(&case.cluster, &["status", "--service", "default/web"]);
    assert_eq!((status, &json["applied"], &json["limited"]), (0, &true.into(), &true.into()), "{text}");
    assert_eq!(json["refused"], Value::Null);
    assert!(text.contains("applied:    yes, but not with all endpoints: a limit is exceeded"), "{text}");
    let (_, text, _) = run(&case.cluster, &["explain", "service", "default/web"]);
    assert!(text.contains("52 endpoints more not used"), "{text}");
}

#[test]
fn service_that_is_not_served_is_not_applied() {
    let others = "---\napiVersion: v1\nkind: Service\nmetadata: {name: headless}\n\
                  spec: {clusterIP: None, ports: [{port: 80}]}\n\
                  ---\napiVersion: v1\nkind: Service\nmetadata: {name: bad}\n\
                  spec: {clusterIP: 10.96.0.8, ports: [{port: 80}], sessionAffinity: Cookie}\n";
    let case = Case::new(Mode::Nftables, &format!("{}{others}", web(&[0])));
    let reasons = [
        ("bad", "is invalid: spec.sessionAffinity: unsupported value"),
        ("headless", ": it is headless"),
        ("nothing", "the proxy has not received the Service"),
    ];
    for (name, reason) in reasons {
        let (status, text, json) = run(&case.cluster, &["status", "--service", name]);
        assert_eq!((status, &json["served"]), (1, &false.into()), "{text}");
        assert!(text.starts_with("applied:    no: not served\n") && text.contains(reason), "{text}");
    }
}
