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
//! Not here: watching for changes, rules, the kernel.

mod bundle;
mod complete;
mod demo;
mod list;
mod names;
mod network;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::BufReader,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context, bail};
use ferroute_api::{
    EndpointSlice, Object, Service,
    manifest::{Cause, DocumentError},
};
use ferroute_config::{
    KubeProxyConfiguration, Resolved,
    flags::{DesiredArgs, SettingsArgs, SourceArgs},
    settings::{self, Settings},
};
use ferroute_core::{
    FrontendKind, IpFamily, NamespacedName, NodeView, OtherHosts, Protocol, ServicePortName, ServiceTable, Tracker,
    error_chain,
    tracker::{TrackerEvent, is_api_server},
};
use ferroute_host::KernelRoutes;
use ferroute_modes::REGISTRY;
use ferroute_proxy::{
    ThisHost,
    control::{SourceInfo, request_bundle},
    feed::Feed,
    node_name,
    recording::Bundle,
    sync::Change,
};
use ferroute_source::{Event, Problem, read_once, read_once_where};
use ferroute_trace::Host;

use self::demo::{DemoManifests, Workloads};
pub use self::{
    list::has_api_server,
    names::{AddressOwner, Names, machine_name, service_name},
    network::demo_host,
};
use crate::{
    about::{About, Fact, Origin, Proxy, ProxyState},
    plural, replay,
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
    /// All Services by `namespace/name`, including those that the proxy skips.
    pub services: BTreeMap<String, Service>,
    /// The owners of addresses.
    pub names: Names,
    /// The node's addresses and routes: the addresses of this host's interfaces if the node is this host, and otherwise, as
    /// the routes, those that follow from the objects.
    pub host: Host,
    /// Whose state it is.
    pub about: About,
    /// The mode of the running proxy, which may be another one than that of the state.
    pub running_mode: Option<String>,
    /// The source of the objects, for messages.
    pub origin: String,
    /// The source of the objects, for more requests: the given one, or that of the running proxy.
    pub source: SourceArgs,
    /// Whether there is a source of objects.
    pub has_objects: bool,
    /// Why the objects do not describe the node, if they have other Nodes only.
    pub missing_node: Option<String>,
    /// Whether the node is this host.
    pub is_this_host: bool,
}

/// What the state is needed for, which decides what happens if there is no source of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need<'a> {
    /// The absence of objects is an error.
    Objects,
    /// The same, but only the endpoints of this Service are needed.
    Endpoints(&'a NamespacedName),
    /// Without objects, the host alone is examined.
    Host,
}

impl Need<'_> {
    /// Reports whether the state includes the endpoints of a slice: those of the API server are reserved, whichever Service is
    /// examined.
    fn includes(self, slice: &EndpointSlice) -> bool {
        let Self::Endpoints(wanted) = self else { return true };
        let namespace = NamespacedName::from_metadata(&slice.metadata);
        let service = slice.service_name().map(|name| NamespacedName::new(namespace.namespace(), name));
        service.is_some_and(|service| service == *wanted || is_api_server(&service))
    }
}

impl Desired {
    /// Starts logging and loads the desired state. `verbosity` overrides the configuration.
    ///
    /// Whatever is not given is that of the proxy that runs in this network namespace: the objects, the configuration, the
    /// mode and the node. Without a proxy, they are those of `ferroute run` without flags.
    ///
    /// Objects of a cluster, as printed by `kubectl get -o yaml`, are used as they are. Manifests with Deployments, or with
    /// Pods without addresses, are planned as by `ferroute demo`: on the demo's nodes and, without a configuration file, with
    /// the demo's settings.
    ///
    /// # Errors
    /// If the configuration or the objects cannot be read.
    pub fn load(args: &DesiredArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        Self::load_with(args, &mut Proxy::request, Need::Objects, |resolved| {
            ferroute_logging::start_for_command(verbosity, resolved.logging.format);
        })
    }

