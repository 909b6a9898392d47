//! Manifests for `ferroute demo`, with Deployments and Pods in place of EndpointSlices.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::Context;
use ferroute_api::{Object, ObjectMeta, Pod, Service, manifest};
use ferroute_config::{KubeProxyConfiguration, Resolved, flags::SettingsArgs, settings};
use ferroute_core::parse::parse_endpoints;
use ferroute_demo::{
    layout::{NodeId, cluster_networks},
    plan::{ClusterPlan, Objects},
};
use ferroute_modes::REGISTRY;
use ferroute_source::{Event, Input, Resource};

use super::objects::{event, objects};
use crate::about::Proxy;

/// The workloads in manifests, which a proxy does not read.
#[derive(Default)]
pub(super) struct Workloads {
    /// Pods with addresses.
    pub(super) pods: Vec<Pod>,
    /// The contents of the files, if their objects are complete only in the demo's cluster.
    for_demo: Option<Vec<(PathBuf, String)>>,
}

/// Manifests for the demo.
pub(super) struct DemoManifests {
    pub(super) plan: ClusterPlan,
}

/// Reads the workloads. Unreadable files and invalid documents are ignored; the source of the other objects reports them.
pub(super) fn read(input: &Input) -> Workloads {
    let (mut pods, mut workloads, mut nodes) = (Vec::new(), false, false);
    let mut add = |(_, object)| match object {
        Object::Pod(pod) if pod.status.pod_ip.is_some() || !pod.status.pod_ips.is_empty() => pods.push(pod),
        Object::Pod(_) | Object::Deployment(_) => workloads = true,
        Object::Node(_) => nodes = true,
        Object::Service(_) | Object::EndpointSlice(_) | Object::Endpoints(_) | Object::ServiceCidr(_) => {}
    };
    for file in input.files() {
        let _ = input.for_each_document(file, &mut |document| {
            if may_be_workload(document.text) {
                objects(document).into_iter().for_each(&mut add);
            }
        });
    }
    // Nodes, and pods with addresses, are objects of an existing cluster.
    let may_be_for_demo = workloads && !nodes && pods.is_empty();
    let read = |file: &PathBuf| input.text(file).ok().map(|text| (file.clone(), text));
    let for_demo = may_be_for_demo.then(|| input.files().iter().filter_map(read).collect());
    Workloads { pods, for_demo: for_demo.filter(|texts: &Vec<_>| lacks_endpoints(texts)) }
}

/// Reports whether Services select pods whose addresses are unknown: in a cluster, controllers create the endpoints of such
/// Services, and the administrator writes only those of Services without a selector.
fn lacks_endpoints(texts: &[(PathBuf, String)]) -> bool {
    let is_elsewhere = |node: &Option<String>| node.as_deref().is_some_and(|name| NodeId::from_name(name).is_none());
    let (mut selects, mut by_hand, mut with_endpoints) = (false, BTreeSet::new(), BTreeSet::new());
    let documents = texts.iter().flat_map(|(_, text)| manifest::documents(text));
    for (_, object) in documents.flat_map(|document| objects(&document)) {
        let ObjectMeta { namespace, name, .. } = object.metadata().clone();
        match object {
            Object::Service(service) if service.spec.selector.is_empty() => _ = by_hand.insert((namespace, name)),
            Object::Service(service) => selects |= !is_external(&service),
            Object::EndpointSlice(slice) => {
                if slice.endpoints.iter().any(|endpoint| is_elsewhere(&endpoint.node_name)) {
                    return false;
                }
                // A slice without the label is of no Service.
                with_endpoints.insert((namespace, slice.service_name().unwrap_or_default().to_owned()));
            }
            Object::Endpoints(endpoints) => {
                let mut addresses = endpoints.subsets.iter().flat_map(|subset| &subset.addresses);
                if addresses.any(|address| is_elsewhere(&address.node_name)) {
                    return false;
                }
                with_endpoints.insert((namespace, name));
            }
            Object::Pod(pod) if is_elsewhere(&pod.spec.node_name) => return false,
            Object::Pod(_) | Object::Deployment(_) | Object::Node(_) | Object::ServiceCidr(_) => {}
        }
    }
    selects && with_endpoints.is_subset(&by_hand)
}

