//! Tests of `ferroute demo`: commands, packets, edits of the file, and cleanup. Each test has its own instance, so
//! tests can run in parallel, and at the same time as a demo of the developer.

#![expect(clippy::unwrap_used, reason = "helpers panic as tests do")]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use ferroute_testing::{Running, wait};

const FERROUTE: &str = env!("CARGO_BIN_EXE_ferroute");

/// A separate demo and its YAML file.
struct Demo {
    instance: String,
    directory: tempfile::TempDir,
}

impl Demo {
    fn new(yaml: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let instance = format!("t{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let demo = Self { instance, directory: tempfile::tempdir().unwrap() };
        demo.write(yaml);
        demo
    }

    fn up(yaml: &str) -> Self {
        let demo = Self::new(yaml);
        let output = demo.run(&["up", demo.yaml().to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output));
        demo
    }

    fn yaml(&self) -> PathBuf {
        self.directory.path().join("cluster.yaml")
    }

    fn write(&self, yaml: &str) {
        fs::write(self.yaml(), yaml).unwrap();
    }

    /// Returns a command of this instance. The flag precedes the arguments, which may contain `--`.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(FERROUTE);
        let (name, rest) = arguments.split_first().map_or((None, &[][..]), |(name, rest)| (Some(name), rest));
        command.arg("demo").args(name).args(["--instance", &self.instance]).args(rest);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command, which must succeed, and returns its standard output.
    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command in a pod or on a machine and returns its output.
    #[track_caller]
    fn exec(&self, machine: &str, command: &[&str]) -> String {
        self.ok(&[&["exec", machine, "--"], command].concat())
    }

    #[track_caller]
    fn curl(&self, machine: &str, url: &str) -> String {
        self.exec(machine, &["curl", "--silent", "--show-error", "--max-time", "5", url])
    }

    /// Waits until the status meets a condition, and returns the status.
    #[track_caller]
    fn wait_status(&self, condition: &str, is_met: impl Fn(&str) -> bool) -> String {
        wait(condition, || Some(self.ok(&["status"])).filter(|status| is_met(status)))
    }

    fn directory(&self) -> PathBuf {
        PathBuf::from(format!("/run/ferroute-demo@{}", self.instance))
    }

    fn namespaces(&self) -> Vec<String> {
        let prefix = format!("ferroute-demo@{}-", self.instance);
        let names = fs::read_dir("/var/run/netns").into_iter().flatten();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(&prefix)).collect()
    }

    /// Returns the IDs of all processes of the demo: the supervisor, and the processes in its namespaces.
    fn processes(&self) -> Vec<String> {
        let namespaces = self.namespaces();
        let inside = namespaces.iter().flat_map(|name| {
            let output = Command::new("ip").args(["netns", "pids", name]).output().unwrap();
            text(&output).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        });
        let lock = fs::read_to_string(self.directory().join("lock")).unwrap_or_default();
        let supervisor = lock.split_once("\"pid\":").map(|(_, rest)| rest.split(',').next().unwrap().to_owned());
        inside.chain(supervisor).collect()
    }

    #[track_caller]
    fn assert_gone(&self, processes: &[String]) {
        assert_eq!(self.namespaces(), Vec::<String>::new());
        assert!(!self.directory().exists());
        for process in processes {
            let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            assert!(!command.starts_with(FERROUTE), "process {process} still runs: {command}");
        }
    }

    /// Removes the demo, and asserts that no objects remain.
    #[track_caller]
    fn down(self) {
        let processes = self.processes();
        assert!(processes.len() > 1, "{processes:?}");
        assert_eq!(self.ok(&["down"]), "removed the demo\n");
        self.assert_gone(&processes);
    }
}

