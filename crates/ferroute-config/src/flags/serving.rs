use clap::Args;
use crate::{KubeProxyConfiguration, append_port};

use crate::flags::values::Switch;

/// How to reach the API server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "API server")]
pub struct ClientFlags {
    /// Kubeconfig file: where the API server is, and who we are to it. Without one, the service account of the pod
    #[arg(long, value_name = "FILE", default_value = "")]
    pub kubeconfig: String,
    /// Address of the API server, in place of the kubeconfig's
    #[arg(long, value_name = "URL", default_value = "")]
    pub master: String,
    /// Media type that the API server is asked to answer in: protobuf or JSON
    #[arg(long, value_name = "TYPE", default_value = "application/vnd.kubernetes.protobuf")]
    pub kube_api_content_type: String,
    /// Requests to the API server per second
    #[arg(long, value_name = "NUMBER", default_value = "5")]
    pub kube_api_qps: f32,
    /// Requests to the API server that may go out at once before the rate holds
    #[arg(long, value_name = "NUMBER", default_value = "10")]
    pub kube_api_burst: i32,
}

/// What is served, and where.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Health and metrics")]
pub struct ServingFlags {
    /// The node's own address, which goes before those of its Node; 0.0.0.0 and :: mean those of the Node. Nothing
    /// listens on it
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: String,
    /// Where to serve /healthz and /livez; empty for nowhere
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:10256")]
    pub healthz_bind_address: String,
    /// Where to serve /metrics and its companions; empty for nowhere
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10249")]
    pub metrics_bind_address: String,
    /// End when one of these two addresses cannot be listened on, instead of trying again
    #[arg(long, default_value = "false")]
    pub bind_address_hard_fail: Switch,
    /// Serve profiles; there are none, as they are those of Go's runtime
    #[arg(long, default_value = "false")]
    pub profiling: Switch,
    /// Show metrics that were hidden in this version; none are hidden
    #[arg(long, value_name = "VERSION", default_value = "")]
    pub show_hidden_metrics_for_version: String,
    /// Deprecated: port of an address in --healthz-bind-address that has none; 0 to serve nowhere
    #[arg(long, hide = true, value_name = "PORT", default_value = "10256")]
    pub healthz_port: u16,
    /// Deprecated: port of an address in --metrics-bind-address that has none; 0 to serve nowhere
    #[arg(long, hide = true, value_name = "PORT", default_value = "10249")]
    pub metrics_port: u16,
    /// Deprecated: was for a mode that is gone
    #[arg(long, hide = true, value_name = "RANGE", default_value = "")]
    pub proxy_port_range: String,
}

impl ClientFlags {
    pub(super) fn lay_over(&self, config: &mut KubeProxyConfiguration) {
        let client = &mut config.client_connection;
        client.kubeconfig.clone_from(&self.kubeconfig);
        client.content_type.clone_from(&self.kube_api_content_type);
        client.qps = self.kube_api_qps;
        client.burst = self.kube_api_burst;
    }
}

impl ServingFlags {
    pub(super) fn lay_over(&self, config: &mut KubeProxyConfiguration) {
        // Where an address is needed, empty means not given.
        if !self.bind_address.is_empty() {
            config.bind_address.clone_from(&self.bind_address);
        }
        config.healthz_bind_address = with_port(&self.healthz_bind_address, self.healthz_port);
        config.metrics_bind_address = with_port(&self.metrics_bind_address, self.metrics_port);
        config.bind_address_hard_fail = self.bind_address_hard_fail.0;
        config.enable_profiling = self.profiling.0;
        config.show_hidden_metrics_for_version.clone_from(&self.show_hidden_metrics_for_version);
        config.port_range.clone_from(&self.proxy_port_range);
    }
}

/// The address with the port where it has none of its own. No port, no address.
fn with_port(address: &str, port: u16) -> String {
    let mut text = if port == 0 { String::new() } else { address.to_owned() };
    append_port(&mut text, port);
    text
}