    /// Like [`load`](Self::load), with the endpoints of one Service only. All Services compete for addresses, but most of a
    /// cluster's objects are endpoints.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn load_for_service(
        args: &DesiredArgs,
        verbosity: Option<u32>,
        service: &NamespacedName,
    ) -> anyhow::Result<Self> {
        Self::load_with(args, &mut Proxy::request, Need::Endpoints(service), |resolved| {
            ferroute_logging::start_for_command(verbosity, resolved.logging.format);
        })
    }

    /// Like [`load`](Self::load), for commands that examine the host: without a source of objects, or if no source was given
    /// and the API server cannot be read, there are none.
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

    /// Loads the desired state; `start_logging` is called as soon as the configuration is loaded, and `request` once unless the
    /// objects are those of a demo.
    fn load_with(
        args: &DesiredArgs,
        request: &mut dyn FnMut() -> Proxy,
        need: Need<'_>,
        start_logging: impl FnOnce(&Resolved),
    ) -> anyhow::Result<Self> {
        let DesiredArgs { source, settings: args } = args;
        let origin = source.manifests.as_ref().map(|path| format!("manifests at {}", path.display()));
        let _waiting = Waiting::for_work(format!("reading {}", origin.as_deref().unwrap_or("objects")));
        let workloads = source.manifests.as_deref().map(demo::read).transpose()?;
        if let Some(Workloads { demo: Some(demo), .. }) = &workloads {
            return Self::load_demo(source, args, demo, start_logging);
        }
        let proxy = request();
        let info = proxy.info();
        let running_mode = info.map(|info| info.mode.clone());
        let (settings, mut about) = load_settings(args, &proxy, start_logging)?;
        let Settings { config, resolved, .. } = settings;
        let mut names = Names::default();
        if let Some(workloads) = &workloads {
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
        let (mut events, objects) = match &source.manifests {
            Some(path) => {
                let wanted = match need {
                    Need::Endpoints(service) => Some(service.name().to_owned()),
                    Need::Objects | Need::Host => None,
                };
                let is_relevant = move |text: &str| wanted.as_ref().is_none_or(|name| may_be_needed(text, name));
                let events = read_once_where(path, is_relevant)
                    .with_context(|| format!("cannot read manifests at {}", path.display()))?;
                let has_services = events.iter().any(|event| matches!(event, Event::ServiceApplied(_)));
                ensure_readable(&events, has_services)?;
                (events, Some(Fact::new(path.display().to_string(), Origin::Given)))
            }
            None if !has_api_server && need == Need::Host => {
                tracing::info!("examining the host only: use --manifests or --kubeconfig to include Services");
                (Vec::new(), None)
            }
            None => match list::list(source, config.client_connection.clone(), &resolved) {
                Ok(events) => (events, Some(Fact::new("the API server", Origin::Given))),
                Err(error) if need == Need::Host => {
                    tracing::warn!("examining the host only: {error:#}");
                    (Vec::new(), None)
                }
                Err(error) if !has_api_server => return Err(error.context(NO_SOURCE)),
                Err(error) => return Err(error),
            },
        };
        events.retain(|event| !matches!(event, Event::SliceApplied(slice) if !need.includes(slice)));
        about.objects = objects;
        let this_host = ThisHost::read(&resolved)?;
        let mut desired = Self::from_events(config, resolved, this_host, events, names, about, source.clone());
        desired.is_this_host |= info.is_some() && desired.about.node.from == Origin::Proxy;
        desired.running_mode = running_mode;
        if let Some(reason) = &desired.missing_node {
            tracing::warn!("{reason}");
        }
        Ok(desired)
    }

    /// Returns the state that these objects lead to, with the settings of the running proxy where none are given. Does not log.
    ///
    /// # Errors
    /// If the configuration or the host cannot be read.
    pub(crate) fn from_given(args: &SettingsArgs, events: Vec<Event>, objects: String) -> anyhow::Result<Self> {
        let (Settings { config, resolved, .. }, mut about) = load_settings(args, &Proxy::request(), |_| ())?;
        about.objects = Some(Fact::new(objects, Origin::Given));
        let (names, source) = (Names::default(), SourceArgs::default());
        let this_host = ThisHost::read(&resolved)?;
        Ok(Self::from_events(config, resolved, this_host, events, names, about, source))
    }

    /// Returns the state of a node of which nothing is known but its name, and starts logging. Reads nothing of this host.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub(crate) fn without_objects(args: &SettingsArgs, verbosity: Option<u32>) -> anyhow::Result<Self> {
        let settings = settings::load_or(args, KubeProxyConfiguration::default(), &REGISTRY.names())?;
        start(&settings, |resolved| {
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
        demo: &DemoManifests,
        start_logging: impl FnOnce(&Resolved),
    ) -> anyhow::Result<Self> {
        let settings = settings::load_or(args, demo.configuration(), &REGISTRY.names())?;
        start(&settings, start_logging);
        let Settings { config, resolved, .. } = settings;
        if let Some(path) = &source.manifests {
            let events = read_once(path).with_context(|| format!("cannot read manifests at {}", path.display()))?;
            // The demo assigns addresses that Services lack.
            ensure_readable(&events, true)?;
        }
        let node = demo.node(&resolved)?;
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
            configuration: Some(configuration(args).unwrap_or(Fact::new("the demo's configuration", Origin::Assumed))),
            objects: Some(Fact::new(origin, Origin::Given)),
        };
        let desired = Self::new(config, resolved, tracker, services, names, host, about);
        Ok(Self { source: source.clone(), ..desired })
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
        // The bundle has the Node, even if the cluster has none.
        let node = NodeView { name: bundle.base.node.metadata.name.clone(), ..NodeView::default() };
        let this_host = ThisHost { node, ..ThisHost::read(&resolved)? };
        let events = bundle::events(bundle)?;
        let mut desired = Self::from_events(config, resolved, this_host, events, Names::default(), about, source);
        desired.is_this_host |= is_this_host;
        bundle::observed(bundle).into_iter().for_each(|event| desired.tracker.apply(event));
        let OtherHosts { api_server, addresses } = bundle.other_hosts.clone();
        // The bundle may be of another mode.
        let planned = &desired.tracker.other_hosts().addresses;
        let addresses = planned.as_ref().map(|planned| addresses.unwrap_or_else(|| planned.clone()));
        desired.tracker.apply(TrackerEvent::OtherHostsApplied(OtherHosts { api_server, addresses }));
        if !bundle.host_addresses.is_empty() {
            desired.host.addresses.clone_from(&bundle.host_addresses);
        }
        set_host(&mut desired.tracker, &desired.resolved, &desired.host);
        Ok(desired)
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
        let mut tracker = track(&resolved, this_host.node.clone(), events);
        let node = &tracker.table(IpFamily::V4).node;
        let mut host = network::node_host(node, &resolved);
        let is_this_host = this_host.is_node(node);
        if is_this_host {
            host.addresses = this_host.addresses;
            add_next_hops(&mut tracker);
        }
        set_host(&mut tracker, &resolved, &host);
        let desired = Self::new(config, resolved, tracker, services, names, host, about);
        Self { source, missing_node, is_this_host, ..desired }
    }

    /// Returns the state of a node that is not known to be this host, without a source for more requests.
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
            names,
            host,
            running_mode: None,
            origin: about.objects.as_ref().map_or("no objects", |fact| &fact.value).to_owned(),
            has_objects: about.objects.is_some(),
            about,
            source: SourceArgs::default(),
            missing_node: None,
            is_this_host: false,
        }
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

    /// Reports whether the proxy adds an address of Services to the host.
    pub(crate) fn binds(&self, address: IpAddr) -> bool {
        let mut ports = self.table(IpFamily::of(address)).entries.iter();
        REGISTRY.active(self.resolved.mode).traits().binds_service_addresses
            && ports.any(|(name, entry)| {
                entry.service.frontends(name.protocol).any(|(_, frontend)| frontend.address == Some(address))
            })
    }
}

