//! Versions of Ferroute and of the kube-proxy release whose behaviour it follows.

/// Output of `ferroute --version` after the program's name.
pub const LONG: &str = concat!(env!("CARGO_PKG_VERSION"), " (behaves as kube-proxy 1.36)");

/// Version of Ferroute.
pub(crate) const FERROUTE: &str = env!("CARGO_PKG_VERSION");

/// Minor version of the compatible kube-proxy.
pub(crate) const MINOR: &str = "36";

/// Major and minor version of the compatible kube-proxy.
pub(crate) const EMULATED: &str = "1.36";

/// kube-proxy's `gitVersion`. Tools read the Kubernetes release from it; the part after the plus sign is build metadata,
/// which version comparisons ignore.
pub const GIT_VERSION: &str = concat!("v1.36.0+ferroute.", env!("CARGO_PKG_VERSION"));

/// Returns the output of `kube-proxy --version`.
pub fn short() -> String {
    format!("Kubernetes {GIT_VERSION}")
}

/// Returns the output of `kube-proxy --version=raw`, a value in Go's syntax.
pub fn raw() -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"{MINOR}\", GitVersion:\"{GIT_VERSION}\", Compiler:\"rustc\", \
         Platform:\"{}\"}}",
        platform()
    )
}

/// Returns the operating system and architecture by Go's names, such as `linux/amd64`.
pub(crate) fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{architecture}")
}
