//! What should be true on a node, loaded once: for the commands that explain and compare, and for `render`.
//!
//! ```text
//!   manifests ──────────────┐
//!   the demo's YAML ─ plan ─┼─► events ──► Feed ──► Tracker      what the proxy would bring into force
//!   an API server ──────────┘       └────────────► Names         who is behind an address
//! ```
//!
//! Nothing is followed and nothing is written. What is *not* here: what the kernel holds, and rules.

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
use ferroute_core::{FrontendKind, HostState, NfacctCounters, IpFamily, NodeView, Protocol, ServicePortName, ServiceTable, Tracker};

use ferroute_core::NamespacedName;
use ferroute_source::{Event, read_once};
use ferroute_trace::Host;

use self::demo::DemoManifests;
pub use self::{
    names::{Named, Names},
    network::of_demo as demo_host,
};
use ferroute_proxy::{feed::Feed, logging, modes::REGISTRY, node_name, sync::Change};

/// See the module's text.
pub struct Desired {
    /// How Services are treated.
    pub resolved: Resolved,
    /// What there is, with the tables of both families up to date.
    pub tracker: Tracker,
    /// The Services as they were told, also those that are not served, by `namespace/name`.
    pub services: BTreeMap<String, Service>,
    /// Who is behind an address.
    pub names: Names,
    /// The node's place among networks, as far as it can be told without looking at it.
    pub host: Host,
    /// Who has told all this, for people.
    pub origin: String,
    /// It is of the demo's cluster, which is on no real machine.
    pub is_demo: bool,
}

impl Desired {
    /// Starts logging and loads everything. `verbosity` goes before what the configuration says.
    ///
    /// The objects of a cluster as `kubectl get -o yaml` prints it are taken as they are. Deployments, and Pods with no
    /// address, are what the demo takes: they become what the demo makes of them, on the demo's nodes and with the
    /// demo's settings, unless there is a configuration file.
    pub fn load(args: &DesiredArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        Self::load_quietly(&args.source, &args.settings, |resolved| {
            logging::start_for_command(verbosity, resolved.logging.format);
        })
    }

    /// The same; `start_logging` is called once the configuration is known.
    fn load_quietly(
        source: &SourceArgs,
        args: &SettingsArgs,
        start_logging: impl FnOnce(&Resolved),
    ) -> anyhow::Result<Self> {
        let read = source.manifests.as_deref().map(demo::read).transpose()?;
        let demo = read.as_ref().and_then(|read| read.demo.as_ref());
        let fallback = demo.map(DemoManifests::configuration).unwrap_or_default();
        let Settings { config, resolved, .. } = load_settings(args, fallback, start_logging)?;
        let origin = match &source.manifests {
            Some(path) => path.display().to_string(),
            None => "what the API server tells".to_owned(),
        };
        let mut names = Names::default();
        if let Some(read) = &read {
            read.pods.iter().for_each(|pod| names.add_pod(pod));
        }
        if let Some(demo) = demo {
            let node = demo.node(&resolved)?;
            names.add_demo(&demo.plan);
            let events = demo.events();
            let services = services(&events);
            let tracker = track(&resolved, NodeView { name: node.name().to_owned(), ..NodeView::default() }, events);
            let host = network::of_demo(node, &resolved);
            return Ok(Self { resolved, tracker, services, names, host, origin, is_demo: true });
        }
        let events = match &source.manifests {
            Some(path) => read_once(path).with_context(|| format!("cannot read manifests at {}", path.display()))?,
            None => list::list(source, config.client_connection, &resolved)?,
        };
        events.iter().for_each(|event| names.add_event(event));
        let services = services(&events);
        let node = NodeView { name: node_name(&resolved)?, ..NodeView::default() };
        let tracker = track(&resolved, node, events);
        let host = network::of_node(&tracker.table(IpFamily::V4).node, &resolved);
        Ok(Self { resolved, tracker, services, names, host, origin, is_demo: false })
    }

    /// Starts logging, and knows the settings and the node's name alone.
    pub fn without_services(args: &SettingsArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        let Settings { resolved, .. } = load_settings(args, KubeProxyConfiguration::default(), |resolved| {
            logging::start_for_command(verbosity, resolved.logging.format);
        })?;
        let node = NodeView { name: node_name(&resolved)?, ..NodeView::default() };
        let tracker = track(&resolved, node, Vec::new());
        let host = network::of_node(&tracker.table(IpFamily::V4).node, &resolved);
        let (names, origin) = (Names::default(), "nothing".to_owned());
        Ok(Self { resolved, tracker, services: BTreeMap::new(), names, host, origin, is_demo: false })
    }

    /// The Services of a family, with all their endpoints.
    pub fn table(&self, family: IpFamily) -> &ServiceTable {
        self.tracker.table(family)
    }

    /// The node that the rules are for.
    pub fn node(&self) -> &NodeView {
        &self.table(IpFamily::V4).node
    }

    /// What iptables' rules depend on beside Services, taking the host to be able to do all that they may ask for.
    pub fn facts(&self, family: IpFamily) -> HostState {
        HostState { conntrack_tcp_be_liberal: self.resolved.conntrack.tcp_be_liberal, ..full_host(self.table(family)) }
    }

    /// Whose frontend this is, if it is one.
    pub fn frontend(&self, address: SocketAddr, protocol: Protocol) -> Option<(&ServicePortName, FrontendKind)> {
        names::frontend(self.table(IpFamily::of(address.ip())), &self.host, address, protocol)
    }
}

/// Reads the settings, starts logging, and warns of what is odd about them.
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

/// A host whose tools and kernel can do all that rules may ask for, with just the addresses of its Node.
pub fn full_host(table: &ServiceTable) -> HostState {
    HostState {
        addresses: table.node.addresses.clone(),
        random_fully: true,
        counters: NfacctCounters { invalid_dropped: true, localhost_accepted: true },
        conntrack_tcp_be_liberal: false,
    }
}

/// The tables that a proxy would bring into force on `node`, of which only the name is known before its Node.
pub fn track(resolved: &Resolved, node: NodeView, events: Vec<Event>) -> Tracker {
    let mut feed = Feed::new(resolved, resolved.effective_node(node));
    let mut tracker = Tracker::new(feed.node().clone());
    for change in feed.take(events) {
        if let Change::Desired(event, _) = change {
            tracker.apply(event);
        }
    }
    for family in IpFamily::BOTH {
        tracker.update(family);
    }
    tracker
}

/// The Services that a source has told of.
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

/// What a source would tell of an object; kinds that no source tells are passed over.
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
