//! The desired state of a node, loaded once: for `render` and the commands that inspect rules.
//!
//! ```text
//!   running proxy ───────────┐
//!   manifests ───────────────┤
//!   demo manifests ─► plan ──┼─► events ─┬─► Feed ─► Tracker    the state that the proxy would apply
//!   API server (list only) ──┤           └─► Names              the owners of addresses
//!   bundle ──────────────────┘
//! ```
//!
//! This module does not watch for changes, plan rules or access the kernel.

mod bundle;
mod complete;
mod demo;
mod list;
mod load;
mod names;
mod network;
mod objects;
mod settings;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ferroute_admin::history::{Unapplied, UnappliedPort};
use ferroute_api::Service;
use ferroute_config::{KubeProxyConfiguration, ModeName, Resolved, flags::SourceArgs};
use ferroute_core::{
    FrontendKind, IpFamily, NamespacedName, NodeView, OtherHosts, Protocol, ServicePortName, ServiceTable, Tracker,
    error_chain,
    parse::{parse_node, parse_service},
    tracker::TrackerEvent,
};
use ferroute_host::KernelRoutes;
use ferroute_modes::REGISTRY;
use ferroute_proxy::{ThisHost, feed::Feed, sync::Change};
use ferroute_source::Event;
use ferroute_trace::Host;

use self::objects::{missing_node, services};
pub use self::{
    list::has_api_server,
    names::{AddressOwner, Names, machine_name, service_name},
    network::demo_host,
    objects::FilePlace,
};
use crate::about::About;

/// The desired state of a node.
pub struct Desired {
    /// The configuration, before it was resolved.
    pub config: KubeProxyConfiguration,
    /// The configuration.
    pub resolved: Resolved,
    /// All objects, with up-to-date tables of both IP families.
    pub tracker: Tracker,
    /// All Services by `namespace/name`, including those that the proxy skips, and those that are invalid.
    pub services: BTreeMap<String, Service>,
    /// The places of invalid Services in files, by `namespace/name`.
    pub invalid: BTreeMap<String, FilePlace>,
    /// The errors of the last versions of Services of which the proxy of a recording keeps an earlier one, by
    /// `namespace/name`.
    pub outdated: BTreeMap<String, Vec<String>>,
    /// Problems because of which the proxy of a recording does not apply all that its source has.
    pub source_problems: Vec<String>,
    /// Service ports whose rules the proxy of a recording has not applied although its last sync succeeded.
    pub unapplied: Vec<UnappliedPort>,
    /// The owners of addresses.
    pub names: Names,
    /// Addresses and routes of the node. If the node is this host, the addresses are those of its interfaces; otherwise
    /// they are derived from the objects. The routes are always derived from the objects.
    pub host: Host,
    /// Subject of the state.
    pub about: About,
    /// Mode of the running proxy, which may differ from the mode of the state.
    pub running_mode: Option<String>,
    /// The source of the objects, for messages.
    pub origin: String,
    /// Source of the objects, for more requests: the given source, or that of the running proxy.
    pub source: SourceArgs,
    /// Whether there is a source of objects.
    pub has_objects: bool,
    /// Reason why the objects do not describe the node, if they contain only other Nodes.
    pub missing_node: Option<String>,
    /// Whether the node is this host.
    pub is_this_host: bool,
    /// The addresses of other Nodes and of next hops, which Services may not have in modes that make Service addresses
    /// local; `None` if they are unknown.
    pub other_hosts: Option<Vec<IpAddr>>,
}

impl Desired {
    /// Returns the state that results from objects.
    fn from_events(
        config: KubeProxyConfiguration,
        resolved: Resolved,
        this_host: ThisHost,
        events: Vec<Event>,
        mut names: Names,
        about: About,
        source: SourceArgs,
    ) -> Self {
        events.iter().for_each(|event| names.add_event(event));
        let missing_node = missing_node(&this_host.node.name, &events, &about);
        let other_nodes = addresses_of_other_nodes(&events, &this_host.node.name);
        let mut tracker = tracker_of(&resolved, this_host.node.clone(), &events);
        let services = services(events);
        let node = tracker.node();
        let mut host = network::node_host(node, &resolved);
        let is_this_host = this_host.is_node(node);
        if is_this_host {
            host.addresses = this_host.addresses;
            add_next_hops(&mut tracker);
        }
        set_host(&mut tracker, &resolved, &host);
        let other_hosts = tracker.other_hosts().addresses.clone().or(other_nodes);
        let desired = Self::new(config, resolved, tracker, services, names, host, about);
        Self { source, missing_node, is_this_host, other_hosts, ..desired }
    }

    /// Returns the state of a node that may not be this host, without a source for more requests.
    fn new(
        config: KubeProxyConfiguration,
        resolved: Resolved,
        tracker: Tracker,
        services: BTreeMap<String, Service>,
        names: Names,
        host: Host,
        about: About,
    ) -> Self {
        Self {
            config,
            resolved,
            tracker,
            services,
            invalid: BTreeMap::new(),
            outdated: BTreeMap::new(),
            source_problems: Vec::new(),
            unapplied: Vec::new(),
            names,
            host,
            running_mode: None,
            origin: about.objects.as_ref().map_or("no objects", |fact| &fact.value).to_owned(),
            has_objects: about.objects.is_some(),
            about,
            source: SourceArgs::default(),
            missing_node: None,
            is_this_host: false,
            other_hosts: None,
        }
    }

