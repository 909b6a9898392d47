//! The proxy's process and its files.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::{fs::PermissionsExt, fs::symlink, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ferroute_config::{KubeProxyConfiguration, ModeName};
use ferroute_core::IpFamily;
use ferroute_modes::REGISTRY;
use ferroute_testing::NetNs;
use nix::fcntl::{FcntlArg, fcntl};

use crate::schedule::Options;

/// The directory of a run, on separate file systems that are visible to this run only.
pub(crate) struct Files {
    directory: PathBuf,
}

impl Files {
    /// Gives this thread, and threads and processes that it starts later, separate mounts: a small one for manifests,
    /// and one for the xtables lock.
    pub(crate) fn new(directory: &Path) -> Self {
        use nix::{
            mount::{MsFlags, mount},
            sched::{CloneFlags, unshare},
        };
        let none = None::<&str>;
        // `CLONE_FS` is required because threads share their root and working directories.
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).expect("root may create mount namespaces");
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("root may change mounts");
        let files = Self { directory: directory.to_owned() };
        fs::create_dir_all(files.manifests()).unwrap();
        files.set_clock(0);
        fs::create_dir_all(files.programs()).unwrap();
        let manifests = files.manifests();
        mount(Some("tmpfs"), &manifests, Some("tmpfs"), MsFlags::empty(), Some("size=32m")).unwrap();
        mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some("size=4m")).unwrap();
        files
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.path("manifests")
    }

    fn programs(&self) -> PathBuf {
        self.path("programs")
    }

    /// Writes programs that replace those of iptables: a restore program fails while the file `fail` exists, and hangs
    /// while the file `hang` exists.
    pub(crate) fn write_programs(&self, legacy: bool) {
        for family in ["iptables", "ip6tables"] {
            let restore = format!("{family}-restore");
            let real = if legacy { format!("{family}-legacy-restore") } else { restore.clone() };
            let (fail, hang) = (self.path("fail"), self.path("hang"));
            let script = format!(
                "#!/bin/sh\nwhile [ -e {} ]; do sleep 0.1; done\n\
                 if [ -e {} ]; then echo 'broken by a test' >&2; exit 4; fi\nPATH=${{PATH#*:}} exec {real} \"$@\"\n",
                hang.display(),
                fail.display(),
            );
            let path = self.programs().join(&restore);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            for suffix in ["", "-save"].iter().filter(|_| legacy) {
                let real = find(&format!("{family}-legacy{suffix}"));
                symlink(real, self.programs().join(format!("{family}{suffix}"))).unwrap();
            }
        }
    }

    /// Sets the wall clock of the proxy to this many seconds after that of the host.
    pub(crate) fn set_clock(&self, offset: i64) {
        let new = self.path("clock.new");
        fs::write(&new, format!("{offset:+}")).unwrap();
        fs::rename(new, self.path(CLOCK)).unwrap();
    }

    /// Returns `PATH` for the proxy.
    fn search_path(&self) -> String {
        format!("{}:{}:/usr/sbin:/sbin", self.programs().display(), std::env::var("PATH").unwrap_or_default())
    }

    /// Writes the configuration.
    pub(crate) fn configure(&self, options: &Options, mode: ModeName) {
        let detection = if options.detect_by_interface {
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}\n"
        } else {
            "detectLocalMode: ClusterCIDR\nclusterCIDR: \"10.244.0.0/16,fd00:244::/32\"\n"
        };
        let node_ports =
            if options.restrict_node_ports { "[192.168.0.0/16, \"fd00:168::/64\"]" } else { "[0.0.0.0/0, \"::/0\"]" };
        let period = format!("minSyncPeriod: {}ms, syncPeriod: 10s", options.min_sync_period);
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {}\n\
             hostnameOverride: {}\n\
             {detection}nodePortAddresses: {node_ports}\niptables: {{localhostNodePorts: false, {period}}}\n\
             nftables: {{{period}}}\nipvs: {{{period}}}\n",
            mode.as_str(),
            ferroute_core::testing::arbitrary::NODE,
        );
        for (config, ports) in [(CONFIG, [10256, 10249]), (SECOND_CONFIG, [20256, 20249])] {
            let [health, metrics] = ports;
            let addresses =
                format!("healthzBindAddress: 127.0.0.1:{health}\nmetricsBindAddress: 127.0.0.1:{metrics}\n");
            let new = self.path("config.new");
            fs::write(&new, format!("{text}{addresses}")).unwrap();
            fs::rename(new, self.path(config)).unwrap();
        }
    }
}

fn find(program: &str) -> PathBuf {
    let directories = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from);
    let found = directories.into_iter().map(|directory| directory.join(program)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{program} is not installed"))
}

/// The name of the configuration file.
pub(crate) const CONFIG: &str = "config.yaml";
/// That of a second proxy on the same node.
pub(crate) const SECOND_CONFIG: &str = "second.yaml";

/// The file with the offset of the proxy's wall clock.
const CLOCK: &str = "clock";

