//! The desired state of a node, loaded once: for `render` and the commands that inspect rules.
//!
//! ```text
//!   manifests ───────────────┐
//!   demo manifests ─► plan ──┼─► events ─┬─► Feed ─► Tracker    the state that the proxy would apply
//!   API server (list only) ──┤           └─► Names              the owners of addresses
//!   bundle ──────────────────┘
//! ```
//!
//! Not here: watching for changes, rules, the kernel.

mod bundle;
mod demo;
mod list;
mod names;
mod network;

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::Context;
use ferroute_api::{Object, Service};
use ferroute_config::{
    KubeProxyConfiguration, Resolved,
    flags::{DesiredArgs, SettingsArgs, SourceArgs},
    settings::{self, Settings},
};
use ferroute_core::{
    FrontendKind, IpFamily, NamespacedName, NodeView, Protocol, ServicePortName, ServiceTable, Tracker,
};
use ferroute_proxy::{ThisHost, feed::Feed, logging, modes::REGISTRY, recording::Bundle, sync::Change};
use ferroute_source::{Event, read_once};
use ferroute_trace::Host;

use self::demo::DemoManifests;
pub use self::{
    names::{AddressOwner, Names},
    network::demo_host,
};
use crate::replay;

/// The desired state of a node.
pub struct Desired {
    /// The configuration.
    pub resolved: Resolved,
    /// All objects, with up-to-date tables of both IP families.
    pub tracker: Tracker,
    /// All Services by `namespace/name`, including those that the proxy skips.
    pub services: BTreeMap<String, Service>,
    /// The owners of addresses.
    pub names: Names,
    /// The node's addresses and routes: the addresses of this host's interfaces if the node is this host, and otherwise, as
    /// the routes, those that follow from the objects.
    pub host: Host,
    /// The source of the objects, for messages.
    pub origin: String,
    /// Whether the node is this host.
    pub is_this_host: bool,
}

impl Desired {
    /// Starts logging and loads the desired state. `verbosity` overrides the configuration.
    ///
    /// Objects of a cluster, as printed by `kubectl get -o yaml`, are used as they are. Manifests with Deployments, or with
    /// Pods without addresses, are planned as by `ferroute demo`: on the demo's nodes and, without a configuration file, with
    /// the demo's settings.
    ///
    /// # Errors
    /// If the configuration or the objects cannot be read.
    pub fn load(args: &DesiredArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        Self::load_with(&args.source, &args.settings, |resolved| {
            logging::start_for_command(verbosity, resolved.logging.format);
        })
    }

