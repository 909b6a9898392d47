//! Programs that the user has downloaded.

use std::{env, path::PathBuf};

use crate::proxy::Program;

/// The programs to measure with.
#[derive(Debug)]
pub(crate) enum Programs {
    /// The API server, etcd and kube-proxy.
    Kubernetes(Directory),
    /// A fake API server. Only Ferroute is measured.
    Fake,
}

impl Programs {
    /// Returns the proxies to measure.
    pub(crate) fn measured(&self) -> &'static [Program] {
        match self {
            Self::Kubernetes(_) => &[Program::Ferroute, Program::KubeProxy],
            Self::Fake => &[Program::Ferroute],
        }
    }
}

/// The directory with the programs of a Kubernetes release: `kube-proxy` and `kube-apiserver` of its archive
/// `kubernetes-server-linux-ARCH.tar.gz`, and `etcd` of a release of etcd.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// Returns the directory that `KUBERNETES` names.
    ///
    /// # Errors
    ///
    /// The variable is not set, or programs are missing; the error lists all of them.
    pub(crate) fn find() -> Result<Self, String> {
        let directory = env::var_os("KUBERNETES").filter(|directory| !directory.is_empty());
        let directory = PathBuf::from(directory.ok_or_else(|| {
            format!("make compare KUBERNETES=DIR needs a directory with {}: {SOURCES}", DOWNLOADED.join(", "))
        })?);
        let downloaded = DOWNLOADED.iter().map(|name| directory.join(name)).filter(|program| !program.is_file());
        let paths: Vec<PathBuf> = env::var_os("PATH").iter().flat_map(env::split_paths).collect();
        let is_installed = |name: &str| paths.iter().any(|directory| directory.join(name).is_file());
        let installed = INSTALLED.iter().filter(|(name, _)| !is_installed(name));
        let missing: Vec<String> = downloaded
            .map(|program| program.display().to_string())
            .chain(installed.map(|(name, package)| format!("{name} (package {package})")))
            .collect();
        match missing.is_empty() {
            true => Ok(Self(directory)),
            false => Err(format!("these programs are missing:\n  {}\n{SOURCES}", missing.join("\n  "))),
        }
    }

    /// Returns the path of a program.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

const DOWNLOADED: [&str; 3] = ["kube-proxy", "kube-apiserver", "etcd"];
const SOURCES: &str = "kube-proxy and kube-apiserver are in kubernetes-server-linux-ARCH.tar.gz of a Kubernetes release, etcd in a \
                       release of etcd";
/// Programs that kube-proxy and this benchmark run, with the packages that contain them.
const INSTALLED: [(&str, &str); 6] = [
    ("nft", "nftables"),
    ("iptables-restore", "iptables"),
    ("ipset", "ipset"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("openssl", "openssl"),
];
