//! Sources of the desired state: the running proxy, manifests, an API server, or the demo's plan.

use std::{
    io::BufReader,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, bail};
use ferroute_config::{
    KubeProxyConfiguration, Resolved,
    flags::{DesiredArgs, SettingsArgs, SourceArgs},
    settings::Settings,
};
use ferroute_core::{NamespacedName, NodeView};
use ferroute_modes::REGISTRY;
use ferroute_proxy::{
    ThisHost,
    control::{SourceInfo, request_bundle},
    recording::Bundle,
};
use ferroute_source::{Event, Input};

use super::{
    Desired,
    demo::{self, DemoManifests, Workloads, may_be_workload},
    list::{self, has_api_server},
    names::Names,
    network::demo_host,
    objects::{Need, ensure_readable, may_be_needed, rejected_services, services},
    set_host, settings, tracker_of,
};
use crate::{
    about::{About, Fact, Origin, Proxy, ProxyState},
    waiting::Waiting,
};

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
        let desired = Self::load_for_command(args, verbosity, Need::Objects)?;
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
        let desired = Self::load_for_command(args, verbosity, Need::Endpoints(service))?;
        desired.warn_of_source();
        Ok(desired)
    }

    /// Warns that the proxy of a recording does not apply all that its source has: commands describe what it applies.
    fn warn_of_source(&self) {
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
        Self::load_for_command(args, verbosity, Need::Host)
    }

    /// Like [`load`](Self::load), for programs that have already started logging and may load the state again.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub fn load_again(args: &DesiredArgs) -> anyhow::Result<Self> {
        Self::load_with(args, &mut Proxy::request, Need::Objects, |_| ())
    }

    fn load_for_command(args: &DesiredArgs, verbosity: Option<u32>, need: Need<'_>) -> anyhow::Result<Self> {
        Self::load_with(args, &mut Proxy::request, need, |resolved| {
            ferroute_logging::start_for_command(verbosity, resolved.logging.format);
        })
    }

    /// Loads the desired state. Calls `start_logging` as soon as the configuration is loaded, and `request` once.
    pub(super) fn load_with(
        args: &DesiredArgs,
        request: &mut dyn FnMut() -> Proxy,
        need: Need<'_>,
        start_logging: impl FnOnce(&Resolved),
    ) -> anyhow::Result<Self> {
        let DesiredArgs { source, settings: args } = args;
        let origin = source.manifests.as_ref().map(|path| format!("manifests at {}", path.display()));
        let waiting = Waiting::for_work(format!("reading {}", origin.as_deref().unwrap_or("objects")));
        let manifests = source.manifests.as_deref().map(|path| Manifests::read(path, need)).transpose()?;
        let proxy = request();
        if let Some(Manifests { path, input, workloads, .. }) = &manifests
            && let Some(demo) = workloads.demo(path, &proxy, args)?
        {
            return Self::load_demo(source, args, input, &demo, start_logging);
        }
        let info = proxy.info();
        let running_mode = info.map(|info| info.mode.clone());
        let (settings, mut about) = settings::load(args, &proxy, start_logging)?;
        let Settings { config, resolved, .. } = settings;
        let mut names = Names::default();
        if let Some(Manifests { workloads, .. }) = &manifests {
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
        let (mut events, objects) = match manifests {
            Some(Manifests { path, input, events, workloads }) => {
                let has_services = events.iter().any(|event| matches!(event, Event::ServiceApplied(_)));
                ensure_readable(&events, has_services)?;
                rejected = rejected_services(&events, &input);
                let has_nothing = || events.iter().all(|event| matches!(event, Event::Synced(_) | Event::Problem(_)));
                if !matches!(need, Need::Endpoints(_)) && workloads.pods.is_empty() && has_nothing() {
                    tracing::warn!("{} has no objects that a proxy reads, such as Services", path.display());
                }
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
        let view = NodeView { name: node.name().to_owned(), ..NodeView::default() };
        let mut tracker = tracker_of(&resolved, view, &events);
        let services = services(events);
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
}

/// Objects in manifests.
struct Manifests<'a> {
    path: &'a Path,
    input: Input,
    /// The events of a source, without documents that are not needed.
    events: Vec<Event>,
    workloads: Workloads,
}

impl<'a> Manifests<'a> {
    fn read(path: &'a Path, need: Need<'_>) -> anyhow::Result<Self> {
        let input = Input::new(path).with_context(|| format!("cannot read manifests at {}", path.display()))?;
        let wanted = match need {
            Need::Endpoints(service) => Some(service.name().to_owned()),
            Need::Objects | Need::Host => None,
        };
        let may_have_workloads = Arc::new(AtomicBool::new(false));
        let seen = may_have_workloads.clone();
        let events = input.events_where(move |text| {
            if may_be_workload(text) {
                seen.store(true, Ordering::Relaxed);
            }
            wanted.as_ref().is_none_or(|name| may_be_needed(text, name))
        });
        // Large files, which take a second to read again, have none.
        let has_workloads = may_have_workloads.load(Ordering::Relaxed);
        let workloads = if has_workloads { demo::read(&input) } else { Workloads::default() };
        Ok(Self { path, input, events, workloads })
    }
}

/// Reason why there are no objects, with a hint.
const NO_SOURCE: &str =
    "no Ferroute proxy runs here and no source of objects is given: use --manifests or --kubeconfig";
