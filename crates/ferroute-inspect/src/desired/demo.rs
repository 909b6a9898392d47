//! Manifests for `ferroute demo`, with Deployments and Pods in place of EndpointSlices.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use ferroute_api::{
    Object, Pod,
    manifest::{self, Document, Parsed},
    mirror,
};
use ferroute_config::{KubeProxyConfiguration, Resolved};
use ferroute_demo::{
    layout::{NodeId, cluster_networks},
    plan::{ClusterPlan, Objects},
};
use ferroute_source::{Event, Input, Resource};

use super::objects::event;

/// The workloads in manifests, which a proxy does not read.
#[derive(Default)]
pub(super) struct Workloads {
    /// Pods with addresses.
    pub(super) pods: Vec<Pod>,
    /// The cluster that the demo would create, if the manifests are for the demo.
    pub(super) demo: Option<DemoManifests>,
}

/// Manifests for the demo.
pub(super) struct DemoManifests {
    pub(super) plan: ClusterPlan,
}

/// Reads the workloads. Unreadable files and invalid documents are ignored; the source of the other objects reports them.
///
/// Workloads are for the demo unless there are Nodes or pods with addresses, which are the objects of an existing cluster.
pub(super) fn read(path: &Path, input: &Input) -> anyhow::Result<Workloads> {
    let read = |file: &PathBuf| input.text(file).ok().map(|text| (file.clone(), text));
    let texts: Vec<(PathBuf, String)> = input.files().iter().filter_map(read).collect();
    let (mut pods, mut workloads, mut nodes) = (Vec::new(), false, false);
    let documents =
        texts.iter().flat_map(|(_, text)| manifest::documents(text)).filter(|document| may_be_workload(document));
    for parsed in documents.flat_map(|document| document.read()) {
        let Ok(Parsed::Object(object)) = parsed else { continue };
        match *object {
            Object::Pod(pod) if pod.status.pod_ip.is_some() || !pod.status.pod_ips.is_empty() => pods.push(pod),
            Object::Pod(_) | Object::Deployment(_) => workloads = true,
            Object::Node(_) => nodes = true,
            Object::Service(_) | Object::EndpointSlice(_) | Object::Endpoints(_) | Object::ServiceCidr(_) => {}
        }
    }
    if !workloads || nodes || !pods.is_empty() {
        return Ok(Workloads { pods, demo: None });
    }
    let demo = plan(&texts).with_context(|| format!("cannot plan the demo's cluster for {}", path.display()))?;
    Ok(Workloads { pods, demo: Some(demo) })
}

/// Reports whether a document may be a workload or a Node. Most documents of a large cluster are Services and
/// EndpointSlices, and parsing takes a hundred times as long as searching for the kind.
fn may_be_workload(document: &Document<'_>) -> bool {
    let is_other = |line: &str| ["kind: Service", "kind: EndpointSlice"].contains(&line.trim_end());
    !document.text.lines().any(is_other)
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
    pub(super) fn node(&self, resolved: &Resolved) -> anyhow::Result<NodeId> {
        let Some(name) = &resolved.node_name else { return Ok(NodeId::default()) };
        let Some(node) = NodeId::from_name(name) else {
            let nodes = NodeId::ALL.map(NodeId::name).join(" and ");
            bail!(
                "node {name} not found: manifests with Deployments or Pods are for the demo, whose nodes are {nodes}"
            );
        };
        Ok(node)
    }

    /// Returns the events of a source for this cluster, with every pod ready.
    pub(super) fn events(&self) -> Vec<Event> {
        let slices = self.plan.slices(|_| true);
        let service = |slice: &ferroute_api::EndpointSlice| {
            Some((slice.metadata.namespace.clone(), slice.service_name()?.to_owned()))
        };
        let with_slices: BTreeSet<_> = slices.iter().filter_map(service).collect();
        let mirrored = self.plan.own_endpoints.iter().flat_map(mirror);
        // As in a cluster, Endpoints of a Service with EndpointSlices are not mirrored.
        let mirrored = mirrored.filter(|slice| service(slice).is_none_or(|name| !with_slices.contains(&name)));
        let objects = self.plan.objects(|_| true).into_iter().chain(mirrored.map(Object::EndpointSlice));
        objects.filter_map(event).chain(Resource::ALL.map(Event::Synced)).collect()
    }
}