/// Reports whether a document may be anything but an EndpointSlice of other Services than this one and the API server's, as most
/// documents of a large cluster are.
fn may_be_needed(document: &str, service: &str) -> bool {
    let mut owners = document.split("kubernetes.io/service-name: ").skip(1);
    let (Some(owner), None) = (owners.next(), owners.next()) else { return true };
    let owner = owner.split_ascii_whitespace().next().unwrap_or_default();
    let is_plain = owner.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.');
    let is_slice = || document.lines().any(|line| line.trim_end() == "kind: EndpointSlice");
    owner == service || owner == API_SERVER || !is_plain || !is_slice()
}

/// Loads the settings, those of the running proxy where none are given, and starts logging.
fn load_settings(
    args: &SettingsArgs,
    proxy: &Proxy,
    start_logging: impl FnOnce(&Resolved),
) -> anyhow::Result<(Settings, About)> {
    let (state, reason) = proxy.state();
    let fallback = match proxy.info() {
        Some(info) => {
            let decoded = KubeProxyConfiguration::from_text(&info.configuration)
                .context("cannot read the configuration of the running proxy")?;
            // The active mode may differ from the configured one, and the host name is another one in a container.
            KubeProxyConfiguration { mode: info.mode.clone(), hostname_override: info.node.clone(), ..decoded.config }
        }
        None => KubeProxyConfiguration::default(),
    };
    let in_proxy = |value: &str, of_proxy: &str| match (value.is_empty(), proxy.info()) {
        (false, Some(_)) if value == of_proxy => Origin::Proxy,
        (false, _) => Origin::Given,
        (true, _) => Origin::Assumed,
    };
    let mut settings = settings::load_or(args, fallback.clone(), &REGISTRY.names())?;
    start(&settings, start_logging);
    if let Some(info) = proxy.info() {
        settings.resolved.set_flags(info.flags.clone());
    }
    let resolved = &settings.resolved;
    let of_proxy = || Fact::new("the running proxy", Origin::Proxy);
    let assumed = || Fact::new("default configuration", Origin::Assumed);
    let about = About {
        proxy: state,
        reason,
        node: Fact::new(
            node_name(resolved)?,
            in_proxy(&settings.config.hostname_override, &fallback.hostname_override),
        ),
        mode: Some(Fact::new(
            REGISTRY.active(resolved.mode).name().as_str(),
            in_proxy(&settings.config.mode, &fallback.mode),
        )),
        configuration: Some(configuration(args).or(proxy.info().map(|_| of_proxy())).unwrap_or_else(assumed)),
        objects: None,
    };
    Ok((settings, about))
}

