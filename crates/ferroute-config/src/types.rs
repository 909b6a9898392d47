//! The shape of the API object.
//!
//! Fields stand in the order of their YAML names, because that is the order in which Kubernetes prints them. Where
//! upstream has a pointer there is an `Option` here; everything else has a zero value that stands for «not set», and
//! `null` reads as that too.

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

/// Everything that an operator can tell kube-proxy in a file; `Default` is an empty file, with no defaults applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    /// Always `kubeproxy.config.k8s.io/v1alpha1`.
    pub api_version: ApiVersion,
    /// The node's own IP address, where the Node object does not tell the right one; `0.0.0.0` or `::` for «take the
    /// Node's». In spite of its name nothing is bound to it, but its family decides the defaults of the two addresses
    /// below.
    #[serde(deserialize_with = "null_default")]
    pub bind_address: String,
    /// Exit when `healthzBindAddress` or `metricsBindAddress` cannot be bound.
    #[serde(deserialize_with = "null_default")]
    pub bind_address_hard_fail: bool,
    /// How to reach the API server.
    #[serde(deserialize_with = "null_default")]
    pub client_connection: ClientConnectionConfiguration,
    /// The cluster's pod networks, one or, with a comma, one per IP family; for `detectLocalMode: ClusterCIDR`.
    #[serde(rename = "clusterCIDR", deserialize_with = "null_default")]
    pub cluster_cidr: String,
    /// How often everything is read again from the API server.
    #[serde(deserialize_with = "null_default")]
    pub config_sync_period: GoDuration,
    /// The kernel's connection table.
    #[serde(deserialize_with = "null_default")]
    pub conntrack: ConntrackConfiguration,
    /// Details for two of the modes of `detectLocalMode`.
    #[serde(deserialize_with = "null_default")]
    pub detect_local: DetectLocalConfiguration,
    /// How to tell the packets of this node's pods: `ClusterCIDR`, `NodeCIDR`, `BridgeInterface` or
    /// `InterfaceNamePrefix`.
    #[serde(deserialize_with = "null_default")]
    pub detect_local_mode: String,
    /// Serve Go profiles.
    #[serde(deserialize_with = "null_default")]
    pub enable_profiling: bool,
    /// Switches of Kubernetes' own features, by name.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// Where `/healthz` and `/livez` are served: `ip:port`, or an address without a port.
    #[serde(deserialize_with = "null_default")]
    pub healthz_bind_address: String,
    /// Name of the Node, where it is not the host's name.
    #[serde(deserialize_with = "null_default")]
    pub hostname_override: String,
    /// For iptables mode, and in part for ipvs mode.
    #[serde(deserialize_with = "null_default")]
    pub iptables: IpTablesConfiguration,
    /// For ipvs mode.
    #[serde(deserialize_with = "null_default")]
    pub ipvs: IpvsConfiguration,
    /// Always `KubeProxyConfiguration`.
    pub kind: Kind,
    /// What is logged, and how.
    #[serde(deserialize_with = "null_default")]
    pub logging: LoggingConfiguration,
    /// Where `/metrics` and its companions are served: `ip:port`, or an address without a port.
    #[serde(deserialize_with = "null_default")]
    pub metrics_bind_address: String,
    /// `iptables`, `ipvs` or `nftables`; empty for iptables.
    #[serde(deserialize_with = "null_default")]
    pub mode: String,
    /// For nftables mode.
    #[serde(deserialize_with = "null_default")]
    pub nftables: NfTablesConfiguration,
    /// Networks whose addresses answer on node ports, or `primary` alone; empty for the mode's default.
    #[serde(deserialize_with = "null_default", serialize_with = "empty_as_null")]
    pub node_port_addresses: Vec<String>,
    /// The process's `oom_score_adj`, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Without effect since the userspace mode is gone.
    #[serde(deserialize_with = "null_default")]
    pub port_range: String,
    /// Show metrics that were hidden in this version.
    #[serde(deserialize_with = "null_default")]
    pub show_hidden_metrics_for_version: String,
    /// Run as a Windows service.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "std::ops::Not::not")]
    pub windows_run_as_service: bool,
    /// For the Windows kernel.
    #[serde(deserialize_with = "null_default")]
    pub winkernel: WinkernelConfiguration,
}

/// The one version of the API that is read; it has no value of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiVersion;

/// The one kind that is read; it has no value of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind;

impl ApiVersion {
    /// As it is written.
    pub const TEXT: &'static str = "kubeproxy.config.k8s.io/v1alpha1";
}

impl Kind {
    /// As it is written.
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

/// Accepts one text only.
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

/// Reads `null` as the zero value, as Go does.
fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Prints a list without items as `null`, as Go prints a list that was never set.
fn empty_as_null<S: Serializer>(list: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    if list.is_empty() { serializer.serialize_none() } else { list.serialize(serializer) }
}
