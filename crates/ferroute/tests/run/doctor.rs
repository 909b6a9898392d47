//! `ferroute doctor` on a host with a proxy, real sockets and real faults.

use std::net::TcpListener;

use serde_json::Value;

use crate::{Case, Mode, in_each_mode, lab::pod_addresses, web};

in_each_mode!(a_host_with_a_proxy_at_work_is_well);

/// What it says of the lab's node, as a program reads it, with its exit status.
fn examine(case: &Case, arguments: &[&str]) -> (Option<i32>, Value) {
    let manifests = case.files.manifests();
    let mode = match case.mode {
        Mode::Iptables => "--proxy-mode=iptables",
        Mode::Nftables => "--proxy-mode=nftables",
    };
    let fixed =
        ["doctor", "-o", "json", "--hostname-override=node-1", mode, "--manifests", manifests.to_str().unwrap()];
    let arguments = [&fixed[..], arguments].concat();
    let output = case.lab.node.try_command(env!("CARGO_BIN_EXE_ferroute"), &arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}")))
}

/// The findings of a check.
fn of<'a>(examination: &'a Value, check: &str) -> Vec<&'a Value> {
    let findings = examination["findings"].as_array().unwrap();
    findings.iter().filter(|finding| finding["check"] == check).collect()
}

fn a_host_with_a_proxy_at_work_is_well(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let (status, examination) = examine(&case, &[]);
    let bad: Vec<&Value> =
        examination["findings"].as_array().unwrap().iter().filter(|finding| finding["severity"] != "note").collect();
    assert_eq!((status, bad.as_slice(), &examination["unknown"]), (Some(0), &[][..], &serde_json::json!([])));
    for check in ["ip-forward", "other-proxies", "endpoints", "conntrack-table", "node-ports"] {
        assert!(examination["sound"].as_array().unwrap().contains(&check.into()), "{check}: {examination:#}");
    }
}

#[test]
fn faults_of_a_real_host_are_found() {
    let mut case = Case::new(Mode::Nftables, &web(&[0, 1]));
    let node_port = "type: NodePort\n  ports: [{name: tcp, port: 80, nodePort: 30080}, {name: udp";
    case.files.apply(&web(&[0, 1]).replace("ports: [{name: tcp, port: 80}, {name: udp", node_port));
    case.lab.node.command("sysctl", &["-qw", "net.ipv4.ip_forward=0"]);
    let squatter = case.lab.node.run(|| TcpListener::bind("0.0.0.0:30080")).unwrap();
    assert!(case.proxy.end_by("TERM").success());
    let (status, examination) = examine(&case, &[]);
    drop(squatter);
    assert_eq!(status, Some(1), "{examination:#}");
    assert_eq!(of(&examination, "ip-forward")[0]["what"], "net.ipv4.ip_forward is 0");
    let taken = of(&examination, "node-ports")[0]["what"].as_str().unwrap();
    assert!(taken.contains("30080/tcp, the node port of default/web:tcp"), "{taken}");
    // The test is this process.
    assert!(taken.contains(&format!("(pid {})", std::process::id())), "{taken}");
}

#[test]
fn endpoints_that_do_not_answer_are_named_with_their_service() {
    let case = Case::new(Mode::Nftables, &web(&[0, 1]).replace("port: 8080}", "port: 8081}"));
    let (status, examination) = examine(&case, &[]);
    assert_eq!(status, Some(1));
    let findings = of(&examination, "endpoints");
    let [finding] = findings.as_slice() else { panic!("{examination:#}") };
    assert_eq!(finding["severity"], "problem");
    let first = format!("endpoint {}:8081 of default/web:tcp refuses connections", pod_addresses(0)[0]);
    assert!(finding["what"].as_str().unwrap().starts_with(&first), "{finding:#}");
    let (_, unasked) = examine(&case, &["--no-connect"]);
    assert_eq!(of(&unasked, "endpoints"), Vec::<&Value>::new());
}