/// A proxy process, which is killed on drop.
pub(crate) struct Proxy {
    child: Child,
    /// Whether its log is not read.
    is_log_blocked: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts the proxy on a node, with its log appended to a file.
    pub(crate) fn start(node: &NetNs, files: &Files, config: &str, arguments: &[String], log: &Path) -> Self {
        let mut log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(ferroute());
        command.arg("run").arg("--config").arg(files.path(config)).args(arguments).env("PATH", files.search_path());
        // libfaketime reads the file for each time of the wall clock. Times of files and of the monotonic clock are real.
        command.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1");
        command.env("FAKETIME_TIMESTAMP_FILE", files.path(CLOCK)).env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("NO_FAKE_STAT", "1");
        let (mut reader, writer) = io::pipe().unwrap();
        // A few lines fill it.
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
        let child = node.run(|| command.spawn()).unwrap();
        let is_log_blocked = Arc::new(AtomicBool::new(false));
        let is_blocked = is_log_blocked.clone();
        // Ends with the process, and with all processes that have inherited its standard error.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                while is_blocked.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
                match reader.read(&mut bytes) {
                    Ok(0) | Err(_) => return,
                    Ok(length) => log.write_all(&bytes[..length]).unwrap(),
                }
            }
        });
        Self { child, is_log_blocked }
    }

    /// Sets whether its log is left unread.
    pub(crate) fn block_log(&self, value: bool) {
        self.is_log_blocked.store(value, Ordering::Relaxed);
    }

    /// Stops the workers by SIGSTOP, and returns their number. Other children are programs that the proxy waits for.
    pub(crate) fn stop_workers(&self) -> usize {
        let program = |process: u32| fs::read_link(format!("/proc/{process}/exe")).ok();
        let own = program(self.id());
        let is_worker = |child: &i32| u32::try_from(*child).is_ok_and(|child| program(child) == own);
        let workers: Vec<i32> = children(self.id()).into_iter().filter(is_worker).collect();
        for worker in &workers {
            // It may have ended.
            _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*worker), nix::sys::signal::Signal::SIGSTOP);
        }
        workers.len()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the process has exited.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        // It may have exited already.
        _ = self.child.kill();
        _ = self.child.wait();
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        // The child has not been waited for, so its process ID cannot have been reused.
        let id = nix::unistd::Pid::from_raw(self.id().cast_signed());
        nix::sys::signal::kill(id, signal).unwrap();
    }

    /// Stops the process by SIGTERM.
    ///
    /// # Errors
    /// If it does not exit in time or with an error.
    pub(crate) fn terminate(&mut self) -> Result<(), String> {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        let start = Instant::now();
        while start.elapsed() < EXIT_TIMEOUT {
            match self.exit_status() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("after SIGTERM: {status} (signal {:?})", status.signal())),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Err(format!("the proxy has not exited {EXIT_TIMEOUT:?} after SIGTERM"))
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage::read(self.id())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The resources of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Anonymous resident memory in KiB.
    pub(crate) memory: usize,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) children: usize,
}

impl Usage {
    fn read(process: u32) -> Self {
        let directory = PathBuf::from(format!("/proc/{process}"));
        let count = |name: &str| fs::read_dir(directory.join(name)).map_or(0, Iterator::count);
        let status = fs::read_to_string(directory.join("status")).unwrap_or_default();
        let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
        let memory = memory.trim().trim_end_matches(" kB").parse().unwrap_or_default();
        Self { memory, descriptors: count("fd"), threads: count("task"), children: children(process).len() }
    }
}

/// Returns the children of all threads of a process.
fn children(process: u32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let texts = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    texts.flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Returns the program under test.
pub(crate) fn ferroute() -> PathBuf {
    std::env::var_os("FERROUTE").map_or_else(|| env!("CARGO_BIN_EXE_ferroute").into(), PathBuf::from)
}

/// Returns the modes that are tested here, and prints the reasons why others are not, past the capture of output.
///
/// # Panics
/// If a mode is unavailable although the kernel has the features that the mode needs.
pub(crate) fn modes() -> Vec<ModeName> {
    let host = NetNs::new();
    let is_tested = |mode: &ModeName| {
        let Some(reason) = reason_not_to_test(*mode, &host) else { return true };
        _ = writeln!(io::stderr(), "NOT TESTED by churn: {} mode, {reason}", mode.as_str());
        false
    };
    REGISTRY.names().iter().copied().filter(is_tested).collect()
}

/// Returns why a mode is not tested.
fn reason_not_to_test(mode: ModeName, host: &NetNs) -> Option<String> {
    if mode == ModeName::USERSPACE {
        return Some(
            "which accepts connections before it chooses an endpoint, so they do not show which rules apply".into(),
        );
    }
    let config =
        KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..KubeProxyConfiguration::default() }.defaulted();
    let resolved = REGISTRY.resolve(&config).expect("the configuration is valid");
    let probe = |family| REGISTRY.active(mode).probe(&resolved, family).map(drop).map_err(|error| format!("{error:#}"));
    let error = host.run(|| IpFamily::BOTH.into_iter().try_for_each(probe)).err()?;
    // Independent of the probe: a broken probe must not be mistaken for a kernel without the mode. The tests need
    // nf_tables in any case. The file exists once the module is loaded, which a broken probe does not do.
    _ = Command::new("modprobe").args(["--quiet", "ip_vs"]).status();
    let kernel_has_ipvs = Path::new("/proc/net/ip_vs").exists();
    assert!(mode == ModeName::IPVS && !kernel_has_ipvs, "{} mode is not available: {error}", mode.as_str());
    Some(format!("which this kernel does not have: {error}"))
}

/// Returns the status and body of a page of the proxy.
pub(crate) fn get(node: &NetNs, at: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let limit = Duration::from_secs(5);
    let mut stream = node.run(|| TcpStream::connect_timeout(&at, limit))?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}

/// A second is promised; machines under load are slow.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