    /// Like [`load`](Self::load), for programs that have already started logging and may load the state again.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn load_again(args: &DesiredArgs) -> anyhow::Result<Self> {
        Self::load_with(&args.source, &args.settings, |_| ())
    }

    /// Loads the desired state; `start_logging` is called as soon as the configuration is loaded.
    fn load_with(
        source: &SourceArgs,
        args: &SettingsArgs,
        start_logging: impl FnOnce(&Resolved),
    ) -> anyhow::Result<Self> {
        let workloads = source.manifests.as_deref().map(demo::read).transpose()?;
        let demo = workloads.as_ref().and_then(|workloads| workloads.demo.as_ref());
        let fallback = demo.map(DemoManifests::configuration).unwrap_or_default();
        let Settings { config, resolved, .. } = load_settings(args, fallback, start_logging)?;
        let origin = match &source.manifests {
            Some(path) => path.display().to_string(),
            None => "the API server".to_owned(),
        };
        let mut names = Names::default();
        if let Some(workloads) = &workloads {
            workloads.pods.iter().for_each(|pod| names.add_pod(pod));
        }
        if let Some(demo) = demo {
            let node = demo.node(&resolved)?;
            names.add_demo(&demo.plan);
            let events = demo.events();
            let services = services(&events);
            let mut tracker =
                track(&resolved, NodeView { name: node.name().to_owned(), ..NodeView::default() }, events);
            let host = demo_host(node, &resolved);
            set_host(&mut tracker, &resolved, &host);
            return Ok(Self { resolved, tracker, services, names, host, origin, is_this_host: false });
        }
        let events = match &source.manifests {
            Some(path) => read_once(path).with_context(|| format!("cannot read manifests at {}", path.display()))?,
            None => list::list(source, config.client_connection, &resolved)?,
        };
        let this_host = ThisHost::read(&resolved)?;
        Ok(Self::from_events(resolved, this_host, events, names, origin))
    }

    /// Returns the state that a proxy had applied, or was about to apply, when its bundle was created.
    ///
    /// # Errors
    /// If the configuration or an object in the bundle is invalid.
    pub fn from_bundle(bundle: &Bundle, origin: String) -> anyhow::Result<Self> {
        let resolved = replay::settings(&REGISTRY, bundle)?.resolved;
        // The bundle has the Node, even if the cluster has none.
        let node = NodeView { name: bundle.base.node.metadata.name.clone(), ..NodeView::default() };
        let this_host = ThisHost { node, ..ThisHost::read(&resolved)? };
        let mut desired = Self::from_events(resolved, this_host, bundle::events(bundle)?, Names::default(), origin);
        if !bundle.host_addresses.is_empty() {
            desired.host.addresses.clone_from(&bundle.host_addresses);
            set_host(&mut desired.tracker, &desired.resolved, &desired.host);
        }
        Ok(desired)
    }

    fn from_events(
        resolved: Resolved,
        this_host: ThisHost,
        events: Vec<Event>,
        mut names: Names,
        origin: String,
    ) -> Self {
        events.iter().for_each(|event| names.add_event(event));
        let services = services(&events);
        let mut tracker = track(&resolved, this_host.node.clone(), events);
        let node = &tracker.table(IpFamily::V4).node;
        let mut host = network::node_host(node, &resolved);
        let is_this_host = this_host.is_node(node);
        if is_this_host {
            host.addresses = this_host.addresses;
        }
        set_host(&mut tracker, &resolved, &host);
        Self { resolved, tracker, services, names, host, origin, is_this_host }
    }

    /// Starts logging and loads the configuration only, without any objects.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn without_services(args: &SettingsArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        let Settings { resolved, .. } = load_settings(args, KubeProxyConfiguration::default(), |resolved| {
            logging::start_for_command(verbosity, resolved.logging.format);
        })?;
        let this_host = ThisHost::read(&resolved)?;
        Ok(Self::from_events(resolved, this_host, Vec::new(), Names::default(), "no objects".to_owned()))
    }

    /// Returns the Services of an IP family with all their endpoints.
    pub fn table(&self, family: IpFamily) -> &ServiceTable {
        self.tracker.table(family)
    }

    /// Returns the node.
    pub fn node(&self) -> &NodeView {
        &self.table(IpFamily::V4).node
    }

    /// Returns the service port with this frontend.
    pub fn frontend(&self, address: SocketAddr, protocol: Protocol) -> Option<(&ServicePortName, FrontendKind)> {
        names::frontend(self.table(IpFamily::of(address.ip())), &self.host, address, protocol)
    }
}

/// Loads the settings, starts logging and logs the warnings about them.
fn load_settings(
    args: &SettingsArgs,
    fallback: KubeProxyConfiguration,
    start_logging: impl FnOnce(&Resolved),
) -> anyhow::Result<Settings> {
    let settings = settings::load_or(args, fallback, &REGISTRY.names())?;
    start_logging(&settings.resolved);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    Ok(settings)
}

/// Returns the tables that a proxy would apply on `node`, the state of the node until its Node is received.
pub fn track(resolved: &Resolved, node: NodeView, events: Vec<Event>) -> Tracker {
    let mut feed = Feed::new(resolved, resolved.effective_node(node));
    let mut tracker = Tracker::new(feed.node().clone());
    for change in feed.translate(events) {
        if let Change::Desired(event, _) = change {
            tracker.apply(event);
        }
    }
    for family in IpFamily::BOTH {
        tracker.update(family);
    }
    tracker
}

/// Applies the addresses of the host to both tables.
fn set_host(tracker: &mut Tracker, resolved: &Resolved, host: &Host) {
    for family in IpFamily::BOTH {
        tracker.set_host_addresses(family, &resolved.settings, &host.addresses);
        tracker.update(family);
    }
}

/// Returns the Services in a source's events.
fn services(events: &[Event]) -> BTreeMap<String, Service> {
    let mut services = BTreeMap::new();
    for event in events {
        match event {
            Event::ServiceApplied(service) => {
                let name = NamespacedName::from_metadata(&service.metadata).to_string();
                services.insert(name, (**service).clone());
            }
            Event::ServiceDeleted(name) => _ = services.remove(&name.to_string()),
            _ => {}
        }
    }
    services
}

/// Returns the event that a source emits for an object; `None` for kinds that sources do not read.
fn event(object: Object) -> Option<Event> {
    match object {
        Object::Service(service) => Some(Event::ServiceApplied(Box::new(service))),
        Object::EndpointSlice(slice) => Some(Event::SliceApplied(Box::new(slice))),
        Object::Node(node) => Some(Event::NodeApplied(Box::new(node))),
        Object::ServiceCidr(cidr) => Some(Event::ServiceCidrApplied(Box::new(cidr))),
        Object::Endpoints(_) | Object::Pod(_) | Object::Deployment(_) => None,
    }
}

#[cfg(test)]
mod tests;
