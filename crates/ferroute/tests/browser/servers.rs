//! Servers of the page: `ferroute ui` with all its sources, and `ferroute demo --ui`.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use ferroute_testing::{NetNs, Running};

pub(crate) const FERROUTE: &str = env!("CARGO_BIN_EXE_ferroute");

/// Returns the path of a file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A server. It ends when it is dropped.
pub(crate) struct Server {
    process: Child,
    /// The address of the page, with the token of a demo.
    pub(crate) url: String,
    /// The instance of a demo.
    instance: Option<String>,
}

impl Server {
    /// Starts `ferroute ui` with these arguments.
    #[track_caller]
    pub(crate) fn start(namespace: &NetNs, arguments: &[&str]) -> Self {
        let mut command = Command::new(FERROUTE);
        command.args(["ui", "--listen", "127.0.0.1:0"]).args(arguments);
        Self::spawn(namespace, command, None)
    }

    /// Starts `ferroute ui` on manifests, as the node node-1 sees them.
    #[track_caller]
    pub(crate) fn with_manifests(namespace: &NetNs, manifests: &Path) -> Self {
        Self::start(namespace, &["--manifests", manifests.to_str().unwrap(), "--hostname-override", "node-1"])
    }

    /// Starts `ferroute ui` on the example with two nodes, as the first node sees it.
    #[track_caller]
    pub(crate) fn with_example(namespace: &NetNs, mode: &str) -> Self {
        let manifests = repository("examples/cluster.yaml");
        let arguments = ["--hostname-override", "node-1", "--proxy-mode", mode];
        Self::start(namespace, &[&["--manifests", manifests.to_str().unwrap()], &arguments[..]].concat())
    }

    /// Starts a demo with its page.
    #[track_caller]
    pub(crate) fn demo(namespace: &NetNs, mode: &str) -> Self {
        Self::demo_of(namespace, mode, &repository("examples/nginx.yaml"))
    }

    /// Starts a demo of a file with its page.
    #[track_caller]
    pub(crate) fn demo_of(namespace: &NetNs, mode: &str, file: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let instance = format!("b{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut command = Command::new(FERROUTE);
        command.args(["demo", "--instance", &instance, "--ui", "--listen", "127.0.0.1:0", "--proxy-mode", mode]);
        command.arg("--file").arg(file);
        Self::spawn(namespace, command, Some(instance))
    }

    #[track_caller]
    fn spawn(namespace: &NetNs, mut command: Command, instance: Option<String>) -> Self {
        command.stdout(Stdio::piped()).current_dir(repository(""));
        let mut process = namespace.run(|| command.spawn()).unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = lines.find_map(|line| line.unwrap().split_once("http://").map(|(_, url)| format!("http://{url}")));
        let mut server = Self { process, url: String::new(), instance };
        // Its output is read to the end, so that it never blocks.
        server.url = url.expect("the server ended before it printed its address");
        thread::spawn(move || lines.for_each(drop));
        server
    }

    /// Runs a command in a pod of the demo.
    #[track_caller]
    pub(crate) fn exec(&self, pod: &str, command: &[&str]) {
        let instance = self.instance.as_deref().expect("a demo");
        let output =
            Command::new(FERROUTE).args(["demo", "exec", "--instance", instance, pod, "--"]).args(command).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the address of a view.
    pub(crate) fn view(&self, fragment: &str) -> String {
        let origin = self.url.split_once('#').map_or(self.url.as_str(), |(origin, _)| origin);
        format!("{origin}{fragment}")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The demo removes its namespaces. Jobs in the background of a shell ignore SIGINT, and so would the server.
        let pid = self.process.id().to_string();
        _ = Command::new("sh").args(["-c", "kill -TERM \"$0\"", &pid]).status();
        let end = Instant::now() + Duration::from_secs(60);
        while self.process.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        _ = self.process.kill();
        _ = self.process.wait();
        if let Some(instance) = &self.instance {
            _ = Command::new(FERROUTE).args(["demo", "down", "--instance", instance]).output();
        }
    }
}

/// Saves the recording of a proxy that has served the example and one change of it.
#[track_caller]
pub(crate) fn record(namespace: &NetNs, directory: &Path) -> PathBuf {
    let manifests = directory.join("manifests");
    fs::create_dir(&manifests).unwrap();
    let example = fs::read_to_string(repository("examples/cluster.yaml")).unwrap();
    fs::write(manifests.join("cluster.yaml"), &example).unwrap();
    let mut command = Command::new(FERROUTE);
    command.args(["run", "--hostname-override", "node-1", "--proxy-mode", "nftables", "--manifests"]).arg(&manifests);
    let _proxy = Running(namespace.run(|| command.stderr(Stdio::null()).spawn()).unwrap());
    let file = directory.join("bundle.json");
    let changed = example.replace("conditions: {ready: false}", "conditions: {ready: true}");
    assert_ne!(changed, example);
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        assert!(Instant::now() < end, "the change is not in the recording");
        let saved = namespace.try_command(FERROUTE, &["bundle", file.to_str().unwrap()]);
        if saved.status.success() {
            if !fs::read_to_string(&file).unwrap().contains("\"syncs\":[]") {
                return file;
            }
            fs::write(manifests.join("cluster.yaml"), &changed).unwrap();
        }
        thread::sleep(Duration::from_millis(100));
    }
}
