use std::{net::SocketAddr, sync::Arc};

use ferroute_api::{EndpointSlice, Kind, Node, Service, ServiceCidr};
use ferroute_core::NamespacedName;

use crate::Problem;

/// A change reported by a source.
///
/// # Protocol
///
/// Events arrive in batches (`Vec<Event>`). Changes that happened together are in one batch, so that consumers never
/// act on only a part of them.
///
/// For each [`Resource`], a source first sends its initial list: one `...Applied` event per object, in one or more
/// batches, followed by [`Event::Synced`]. From then on it sends changes.
///
/// A source may list a resource again, for example after losing its connection to the API server. It then applies all
/// existing objects, deletes those that have disappeared in the meantime, and sends `Synced` again. Consumers therefore
/// need not compare a new list with an old one, and sources need to keep only names and versions.
#[derive(Clone, Debug)]
pub enum Event {
    /// A Service was created or changed. Consumers must accept an unchanged object.
    ServiceApplied(Box<Service>),
    /// A Service that was applied before no longer exists.
    ServiceDeleted(NamespacedName),
    /// An EndpointSlice was created or changed. Consumers must accept an unchanged object.
    SliceApplied(Box<EndpointSlice>),
    /// An EndpointSlice that was applied before no longer exists.
    SliceDeleted(NamespacedName),
    /// A Node was created or changed. Consumers must accept an unchanged object.
    NodeApplied(Box<Node>),
    /// A Node that was applied before no longer exists.
    NodeDeleted(NamespacedName),
    /// A ServiceCIDR was created or changed. Consumers must accept an unchanged object.
    ServiceCidrApplied(Box<ServiceCidr>),
    /// A ServiceCIDR that was applied before no longer exists.
    ServiceCidrDeleted(NamespacedName),
    /// The addresses of the API server that the source connects to, or of the HTTP proxy before it, were resolved or
    /// have changed. Contains all of them. Sent only by sources that have an API server.
    ApiServer(Vec<SocketAddr>),
    /// The list of a resource is complete. Sent at least once for each resource, including for an empty list and for
    /// resources that the source does not provide. Before this event, a missing object may not have been listed yet.
    Synced(Resource),
    /// A problem that the administrator should see. Sent once, regardless of the duration of the problem.
    Problem(Arc<Problem>),
    /// A problem that was reported before no longer exists.
    Resolved(Arc<Problem>),
}

impl Event {
    /// The event for the deletion of an object.
    pub fn deleted(resource: Resource, name: NamespacedName) -> Self {
        match resource {
            Resource::Services => Self::ServiceDeleted(name),
            Resource::EndpointSlices => Self::SliceDeleted(name),
            Resource::Nodes => Self::NodeDeleted(name),
            Resource::ServiceCidrs => Self::ServiceCidrDeleted(name),
        }
    }
}

/// The resources that sources list and watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// Nodes.
    Nodes,
    /// ServiceCIDRs. Optional: clusters before Kubernetes 1.33 may not serve them.
    ServiceCidrs,
}

impl Resource {
    /// All resources.
    pub const ALL: [Self; 4] = [Self::Services, Self::EndpointSlices, Self::Nodes, Self::ServiceCidrs];

    /// Returns the kind of the resource's objects.
    pub fn kind(self) -> Kind {
        match self {
            Self::Services => Kind::Service,
            Self::EndpointSlices => Kind::EndpointSlice,
            Self::Nodes => Kind::Node,
            Self::ServiceCidrs => Kind::ServiceCidr,
        }
    }
}
