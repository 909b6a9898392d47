use std::fmt;

use crate::{Deployment, EndpointSlice, Endpoints, Node, ObjectMeta, Pod, Service, ServiceCidr};

/// An object kind that Ferroute reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`Service`].
    Service,
    /// [`EndpointSlice`].
    EndpointSlice,
    /// [`Endpoints`].
    Endpoints,
    /// [`Node`].
    Node,
    /// [`ServiceCidr`].
    ServiceCidr,
    /// [`Pod`].
    Pod,
    /// [`Deployment`].
    Deployment,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Endpoints,
        Self::Node,
        Self::ServiceCidr,
        Self::Pod,
        Self::Deployment,
    ];

    /// Returns the value of the field `kind`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Endpoints => "Endpoints",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
            Self::Pod => "Pod",
            Self::Deployment => "Deployment",
        }
    }

    /// Returns the only `apiVersion` that is supported for this kind.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Service | Self::Endpoints | Self::Node | Self::Pod => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::ServiceCidr => "networking.k8s.io/v1",
            Self::Deployment => "apps/v1",
        }
    }

    /// Reports whether objects of this kind are namespaced.
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Self::Node | Self::ServiceCidr)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An object of one of the kinds that Ferroute reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// A Service.
    Service(Service),
    /// A subset of a Service's endpoints.
    EndpointSlice(EndpointSlice),
    /// All endpoints of a Service, in the API that EndpointSlice replaced.
    Endpoints(Endpoints),
    /// A Node.
    Node(Node),
    /// The networks that cluster IPs are allocated from.
    ServiceCidr(ServiceCidr),
    /// A Pod.
    Pod(Pod),
    /// A set of identical Pods.
    Deployment(Deployment),
}

impl Object {
    /// Returns the object's kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Endpoints(_) => Kind::Endpoints,
            Self::Node(_) => Kind::Node,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
            Self::Pod(_) => Kind::Pod,
            Self::Deployment(_) => Kind::Deployment,
        }
    }

    /// Returns the object's metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Service(object) => &object.metadata,
            Self::EndpointSlice(object) => &object.metadata,
            Self::Endpoints(object) => &object.metadata,
            Self::Node(object) => &object.metadata,
            Self::ServiceCidr(object) => &object.metadata,
            Self::Pod(object) => &object.metadata,
            Self::Deployment(object) => &object.metadata,
        }
    }
}
