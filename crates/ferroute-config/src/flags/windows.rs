use clap::Args;
use crate::KubeProxyConfiguration;

use crate::flags::values::Switch;

/// kube-proxy has these on Windows only. They are read so that they can be told to have no effect.
#[derive(Args, Clone, Debug)]
pub struct WindowsFlags {
    /// For Windows: run as a service
    #[arg(long, hide = true, default_value = "false")]
    windows_service: Switch,
    /// For Windows: source address for load-balanced traffic
    #[arg(long, hide = true, value_name = "IP", default_value = "")]
    source_vip: String,
    /// For Windows: network in which endpoints and policies are created
    #[arg(long, hide = true, value_name = "NAME", default_value = "")]
    network_name: String,
    /// For Windows: create policies with direct server return
    #[arg(long, hide = true, default_value = "false")]
    enable_dsr: Switch,
    /// For Windows: endpoint that is attached to the bridge of the root namespace
    #[arg(long, hide = true, value_name = "NAME", default_value = "")]
    root_hnsendpoint_name: String,
    /// For Windows: forward the service address for health-check ports
    #[arg(long, hide = true, default_value = "false")]
    forward_healthcheck_vip: Switch,
}

impl WindowsFlags {
    pub(super) fn lay_over(&self, config: &mut KubeProxyConfiguration) {
        config.windows_run_as_service = self.windows_service.0;
        let winkernel = &mut config.winkernel;
        winkernel.source_vip.clone_from(&self.source_vip);
        winkernel.network_name.clone_from(&self.network_name);
        winkernel.enable_dsr = self.enable_dsr.0;
        winkernel.root_hns_endpoint_name.clone_from(&self.root_hnsendpoint_name);
        winkernel.forward_health_check_vip = self.forward_healthcheck_vip.0;
    }
}