/// Returns an error if something in the given files could not be read, because any answer would be about other objects than those
/// in the files. Objects that a proxy does not use are no error, and neither are single invalid ones, as in the proxy, if
/// `permits_invalid`.
fn ensure_readable(events: &[Event], permits_invalid: bool) -> anyhow::Result<()> {
    let is_error = |problem: &Problem| match problem {
        Problem::Ignored { .. } | Problem::Duplicate { .. } => false,
        Problem::Document { error: DocumentError { cause: Cause::Value(_), .. }, .. } => !permits_invalid,
        _ => true,
    };
    let problems = events.iter().filter_map(|event| match event {
        Event::Problem(problem) if is_error(problem) => Some(problem.text()),
        _ => None,
    });
    let problems: Vec<String> = problems.collect();
    match problems.as_slice() {
        [] => Ok(()),
        [problem] => bail!("{problem}"),
        [problem, more @ ..] => bail!("{problem} (and {}; see `ferroute check`)", plural(more.len(), "more problem")),
    }
}

/// Returns why the objects do not describe a node, if they have other Nodes only.
fn missing_node(node: &str, events: &[Event], about: &About) -> Option<String> {
    let names = events.iter().filter_map(|event| match event {
        Event::NodeApplied(node) => Some(node.metadata.name.as_str()),
        _ => None,
    });
    let names: BTreeSet<&str> = names.collect();
    let first = names.first().filter(|_| !names.contains(node))?;
    let listed: Vec<&str> = names.iter().copied().take(MAX_NODES).collect();
    let more = if names.len() > MAX_NODES { ", ..." } else { "" };
    let source = about.objects.as_ref().map_or("the objects", |fact| &fact.value);
    Some(format!("no Node {node} in {source}; it has {}{more}: use --hostname-override {first}", listed.join(", ")))
}

/// Returns the configuration that is given on the command line.
fn configuration(args: &SettingsArgs) -> Option<Fact> {
    args.config.as_ref().map(|path| Fact::new(path.display().to_string(), Origin::Given))
}

/// Starts logging, and logs the warnings about the settings.
fn start(settings: &Settings, start_logging: impl FnOnce(&Resolved)) {
    start_logging(&settings.resolved);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
}

/// Returns the tables that a proxy would apply on `node`, the state of the node until its Node is received.
pub fn track(resolved: &Resolved, node: NodeView, events: Vec<Event>) -> Tracker {
    let mut feed = Feed::new(resolved, resolved.effective_node(node));
    if REGISTRY.active(resolved.mode).traits().binds_service_addresses {
        feed = feed.with_addresses_bound();
    }
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

/// Adds the next hops of this host's routes to the hosts whose addresses Services may not take over, in modes in which this
/// matters.
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

/// The name of the Service of the API server.
const API_SERVER: &str = "kubernetes";

/// The maximum number of Nodes in a hint.
const MAX_NODES: usize = 5;

/// Why there are no objects, with what to do about it.
const NO_SOURCE: &str = "no proxy runs here and no source of objects is given: use --manifests or --kubeconfig";

#[cfg(test)]
mod tests;
