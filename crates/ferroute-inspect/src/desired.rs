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
mod names;
mod network;
mod objects;
mod settings;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io::BufReader,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context, bail};
use ferroute_admin::history::{Unapplied, UnappliedPort};
use ferroute_api::Service;
use ferroute_config::{
    KubeProxyConfiguration, ModeName, Resolved,
    flags::{DesiredArgs, SettingsArgs, SourceArgs},
    settings::Settings,
};
use ferroute_core::{
    FrontendKind, IpFamily, NamespacedName, NodeView, OtherHosts, Protocol, ServicePortName, ServiceTable, Tracker,
    error_chain,
    parse::{parse_node, parse_service},
    tracker::TrackerEvent,
};
use ferroute_host::KernelRoutes;
use ferroute_modes::REGISTRY;
use ferroute_proxy::{
    ThisHost,
    control::{SourceInfo, request_bundle},
    feed::Feed,
    recording::{Bundle, UnusedServices},
    sync::Change,
};
use ferroute_source::{Event, Input};
use ferroute_trace::Host;

use self::{
    demo::DemoManifests,
    objects::{Need, ensure_readable, may_be_needed, missing_node, rejected_services, services},
};
pub use self::{
    list::has_api_server,
    names::{AddressOwner, Names, machine_name, service_name},
    network::demo_host,
    objects::FilePlace,
};
use crate::{
    about::{About, Fact, Origin, Proxy, ProxyState},
    replay,
    waiting::Waiting,
};

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
    /// Starts logging and loads the desired state. `verbosity` overrides the configuration.
    ///
    /// The objects, the configuration, the mode and the node default to those of the proxy that runs in this network
    /// namespace. If none runs, they default to those of `ferroute run` without flags.
    ///
    /// Objects of a cluster, as printed by `kubectl get -o yaml`, are used as they are. Deployments, or Pods without addresses,
    /// beside Services whose endpoints are not given are planned as by `ferroute demo`: on the demo's nodes and, without a
    /// configuration file, with the demo's settings. This requires that no proxy runs here, that there is no Node, and that
    /// no node but the demo's is named.
    ///
    /// # Errors
    /// If the configuration or the objects cannot be read.
    pub fn load(args: &DesiredArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        let desired = Self::load_with(args, &mut Proxy::request, Need::Objects, |resolved| {
            ferroute_logging::start_for_command(verbosity, resolved.logging.format);
        })?;
        desired.warn_of_source();
        Ok(desired)
    }

    /// Like [`load`](Self::load), with the endpoints of one Service only. All Services are loaded, because they compete
    /// for addresses; most objects of a cluster are endpoints.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn load_for_service(
        args: &DesiredArgs,
        verbosity: Option<u32>,
        service: &NamespacedName,
    ) -> anyhow::Result<Self> {
        let desired = Self::load_with(args, &mut Proxy::request, Need::Endpoints(service), |resolved| {
            ferroute_logging::start_for_command(verbosity, resolved.logging.format);
        })?;
        desired.warn_of_source();
        Ok(desired)
    }

    /// Warns that the proxy of a recording does not apply all that its source has: commands describe what it applies.
    pub fn warn_of_source(&self) {
        for problem in &self.source_problems {
            tracing::warn!("the proxy has not applied its source completely: {problem}");
        }
    }

    /// Like [`load`](Self::load), for commands that examine the host: there are no objects if there is no source, or if
    /// no source was given and the API server cannot be read.
    ///
    /// # Errors
    /// If the configuration or the given objects cannot be read.
    pub fn load_for_host(args: &DesiredArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        Self::load_with(args, &mut Proxy::request, Need::Host, |resolved| {
            ferroute_logging::start_for_command(verbosity, resolved.logging.format);
        })
    }

    /// Like [`load`](Self::load), for programs that have already started logging and may load the state again.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn load_again(args: &DesiredArgs) -> anyhow::Result<Self> {
        Self::load_with(args, &mut Proxy::request, Need::Objects, |_| ())
    }

    /// Loads the desired state. Calls `start_logging` as soon as the configuration is loaded, and `request` once.
    fn load_with(
        args: &DesiredArgs,
        request: &mut dyn FnMut() -> Proxy,
        need: Need<'_>,
        start_logging: impl FnOnce(&Resolved),
    ) -> anyhow::Result<Self> {
        let DesiredArgs { source, settings: args } = args;
        let origin = source.manifests.as_ref().map(|path| format!("manifests at {}", path.display()));
        let waiting = Waiting::for_work(format!("reading {}", origin.as_deref().unwrap_or("objects")));
        let manifests = source.manifests.as_deref().map(|path| {
            let input = Input::new(path).with_context(|| format!("cannot read manifests at {}", path.display()))?;
            let workloads = demo::read(&input);
            anyhow::Ok((path, input, workloads))
        });
        let manifests = manifests.transpose()?;
        let proxy = request();
        if let Some((path, input, workloads)) = &manifests
            && let Some(demo) = workloads.demo(path, &proxy, args)?
        {
            return Self::load_demo(source, args, input, &demo, start_logging);
        }
        let info = proxy.info();
        let running_mode = info.map(|info| info.mode.clone());
        let (settings, mut about) = settings::load(args, &proxy, start_logging)?;
        let Settings { config, resolved, .. } = settings;
        let mut names = Names::default();
        if let Some((_, _, workloads)) = &manifests {
            workloads.pods.iter().for_each(|pod| names.add_pod(pod));
        }
        if let (true, Some(info)) = (source.is_empty(), info) {
            let source = match &info.source {
                SourceInfo::Manifests(path) => SourceArgs { manifests: Some(path.clone()), ..SourceArgs::default() },
                SourceInfo::ApiServer(master) => {
                    SourceArgs { master: (!master.is_empty()).then(|| master.clone()), ..SourceArgs::default() }
                }
            };
            let bundle = request_bundle().map_err(anyhow::Error::from);
            let bundle = bundle.and_then(|bundle| Ok(Bundle::read(BufReader::new(bundle))?));
            let mut bundle = bundle.context("cannot read the objects of the running proxy")?;
            bundle.base.endpoint_slices.retain(|slice| need.includes(slice));
            let node = &bundle.base.node.metadata.name;
            if about.node.value != *node {
                bail!(
                    "no Node {} in the running proxy, which has that of its own node {node} only: use --kubeconfig or \
                     --manifests",
                    about.node.value
                );
            }
            about.objects = Some(Fact::new("the running proxy", Origin::Proxy));
            let desired = Self::from_recording(config, resolved, &bundle, about, source, true)?;
            return Ok(Self { running_mode, ..desired });
        }
        let has_api_server = has_api_server(source, &config);
        let mut rejected = Vec::new();
        let (mut events, objects) = match &manifests {
            Some((path, input, workloads)) => {
                let wanted = match need {
                    Need::Endpoints(service) => Some(service.name().to_owned()),
                    Need::Objects | Need::Host => None,
                };
                let is_relevant = move |text: &str| wanted.as_ref().is_none_or(|name| may_be_needed(text, name));
                let events = input.events_where(is_relevant);
                let has_services = events.iter().any(|event| matches!(event, Event::ServiceApplied(_)));
                ensure_readable(&events, has_services)?;
                rejected = rejected_services(&events, input);
                if workloads.lack_endpoints() {
                    tracing::warn!(
                        "no endpoints of the Services in {} are given; those of Deployments and Pods are assumed only on the \
                         demo's nodes, and where no proxy runs",
                        path.display()
                    );
                }
                (events, Some(Fact::new(path.display().to_string(), Origin::Given)))
            }
            None if !has_api_server && need == Need::Host => {
                tracing::info!("examining the host only: use --manifests or --kubeconfig to include Services");
                (Vec::new(), None)
            }
            None => {
                // It reports progress itself.
                drop(waiting);
                match list::list(source, config.client_connection.clone(), &resolved) {
                    Ok(events) => (events, Some(Fact::new("the API server", Origin::Given))),
                    Err(error) if need == Need::Host => {
                        tracing::warn!("examining the host only: {error:#}");
                        (Vec::new(), None)
                    }
                    Err(error) if !has_api_server => return Err(error.context(NO_SOURCE)),
                    Err(error) => return Err(error),
                }
            }
        };
        events.retain(|event| !matches!(event, Event::SliceApplied(slice) if !need.includes(slice)));
        about.objects = objects;
        let this_host = ThisHost::read(&resolved)?;
        let mut desired = Self::from_events(config, resolved, this_host, events, names, about, source.clone());
        desired.is_this_host |= info.is_some() && desired.about.node.from == Origin::Proxy;
        desired.running_mode = running_mode;
        rejected.into_iter().for_each(|(service, place)| desired.add_invalid(service, place));
        if let Some(reason) = &desired.missing_node {
            tracing::warn!("{reason}");
        }
        Ok(desired)
    }

    /// Returns the state that results from these objects, with the settings of the running proxy as defaults. Does not
    /// log.
    ///
    /// # Errors
    /// If the configuration or the host cannot be read.
    pub(crate) fn from_given(args: &SettingsArgs, events: Vec<Event>, objects: String) -> anyhow::Result<Self> {
        let (Settings { config, resolved, .. }, mut about) = settings::load(args, &Proxy::request(), |_| ())?;
        about.objects = Some(Fact::new(objects, Origin::Given));
        let (names, source) = (Names::default(), SourceArgs::default());
        let this_host = ThisHost::read(&resolved)?;
        Ok(Self::from_events(config, resolved, this_host, events, names, about, source))
    }

    /// Returns the state of a node of which only the name is known, and starts logging. Does not read the state of this
    /// host.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub(crate) fn without_objects(args: &SettingsArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        let settings = ferroute_config::settings::load_or(args, KubeProxyConfiguration::default(), &REGISTRY.names())?;
        settings::start(&settings, |resolved| {
            ferroute_logging::start_for_command(verbosity, resolved.logging.format);
        });
        let Settings { config, resolved, .. } = settings;
        let given = |is_given| if is_given { Origin::Given } else { Origin::Assumed };
        let name = resolved.node_name.clone().unwrap_or_else(|| "node".to_owned());
        let about = About {
            proxy: ProxyState::Unrelated,
            reason: None,
            node: Fact::new(name.clone(), given(resolved.node_name.is_some())),
            mode: None,
            configuration: None,
            objects: None,
        };
        let node = NodeView { name, ..NodeView::default() };
        let this_host = ThisHost { node, addresses: Vec::new() };
        let (names, source) = (Names::default(), SourceArgs::default());
        Ok(Self::from_events(config, resolved, this_host, Vec::new(), names, about, source))
    }

    /// Loads the state of a node of the demo.
    fn load_demo(
        source: &SourceArgs,
        args: &SettingsArgs,
        input: &Input,
        demo: &DemoManifests,
        start_logging: impl FnOnce(&Resolved),
    ) -> anyhow::Result<Self> {
        let settings = ferroute_config::settings::load_or(args, demo.configuration(), &REGISTRY.names())?;
        settings::start(&settings, start_logging);
        let Settings { config, resolved, .. } = settings;
        // The demo assigns addresses that Services lack.
        ensure_readable(&input.events(), true)?;
        let node = demo.node(&resolved);
        let mut names = Names::default();
        names.add_demo(&demo.plan);
        let events = demo.events();
        let services = services(&events);
        let mut tracker = track(&resolved, NodeView { name: node.name().to_owned(), ..NodeView::default() }, events);
        let host = demo_host(node, &resolved);
        set_host(&mut tracker, &resolved, &host);
        let origin = source.manifests.as_deref().unwrap_or(Path::new("")).display().to_string();
        let given = |is_given| if is_given { Origin::Given } else { Origin::Assumed };
        let about = About {
            proxy: ProxyState::Unrelated,
            reason: None,
            node: Fact::new(node.name(), given(resolved.node_name.is_some())),
            mode: Some(Fact::new(REGISTRY.active(resolved.mode).name().as_str(), given(!config.mode.is_empty()))),
            configuration: Some(
                settings::configuration(args).unwrap_or(Fact::new("the demo's configuration", Origin::Assumed)),
            ),
            objects: Some(Fact::new(format!("{origin} in the demo's cluster"), Origin::Assumed)),
        };
        let desired = Self::new(config, resolved, tracker, services, names, host, about);
        Ok(Self { source: source.clone(), origin, ..desired })
    }

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
    fn from_recording(
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
        let events = bundle::events(bundle)?;
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
        bundle::observed(bundle).into_iter().for_each(|event| self.tracker.apply(event));
        set_host(&mut self.tracker, &self.resolved, &self.host);
    }

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
        let services = services(&events);
        let other_nodes = addresses_of_other_nodes(&events, &this_host.node.name);
        let mut tracker = track(&resolved, this_host.node.clone(), events);
        let node = &tracker.table(IpFamily::V4).node;
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
pub fn track(resolved: &Resolved, node: NodeView, events: Vec<Event>) -> Tracker {
    let traits = REGISTRY.active(resolved.mode).traits();
    let mut feed = Feed::new(resolved, traits, resolved.effective_node(node));
    let mut tracker = feed.tracker();
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

/// Applies the addresses of the host to both tables.
fn set_host(tracker: &mut Tracker, resolved: &Resolved, host: &Host) {
    for family in IpFamily::BOTH {
        tracker.set_host_addresses(family, &resolved.settings, &host.addresses);
        tracker.update(family);
    }
}

/// Reason why there are no objects, with a hint.
const NO_SOURCE: &str =
    "no Ferroute proxy runs here and no source of objects is given: use --manifests or --kubeconfig";

#[cfg(test)]
mod tests;