impl Drop for Demo {
    /// Removes the demo after a failed test, too.
    fn drop(&mut self) {
        self.run(&["down"]);
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn signal(signal: &str, process: &str) {
    let kill = format!("kill -{signal} {process}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

fn nginx() -> String {
    fs::read_to_string(example("nginx.yaml")).unwrap()
}

/// Runs the tour with these options and returns its output.
#[track_caller]
fn tour(options: &[&str]) -> String {
    let demo = Demo::new("");
    let mut command = demo.command(&[]);
    command.args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    demo.assert_gone(&[]);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tour_shows_shares_sources_and_chains() {
    let text = tour(&[]);
    let flow = text.split("outside to node port 192.168.49.2:31628/tcp").nth(1).unwrap();
    for part in [
        "100 connections, all answered",
        "nginx-deployment-1  172.17.0.4",
        "nginx-deployment-2  172.17.0.5",
        "nginx-deployment-3  172.17.0.6",
        "the pods saw source 172.17.0.1, the address of node's bridge (masqueraded)",
        "KUBE-NODEPORTS → KUBE-EXT-V2OKYYMBY3REGZOG",
    ] {
        assert!(flow.contains(part), "{part:?} is missing in {text}");
    }
    assert!(text.contains("600 connections, all as expected"), "{text}");
    assert!(!text.contains('\x1b'), "colours are only for terminals");
}

#[test]
fn tour_runs_in_nftables_mode() {
    let text = tour(&["--proxy-mode", "nftables", "--connections", "20"]);
    let flow = text.split("outside to node port 192.168.49.2:31628/tcp").nth(1).unwrap();
    for part in ["ip ferroute nat-prerouting → services → external-3", "@tcp-endpoints 1:1 . 3: 172.17.0.6:80"] {
        assert!(flow.contains(part), "{part:?} is missing in {text}");
    }
    assert!(!text.contains("KUBE-"), "{text}");
    assert!(text.contains(" connections, all as expected"), "{text}");
}

#[test]
fn tour_of_every_example_succeeds() {
    for name in ["dual-stack.yaml", "session-affinity.yaml", "udp-dns.yaml"] {
        let text = tour(&["--file", example(name).to_str().unwrap()]);
        assert!(text.contains(" connections, all as expected"), "{name}: {text}");
    }
}

#[test]
fn exec_runs_commands_in_pods_and_on_machines() {
    let demo = Demo::up(&nginx());
    assert!(demo.curl("web-server", "http://10.111.175.78").contains("saw 172.17.0.14:"));
    assert!(demo.curl("web-server", "http://nginx-service").contains("saw 172.17.0.14:"));
    assert!(demo.curl("outside", "http://192.168.49.2:31628").starts_with("pod nginx-deployment-"));
    assert!(demo.curl("node2", "http://10.111.175.78").contains("saw 192.168.49.3:"));
    assert_eq!(demo.exec("web-server", &["hostname"]), "web-server\n");
    assert_eq!(demo.exec("web-server", &["ls", "/sys/class/net"]), "eth0\nlo\n");
    assert_eq!(demo.run(&["exec", "node", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    let mut cat = demo.command(&["exec", "node", "--", "cat"]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"standard input").unwrap();
    assert_eq!(text(&cat.wait_with_output().unwrap()), "standard input");
    let unknown = text(&demo.run(&["exec", "unknown", "--", "true"]));
    assert!(unknown.contains("no pod or machine \"unknown\"") && unknown.contains("web-server"), "{unknown}");
    demo.down();
}

#[test]
fn commands_on_a_node_answer_for_its_proxy_without_flags() {
    for mode in ["iptables", "nftables", "userspace"] {
        let demo = Demo::new(&nginx());
        let output = demo.run(&["up", "--proxy-mode", mode, demo.yaml().to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output));
        for node in ["node", "node2"] {
            for call in [
                "explain service nginx-service",
                "diff",
                "trace --from web-server --to default/nginx-service:80",
                "trace --from web-server --to default/nginx-service:80 --kernel",
                "doctor",
                "preflight",
                "render",
            ] {
                let words: Vec<&str> = ["ferroute"].into_iter().chain(call.split(' ')).collect();
                let printed = demo.exec(node, &words);
                let first = printed.lines().next().unwrap_or_default();
                let expected = format!("running proxy: node {node}, {mode} mode");
                assert_eq!(first.trim_start_matches("# "), expected, "{call}: {printed}");
            }
        }
        demo.down();
    }
}

#[test]
fn page_attaches_to_a_running_demo() {
    let demo = Demo::up(&nginx());
    let mut command = demo.command(&["ui", "--listen", "127.0.0.1:0"]);
    let mut page = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(page.0.stdout.take().unwrap()).lines();
    let url = lines.find_map(|line| line.unwrap().split_once("http://").map(|(_, url)| format!("http://{url}")));
    let (url, token) = url.as_ref().unwrap().split_once("#token=").unwrap();
    let overview = Command::new("curl").args(["--silent", &format!("{url}api/v1/overview")]).output().unwrap();
    assert!(text(&overview).contains("\"source\":\"demo\""), "{}", text(&overview));
    // Its buttons act on the cluster.
    let header = format!("X-Ferroute-Token: {token}");
    let body = r#"{"deployment":"default/nginx-deployment","replicas":5}"#;
    let mut scale = Command::new("curl");
    scale.args(["--silent", "--header", &header, "--json", body, &format!("{url}api/v1/demo/scale")]);
    let answer = scale.output().unwrap();
    demo.wait_status(&format!("five pods after {}", text(&answer)), |status| status.contains("nginx-deployment-5"));
    drop(page);
    assert!(demo.ok(&["status"]).contains("nginx-deployment-5"), "the cluster outlives the page");
    demo.down();
}

#[test]
fn only_one_demo_can_run() {
    let demo = Demo::up(&nginx());
    for arguments in [&["up"][..], &[]] {
        let output = demo.run(arguments);
        assert!(!output.status.success());
        assert!(text(&output).contains("a demo is already running: process "), "{}", text(&output));
    }
    demo.curl("web-server", "http://10.111.175.78");
    demo.down();
}

#[test]
fn edits_of_the_file_are_applied() {
    let demo = Demo::up(&nginx());
    demo.write(&nginx().replace("replicas: 3", "replicas: 5"));
    demo.wait_status("scaling up", |status| status.contains("endpoints   5 pods"));
    demo.curl("web-server", "http://172.17.0.8");

    demo.write(&nginx().replace("replicas: 3", "replicas: several"));
    let status = demo.wait_status("the error", |status| status.contains("invalid file"));
    let error = "document 1, line 10: Deployment default/nginx-deployment: spec.replicas: got string \"several\"";
    assert!(status.contains(error) && status.contains("endpoints   5 pods"), "{status}");

    demo.write(&nginx().replace("replicas: 3", "replicas: 1").replace("nodePort: 31628", "nodePort: 30001"));
    demo.wait_status("scaling down", |status| {
        status.contains("endpoints   1 pod ") && !status.contains("invalid file")
    });
    wait("the new node port", || {
        demo.run(&["exec", "outside", "--", "curl", "-s", "http://192.168.49.2:30001"]).status.success().then_some(())
    });
    assert_eq!(demo.namespaces().len(), 6);

    let (_, service_and_pod) = nginx().split_once("---").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    demo.write(&service_and_pod);
    demo.wait_status("deleting", |status| status.contains("endpoints   0 pods"));
    wait("the rejection", || {
        let connect = ["exec", "web-server", "--", "bash", "-c", "echo > /dev/tcp/10.111.175.78/80"];
        text(&demo.run(&connect)).contains("Connection refused").then_some(())
    });
    demo.down();
}

#[test]
fn killed_pod_is_restarted() {
    let demo = Demo::up(&nginx());
    let status = demo.ok(&["status"]);
    let line = status.lines().find(|line| line.contains("web-server")).unwrap();
    let process = line.rsplit_once("process ").unwrap().1.to_owned();
    signal("KILL", &process);
    demo.wait_status("the exit status", |status| status.contains("down: signal: 9 (SIGKILL)"));
    let is_back = |status: &str| !status.contains("down:") && !status.contains(&format!("process {process}\n"));
    demo.wait_status("the new process", is_back);
    demo.curl("node", "http://172.17.0.14");
    demo.down();
}

/// A single pod of a Service reaches itself through the Service, whether or not iptables sees bridged packets.
#[test]
fn pods_reach_themselves_and_neighbours_with_and_without_br_netfilter() {
    let demo = Demo::up(&nginx());
    let replicas = |count| nginx().replace("replicas: 3", &format!("replicas: {count}"));
    for bridge_rules in ["1", "0"] {
        let sysctl = "/proc/sys/net/bridge/bridge-nf-call-iptables";
        // The sysctl exists only with br_netfilter.
        demo.exec("node", &["sh", "-c", &format!("test ! -e {sysctl} || echo {bridge_rules} > {sysctl}")]);
        demo.write(&replicas(1));
        demo.wait_status("one pod", |status| status.contains("endpoints   1 pod "));
        let curl = ["curl", "-s", "--max-time", "5", "http://10.111.175.78"];
        let curl_itself = || demo.run(&[&["exec", "nginx-deployment-1", "--"], &curl[..]].concat());
        let to_itself = wait("the first response", || Some(curl_itself()).filter(|output| output.status.success()));
        let to_itself = text(&to_itself);
        assert!(to_itself.starts_with("pod nginx-deployment-1 saw 172.17.0.1:"), "{to_itself}");
        for _ in 0..20 {
            assert!(demo.curl("web-server", "http://10.111.175.78").contains("saw 172.17.0.14:"));
            demo.curl("nginx-deployment-1", "http://10.111.175.78");
        }
        let port = demo.exec("node", &["sh", "-c", "bridge -d link | sed -n 's/^[0-9]*: \\(veth[0-9]*\\).*/\\1/p'"]);
        for (mode, hangs) in [("off", bridge_rules == "1"), ("on", false)] {
            for port in port.lines() {
                demo.exec("node", &["ip", "link", "set", port, "type", "bridge_slave", "hairpin", mode]);
            }
            let diagnosis = demo.run(&["exec", "node", "--", "ferroute", "doctor", "-o", "json"]);
            let diagnosis: serde_json::Value = serde_json::from_slice(&diagnosis.stdout).unwrap();
            let findings = diagnosis["findings"].as_array().unwrap();
            assert_eq!(findings.iter().any(|finding| finding["check"] == "hairpin"), hangs, "{mode}: {findings:#?}");
            assert_eq!(curl_itself().status.success(), !hangs, "{mode}");
            let trace = ["trace", "--kernel", "nginx-deployment-1", "10.111.175.78:80"];
            let trace = demo.run(&[&["exec", "node", "--", "ferroute"], &trace[..]].concat());
            assert_eq!(trace.status.success(), !hangs, "{mode}: {}", text(&trace));
        }
        demo.write(&replicas(3));
        demo.wait_status("three pods", |status| status.contains("endpoints   3 pods"));
    }
    demo.down();
}

#[test]
fn host_network_pods_and_pods_of_second_node_are_endpoints() {
    let yaml = "
apiVersion: v1
kind: Pod
metadata: {name: on-host, labels: {app: web}}
spec: {hostNetwork: true, containers: [{name: c, ports: [{containerPort: 8081}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far, labels: {app: web}}
spec: {nodeName: node2, containers: [{name: c, ports: [{containerPort: 8081}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.7, selector: {app: web}, ports: [{port: 80, targetPort: 8081}]}
";
    let demo = Demo::up(yaml);
    let responses = |machine: &str| (0..40).map(|_| demo.curl(machine, "http://10.96.0.7")).collect::<String>();
    for machine in ["far", "node", "node2", "outside"] {
        let responses = responses(machine);
        assert!(responses.contains("pod on-host saw") && responses.contains("pod far saw"), "{machine}: {responses}");
    }
    demo.down();
}

#[test]
fn leftovers_of_a_crash_are_removed_by_next_command() {
    for next in ["down", "up"] {
        let demo = Demo::up(&nginx());
        let processes = demo.processes();
        let supervisor = processes.last().unwrap();
        signal("KILL", supervisor);
        wait("exit of the supervisor", || (!demo.run(&["status"]).status.success()).then_some(()));
        assert!(demo.namespaces().len() > 4);
        if next == "down" {
            assert_eq!(demo.ok(&["down"]), "removed leftovers of an earlier demo\n");
            demo.assert_gone(&processes);
        } else {
            let output = demo.run(&["up", demo.yaml().to_str().unwrap()]);
            assert!(text(&output).contains("removed leftovers of an earlier demo"), "{}", text(&output));
            demo.curl("web-server", "http://10.111.175.78");
            demo.down();
        }
    }
}

#[test]
fn interrupted_demo_leaves_nothing_behind() {
    for signal_name in ["INT", "TERM", "KILL"] {
        for milliseconds in [0, 20, 50, 100, 200, 400] {
            for arguments in [&["up"][..], &[]] {
                let demo = Demo::new("");
                let mut child = demo.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                thread::sleep(Duration::from_millis(milliseconds));
                let is_kept = arguments == ["up"] && child.try_wait().unwrap().is_some();
                if !is_kept {
                    signal(signal_name, &child.id().to_string());
                    check_interrupted(&demo, &mut child, signal_name);
                }
            }
        }
    }
}

fn check_interrupted(demo: &Demo, child: &mut Child, signal: &str) {
    let status = child.wait().unwrap();
    match signal {
        // A killed command cannot wait for the supervisor, which removes the demo.
        "KILL" => {}
        _ if status.success() => return,
        _ => demo.assert_gone(&[]),
    }
    wait("removal of the demo", || (demo.namespaces().is_empty() && !demo.directory().exists()).then_some(()));
}

#[test]
fn invalid_file_is_rejected_before_anything_is_created() {
    let demo = Demo::new("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: elsewhere}}");
    let output = demo.run(&["up", demo.yaml().to_str().unwrap()]);
    assert!(!output.status.success());
    let error = "Pod default/a: spec.nodeName: unsupported value \"elsewhere\" (want node or node2)";
    assert!(text(&output).contains(error), "{}", text(&output));
    demo.assert_gone(&[]);
    let output = demo.run(&["up", "/nowhere/cluster.yaml"]);
    assert!(text(&output).contains("cannot read /nowhere/cluster.yaml"), "{}", text(&output));
}

#[test]
fn commands_fail_without_demo() {
    let demo = Demo::new("");
    assert_eq!(demo.ok(&["down"]), "no demo is running\n");
    for arguments in [&["status"][..], &["exec", "node", "--", "true"]] {
        assert!(text(&demo.run(arguments)).contains("no demo is running (start one with `ferroute demo up`)"));
    }
}