    /// Adds an invalid Service, which the tracker does not have, unless there is a valid definition.
    fn add_invalid(&mut self, service: Service, place: FilePlace) {
        let name = NamespacedName::from_metadata(&service.metadata).to_string();
        let is_invalid = |kept: &Service| parse_service(kept).is_err() && !self.invalid.contains_key(&name);
        if self.services.get(&name).is_none_or(is_invalid) {
            self.services.insert(name.clone(), service);
            self.invalid.insert(name, place);
        }
    }

    /// Returns the tables of another mode with its settings, for the same objects.
    pub(crate) fn for_mode(&self, mode: ModeName, resolved: &Resolved) -> Tracker {
        let traits = REGISTRY.active(mode).traits();
        let addresses = traits.binds_service_addresses.then(|| self.other_hosts.clone().unwrap_or_default());
        let other_hosts = OtherHosts { addresses, ..self.tracker.other_hosts().clone() };
        let mut tracker = self.tracker.for_mode(traits, other_hosts);
        set_host(&mut tracker, resolved, &self.host);
        tracker
    }

    /// Returns the Services of an IP family with all their endpoints.
    pub fn table(&self, family: IpFamily) -> &ServiceTable {
        self.tracker.table(family)
    }

    /// Returns the node.
    pub fn node(&self) -> &NodeView {
        &self.table(IpFamily::V4).node
    }

    /// Returns the reason why the proxy has not applied a service port, if it has not.
    pub fn unapplied(&self, name: &ServicePortName, family: IpFamily) -> Option<&Unapplied> {
        self.unapplied.iter().find(|port| port.is(name, family)).map(|port| &port.state)
    }

    /// Returns the service port with this frontend.
    pub fn frontend(&self, address: SocketAddr, protocol: Protocol) -> Option<(&ServicePortName, FrontendKind)> {
        names::frontend(self.table(IpFamily::of(address.ip())), &self.host, address, protocol)
    }

    /// Reports whether the proxy adds an address of Services to the host.
    pub(crate) fn binds(&self, address: IpAddr) -> bool {
        let mut ports = self.table(IpFamily::of(address)).entries.iter();
        REGISTRY.active(self.resolved.mode).traits().binds_service_addresses
            && ports.any(|(name, entry)| {
                entry.service.frontends(name.protocol).any(|(_, frontend)| frontend.address == Some(address))
            })
    }
}

/// Returns the tables that a proxy would apply on `node`, the state of the node until its Node is received.
pub fn track(resolved: &Resolved, node: NodeView, events: &[Event]) -> Tracker {
    let mut tracker = tracker_of(resolved, node, events);
    update(&mut tracker);
    tracker
}

/// Returns the objects for which [`track`] updates the tables.
fn tracker_of(resolved: &Resolved, node: NodeView, events: &[Event]) -> Tracker {
    let traits = REGISTRY.active(resolved.mode).traits();
    let mut feed = Feed::new(resolved, traits, resolved.effective_node(node));
    let mut tracker = feed.tracker();
    for change in feed.translate(events) {
        if let Change::Desired(event, _) = change {
            tracker.apply(event);
        }
    }
    tracker
}

/// Updates both tables.
fn update(tracker: &mut Tracker) {
    for family in IpFamily::BOTH {
        tracker.update_for_resync(family);
    }
}

/// Returns the addresses of other Nodes; `None` if there are none, as where only the own Node was requested.
fn addresses_of_other_nodes(events: &[Event], own: &str) -> Option<Vec<IpAddr>> {
    let views = events.iter().filter_map(|event| match event {
        Event::NodeApplied(node) if node.metadata.name != own => parse_node(node).ok(),
        _ => None,
    });
    let addresses: Vec<IpAddr> = views.flat_map(|view| view.addresses).collect();
    (!addresses.is_empty()).then_some(addresses)
}

/// Adds the next hops of this host's routes to the hosts whose addresses Services may not take over, if the mode
/// requires it.
fn add_next_hops(tracker: &mut Tracker) {
    let mut hosts = tracker.other_hosts().clone();
    let Some(addresses) = &mut hosts.addresses else { return };
    match KernelRoutes::open().and_then(|mut routes| routes.next_hops()) {
        Ok(next_hops) => addresses.extend(next_hops),
        Err(error) => tracing::warn!("{}", error_chain(&error)),
    }
    tracker.apply(TrackerEvent::OtherHostsApplied(hosts));
}

/// Applies the addresses of the host, and updates both tables.
fn set_host(tracker: &mut Tracker, resolved: &Resolved, host: &Host) {
    for family in IpFamily::BOTH {
        tracker.set_host_addresses(family, &resolved.settings, &host.addresses);
    }
    update(tracker);
}

#[cfg(test)]
mod tests;
