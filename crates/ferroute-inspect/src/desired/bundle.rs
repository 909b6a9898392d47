//! The desired state of a bundle, which a running proxy or a file has.

use std::collections::{BTreeSet, btree_map::Entry};

use ferroute_api::ServiceCidr;
use ferroute_config::{KubeProxyConfiguration, Resolved, flags::SourceArgs, settings::Settings};
use ferroute_core::{NamespacedName, NodeView, OtherHosts, parse::parse_service, tracker::TrackerEvent};
use ferroute_modes::REGISTRY;
use ferroute_proxy::{
    ThisHost,
    recording::{Bundle, RecordedChange, UnusedServices, ejections, shares},
};
use ferroute_source::{Event, Resource};

use super::{Desired, Names, set_host};
use crate::{
    about::{About, Fact, Origin, ProxyState},
    replay::{self, InvalidBundle, parse_name},
};

impl Desired {
    /// Returns the state that a proxy had applied, or was about to apply, when its bundle was created.
    ///
    /// # Errors
    /// If the configuration or an object in the bundle is invalid.
    pub fn from_bundle(bundle: &Bundle, origin: &str) -> anyhow::Result<Self> {
        let Settings { config, resolved, .. } = replay::settings(&REGISTRY, bundle)?;
        let about = About {
            proxy: ProxyState::Unrelated,
            reason: None,
            node: Fact::new(bundle.base.node.metadata.name.clone(), Origin::Given),
            mode: Some(Fact::new(bundle.mode.clone(), Origin::Given)),
            configuration: Some(Fact::new(origin, Origin::Given)),
            objects: Some(Fact::new(origin, Origin::Given)),
        };
        Self::from_recording(config, resolved, bundle, about, SourceArgs::default(), false)
    }

    /// Returns the state of the objects in a recording.
    pub(super) fn from_recording(
        config: KubeProxyConfiguration,
        resolved: Resolved,
        bundle: &Bundle,
        about: About,
        source: SourceArgs,
        is_this_host: bool,
    ) -> anyhow::Result<Self> {
        // The bundle contains the Node, even if the cluster has none.
        let node = NodeView { name: bundle.base.node.metadata.name.clone(), ..NodeView::default() };
        let this_host = ThisHost { node, ..ThisHost::read(&resolved)? };
        let events = events(bundle)?;
        let mut desired = Self::from_events(config, resolved, this_host, events, Names::default(), about, source);
        desired.is_this_host |= is_this_host;
        let OtherHosts { api_server, addresses } = bundle.other_hosts.clone();
        // The bundle may be of another mode.
        let planned = &desired.tracker.other_hosts().addresses;
        if planned.is_some() && addresses.is_none() {
            tracing::warn!(
                "the proxy's mode does not need the addresses of other Nodes: Services that have one of them are shown as \
                 served"
            );
        }
        desired.other_hosts = addresses.clone();
        let addresses = planned.as_ref().map(|planned| addresses.unwrap_or_else(|| planned.clone()));
        desired.tracker.apply(TrackerEvent::OtherHostsApplied(OtherHosts { api_server, addresses }));
        if !bundle.host_addresses.is_empty() {
            desired.host.addresses.clone_from(&bundle.host_addresses);
        }
        desired.observe(bundle);
        desired.add_unused(&bundle.unused);
        desired.source_problems.clone_from(&bundle.source_problems);
        Ok(desired)
    }

    /// Adds what a proxy does not use of Services.
    fn add_unused(&mut self, unused: &UnusedServices) {
        for (name, service) in &unused.not_served {
            match (self.services.entry(name.clone()), parse_service(service)) {
                (Entry::Vacant(entry), _) => _ = entry.insert(service.clone()),
                // The last valid version stays applied.
                (Entry::Occupied(_), Err(invalid)) => {
                    self.outdated.insert(name.clone(), invalid.errors.iter().map(ToString::to_string).collect());
                }
                (Entry::Occupied(_), Ok(_)) => {}
            }
        }
        for name in &unused.load_balancers {
            if let Some(service) = self.services.get_mut(name) {
                service.spec.type_ = Some("LoadBalancer".to_owned());
            }
        }
    }

    /// Adds what only the proxy of a recording knows: endpoints that are ejected or have shares, and service ports that it has
    /// not applied.
    pub fn observe(&mut self, bundle: &Bundle) {
        self.unapplied.clone_from(&bundle.unapplied);
        observed(bundle).into_iter().for_each(|event| self.tracker.apply(event));
        set_host(&mut self.tracker, &self.resolved, &self.host);
    }
}

/// Returns the events of a source with the objects after the last sync of a bundle.
fn events(bundle: &Bundle) -> Result<Vec<Event>, InvalidBundle> {
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
fn observed(bundle: &Bundle) -> [TrackerEvent; 2] {
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
