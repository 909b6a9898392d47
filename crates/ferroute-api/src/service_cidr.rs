use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, meta::null_default};

/// A ServiceCIDR (`networking.k8s.io/v1`): networks that cluster IPs are taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Name.
    pub metadata: ObjectMeta,
    /// The networks.
    #[serde(deserialize_with = "null_default")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a [`ServiceCidr`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// At most one network per IP family, as `address/prefix`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub cidrs: Vec<String>,
}
