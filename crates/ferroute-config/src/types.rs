//! The types of the API object.
//!
//! Fields are sorted by their YAML names, the order in which Kubernetes prints them. Upstream pointers are `Option`s;
//! in other fields the zero value means "not set", and `null` decodes to the zero value.

mod logging;
mod sections;

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use self::{
    logging::{FlushFrequency, LogFormatOptions, LoggingConfiguration, OutputRoutingOptions, VModuleItem},
    sections::{
        ClientConnectionConfiguration, ConntrackConfiguration, DetectLocalConfiguration, IpTablesConfiguration,
        IpvsConfiguration, NfTablesConfiguration, WinkernelConfiguration,
    },
};
use crate::GoDuration;

/// The configuration of kube-proxy. `Default` is an empty file, without defaults applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    /// Always `kubeproxy.config.k8s.io/v1alpha1`.
    pub api_version: ApiVersion,
    /// Overrides the node's IP address; `0.0.0.0` or `::` for the Node object's. Despite its name, no socket is bound
    /// to it, but its family determines the defaults of `healthzBindAddress` and `metricsBindAddress`.
    #[serde(deserialize_with = "null_default")]
    pub bind_address: String,
    /// Exit when `healthzBindAddress` or `metricsBindAddress` cannot be bound.
    #[serde(deserialize_with = "null_default")]
    pub bind_address_hard_fail: bool,
    /// The connection to the API server.
    #[serde(deserialize_with = "null_default")]
    pub client_connection: ClientConnectionConfiguration,
    /// The cluster's pod network, or two of them separated by a comma, one per IP family; for `detectLocalMode:
    /// ClusterCIDR`.
    #[serde(rename = "clusterCIDR", deserialize_with = "null_default")]
    pub cluster_cidr: String,
    /// The interval of resyncs with the API server.
    #[serde(deserialize_with = "null_default")]
    pub config_sync_period: GoDuration,
    /// Connection tracking.
    #[serde(deserialize_with = "null_default")]
    pub conntrack: ConntrackConfiguration,
    /// Interfaces for `detectLocalMode`.
    #[serde(deserialize_with = "null_default")]
    pub detect_local: DetectLocalConfiguration,
    /// Method to detect packets of this node's pods: `ClusterCIDR`, `NodeCIDR`, `BridgeInterface` or
    /// `InterfaceNamePrefix`.
    #[serde(deserialize_with = "null_default")]
    pub detect_local_mode: String,
    /// Serve Go profiles.
    #[serde(deserialize_with = "null_default")]
    pub enable_profiling: bool,
    /// Kubernetes' feature gates.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// The address of `/healthz` and `/livez`, with or without a port.
    #[serde(deserialize_with = "null_default")]
    pub healthz_bind_address: String,
    /// The Node's name, if it differs from the host name.
    #[serde(deserialize_with = "null_default")]
    pub hostname_override: String,
    /// Settings of iptables mode, some of which apply to ipvs mode.
    #[serde(deserialize_with = "null_default")]
    pub iptables: IpTablesConfiguration,
    /// Settings of ipvs mode.
    #[serde(deserialize_with = "null_default")]
    pub ipvs: IpvsConfiguration,
    /// Always `KubeProxyConfiguration`.
    pub kind: Kind,
    /// Level and format of log lines.
    #[serde(deserialize_with = "null_default")]
    pub logging: LoggingConfiguration,
    /// The address of `/metrics`, `/configz` and other status pages, with or without a port.
    #[serde(deserialize_with = "null_default")]
    pub metrics_bind_address: String,
    /// `iptables`, `ipvs`, `nftables` or `userspace`; empty for iptables.
    #[serde(deserialize_with = "null_default")]
    pub mode: String,
    /// Settings of nftables mode.
    #[serde(deserialize_with = "null_default")]
    pub nftables: NfTablesConfiguration,
    /// Networks of endpoints that see the addresses of clients, even if connections to other endpoints are masqueraded
    /// (KEP-6246).
    #[serde(rename = "noMasqueradeCIDRs", deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub no_masquerade_cidrs: Vec<String>,
    /// The networks of the addresses that accept node port traffic, or `primary`; empty for the mode's default.
    #[serde(deserialize_with = "null_default", serialize_with = "empty_as_null")]
    pub node_port_addresses: Vec<String>,
    /// The process's `oom_score_adj`, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// The ports on which userspace mode accepts connections, such as `40000-42000`; empty for any free ports.
    #[serde(deserialize_with = "null_default")]
    pub port_range: String,
    /// Show the metrics that this version hides.
    #[serde(deserialize_with = "null_default")]
    pub show_hidden_metrics_for_version: String,
    /// Time for which userspace mode keeps a UDP flow without datagrams; `None` or zero for 250 ms. kube-proxy had this
    /// field until Kubernetes 1.26 removed the mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp_idle_timeout: Option<GoDuration>,
    /// Run as a Windows service.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "std::ops::Not::not")]
    pub windows_run_as_service: bool,
    /// Settings for Windows.
    #[serde(deserialize_with = "null_default")]
    pub winkernel: WinkernelConfiguration,
}

/// The supported version of the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiVersion;

/// The supported kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind;

impl ApiVersion {
    /// The value of `apiVersion`.
    pub const TEXT: &'static str = "kubeproxy.config.k8s.io/v1alpha1";
}

impl Kind {
    /// The value of `kind`.
    pub const TEXT: &'static str = "KubeProxyConfiguration";
}

impl Serialize for ApiVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::TEXT)
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::TEXT)
    }
}

impl<'de> Deserialize<'de> for ApiVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Exactly(Self::TEXT)).map(|()| Self)
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Exactly(Self::TEXT)).map(|()| Self)
    }
}

/// Accepts exactly one string.
struct Exactly(&'static str);

impl de::Visitor<'_> for Exactly {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        if text == self.0 { Ok(()) } else { Err(E::invalid_value(de::Unexpected::Str(text), &self)) }
    }
}

/// Decodes `null` as the zero value, as Go does.
fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Encodes an empty list as `null`, as Go encodes a nil slice.
fn empty_as_null<S: Serializer>(list: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { serializer.serialize_none() } else { list.serialize(serializer) }
}
