//! `kubectl ferroute` with the three nodes of `rig`.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

mod rig;

use std::{
    fs,
    io::{Read, Write},
    iter,
    net::TcpStream,
    os::unix::fs::{MetadataExt, symlink},
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ferroute_source::Resource;
use ferroute_testing::{NetNs, Running};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use self::rig::{Failure, NODES, PROGRAM, Rig};

fn send(signal: Signal, process: &Running) {
    kill(Pid::from_raw(process.0.id().try_into().unwrap()), signal).unwrap();
}

/// Returns the value of a field of each node.
fn of_nodes(report: &Value, field: &str) -> Vec<Value> {
    report["nodes"].as_array().unwrap().iter().map(|node| node[field].clone()).collect()
}

#[test]
fn commands_ask_all_nodes() {
    let rig = Rig::start();

    let (code, report) = rig.json(&["status"]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(of_nodes(&report, "node"), NODES);
    assert_eq!(of_nodes(&report, "mode"), ["iptables", "nftables", "nftables"]);
    assert_eq!(of_nodes(&report, "ready"), [true; 3]);
    assert_eq!(of_nodes(&report, "drift"), ["none"; 3]);
    assert!(of_nodes(&report, "doctor").iter().all(|doctor| doctor["findings"].is_u64()), "{report}");
    assert!(of_nodes(&report, "lastSync").iter().all(Value::is_string), "{report}");
    let (code, text) = rig.text(&["status", "--quick", "-o", "wide", "-l", "pool=b"]);
    assert_eq!((code, text.lines().count()), (0, 3), "{text}");
    assert!(text.contains("ferroute-2") && !text.contains("node-1"), "{text}");
    let (code, text) = rig.text(&["status", "--node", "node-9"]);
    assert!(code == 2 && text.contains("no proxy runs on node node-9"), "{text}");

    // The namespace is that of the context.
    let (code, waited) = rig.json(&["wait", "service/web", "--for", "applied", "--timeout", "60s"]);
    assert_eq!((code, &waited["applied"]), (0, &json!(NODES)), "{waited}");

    let (code, text) = rig.text(&["explain", "service/web"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(text.matches("Service shop/web, type ClusterIP, on node node-").count(), 3, "{text}");

    let (_, doctor) = rig.json(&["doctor", "--no-connect"]);
    let nodes = doctor["groups"].as_array().unwrap().iter().flat_map(|group| group["nodes"].as_array().unwrap());
    assert_eq!(nodes.count(), 3, "{doctor}");
    assert!(doctor["groups"][0]["output"]["findings"].is_array(), "{doctor}");

    let (code, top) = rig.json(&["top", "--interval", "100ms"]);
    assert_eq!((code, &top["failures"]), (0, &json!({})), "{top}");
    assert_eq!(top["servicePorts"][0]["servicePort"], "shop/web:http", "{top}");

    let archive = rig.directory.path().join("all.tar");
    let (code, text) = rig.text(&["bundle", archive.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    let unpacked = rig.hub.command("tar", &["-tf", archive.to_str().unwrap()]);
    assert_eq!(unpacked.lines().collect::<Vec<_>>(), ["node-1.json", "node-2.json", "node-3.json"]);
    let directory = rig.directory.path().to_str().unwrap();
    rig.hub.command("tar", &["-xf", archive.to_str().unwrap(), "-C", directory]);
    rig.hub.command(PROGRAM, &["replay", &format!("{directory}/node-2.json")]);
}

#[test]
fn flows_of_all_nodes_have_the_names_that_the_user_may_read() {
    let rig = Rig::start();
    assert_eq!(rig.text(&["wait", "service/web", "--timeout", "60s"]).0, 0);
    for (port, node) in (1001..).zip(&rig.nodes) {
        let entry = format!(
            "-I -p tcp -s 10.244.1.5 -d 10.96.0.80 --sport {port} --dport 80 --dst-nat 10.244.2.9:8080 --timeout 900 \
             --state ESTABLISHED -u SEEN_REPLY,ASSURED"
        );
        node.command("conntrack", &entry.split(' ').collect::<Vec<_>>());
    }
    let last = ["flows", "--last", "9", "--service", "web", "--client", "client"];
    let (code, text) = rig.text(&last);
    assert_eq!((code, text.lines().count()), (0, 4), "{text}");
    for (number, name) in (1..).zip(NODES) {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        for part in
            ["open", &format!("pod shop/client:100{number}"), "shop/web:http", "10.96.0.80:80", "10.244.2.9:8080"]
        {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
    }
    let (code, text) = rig.text(&["flows", "--last", "9", "--client", "other"]);
    assert_eq!((code, text.lines().count()), (0, 1), "{text}");
    rig.fail(&[("node-2", Failure::Forbidden), ("node-3", Failure::Garbage)]);
    let (code, text) = rig.text(&[&last[..], &["-o", "json"]].concat());
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["node"] == "node-1" && line["flow"].is_object()).count(), 1, "{text}");
    let failures = lines.last().unwrap()["failures"].as_object().unwrap();
    assert_eq!(
        (code, failures.keys().collect::<Vec<_>>()),
        (1, vec![&"node-2".to_owned(), &"node-3".to_owned()]),
        "{text}"
    );
}

#[test]
fn kube_proxy_that_an_upgrade_would_start_is_reported_beside_the_nodes() {
    let rig = Rig::start();
    rig.server.set_object("/api/v1/namespaces/kube-system/configmaps/kube-proxy", json!({"kind": "ConfigMap"}));
    let (code, text) = rig.text(&["status", "--quick"]);
    let finding = "WARNING: the ConfigMap kube-system/kube-proxy exists without its DaemonSet  [kube-proxy]\n";
    assert!(code == 1 && text.starts_with("NODE ") && text.contains(finding), "{text}");
    let (code, report) = rig.json(&["status", "--quick"]);
    assert_eq!((code, &report["findings"][0]["severity"]), (1, &json!("warning")), "{report}");
    let (code, text) = rig.text(&["doctor", "--no-connect"]);
    assert!(code == 1 && text.starts_with(&format!("== cluster\n{finding}")) && text.contains("== node-1"), "{text}");
    rig.server.set_object("/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy", json!({"kind": "DaemonSet"}));
    let (code, report) = rig.json(&["status", "--quick"]);
    assert_eq!((code, &report["findings"]), (0, &json!([])), "{report}");
}

#[test]
fn trace_follows_the_packet_to_the_node_of_the_endpoint() {
    let rig = Rig::start();
    assert_eq!(rig.text(&["wait", "service", "web", "--timeout", "60s"]).0, 0);
    // The selection of nodes does not end the way of the packet.
    for flags in [&[][..], &["--planned"], &["--node", "node-1"]] {
        let (code, trace) = rig.json(&[&["trace", "pod/client", "service/web:80"], flags].concat());
        assert_eq!((code, &trace["delivered"]), (0, &json!(true)), "{trace}");
        let hops = trace["hops"].as_array().unwrap();
        let steps = hops.iter().map(|hop| (hop["node"].as_str().unwrap(), hop["to"].as_str().unwrap()));
        assert_eq!(steps.collect::<Vec<_>>(), [("node-1", "shop/web:80"), ("node-2", "10.244.2.9:8080")], "{trace}");
        // Traffic between pods is not masqueraded.
        assert_eq!(hops[1]["from"], "10.244.1.5", "{trace}");
    }
    let (code, text) = rig.text(&["trace", "pod/shop/client", "10.96.0.80:80"]);
    assert!(code == 0 && text.contains("DNAT 10.96.0.80:80 to 10.244.2.9:8080"), "{text}");

    rig.fail(&[("node-2", Failure::Forbidden)]);
    let (code, text) = rig.text(&["trace", "pod/client", "service/web"]);
    assert!(code == 1 && text.contains("== node-2: from 10.244.1.5 to 10.244.2.9:8080\nno answer: "), "{text}");
    let (code, text) = rig.text(&["trace", "pod/nobody", "service/web"]);
    assert!(code == 2 && text.contains("cannot read the pod"), "{text}");
}

#[test]
fn wait_ends_once_all_nodes_have_applied_the_version() {
    let rig = Rig::start();
    assert_eq!(rig.text(&["wait", "service/shop/web", "--timeout", "60s"]).0, 0);

    // A proxy that hangs has not applied a change.
    send(Signal::SIGSTOP, &rig.proxies["node-3"]);
    rig.publish(&["10.244.2.9", "10.244.2.10"]);
    let (code, waited) = rig.json(&["wait", "service/web", "--timeout", "3s", "--request-timeout", "1s"]);
    assert_eq!(code, 1, "{waited}");
    assert!(waited["missing"]["node-3"].is_string(), "{waited}");
    send(Signal::SIGCONT, &rig.proxies["node-3"]);
    let (code, waited) = rig.json(&["wait", "service/web", "--timeout", "60s"]);
    assert_eq!((code, &waited["applied"]), (0, &json!(NODES)), "{waited}");
    for (node, programmed) in [("node-1", "10.244.2.10:8080"), ("node-3", "10.244.2.10:8080")] {
        let (_, text) = rig.text(&["explain", "service/web", "--node", node]);
        assert!(text.contains(programmed), "{text}");
    }

    // The same applies to a proxy that receives no events. The cluster then has one slice less.
    rig.server.stall_watches();
    rig.server.delete(Resource::EndpointSlices, "shop", "web-1");
    let (code, waited) = rig.json(&["wait", "service/web", "--timeout", "2s"]);
    assert_eq!((code, waited["missing"].as_object().unwrap().len()), (1, 3), "{waited}");
    assert_eq!(waited["missing"]["node-1"], "it still has endpoint slice web-1");

    let (code, text) = rig.text(&["wait", "service/none"]);
    assert!(code == 2 && text.contains("cannot read the Service"), "{text}");
    let headless = json!({"metadata": {"namespace": "shop", "name": "db"}, "spec": {"clusterIP": "None"}});
    rig.server.apply(Resource::Services, headless);
    let (code, text) = rig.text(&["wait", "service/db"]);
    assert!(code == 2 && text.contains("no node applies Service shop/db"), "{text}");
}

#[test]
fn failures_of_nodes_are_shown_beside_the_answers_of_others() {
    let rig = Rig::start();
    let arguments = ["status", "--quick", "--request-timeout", "2s"];
    for (failure, expected) in [
        (Failure::Forbidden, "403"),
        (Failure::Hangs, "no result from pod kube-system/ferroute-2 after 2s"),
        (Failure::Garbage, "invalid answer of the node"),
        (Failure::Cut, "cannot run a program in pod kube-system/ferroute-2"),
    ] {
        rig.fail(&[("node-2", failure.clone())]);
        let (code, report) = rig.json(&arguments);
        assert_eq!(code, 1, "{failure:?}: {report}");
        let errors = of_nodes(&report, "error");
        assert!(errors[1].as_str().unwrap().contains(expected), "{failure:?}: {report}");
        assert!(errors[0].is_null() && errors[2].is_null(), "{failure:?}: {report}");
        assert_eq!(of_nodes(&report, "ready"), [json!(true), Value::Null, json!(true)], "{report}");
    }
    // The same applies to other commands.
    rig.fail(&[("node-2", Failure::Cut)]);
    let (code, text) = rig.text(&["explain", "service/web"]);
    assert!(code == 1 && text.contains("== node-2\nno answer: ") && text.contains("on node node-3"), "{text}");
    let (code, top) = rig.json(&["top", "--interval", "100ms"]);
    assert_eq!((code, top["failures"].as_object().unwrap().len()), (1, 1), "{top}");
    assert_eq!(top["servicePorts"][0]["servicePort"], "shop/web:http", "{top}");
    let archive = rig.directory.path().join("all.tar");
    assert_eq!(rig.text(&["bundle", archive.to_str().unwrap()]).0, 1);
    let names = rig.hub.command("tar", &["-tf", archive.to_str().unwrap()]);
    assert_eq!(names.lines().collect::<Vec<_>>(), ["node-1.json", "node-3.json", "failures.txt"]);
    // Output of nodes controls no terminal.
    rig.fail(&[("node-2", Failure::Garbage)]);
    for command in [&["explain", "service/web"][..], &["status", "--quick"], &["doctor"]] {
        let (_, text) = rig.text(command);
        assert!(!text.contains('\u{1b}'), "{command:?}: {text}");
    }

    // A node without a running proxy.
    rig.fail(&[]);
    send(Signal::SIGKILL, &rig.proxies["node-3"]);
    let mut tries = iter::repeat_with(|| rig.json(&arguments)).take(100);
    let (_, report) = tries.find(|(code, _)| *code == 1).expect("a failure");
    assert!(of_nodes(&report, "error")[2].as_str().unwrap().contains("no Ferroute runs"), "{report}");
}

#[test]
fn kubectl_gets_completions_from_the_program_that_it_looks_for() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("kubectl_complete-ferroute");
    symlink(PROGRAM, &program).unwrap();
    let output = Command::new(program).args(["wait", "--f"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("--for\t") && text.ends_with(":4\n"), "{text}");
}

/// Requests a resource of the page, and returns the status and the body so far once `is_complete` holds for it.
fn get(hub: &NetNs, path: &str, is_complete: impl Fn(&str) -> bool) -> (u16, String) {
    let mut stream = hub.run(|| TcpStream::connect(PAGE)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {PAGE}\r\nConnection: close\r\n\r\n").unwrap();
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < end, "{path}: {}", String::from_utf8_lossy(&text));
        let length = ferroute_testing::restart(|| stream.read(&mut buffer)).unwrap();
        text.extend_from_slice(&buffer[..length]);
        let (head, body) = String::from_utf8_lossy(&text)
            .split_once("\r\n\r\n")
            .map_or_else(|| (String::new(), String::new()), |(head, body)| (head.to_owned(), body.to_owned()));
        if length == 0 || is_complete(&body) {
            return (head.split(' ').nth(1).unwrap().parse().unwrap(), body);
        }
    }
}

const PAGE: &str = "127.0.0.1:8249";

#[test]
fn page_shows_all_nodes() {
    let rig = Rig::start();
    assert_eq!(rig.text(&["wait", "service/web", "--timeout", "60s"]).0, 0);
    rig.fail(&[("node-3", Failure::Forbidden)]);
    let (plugin, line) = rig.start_page(PAGE);
    assert_eq!(line, format!("open http://{PAGE}/\n"));
    let json = |path: &str| {
        let (status, body) = get(&rig.hub, path, |_| false);
        // The length of a chunk is no JSON.
        let body = body.lines().find(|line| line.starts_with('{')).unwrap_or_default().to_owned();
        (status, serde_json::from_str::<Value>(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}")))
    };
    let (status, cluster) = json("/api/v1/cluster");
    assert_eq!((status, of_nodes(&cluster, "name")), (200, NODES.map(Value::from).to_vec()));
    // The page of each node comes from its own proxy.
    for (node, mode) in [("node-1", "iptables"), ("node-2", "nftables")] {
        let (status, overview) = json(&format!("/api/v1/nodes/{node}/overview"));
        assert_eq!((status, &overview["node"], &overview["mode"]), (200, &node.into(), &mode.into()), "{overview}");
    }
    let (_, service) = json("/api/v1/nodes/node-1/services/shop/web");
    assert_eq!(service["service"], "shop/web", "{service}");
    let (_, trace) = json("/api/v1/nodes/node-1/trace?from=10.244.1.5&to=10.96.0.80%3A80");
    assert_eq!(trace["branches"][0]["verdict"], "delivered", "{trace}");
    assert_eq!(json("/api/v1/nodes/node-1/services/shop/none").0, 404);
    let (status, error) = json("/api/v1/nodes/node-3/overview");
    assert!(status == 502 && error["error"].as_str().unwrap().starts_with("node node-3: "), "{error}");
    assert_eq!(json("/api/v1/nodes/node-9/overview").0, 502);
    // The problems of all nodes, and the sum of their flows.
    let (_, problems) = json("/api/v1/cluster/problems");
    assert_eq!(of_nodes(&problems, "ready"), [json!(true), json!(true), Value::Null]);
    assert!(of_nodes(&problems, "error")[2].is_string(), "{problems}");
    let has_both = |body: &str| body.contains("\"connections\":2") && body.contains("shop/client");
    let events = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(2));
            rig.track(0, 1001);
            rig.track(1, 1002);
        });
        get(&rig.hub, "/api/v1/cluster/flows/events", has_both).1
    });
    assert!(has_both(&events), "{events}");
    // The programs on the nodes end with the page.
    let programs = || {
        let network = |path: PathBuf| fs::metadata(path).map(|file| file.ino()).ok();
        let nodes: Vec<Option<u64>> = rig.nodes.iter().map(|node| network(node.path())).collect();
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let of_page = processes.filter(|process| {
            fs::read_to_string(process.join("cmdline")).is_ok_and(|line| line.ends_with("ui\0--stdio\0"))
                && nodes.contains(&network(process.join("ns/net")))
        });
        of_page.count()
    };
    assert_eq!(programs(), 2);
    drop(plugin);
    ferroute_testing::wait("the end of the programs", || (programs() == 0).then_some(()));
}
