use serde::{Deserialize, Serialize};

use crate::{EndpointPort, ObjectMeta, meta::null_default};

/// Endpoints (`v1`): all of a Service's endpoints in one object, the form that came before slices. Its name is the
/// Service's. Proxies do not read it; [`crate::mirror`] makes slices of it, as a controller does in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Endpoints {
    /// Name (the Service's), namespace and labels.
    pub metadata: ObjectMeta,
    /// The endpoints, grouped by the ports that they have.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub subsets: Vec<EndpointSubset>,
}

/// Some addresses of [`Endpoints`], each of which has all the ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSubset {
    /// Addresses that take traffic.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<EndpointAddress>,
    /// Addresses that do not, or not yet.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<EndpointAddress>,
    /// The ports of every address.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
}

/// One address of an [`EndpointSubset`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAddress {
    /// The IP address, of either family.
    pub ip: String,
    /// The node that it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}
