use ferroute_api::ServiceCidr;
use ferroute_core::{
    NodeView, ServiceName, Tracker,
    parse::{InvalidObject, parse_node, parse_service, parse_service_cidr, parse_slice},
};
use ipnet::IpNet;

use crate::{Bundle, Change, SyncRecord};

/// Goes through a bundle's syncs with a tracker of its own, as the proxy went through them with its.
///
/// ```no_run
/// # fn replay(bundle: &ferroute_recorder::Bundle) -> Result<(), ferroute_recorder::InvalidBundle> {
/// let mut replay = ferroute_recorder::Replay::new(bundle)?;
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
    node: NodeView,
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
        for view in bundle.base.services.iter().map(parse_service) {
            view?.into_iter().for_each(|view| tracker.set_service(view));
        }
        for view in bundle.base.endpoint_slices.iter().map(|slice| parse_slice(slice, &node.name)) {
            view?.into_iter().for_each(|view| tracker.set_slice(view));
        }
        tracker.set_service_cidrs(parse_networks(&bundle.base.service_cidrs)?);
        Ok(Self { tracker, node })
    }

    /// Makes a sync's changes.
    ///
    /// # Errors
    /// See [`Replay::new`].
    pub fn apply(&mut self, sync: &SyncRecord) -> Result<(), InvalidBundle> {
        for change in &sync.changes {
            match change {
                Change::Service(service) => {
                    parse_service(service)?.into_iter().for_each(|view| self.tracker.set_service(view));
                }
                Change::ServiceGone(name) => self.tracker.remove_service(&parse_name(name)?),
                Change::EndpointSlice(slice) => {
                    let view = parse_slice(slice, &self.node.name)?;
                    view.into_iter().for_each(|view| self.tracker.set_slice(view));
                }
                Change::EndpointSliceGone(name) => self.tracker.remove_slice(&parse_name(name)?),
                Change::Node(node) => {
                    self.node = parse_node(node)?;
                    self.tracker.set_node(self.node.clone());
                }
                Change::ServiceCidrs(cidrs) => self.tracker.set_service_cidrs(parse_networks(cidrs)?),
            }
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

fn parse_name(name: &str) -> Result<ServiceName, InvalidBundle> {
    let (namespace, own) = name.split_once('/').ok_or_else(|| InvalidBundle::Name { name: name.to_owned() })?;
    Ok(ServiceName::new(namespace, own))
}