fn is_external(service: &Service) -> bool {
    service.spec.type_.as_deref() == Some("ExternalName")
}

impl Workloads {
    /// Reports whether the objects are complete only in the demo's cluster.
    pub(super) fn lack_endpoints(&self) -> bool {
        self.for_demo.is_some()
    }

    /// Returns the manifests for the demo, if the objects are complete only in the demo's cluster and nothing says which other
    /// node is meant: neither a proxy that runs on this node nor a name of the node.
    pub(super) fn demo(
        &self,
        path: &Path,
        proxy: &Proxy,
        args: &SettingsArgs,
    ) -> anyhow::Result<Option<DemoManifests>> {
        let Some(texts) = &self.for_demo else { return Ok(None) };
        let node = settings::load_or(args, KubeProxyConfiguration::default(), &REGISTRY.names())?.resolved.node_name;
        let is_other_node = node.as_deref().is_some_and(|name| NodeId::from_name(name).is_none());
        if is_other_node || !matches!(proxy, Proxy::None) {
            return Ok(None);
        }
        plan(texts).map(Some).with_context(|| format!("cannot plan the demo's cluster for {}", path.display()))
    }
}

/// Reports whether a document may be a workload or a Node. Most documents of a large cluster are Services and
/// EndpointSlices, and parsing takes a hundred times as long as searching for the kind.
pub(super) fn may_be_workload(document: &str) -> bool {
    let is_other = |line: &str| ["kind: Service", "kind: EndpointSlice"].contains(&line.trim_end());
    !document.lines().any(is_other)
}

fn plan(texts: &[(PathBuf, String)]) -> anyhow::Result<DemoManifests> {
    let mut all = Objects::default();
    for (file, text) in texts {
        let objects = Objects::parse(text).with_context(|| format!("invalid manifest {}", file.display()))?;
        let Objects { workloads, services, slices, endpoints, ignored } = objects;
        all.workloads.extend(workloads);
        all.services.extend(services);
        all.slices.extend(slices);
        all.endpoints.extend(endpoints);
        all.ignored.extend(ignored);
    }
    Ok(DemoManifests { plan: ClusterPlan::new(&all, None, true)? })
}

impl DemoManifests {
    /// Returns the configuration of the demo's proxies.
    pub(super) fn configuration(&self) -> KubeProxyConfiguration {
        KubeProxyConfiguration { cluster_cidr: cluster_networks(self.plan.ipv6).to_owned(), ..Default::default() }
    }

    /// Returns the configured node, by default the first one.
    pub(super) fn node(&self, resolved: &Resolved) -> NodeId {
        resolved.node_name.as_deref().and_then(NodeId::from_name).unwrap_or_default()
    }

    /// Returns the events of a source for this cluster, with every pod ready.
    pub(super) fn events(&self) -> Vec<Event> {
        let slices = self.plan.slices(|_| true);
        let service = |slice: &ferroute_api::EndpointSlice| {
            Some((slice.metadata.namespace.clone(), slice.service_name()?.to_owned()))
        };
        let with_slices: BTreeSet<_> = slices.iter().filter_map(service).collect();
        // The source has reported invalid ones.
        let mirrored = self.plan.own_endpoints.iter().filter_map(|endpoints| parse_endpoints(endpoints).ok());
        let mirrored = mirrored.flat_map(|mirrored| mirrored.slices);
        // As in a cluster, Endpoints of a Service with EndpointSlices are not mirrored.
        let mirrored = mirrored.filter(|slice| service(slice).is_none_or(|name| !with_slices.contains(&name)));
        let objects = self.plan.objects(|_| true).into_iter().chain(mirrored.map(Object::EndpointSlice));
        objects.filter_map(event).chain(Resource::ALL.map(Event::Synced)).collect()
    }
}
