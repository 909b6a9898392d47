//! The demo's YAML, which has Deployments and Pods where a cluster has endpoint slices.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, bail};
use ferroute_api::{
    Object, Pod,
    manifest::{self, Parsed},
    mirror,
};
use ferroute_config::{KubeProxyConfiguration, Resolved};
use ferroute_demo::{
    layout::{NodeId, cluster_networks},
    plan::{ClusterPlan, Objects},
};
use ferroute_source::{Event, Resource, manifest_files};

use super::event;

/// What manifests hold beside what a proxy reads.
#[derive(Default)]
pub(super) struct Read {
    /// Pods of a cluster, which have addresses.
    pub(super) pods: Vec<Pod>,
    /// The cluster that the demo would make, if the manifests are for the demo.
    pub(super) demo: Option<DemoManifests>,
}

/// A cluster of the demo's.
pub(super) struct DemoManifests {
    pub(super) plan: ClusterPlan,
}

/// Looks for pods. What cannot be read is passed over: whoever reads the rest of the manifests tells of it.
///
/// Workloads are for the demo if nothing says where they run: where there are Nodes or pods with addresses, somebody's
/// cluster has been written down.
pub(super) fn read(path: &Path) -> anyhow::Result<Read> {
    let Ok(files) = manifest_files(path) else { return Ok(Read::default()) };
    let texts: Vec<String> = files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    let (mut pods, mut workloads, mut nodes) = (Vec::new(), false, false);
    for found in texts.iter().flat_map(|text| manifest::read(text)) {
        let Ok(Parsed::Object(object)) = found else { continue };
        match *object {
            Object::Pod(pod) if pod.status.pod_ip.is_some() || !pod.status.pod_ips.is_empty() => pods.push(pod),
            Object::Pod(_) | Object::Deployment(_) => workloads = true,
            Object::Node(_) => nodes = true,
            Object::Service(_) | Object::EndpointSlice(_) | Object::Endpoints(_) | Object::ServiceCidr(_) => {}
        }
    }
    if !workloads || nodes || !pods.is_empty() {
        return Ok(Read { pods, demo: None });
    }
    let demo = plan(&texts).with_context(|| format!("cannot use the demo's manifests at {}", path.display()))?;
    Ok(Read { pods, demo: Some(demo) })
}

fn plan(texts: &[String]) -> anyhow::Result<DemoManifests> {
    let mut all = Objects::default();
    for text in texts {
        let Objects { workloads, services, slices, endpoints, ignored } = Objects::parse(text)?;
        all.workloads.extend(workloads);
        all.services.extend(services);
        all.slices.extend(slices);
        all.endpoints.extend(endpoints);
        all.ignored.extend(ignored);
    }
    Ok(DemoManifests { plan: ClusterPlan::new(&all, None, true)? })
}

impl DemoManifests {
    /// How the demo's proxies treat Services.
    pub(super) fn configuration(&self) -> KubeProxyConfiguration {
        KubeProxyConfiguration { cluster_cidr: cluster_networks(self.plan.ipv6).to_owned(), ..Default::default() }
    }

    /// The node that is meant: the first one, unless another is named.
    pub(super) fn node(&self, resolved: &Resolved) -> anyhow::Result<NodeId> {
        let Some(name) = &resolved.node_name else { return Ok(NodeId::default()) };
        let Some(node) = NodeId::from_name(name) else {
            let known = NodeId::ALL.map(NodeId::name).join(" and ");
            bail!(
                "there is no node {name}: manifests with Deployments or Pods are for the demo, whose nodes are {known}"
            );
        };
        Ok(node)
    }

    /// What a source would tell, with every pod ready.
    pub(super) fn events(&self) -> Vec<Event> {
        let own = self.plan.slices(|_| true);
        let service = |slice: &ferroute_api::EndpointSlice| {
            Some((slice.metadata.namespace.clone(), slice.service_name()?.to_owned()))
        };
        let with_slices: BTreeSet<_> = own.iter().filter_map(service).collect();
        let mirrored = self.plan.own_endpoints.iter().flat_map(mirror);
        // As in a cluster, who has slices gets no others made of Endpoints.
        let mirrored = mirrored.filter(|slice| service(slice).is_none_or(|name| !with_slices.contains(&name)));
        let objects = self.plan.objects(|_| true).into_iter().chain(mirrored.map(Object::EndpointSlice));
        objects.filter_map(event).chain(Resource::ALL.map(Event::Synced)).collect()
    }
}
