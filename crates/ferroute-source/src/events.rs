use std::{fmt, sync::Arc};

use ferroute_api::{EndpointSlice, Node, ObjectMeta, Service, ServiceCidr};

use crate::Problem;

/// What a source tells. Events come in batches (`Vec<Event>`): what changed at once is told at once, so that nobody
/// acts on half of it.
///
/// A source first lists each kind: an `Applied` for every object, in one or more batches, then [`Event::Synced`]. From
/// then on it tells changes. It may have to list again, after it has lost touch with its server, say; then it applies
/// again what there is, deletes what has gone in the meantime, and ends with `Synced` once more. So nobody but the
/// source needs to know what was there before, and the source needs to keep no more than names.
#[derive(Clone, Debug)]
pub enum Event {
    /// A Service is new, or differs from what was told before. The same object may be told again.
    ServiceApplied(Box<Service>),
    /// A Service that was told before is gone.
    ServiceDeleted(ObjectName),
    /// An endpoint slice is new, or differs from what was told before.
    SliceApplied(Box<EndpointSlice>),
    /// An endpoint slice that was told before is gone.
    SliceDeleted(ObjectName),
    /// A Node is new, or differs from what was told before.
    NodeApplied(Box<Node>),
    /// A Node that was told before is gone.
    NodeDeleted(ObjectName),
    /// A ServiceCIDR is new, or differs from what was told before.
    ServiceCidrApplied(Box<ServiceCidr>),
    /// A ServiceCIDR that was told before is gone.
    ServiceCidrDeleted(ObjectName),
    /// All objects of a kind have been told. Comes at least once for each kind, also where there are none, or where
    /// the source has none to give; before that, what is missing may just not have been told yet.
    Synced(Resource),
    /// Something that a person should know. Told once, however long it lasts.
    Problem(Arc<Problem>),
    /// A problem that was told before is over.
    Solved(Arc<Problem>),
}

/// The kinds of objects that sources follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Services.
    Services,
    /// Endpoint slices.
    EndpointSlices,
    /// Nodes.
    Nodes,
    /// ServiceCIDRs. A proxy can do without: old clusters have none.
    ServiceCidrs,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Services, Self::EndpointSlices, Self::Nodes, Self::ServiceCidrs];
}

/// Namespace and name of an object. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace; empty for Nodes and ServiceCIDRs.
    pub namespace: Arc<str>,
    /// The name within the namespace.
    pub name: Arc<str>,
}

impl ObjectName {
    /// The name of the object that this is the metadata of.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self { namespace: metadata.namespace.as_str().into(), name: metadata.name.as_str().into() }
    }
}

impl fmt::Display for ObjectName {
    /// `namespace/name`, or the name alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}
