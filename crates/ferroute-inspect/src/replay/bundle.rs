use ferroute_api::ServiceCidr;
use ferroute_core::{
    NamespacedName, Tracker,
    parse::{InvalidObject, parse_node, parse_service_cidr},
    tracker::TrackerEvent,
};
use ipnet::IpNet;

use ferroute_proxy::recording::{Bundle, RecordedChange as Change, SyncRecord};

/// Goes through a bundle's syncs with a tracker of its own, as the proxy went through them with its.
///
/// ```no_run
/// # fn replay(bundle: &ferroute_proxy::recording::Bundle) -> Result<(), ferroute_inspect::replay::InvalidBundle> {
/// let mut replay = ferroute_inspect::replay::Replay::new(bundle)?;
/// // … bring `replay.tracker` into force somewhere …
/// for sync in &bundle.syncs {
///     replay.apply(sync)?;
///     // … and again what has changed in it.
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Replay {
    /// What is wanted at this point.
    pub tracker: Tracker,
}

/// Why a bundle cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidBundle {
    /// An object in it is wrong.
    #[error("the bundle has a wrong object")]
    Object(#[from] InvalidObject),
    /// The name of an object that is gone is wrong.
    #[error("the bundle names an object {name:?} (want NAMESPACE/NAME)")]
    Name {
        /// What it says.
        name: String,
    },
}

impl Replay {
    /// At the bundle's base; nothing of it has been taken from the tracker by [`Tracker::update`] yet.
    ///
    /// # Errors
    /// Here and later, only for a bundle that somebody has changed by hand.
    pub fn new(bundle: &Bundle) -> Result<Self, InvalidBundle> {
        let node = parse_node(&bundle.base.node)?;
        let mut tracker = Tracker::new(node.clone());
        for service in &bundle.base.services {
            tracker.apply(TrackerEvent::from_service(service)?);
        }
        for slice in &bundle.base.endpoint_slices {
            tracker.apply(TrackerEvent::from_slice(slice, &node.name)?);
        }
        tracker.apply(TrackerEvent::ServiceCidrsApplied(parse_networks(&bundle.base.service_cidrs)?));
        Ok(Self { tracker })
    }

    /// Makes a sync's changes.
    ///
    /// # Errors
    /// See [`Replay::new`].
    pub fn apply(&mut self, sync: &SyncRecord) -> Result<(), InvalidBundle> {
        for change in &sync.changes {
            let event = match change {
                Change::Service(service) => TrackerEvent::from_service(service)?,
                Change::ServiceGone(name) => TrackerEvent::ServiceDeleted(parse_name(name)?),
                Change::EndpointSlice(slice) => TrackerEvent::from_slice(slice, &self.tracker.node().name)?,
                Change::EndpointSliceGone(name) => TrackerEvent::SliceDeleted(parse_name(name)?),
                Change::Node(node) => TrackerEvent::NodeApplied(parse_node(node)?),
                Change::ServiceCidrs(cidrs) => TrackerEvent::ServiceCidrsApplied(parse_networks(cidrs)?),
            };
            self.tracker.apply(event);
        }
        Ok(())
    }
}

fn parse_networks(cidrs: &[ServiceCidr]) -> Result<Vec<IpNet>, InvalidBundle> {
    let mut networks = Vec::new();
    for cidr in cidrs {
        networks.append(&mut parse_service_cidr(cidr)?);
    }
    Ok(networks)
}

fn parse_name(name: &str) -> Result<NamespacedName, InvalidBundle> {
    let (namespace, own) = name.split_once('/').ok_or_else(|| InvalidBundle::Name { name: name.to_owned() })?;
    Ok(NamespacedName::new(namespace, own))
}
