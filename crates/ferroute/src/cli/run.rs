use std::path::PathBuf;

use clap::Args;

use super::SettingsArgs;

/// Arguments of `ferroute run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// File or directory of YAML or JSON manifests: Services, EndpointSlices, Endpoints, Nodes. Without it, an API
    /// server tells them
    #[arg(long, value_name = "PATH")]
    pub(crate) manifests: Option<PathBuf>,
    /// How to reach the API server, in place of the configuration's clientConnection.kubeconfig; without either, the
    /// service account of the pod
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub(crate) kubeconfig: Option<String>,
    /// Address of the API server, in place of the kubeconfig's
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub(crate) master: Option<String>,
    /// How to treat what they tell.
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}
