//! The proxy as a process, and what it is given to read.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use crate::{http::get, wait};
use ferroute_testing::NetNs;

/// How the proxy programs the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Iptables,
    Nftables,
}

impl Mode {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Iptables => Self::Nftables,
            Self::Nftables => Self::Iptables,
        }
    }
}

/// A directory with manifests and configurations, which anybody may read.
pub(crate) struct Files {
    directory: tempfile::TempDir,
    /// Fields that every configuration has.
    settings: String,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self::with_settings("")
    }

    /// The same; configurations have these fields too.
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

    /// The directory that the proxy follows.
    pub(crate) fn manifests(&self) -> PathBuf {
        self.path("manifests")
    }

    /// Replaces the manifest of Services and endpoints by a rename, as careful programs do.
    pub(crate) fn apply(&self, yaml: &str) {
        self.put(&self.manifest(), yaml);
    }

    /// Replaces the manifest of the node, which has these taints.
    pub(crate) fn apply_node(&self, taints: &str) {
        self.put_node(&Self::node_manifest(taints));
    }

    /// The manifest of the node, which has these taints.
    pub(crate) fn node_manifest(taints: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: node-1}}\nspec: {{taints: [{taints}]}}\nstatus:\n  addresses:\n  \
             - {{type: InternalIP, address: 192.168.0.1}}\n  - {{type: InternalIP, address: \"fd00:168::1\"}}\n"
        )
    }

    /// Replaces the manifest of the node.
    pub(crate) fn put_node(&self, yaml: &str) {
        self.put(&self.manifests().join("node.yaml"), yaml);
    }

    fn put(&self, file: &Path, text: &str) {
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// The manifest of Services and endpoints.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.manifests().join("cluster.yaml")
    }

    /// A configuration for a mode.
    pub(crate) fn config(&self, mode: Mode) -> PathBuf {
        self.config_asking_for(match mode {
            Mode::Iptables => "iptables",
            Mode::Nftables => "nftables",
        })
    }

    /// A configuration with this mode, as YAML spells it.
    pub(crate) fn config_asking_for(&self, mode: &str) -> PathBuf {
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

/// The proxy, as one process. It is killed when this is dropped.
pub(crate) struct Proxy {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts it on a node and waits until its rules are in force.
    #[track_caller]
    pub(crate) fn start(node: &NetNs, files: &Files, mode: Mode) -> Self {
        let mut proxy = Self::launch(node, files, mode);
        proxy.wait_in_force(node);
        proxy
    }

    /// Starts it on a node.
    pub(crate) fn launch(node: &NetNs, files: &Files, mode: Mode) -> Self {
        Self::spawn(node, &mut run_command(FERROUTE, &files.manifests(), &files.config(mode)))
    }

    /// Starts a command that ends up being the proxy, under the same process number.
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

    /// Waits until the rules of both families have been written once. It tells so itself, at `/healthz`.
    #[track_caller]
    pub(crate) fn wait_in_force(&mut self, node: &NetNs) {
        wait("rules in force", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the proxy has ended ({status}):\n{}", self.log());
            }
            let answer = get(node, healthz(), "/healthz").ok()?;
            (answer.body.contains("\"IPv4\"") && answer.body.contains("\"IPv6\"")).then_some(())
        });
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it logs a text; returns the line.
    #[track_caller]
    pub(crate) fn wait_log(&self, text: &str) -> String {
        wait(&format!("{text:?} in the log"), || self.log().lines().find(|line| line.contains(text)).map(str::to_owned))
    }

    /// Sends a signal (`TERM`) and waits for the end.
    #[track_caller]
    pub(crate) fn end_by(&mut self, signal: &str) -> ExitStatus {
        // It is our child and has not been waited for, so nobody else can have its number.
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
        self.wait_end()
    }

    /// Waits until it has ended.
    #[track_caller]
    pub(crate) fn wait_end(&mut self) -> ExitStatus {
        let status = wait("the proxy's end", || self.child.try_wait().unwrap());
        self.reader.take().into_iter().for_each(|reader| reader.join().unwrap());
        status
    }
}

impl Drop for Proxy {
    #[expect(clippy::print_stderr, reason = "it explains a test that has failed")]
    fn drop(&mut self) {
        // It may have ended already.
        _ = self.child.kill();
        _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the proxy:\n{}", self.log());
        }
    }
}

/// The command that runs the proxy.
pub(crate) fn run_command(ferroute: &str, manifests: &Path, config: &Path) -> Command {
    let mut command = Command::new(ferroute);
    command.arg("run").arg("--manifests").arg(manifests).arg("--config").arg(config);
    command
}

/// The node's `/healthz`.
pub(crate) fn healthz() -> SocketAddr {
    HEALTHZ.parse().unwrap()
}

pub(crate) const FERROUTE: &str = env!("CARGO_BIN_EXE_ferroute");
const HEALTHZ: &str = "127.0.0.1:10256";
