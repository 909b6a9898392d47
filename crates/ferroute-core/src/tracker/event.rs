use ferroute_api as api;
use ipnet::IpNet;

use super::{Ejections, ServiceView, Shares, SliceView};
use crate::{
    NamespacedName, NodeView, OtherHosts,
    parse::{InvalidObject, parse_service, parse_slice},
};

/// A change of the desired state, as [`Tracker::apply`] takes it.
///
/// [`Tracker::apply`]: super::Tracker::apply
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrackerEvent {
    /// A Service was created or changed.
    ServiceApplied(ServiceView),
    /// A Service was deleted, or is no longer for this proxy.
    ServiceDeleted(NamespacedName),
    /// An endpoint slice was created or changed. It may belong to another Service than before.
    SliceApplied(SliceView),
    /// An endpoint slice, given by its own name, was deleted or is no longer for this proxy.
    SliceDeleted(NamespacedName),
    /// The Node was created or changed.
    NodeApplied(NodeView),
    /// The networks that cluster IPs are allocated from changed. Holds all of them, of both families, in any order.
    ServiceCidrsApplied(Vec<IpNet>),
    /// The endpoints that do not answer changed. Contains all of them; those of Services without passive ejection are
    /// ignored.
    EndpointsEjected(Ejections),
    /// The shares of endpoints changed. Holds all of them.
    SharesApplied(Shares),
    /// The addresses of other hosts that this node connects to changed. Contains all of them.
    OtherHostsApplied(OtherHosts),
}

impl TrackerEvent {
    /// Returns the event for a Service that was created or changed. If this proxy skips it (see [`SkipReason`]), the
    /// event is a deletion.
    ///
    /// # Errors
    ///
    /// The Service is invalid.
    ///
    /// [`SkipReason`]: crate::parse::SkipReason
    pub fn from_service(service: &api::Service) -> Result<Self, InvalidObject> {
        let deleted = || Self::ServiceDeleted(NamespacedName::from_metadata(&service.metadata));
        Ok(parse_service(service)?.map_or_else(deleted, Self::ServiceApplied))
    }

    /// Returns the event for an endpoint slice that was created or changed, on the node called `node`. If this proxy
    /// skips it, the event is a deletion.
    ///
    /// # Errors
    ///
    /// The slice is invalid.
    pub fn from_slice(slice: &api::EndpointSlice, node: &str) -> Result<Self, InvalidObject> {
        let deleted = || Self::SliceDeleted(NamespacedName::from_metadata(&slice.metadata));
        Ok(parse_slice(slice, node)?.map_or_else(deleted, Self::SliceApplied))
    }
}
