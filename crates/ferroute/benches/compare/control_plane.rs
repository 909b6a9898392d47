//! An API server: that of a Kubernetes release with etcd, or a fake one.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use ferroute_kube::testing::FakeApiServer;
use ferroute_testing::{Running, wait};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{
    node::API_SERVER,
    programs::{Directory, Programs},
};

/// An API server in the calling thread's network namespace.
pub(crate) struct ControlPlane {
    pub(crate) server: Server,
    directory: TempDir,
}

/// What serves the objects.
pub(crate) enum Server {
    /// The programs of a Kubernetes release, which end when this value is dropped.
    Kubernetes {
        _api_server: Running,
        /// Dropped after the API server, which needs it.
        _etcd: Running,
        kube_proxy: PathBuf,
    },
    /// A fake API server, and its threads.
    Fake { server: Arc<FakeApiServer>, _runtime: Runtime },
}

impl ControlPlane {
    /// Starts the API server.
    pub(crate) fn start(programs: &Programs) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = match programs {
            Programs::Kubernetes(programs) => start_programs(programs, &directory),
            Programs::Fake => {
                let runtime = Runtime::new().unwrap();
                let server = runtime.block_on(FakeApiServer::start_at(([0; 4], PORT).into()));
                Server::Fake { server: server.into(), _runtime: runtime }
            }
        };
        Self { server, directory }
    }

    /// Returns the API server's address for the node.
    pub(crate) fn url(&self) -> String {
        let scheme = match self.server {
            Server::Kubernetes { .. } => "https",
            Server::Fake { .. } => "http",
        };
        format!("{scheme}://{API_SERVER}:{PORT}")
    }

    /// Returns the directory with the logs, for the proxies' files too.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Starts the programs of a Kubernetes release, and waits until the API server accepts connections.
fn start_programs(programs: &Directory, directory: &TempDir) -> Server {
    let at = |name: &str| directory.path().join(name).display().to_string();
    let key = at("accounts.key");
    let made = Command::new("openssl").args(["genrsa", "-out", &key, "2048"]).output().unwrap();
    assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    fs::write(at("tokens.csv"), format!("{TOKEN},admin,admin,\"system:masters\"\n")).unwrap();
    let etcd = start(
        &programs.path("etcd"),
        &directory.path().join("etcd.log"),
        &[
            &format!("--data-dir={}", at("etcd")),
            &format!("--listen-client-urls={ETCD}"),
            &format!("--advertise-client-urls={ETCD}"),
            "--listen-peer-urls=http://127.0.0.1:2380",
            // No figure depends on etcd's disk.
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8000000000",
        ],
    );
    let api_server = start(
        &programs.path("kube-apiserver"),
        &directory.path().join("kube-apiserver.log"),
        &[
            &format!("--etcd-servers={ETCD}"),
            &format!("--secure-port={PORT}"),
            // There is no default route, from which it would find its address.
            &format!("--advertise-address={API_SERVER}"),
            "--endpoint-reconciler-type=none",
            // It makes a certificate there.
            &format!("--cert-dir={}", at("certificates")),
            "--service-account-issuer=https://kubernetes.default.svc",
            &format!("--service-account-key-file={key}"),
            &format!("--service-account-signing-key-file={key}"),
            &format!("--token-auth-file={}", at("tokens.csv")),
            "--authorization-mode=RBAC",
            &format!("--service-cluster-ip-range={SERVICES}"),
        ],
    );
    wait("the API server accepts connections", || std::net::TcpStream::connect(("127.0.0.1", PORT)).ok());
    Server::Kubernetes { _api_server: api_server, _etcd: etcd, kube_proxy: programs.path("kube-proxy") }
}

/// Starts a program that writes its output to a file.
pub(crate) fn start(program: &Path, log: &Path, arguments: &[&str]) -> Running {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display())))
}

/// The token of an account with all rights.
pub(crate) const TOKEN: &str = "compare";
/// The port of the API server.
pub(crate) const PORT: u16 = 6443;
const ETCD: &str = "http://127.0.0.1:2379";
/// Network that contains all cluster IPs. The first address is that of the API server's Service.
const SERVICES: &str = "10.64.0.0/12";
