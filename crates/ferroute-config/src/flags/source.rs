use std::path::PathBuf;

use clap::Args;
use crate::ClientConnectionConfiguration;

/// Where Services are told from.
#[derive(Args, Clone, Debug, Default)]
pub struct SourceArgs {
    /// File or directory of YAML or JSON manifests: Services, EndpointSlices, Endpoints, Nodes; or, as the demo takes
    /// them, Deployments, Pods and Services. Without it, an API server tells them
    #[arg(long, value_name = "PATH")]
    pub manifests: Option<PathBuf>,
    /// How to reach the API server, in place of the configuration's clientConnection.kubeconfig; without either, the
    /// service account of the pod
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub kubeconfig: Option<String>,
    /// Address of the API server, in place of the kubeconfig's
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub master: Option<String>,
}

impl SourceArgs {
    /// How to reach the API server: as it is configured, but for what was typed.
    pub fn connection(&self, mut configured: ClientConnectionConfiguration) -> ClientConnectionConfiguration {
        if let Some(path) = &self.kubeconfig {
            configured.kubeconfig.clone_from(path);
        }
        configured
    }
}

impl SourceArgs {
    /// Nobody has said where Services are told from.
    pub fn is_empty(&self) -> bool {
        let Self { manifests, kubeconfig, master } = self;
        manifests.is_none() && kubeconfig.is_none() && master.is_none()
    }
}
