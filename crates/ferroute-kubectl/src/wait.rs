//! `kubectl ferroute wait`: waits until all nodes have applied a version of a Service.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use ferroute_api::{EndpointSlice, Service, labels};
use ferroute_core::{NamespacedName, parse::ObjectVersion};
use ferroute_proxy::ServiceVersions;
use serde::Serialize;

use crate::{
    Fleet, NodeProxy, Selection,
    answer::{answered, decode},
    proxies::{encode, slices_of},
};

/// The outcome of a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waited {
    /// The Service.
    pub service: String,
    /// The nodes that have applied the Service and its slices.
    pub applied: Vec<String>,
    /// The other nodes, with the reasons.
    pub missing: BTreeMap<String, String>,
}

/// The versions in the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Versions {
    service: Option<u64>,
    slices: BTreeMap<String, Option<u64>>,
}

/// Waits until all selected nodes have applied the Service and its slices as they are in the API server, or until `deadline`.
///
/// A node is queried until it has applied them, and not afterwards: later changes do not matter. Nodes that appear in
/// the meantime count as well.
///
/// # Errors
/// If the Service or the proxies cannot be read, or no proxy serves the Service.
pub async fn wait_applied(
    fleet: &Fleet,
    selection: &Selection,
    service: &NamespacedName,
    deadline: Instant,
) -> anyhow::Result<Waited> {
    let mut waited = Waited { service: service.to_string(), applied: Vec::new(), missing: BTreeMap::new() };
    loop {
        let wanted = Versions::read(fleet, service).await?;
        let mut proxies = selection.proxies(&fleet.cluster).await?;
        waited.applied.retain(|node| proxies.iter().any(|proxy| proxy.node == *node));
        proxies.retain(|proxy: &NodeProxy| !waited.applied.contains(&proxy.node));
        let name = service.to_string();
        let answers = fleet.ask(&proxies, |fleet, proxy| {
            let name = name.clone();
            async move {
                let output = fleet.run(&proxy, &["status", "--service", &name, "-o", "json"]).await?;
                decode::<ServiceVersions>(&answered(output, &[0, 1])?)
            }
        });
        waited.missing.clear();
        for answer in answers.await {
            match answer.result.and_then(|found| wanted.compare(&found)) {
                Ok(()) => waited.applied.push(answer.proxy.node),
                Err(reason) => _ = waited.missing.insert(answer.proxy.node, reason),
            }
        }
        waited.applied.sort();
        if waited.missing.is_empty() || Instant::now() >= deadline {
            return Ok(waited);
        }
        tokio::time::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now()))).await;
    }
}

impl Versions {
    async fn read(fleet: &Fleet, name: &NamespacedName) -> anyhow::Result<Self> {
        let (namespace, service) = (encode(name.namespace()), encode(name.name()));
        let path = format!("/api/v1/namespaces/{namespace}/services/{service}");
        let object: Service = fleet.cluster.get(&path).await.context("cannot read the Service")?;
        let is_headless = object.spec.cluster_ip.as_deref() == Some("None");
        let has_other_proxy = object.metadata.labels.contains_key(labels::SERVICE_PROXY_NAME);
        if is_headless || has_other_proxy || object.spec.type_.as_deref() == Some("ExternalName") {
            bail!("no node applies Service {name}: it is headless, has an external name, or is for another proxy");
        }
        let is_read = |slice: &EndpointSlice| {
            slice.address_type != "FQDN" && !slice.metadata.labels.contains_key(labels::HEADLESS)
        };
        let slices = slices_of(&fleet.cluster, name).await?.into_iter().filter(is_read);
        let version = |slice: EndpointSlice| {
            let version = ObjectVersion::from_metadata(&slice.metadata).resource;
            (slice.metadata.name, version)
        };
        Ok(Self {
            service: ObjectVersion::from_metadata(&object.metadata).resource,
            slices: slices.map(version).collect(),
        })
    }

    /// Returns the reason why a node with these versions has not applied `self`.
    fn compare(&self, found: &ServiceVersions) -> Result<(), String> {
        // A newer version than that which was read is fine.
        if found.service < self.service {
            return Err(match found.service {
                Some(version) => format!("it has version {version} of the Service"),
                None => "it does not have the Service".to_owned(),
            });
        }
        for (name, version) in &self.slices {
            match found.slices.get(name) {
                None => return Err(format!("it does not have endpoint slice {name}")),
                Some(found) if found < version => return Err(format!("it has an older endpoint slice {name}")),
                Some(_) => {}
            }
        }
        if let Some(name) = found.slices.keys().find(|name| !self.slices.contains_key(*name)) {
            return Err(format!("it still has endpoint slice {name}"));
        }
        if !found.applied {
            let reason = found.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            return Err(format!("it has received, but not applied the last change{reason}"));
        }
        Ok(())
    }
}

/// Pause between two queries of the nodes.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_applied_what_it_has_in_these_versions_or_newer_ones() {
        let slices = |slices: &[(&str, u64)]| {
            slices.iter().map(|(name, version)| ((*name).to_owned(), Some(*version))).collect::<BTreeMap<_, _>>()
        };
        let wanted = Versions { service: Some(5), slices: slices(&[("a", 7), ("b", 8)]) };
        let found = |service, has: &[(&str, u64)], applied| {
            wanted
                .compare(&ServiceVersions {
                    served: true,
                    applied,
                    service,
                    slices: slices(has),
                    ..ServiceVersions::default()
                })
                .is_ok()
        };
        assert!(found(Some(5), &[("a", 7), ("b", 8)], true));
        assert!(found(Some(6), &[("a", 9), ("b", 8)], true));
        assert!(!found(Some(4), &[("a", 7), ("b", 8)], true));
        assert!(!found(None, &[("a", 7), ("b", 8)], true));
        assert!(!found(Some(5), &[("a", 6), ("b", 8)], true));
        assert!(!found(Some(5), &[("a", 7)], true));
        assert!(!found(Some(5), &[("a", 7), ("b", 8), ("c", 3)], true));
        assert!(!found(Some(5), &[("a", 7), ("b", 8)], false));
    }
}
