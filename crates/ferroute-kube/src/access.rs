//! Where the API server is and who we are to it: a kubeconfig, the pod's own service account, or just an address.

use std::path::{Path, PathBuf};

use ferroute_config::ClientConnectionConfiguration;
use kube_client::{
    Config,
    config::{Cluster, ExecInteractiveMode, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

/// How to find out about the API server. The files are read anew whenever what they said last does not work any more,
/// because certificates, keys and addresses change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A kubeconfig; `master` goes before the address in it.
    Kubeconfig { path: PathBuf, master: Option<String> },
    /// An address without credentials, as for `kubectl proxy`.
    Address(String),
    /// The service account of the pod that we are.
    InCluster,
}

/// What the files say.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Where the server is, who it is and who we are. Its `proxy_url` is the kubeconfig's alone.
    pub(crate) config: Config,
    /// Holds the token to show.
    pub(crate) token_file: Option<PathBuf>,
}

/// It cannot be found out where the API server is and who we are to it.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: KubeconfigError,
    },
    /// The address is none.
    #[error("{address:?} is no address of an API server")]
    Address {
        /// What was given.
        address: String,
        /// Why.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// There is no service account here.
    #[error(
        "neither a kubeconfig nor an address of the API server is given, and this is no pod with a service account"
    )]
    InCluster(#[source] InClusterError),
}

impl Access {
    /// What the configuration and `--master` say; empty means not given.
    pub(crate) fn new(connection: &ClientConnectionConfiguration, master: Option<&str>) -> Self {
        let master = master.filter(|master| !master.is_empty()).map(str::to_owned);
        match (connection.kubeconfig.as_str(), master) {
            ("", None) => Self::InCluster,
            ("", Some(address)) => Self::Address(address),
            (path, master) => Self::Kubeconfig { path: path.into(), master },
        }
    }

    /// Reads the files. Programs that give credentials are not run yet.
    ///
    /// # Errors
    ///
    /// The files are not there or not good.
    pub(crate) async fn load(&self) -> Result<Loaded, AccessError> {
        let mut config = match self {
            Self::InCluster => Config::incluster().map_err(AccessError::InCluster)?,
            Self::Address(address) => {
                let url = with_scheme(address, false);
                Config::new(url.parse().map_err(|source| AccessError::Address { address: address.clone(), source })?)
            }
            Self::Kubeconfig { path, master } => from_kubeconfig(path, master.as_deref())
                .await
                .map_err(|source| AccessError::Kubeconfig { path: path.clone(), source })?,
        };
        // Requests are few, so the token is read for each one; see `TokenFile`.
        let token_file = config.auth_info.token_file.take();
        if token_file.is_some() {
            // As in client-go, the file goes before a token in the kubeconfig, which is only its first value.
            config.auth_info.token = None;
        }
        // Retrying is ours, with the rest of it in view.
        config.default_retry = false;
        if let Some(exec) = &mut config.auth_info.exec {
            // Nobody sits in front of a proxy. This also makes the program's complaints part of the error.
            exec.interactive_mode = Some(ExecInteractiveMode::Never);
        }
        Ok(Loaded { config, token_file: token_file.map(PathBuf::from) })
    }
}

async fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<Config, KubeconfigError> {
    let mut kubeconfig = Kubeconfig::read_from(path)?;
    for named in &mut kubeconfig.clusters {
        if let Some(cluster) = &mut named.cluster {
            let server = master.map(str::to_owned).or_else(|| cluster.server.clone());
            // Whether the user has a certificate could matter too, but nobody has one and neither a CA nor a scheme.
            cluster.server = server.map(|server| with_scheme(&server, has_tls(cluster)));
        }
    }
    let proxy = proxy(&kubeconfig);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // The library mixes in the environment; see `crate::proxy`.
    config.proxy_url = proxy.map(|proxy| proxy.parse()).transpose().map_err(KubeconfigError::ParseProxyUrl)?;
    Ok(config)
}

/// The proxy that the cluster of the current context asks for.
fn proxy(kubeconfig: &Kubeconfig) -> Option<String> {
    let name = kubeconfig.current_context.as_deref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == name)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|proxy| !proxy.is_empty())
}

/// As in client-go, an address without a scheme is one of `https` only where something is said about TLS.
fn with_scheme(address: &str, tls: bool) -> String {
    if address.contains("://") {
        return address.to_owned();
    }
    format!("{}://{address}", if tls { "https" } else { "http" })
}

fn has_tls(cluster: &Cluster) -> bool {
    cluster.certificate_authority.is_some()
        || cluster.certificate_authority_data.is_some()
        || cluster.insecure_skip_tls_verify == Some(true)
}

#[cfg(test)]
mod tests;
