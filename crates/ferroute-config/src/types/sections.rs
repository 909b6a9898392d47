use serde::{Deserialize, Serialize, Serializer};

use super::{empty_as_null, null_default};
use crate::GoDuration;

/// `clientConnection`: the connection to the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConnectionConfiguration {
    /// The media types accepted in responses; empty for `contentType`.
    #[serde(deserialize_with = "null_default")]
    pub accept_content_types: String,
    /// The number of requests that may exceed `qps` in a burst.
    #[serde(deserialize_with = "null_default")]
    pub burst: i32,
    /// The media type of responses if `acceptContentTypes` is empty.
    #[serde(deserialize_with = "null_default")]
    pub content_type: String,
    /// The path of a kubeconfig file; empty for the pod's service account.
    #[serde(deserialize_with = "null_default")]
    pub kubeconfig: String,
    /// The maximum number of requests per second.
    #[serde(deserialize_with = "null_default", serialize_with = "whole_without_point")]
    pub qps: f32,
}

/// `conntrack`: connection tracking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConntrackConfiguration {
    /// The maximum number of entries per CPU core; 0 keeps the kernel's limit and ignores `min`.
    pub max_per_core: Option<i32>,
    /// The minimum for the maximum number of entries.
    pub min: Option<i32>,
    /// Do not treat packets outside the TCP window as invalid.
    #[serde(deserialize_with = "null_default")]
    pub tcp_be_liberal: bool,
    /// The timeout of TCP connections in state CLOSE_WAIT; 0 keeps the kernel's value.
    pub tcp_close_wait_timeout: Option<GoDuration>,
    /// The timeout of idle TCP connections; 0 keeps the kernel's value.
    pub tcp_established_timeout: Option<GoDuration>,
    /// The timeout of idle UDP flows with traffic in both directions; 0 keeps the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub udp_stream_timeout: GoDuration,
    /// The timeout of UDP flows without replies; 0 keeps the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub udp_timeout: GoDuration,
}

/// `detectLocal`: interfaces for `detectLocalMode`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocalConfiguration {
    /// The bridge that receives the pods' packets, for `BridgeInterface`.
    #[serde(deserialize_with = "null_default")]
    pub bridge_interface: String,
    /// The name prefix of the interfaces that receive the pods' packets, for `InterfaceNamePrefix`.
    #[serde(deserialize_with = "null_default")]
    pub interface_name_prefix: String,
}

/// `iptables`: settings of iptables mode; ipvs mode uses `masqueradeAll` and `masqueradeBit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IpTablesConfiguration {
    /// Accept node port connections to 127.0.0.1.
    pub localhost_node_ports: Option<bool>,
    /// Masquerade all traffic to cluster IPs.
    #[serde(deserialize_with = "null_default")]
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading, 0 to 31.
    pub masquerade_bit: Option<i32>,
    /// The minimum interval between syncs.
    #[serde(deserialize_with = "null_default")]
    pub min_sync_period: GoDuration,
    /// The maximum interval between checks of the active rules.
    #[serde(deserialize_with = "null_default")]
    pub sync_period: GoDuration,
}

/// `ipvs`: settings of ipvs mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IpvsConfiguration {
    /// Networks whose virtual servers are not removed by cleanup.
    #[serde(rename = "excludeCIDRs", deserialize_with = "null_default", serialize_with = "empty_as_null")]
    pub exclude_cidrs: Vec<String>,
    /// The minimum interval between syncs.
    #[serde(deserialize_with = "null_default")]
    pub min_sync_period: GoDuration,
    /// The scheduler; empty for `rr`.
    #[serde(deserialize_with = "null_default")]
    pub scheduler: String,
    /// Do not reply to ARP requests for Service addresses.
    #[serde(rename = "strictARP", deserialize_with = "null_default")]
    pub strict_arp: bool,
    /// The maximum interval between checks of the active rules.
    #[serde(deserialize_with = "null_default")]
    pub sync_period: GoDuration,
    /// The timeout of TCP connections after a FIN; 0 keeps the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub tcp_fin_timeout: GoDuration,
    /// The timeout of idle TCP connections; 0 keeps the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub tcp_timeout: GoDuration,
    /// The timeout of idle UDP flows; 0 keeps the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub udp_timeout: GoDuration,
}

/// `nftables`: settings of nftables mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NfTablesConfiguration {
    /// Masquerade all traffic to cluster IPs.
    #[serde(deserialize_with = "null_default")]
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading, 0 to 31.
    pub masquerade_bit: Option<i32>,
    /// The minimum interval between syncs.
    #[serde(deserialize_with = "null_default")]
    pub min_sync_period: GoDuration,
    /// The maximum interval between checks of the active rules.
    #[serde(deserialize_with = "null_default")]
    pub sync_period: GoDuration,
}

/// `winkernel`: settings for Windows; decoded so that a file for both systems is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WinkernelConfiguration {
    /// Create policies with direct server return.
    #[serde(rename = "enableDSR", deserialize_with = "null_default")]
    pub enable_dsr: bool,
    /// Forward the Service address for health check ports.
    #[serde(deserialize_with = "null_default")]
    pub forward_health_check_vip: bool,
    /// The network in which endpoints and policies are created.
    #[serde(deserialize_with = "null_default")]
    pub network_name: String,
    /// The endpoint attached to the bridge of the root namespace.
    #[serde(deserialize_with = "null_default")]
    pub root_hns_endpoint_name: String,
    /// The source address of load-balanced traffic.
    #[serde(deserialize_with = "null_default")]
    pub source_vip: String,
}

/// Serializes whole numbers without a fraction (5, not 5.0), as Go does.
fn whole_without_point<S: Serializer>(number: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    // Whole numbers below this limit fit into an i64.
    const LIMIT: f32 = 1e15;
    if number.fract() == 0.0 && number.abs() < LIMIT {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and far from the limits of i64")]
        serializer.serialize_i64(*number as i64)
    } else {
        serializer.serialize_f32(*number)
    }
}
