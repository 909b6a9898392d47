use serde::{Deserialize, Serialize, Serializer};

use super::{empty_as_null, null_default};
use crate::GoDuration;

/// `clientConnection`: how to reach the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConnectionConfiguration {
    /// Media types that are accepted in answers; empty for `contentType`.
    #[serde(deserialize_with = "null_default")]
    pub accept_content_types: String,
    /// Requests that may go out at once before `qps` holds.
    #[serde(deserialize_with = "null_default")]
    pub burst: i32,
    /// Media type of answers, where `acceptContentTypes` says nothing.
    #[serde(deserialize_with = "null_default")]
    pub content_type: String,
    /// Path of a kubeconfig file; empty for the pod's own service account.
    #[serde(deserialize_with = "null_default")]
    pub kubeconfig: String,
    /// Requests per second.
    #[serde(deserialize_with = "null_default", serialize_with = "whole_without_point")]
    pub qps: f32,
}

/// `conntrack`: the kernel's connection table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConntrackConfiguration {
    /// Connections per CPU core that the table has room for; 0 leaves the kernel's limit and ignores `min`.
    pub max_per_core: Option<i32>,
    /// Connections that it has room for at least.
    pub min: Option<i32>,
    /// Do not take packets outside the TCP window for invalid.
    #[serde(deserialize_with = "null_default")]
    pub tcp_be_liberal: bool,
    /// How long a connection that one side has closed is remembered; 0 leaves the kernel's value.
    pub tcp_close_wait_timeout: Option<GoDuration>,
    /// How long an idle TCP connection is remembered; 0 leaves the kernel's value.
    pub tcp_established_timeout: Option<GoDuration>,
    /// How long an idle UDP flow that was answered is remembered; 0 leaves the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub udp_stream_timeout: GoDuration,
    /// How long a UDP flow that was not answered is remembered; 0 leaves the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub udp_timeout: GoDuration,
}

/// `detectLocal`: details for `detectLocalMode`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DetectLocalConfiguration {
    /// The bridge that pods' packets come through, for `BridgeInterface`.
    #[serde(deserialize_with = "null_default")]
    pub bridge_interface: String,
    /// How the names of the interfaces start that pods' packets come through, for `InterfaceNamePrefix`.
    #[serde(deserialize_with = "null_default")]
    pub interface_name_prefix: String,
}

/// `iptables`: for iptables mode; ipvs mode uses the two fields on masquerading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IpTablesConfiguration {
    /// Let node ports answer on 127.0.0.1.
    pub localhost_node_ports: Option<bool>,
    /// Masquerade everything that goes to cluster IPs.
    #[serde(deserialize_with = "null_default")]
    pub masquerade_all: bool,
    /// Bit of the packet mark that says «masquerade», 0 to 31.
    pub masquerade_bit: Option<i32>,
    /// Least time between two syncs.
    #[serde(deserialize_with = "null_default")]
    pub min_sync_period: GoDuration,
    /// Most time between two looks at what is in force.
    #[serde(deserialize_with = "null_default")]
    pub sync_period: GoDuration,
}

/// `ipvs`: for ipvs mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IpvsConfiguration {
    /// Networks whose virtual servers are left alone when cleaning up.
    #[serde(rename = "excludeCIDRs", deserialize_with = "null_default", serialize_with = "empty_as_null")]
    pub exclude_cidrs: Vec<String>,
    /// Least time between two syncs.
    #[serde(deserialize_with = "null_default")]
    pub min_sync_period: GoDuration,
    /// Name of the scheduler; empty for `rr`.
    #[serde(deserialize_with = "null_default")]
    pub scheduler: String,
    /// Do not answer ARP requests for service addresses.
    #[serde(rename = "strictARP", deserialize_with = "null_default")]
    pub strict_arp: bool,
    /// Most time between two looks at what is in force.
    #[serde(deserialize_with = "null_default")]
    pub sync_period: GoDuration,
    /// How long a TCP connection is remembered after a FIN; 0 leaves the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub tcp_fin_timeout: GoDuration,
    /// How long an idle TCP connection is remembered; 0 leaves the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub tcp_timeout: GoDuration,
    /// How long an idle UDP flow is remembered; 0 leaves the kernel's value.
    #[serde(deserialize_with = "null_default")]
    pub udp_timeout: GoDuration,
}

/// `nftables`: for nftables mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NfTablesConfiguration {
    /// Masquerade everything that goes to cluster IPs.
    #[serde(deserialize_with = "null_default")]
    pub masquerade_all: bool,
    /// Bit of the packet mark that says «masquerade», 0 to 31.
    pub masquerade_bit: Option<i32>,
    /// Least time between two syncs.
    #[serde(deserialize_with = "null_default")]
    pub min_sync_period: GoDuration,
    /// Most time between two looks at what is in force.
    #[serde(deserialize_with = "null_default")]
    pub sync_period: GoDuration,
}

/// `winkernel`: for the Windows kernel; read so that a file for both systems is understood.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WinkernelConfiguration {
    /// Create policies with direct server return.
    #[serde(rename = "enableDSR", deserialize_with = "null_default")]
    pub enable_dsr: bool,
    /// Forward the service address for health-check ports.
    #[serde(deserialize_with = "null_default")]
    pub forward_health_check_vip: bool,
    /// Network in which endpoints and policies are created.
    #[serde(deserialize_with = "null_default")]
    pub network_name: String,
    /// Endpoint that is attached to the bridge of the root namespace.
    #[serde(deserialize_with = "null_default")]
    pub root_hns_endpoint_name: String,
    /// Source address for load-balanced traffic.
    #[serde(deserialize_with = "null_default")]
    pub source_vip: String,
}

/// Prints 5 and not 5.0, as Go does.
fn whole_without_point<S: Serializer>(number: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    // Below this every whole number of 32 bits' precision fits into an integer of 64 bits.
    const LIMIT: f32 = 1e15;
    if number.fract() == 0.0 && number.abs() < LIMIT {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and far from the limits of i64")]
        serializer.serialize_i64(*number as i64)
    } else {
        serializer.serialize_f32(*number)
    }
}
