//! The objects of a bundle.

use std::collections::BTreeSet;

use ferroute_api::ServiceCidr;
use ferroute_core::{NamespacedName, tracker::TrackerEvent};
use ferroute_proxy::recording::{Bundle, RecordedChange, ejections, shares};
use ferroute_source::{Event, Resource};

use crate::replay::{InvalidBundle, parse_name};

/// Returns the events of a source with the objects after the last sync of a bundle.
pub(super) fn events(bundle: &Bundle) -> Result<Vec<Event>, InvalidBundle> {
    let base = &bundle.base;
    let mut events = vec![Event::NodeApplied(Box::new(base.node.clone()))];
    events.extend(base.services.iter().map(|service| Event::ServiceApplied(Box::new(service.clone()))));
    events.extend(base.endpoint_slices.iter().map(|slice| Event::SliceApplied(Box::new(slice.clone()))));
    let mut networks = BTreeSet::new();
    replace_networks(&mut networks, &base.service_cidrs, &mut events);
    for change in bundle.syncs.iter().flat_map(|sync| &sync.changes) {
        events.push(match change {
            RecordedChange::Service(service) => Event::ServiceApplied(service.clone()),
            RecordedChange::ServiceDeleted(name) => Event::ServiceDeleted(parse_name(name)?),
            RecordedChange::EndpointSlice(slice) => Event::SliceApplied(Box::new(slice.clone())),
            RecordedChange::EndpointSliceDeleted(name) => Event::SliceDeleted(parse_name(name)?),
            RecordedChange::Node(node) => Event::NodeApplied(Box::new(node.clone())),
            RecordedChange::ServiceCidrs(cidrs) => {
                replace_networks(&mut networks, cidrs, &mut events);
                continue;
            }
            RecordedChange::Ejected(_) | RecordedChange::Shares(_) => continue,
        });
    }
    events.extend(Resource::ALL.map(Event::Synced));
    Ok(events)
}

/// Returns the proxy's observations about endpoints after the last sync of a bundle.
pub(super) fn observed(bundle: &Bundle) -> [TrackerEvent; 2] {
    let changes = || bundle.syncs.iter().rev().flat_map(|sync| sync.changes.iter().rev());
    let ejected = changes().find_map(|change| match change {
        RecordedChange::Ejected(ejected) => Some(ejected),
        _ => None,
    });
    let recorded = changes().find_map(|change| match change {
        RecordedChange::Shares(recorded) => Some(recorded),
        _ => None,
    });
    [
        TrackerEvent::EndpointsEjected(ejections(ejected.unwrap_or(&bundle.base.ejected))),
        TrackerEvent::SharesApplied(shares(recorded.unwrap_or(&bundle.base.shares))),
    ]
}

/// Replaces the ServiceCIDRs of a source: a bundle has all of them at once, a source one by one.
fn replace_networks(names: &mut BTreeSet<NamespacedName>, cidrs: &[ServiceCidr], events: &mut Vec<Event>) {
    let name = |cidr: &ServiceCidr| NamespacedName::from_metadata(&cidr.metadata);
    let new: BTreeSet<NamespacedName> = cidrs.iter().map(name).collect();
    events.extend(names.difference(&new).cloned().map(Event::ServiceCidrDeleted));
    events.extend(cidrs.iter().map(|cidr| Event::ServiceCidrApplied(Box::new(cidr.clone()))));
    *names = new;
}
