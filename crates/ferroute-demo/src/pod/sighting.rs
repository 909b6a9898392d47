use std::{fmt, net::SocketAddr};

use serde::{Deserialize, Serialize};

/// What a pod knows of one request: how the connection looks from its end, after all that proxies did to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sighting {
    /// The pod's name.
    pub(crate) pod: String,
    /// Who asks, as the pod sees it.
    pub(crate) client: SocketAddr,
    /// Where the request arrived.
    pub(crate) address: SocketAddr,
}

impl fmt::Display for Sighting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {} saw {} at {}", self.pod, self.client, self.address)
    }
}
