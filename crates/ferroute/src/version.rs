//! Which version this is, for people and for the tools that ask kube-proxy.

/// What `ferroute --version` prints behind the name.
pub(crate) const OWN: &str = concat!(env!("CARGO_PKG_VERSION"), " (behaves as kube-proxy 1.36)");

/// The minor release of Kubernetes whose kube-proxy this one behaves like.
pub(crate) const MINOR: &str = "36";

/// What kube-proxy calls `gitVersion`. Tools look for the release of Kubernetes in it; what stands behind the plus sign
/// is ours and does not count when versions are compared.
pub(crate) const GIT_VERSION: &str = concat!("v1.36.0+ferroute.", env!("CARGO_PKG_VERSION"));

/// What `kube-proxy --version` prints.
pub(crate) fn short() -> String {
    format!("Kubernetes {GIT_VERSION}")
}

/// What `kube-proxy --version=raw` prints: a value in Go's syntax.
pub(crate) fn raw() -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"{MINOR}\", GitVersion:\"{GIT_VERSION}\", Compiler:\"rustc\", \
         Platform:\"{}\"}}",
        platform()
    )
}

/// Operating system and architecture as Go calls them.
pub(crate) fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{architecture}")
}
