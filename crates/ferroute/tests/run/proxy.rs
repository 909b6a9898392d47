//! The proxy's process and its input files.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{http::get, wait};
use ferroute_testing::NetNs;

/// A proxy mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Iptables,
    Nftables,
    Userspace,
}

impl Mode {
    /// Returns the name in configurations and flags.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Iptables | Self::Userspace => Self::Nftables,
            Self::Nftables => Self::Iptables,
        }
    }
}

/// A world-readable directory with manifests and configurations.
pub(crate) struct Files {
    directory: tempfile::TempDir,
    /// Additional fields of all configurations.
    settings: String,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self::with_settings("")
    }

    /// Like `new`, with additional fields in all configurations.
    pub(crate) fn with_settings(settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(directory.path().join("manifests")).unwrap();
        let files = Self { directory, settings: settings.to_owned() };
        files.apply_node("");
        files
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the directory that the proxy reads.
    pub(crate) fn manifests(&self) -> PathBuf {
        self.path("manifests")
    }

    /// Replaces the manifest of Services and endpoints atomically, by a rename.
    pub(crate) fn apply(&self, yaml: &str) {
        self.put(&self.manifest(), yaml);
    }

    /// Replaces the Node by one with these taints.
    pub(crate) fn apply_node(&self, taints: &str) {
        self.write_node(&Self::node_manifest(taints));
    }

    /// Returns the manifest of a Node with these taints.
    pub(crate) fn node_manifest(taints: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: node-1}}\nspec: {{taints: [{taints}]}}\nstatus:\n  addresses:\n  \
             - {{type: InternalIP, address: 192.168.0.1}}\n  - {{type: InternalIP, address: \"fd00:168::1\"}}\n"
        )
    }

    /// Replaces the manifest of the Node.
    pub(crate) fn write_node(&self, yaml: &str) {
        self.put(&self.manifests().join("node.yaml"), yaml);
    }

    fn put(&self, file: &Path, text: &str) {
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// Returns the path of the manifest of Services and endpoints.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.manifests().join("cluster.yaml")
    }

    /// Writes a configuration with a mode.
    pub(crate) fn config(&self, mode: Mode) -> PathBuf {
        self.config_with_mode(mode.as_str())
    }

    /// Writes a configuration with a mode in YAML syntax.
    pub(crate) fn config_with_mode(&self, mode: &str) -> PathBuf {
        let path = self.path("config.yaml");
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
             hostnameOverride: node-1\nhealthzBindAddress: {HEALTHZ}\n{}",
            self.settings
        );
        fs::write(&path, text).unwrap();
        path
    }
}

/// A proxy process, which is killed on drop.
pub(crate) struct Proxy {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts the proxy on a node and waits for the first sync.
    #[track_caller]
    pub(crate) fn start(node: &NetNs, files: &Files, mode: Mode) -> Self {
        let mut proxy = Self::launch(node, files, mode);
        proxy.wait_synced(node);
        proxy
    }

    /// Starts the proxy on a node.
    pub(crate) fn launch(node: &NetNs, files: &Files, mode: Mode) -> Self {
        Self::spawn(node, &mut run_command(FERROUTE, &files.manifests(), &files.config(mode)))
    }

    /// Starts a command that becomes the proxy by `exec`, with the same process ID.
    pub(crate) fn spawn(node: &NetNs, command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = node.run(|| command.spawn()).unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let copy = log.clone();
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = copy.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, log, reader: Some(reader) }
    }

    /// Like `spawn`, with this standard error and without a log.
    pub(crate) fn spawn_with_stderr(node: &NetNs, command: &mut Command, stderr: Stdio) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let child = node.run(|| command.spawn()).unwrap();
        // The command keeps a copy, which would keep the pipe open.
        command.stderr(Stdio::null());
        Self { child, log: Arc::default(), reader: None }
    }

    /// Waits until `/healthz` reports that both IP families are synced.
    #[track_caller]
    pub(crate) fn wait_synced(&mut self, node: &NetNs) {
        wait("the first sync", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the proxy exited ({status}):\n{}", self.log());
            }
            let answer = get(node, healthz(), "/healthz").ok()?;
            (answer.body.contains("\"IPv4\"") && answer.body.contains("\"IPv6\"")).then_some(())
        });
    }

    /// Returns the process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log contains a text, and returns the line.
    #[track_caller]
    pub(crate) fn wait_log(&self, text: &str) -> String {
        self.wait_log_line(&[text])
    }

    /// Waits until a line of the log contains all these texts, and returns the line.
    #[track_caller]
    pub(crate) fn wait_log_line(&self, texts: &[&str]) -> String {
        let is_match = |line: &&str| texts.iter().all(|text| line.contains(text));
        wait(&format!("{texts:?} in the log"), || self.log().lines().find(is_match).map(str::to_owned))
    }

    /// Sends a signal such as `TERM` and waits until the proxy has exited.
    #[track_caller]
    pub(crate) fn stop(&mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.wait_exit()
    }

    /// Sends a signal.
    #[track_caller]
    pub(crate) fn signal(&self, signal: &str) {
        // The child has not been waited for, so its process ID cannot have been reused.
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    /// Returns the exit status if the proxy has exited.
    pub(crate) fn try_exit(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap().map(|_| self.wait_exit())
    }

    /// Waits until the proxy has exited.
    #[track_caller]
    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        let status = wait("the exit of the proxy", || self.child.try_wait().unwrap());
        // In userspace mode, the worker outlives the proxy and has the same standard error.
        let end = Instant::now() + LAST_LINES;
        while self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(reader) = self.reader.take_if(|reader| reader.is_finished()) {
            reader.join().unwrap();
        }
        status
    }
}

impl Drop for Proxy {
    #[expect(clippy::print_stderr, reason = "shows the log of a failed test")]
    fn drop(&mut self) {
        // It may have exited already.
        _ = self.child.kill();
        _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the proxy:\n{}", self.log());
        }
    }
}

/// Returns the command that runs the proxy.
pub(crate) fn run_command(ferroute: &str, manifests: &Path, config: &Path) -> Command {
    let mut command = Command::new(ferroute);
    command.arg("run").arg("--manifests").arg(manifests).arg("--config").arg(config);
    command
}

/// Returns the address of `/healthz` on the node.
pub(crate) fn healthz() -> SocketAddr {
    HEALTHZ.parse().unwrap()
}

pub(crate) const FERROUTE: &str = env!("CARGO_BIN_EXE_ferroute");
/// Time for reading the last lines of the log after the exit, if the log has no end.
const LAST_LINES: Duration = Duration::from_millis(500);
const HEALTHZ: &str = "127.0.0.1:10256";
