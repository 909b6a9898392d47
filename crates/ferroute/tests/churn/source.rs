//! The source of objects: manifests or a fake API server.

use std::fs;

use ferroute_core::testing::{Cluster, Edit};
use ferroute_kube::testing::{Behaviour, FakeApiServer, Fault as RequestFault};
use ferroute_source::Resource;
use ferroute_testing::NetNs;
use serde_json::Value;

use crate::{
    objects::{manifest, typed},
    process::Files,
    schedule::ApiFault,
};

/// Publishes objects to the proxy.
pub(crate) enum Source {
    Manifests {
        /// Whether writes are suspended.
        suspended: bool,
    },
    Api(Box<Api>),
}

/// A fake API server on the node.
pub(crate) struct Api {
    server: FakeApiServer,
    /// An earlier version, and the objects at that time.
    checkpoint: Option<(u64, Cluster)>,
    last_version: u64,
    /// The number of requests when the server last returned to an earlier state.
    requests_before_restore: usize,
    // Stops after the server.
    _runtime: tokio::runtime::Runtime,
}

impl Source {
    pub(crate) fn manifests() -> Self {
        Self::Manifests { suspended: false }
    }

    pub(crate) fn api(node: &NetNs) -> Self {
        let (runtime, server) = node.run(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let server = runtime.block_on(FakeApiServer::start());
            (runtime, server)
        });
        Self::Api(Box::new(Api {
            server,
            checkpoint: None,
            last_version: 0,
            requests_before_restore: 0,
            _runtime: runtime,
        }))
    }

    /// Returns the arguments that make the proxy use this source.
    pub(crate) fn arguments(&self, files: &Files) -> Vec<String> {
        match self {
            Self::Manifests { .. } => vec!["--manifests".to_owned(), files.manifests().display().to_string()],
            Self::Api(api) => vec!["--master".to_owned(), api.server.url()],
        }
    }

    /// Publishes the edit that resulted in `cluster`.
    pub(crate) fn publish(&mut self, files: &Files, edit: &Edit, cluster: &Cluster) {
        match self {
            Self::Manifests { suspended: true } => {}
            Self::Manifests { .. } => match edit {
                Edit::SetService(_) | Edit::RemoveService(_) => write_services(files, cluster),
                Edit::SetSlice(_) | Edit::RemoveSlice(_) => write_slices(files, cluster),
                Edit::SetNode(_) => write_node(files, cluster),
            },
            Self::Api(api) => api.publish(edit, cluster),
        }
    }

    /// Publishes all objects.
    pub(crate) fn publish_all(&mut self, files: &Files, cluster: &Cluster) {
        match self {
            Self::Manifests { .. } => {
                write_services(files, cluster);
                write_slices(files, cluster);
                write_node(files, cluster);
            }
            Self::Api(api) => cluster.edits().for_each(|edit| api.publish(&edit, cluster)),
        }
    }

    /// Adds many Services or removes them again.
    pub(crate) fn set_bulk(&mut self, files: &Files, bulk: &Cluster, present: bool) {
        match self {
            Self::Manifests { .. } if present => {
                write(files, "bulk", &manifest(&bulk.services, &bulk.slices, None, &[]));
            }
            Self::Manifests { .. } => fs::remove_file(files.manifests().join("bulk.json")).unwrap(),
            Self::Api(api) => {
                for service in &bulk.services {
                    let name = &service.metadata;
                    match present {
                        true => api.apply(Resource::Services, &typed("v1", "Service", service)),
                        false => _ = api.server.delete(Resource::Services, &name.namespace, &name.name),
                    }
                }
                for slice in &bulk.slices {
                    let name = &slice.metadata;
                    let text = || typed("discovery.k8s.io/v1", "EndpointSlice", slice);
                    match present {
                        true => api.apply(Resource::EndpointSlices, &text()),
                        false => _ = api.server.delete(Resource::EndpointSlices, &name.namespace, &name.name),
                    }
                }
            }
        }
    }

    /// Adds objects that are invalid or removes them again.
    pub(crate) fn set_invalid_objects(&mut self, files: &Files, present: bool) {
        match self {
            Self::Manifests { .. } if present => write(files, "invalid", &manifest(&[], &[], None, &INVALID)),
            Self::Manifests { .. } => fs::remove_file(files.manifests().join("invalid.json")).unwrap(),
            Self::Api(api) => {
                for (index, text) in INVALID.into_iter().enumerate() {
                    let resource = if index < INVALID_SERVICES { Resource::Services } else { Resource::EndpointSlices };
                    let object: Value = serde_json::from_str(text).unwrap();
                    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    if present {
                        api.server.apply(resource, object);
                    } else {
                        api.server.delete(resource, "bad", &name);
                    }
                }
            }
        }
    }

    /// Sets whether manifests are written.
    pub(crate) fn suspend(&mut self, value: bool) {
        if let Self::Manifests { suspended } = self {
            *suspended = value;
        }
    }

    /// Remembers the current state, to return to it later.
    pub(crate) fn set_checkpoint(&mut self, cluster: &Cluster) {
        if let Self::Api(api) = self {
            // Deletions have versions, too, so the current version is that of a new write.
            api.publish(&Edit::SetNode(cluster.node.clone()), cluster);
            api.checkpoint = Some((api.last_version, cluster.clone()));
        }
    }
}

impl Api {
    fn apply(&mut self, resource: Resource, text: &str) {
        self.last_version = self.server.apply(resource, serde_json::from_str(text).expect("valid JSON"));
    }

    fn publish(&mut self, edit: &Edit, cluster: &Cluster) {
        let last = "an edit adds its object at the end";
        match edit {
            Edit::SetService(object) => {
                let new = cluster.services.iter().find(|service| service.metadata == object.metadata).expect(last);
                self.apply(Resource::Services, &typed("v1", "Service", new));
            }
            Edit::SetSlice(object) => {
                let new = cluster.slices.iter().find(|slice| slice.metadata == object.metadata).expect(last);
                self.apply(Resource::EndpointSlices, &typed("discovery.k8s.io/v1", "EndpointSlice", new));
            }
            Edit::RemoveService(name) => _ = self.server.delete(Resource::Services, name.namespace(), name.name()),
            Edit::RemoveSlice(name) => _ = self.server.delete(Resource::EndpointSlices, name.namespace(), name.name()),
            Edit::SetNode(node) => self.apply(Resource::Nodes, &typed("v1", "Node", node)),
        }
    }

    /// Starts a fault. Returns the objects if the server has returned to an earlier state.
    pub(crate) fn start_fault(&mut self, fault: &ApiFault) -> Option<Cluster> {
        let inject = |fault: RequestFault| self.server.inject(fault);
        match fault {
            ApiFault::Down => self.server.behave(|behaviour| behaviour.down = true),
            ApiFault::CutWatches => {}
            ApiFault::WatchErrors(code) => {
                self.server.fail_watches(*code);
                return None;
            }
            ApiFault::Statuses(codes) => codes.iter().for_each(|code| inject(RequestFault::Status(*code))),
            ApiFault::TooManyRequests { seconds } => inject(RequestFault::RetryAfter(*seconds)),
            ApiFault::Garbage { seed } => {
                inject(RequestFault::Html);
                inject(RequestFault::Garbage { bytes: 10_000, seed: *seed });
            }
            ApiFault::Hung => self.server.behave(|behaviour| behaviour.hung = true),
            ApiFault::Stall { bytes } => {
                inject(RequestFault::Stall(*bytes));
                self.server.stall_watches();
                return None;
            }
            ApiFault::Endless => (0..2).for_each(|_| inject(RequestFault::Endless(1 << 30))),
            ApiFault::NoResponse => inject(RequestFault::NoResponse),
            ApiFault::Compacted => self.server.behave(|behaviour| behaviour.down = true),
            ApiFault::Slow => self.server.behave(|behaviour| {
                (behaviour.chunk, behaviour.pause) = (512, std::time::Duration::from_millis(5));
            }),
            ApiFault::Repeats => self.server.behave(|behaviour| behaviour.repeats = true),
            ApiFault::BackInTime => {
                let (version, cluster) = self.checkpoint.clone()?;
                self.requests_before_restore = self.server.requests().len();
                self.server.restore(version);
                self.server.cut_watches();
                return Some(cluster);
            }
        }
        self.server.cut_watches();
        None
    }

    /// Sends a bookmark to all watches, as a server does every minute.
    pub(crate) fn bookmark(&self) {
        self.server.bookmark();
    }

    /// Reports whether each kind of objects has been listed since the server returned to an earlier state.
    pub(crate) fn is_listed_again(&self) -> bool {
        let requests = self.server.requests();
        let version = self.checkpoint.as_ref().map_or(0, |(version, _)| *version);
        let is_list = |request: &str| {
            let parameter = |name: &str| {
                let (_, query) = request.split_once('?').unwrap_or_default();
                query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
            };
            // A watch from a later version fails.
            let from = parameter("resourceVersion").and_then(|text| text.parse::<u64>().ok());
            from.is_none_or(|from| from <= version)
        };
        let listed: Vec<&String> =
            requests[self.requests_before_restore..].iter().filter(|path| is_list(path)).collect();
        ["/services", "/endpointslices", "/nodes"].iter().all(|kind| listed.iter().any(|path| path.contains(kind)))
    }

    pub(crate) fn end_fault(&mut self, fault: &ApiFault) {
        if *fault == ApiFault::Compacted {
            self.server.compact();
        }
        self.server.clear_faults();
        self.server.behave(|behaviour| *behaviour = Behaviour::default());
        // A connection without any data is replaced only after minutes, so it ends with the fault.
        self.server.cut_watches();
    }
}

fn write_services(files: &Files, cluster: &Cluster) {
    write(files, "services", &manifest(&cluster.services, &[], None, &[]));
}

fn write_slices(files: &Files, cluster: &Cluster) {
    write(files, "slices", &manifest(&[], &cluster.slices, None, &[]));
}

fn write_node(files: &Files, cluster: &Cluster) {
    write(files, "node", &manifest(&[], &[], Some(&cluster.node), &[]));
}

/// Replaces a manifest atomically.
fn write(files: &Files, name: &str, text: &str) {
    let new = files.manifests().join("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, files.manifests().join(format!("{name}.json"))).unwrap();
}

/// Objects with values that the API server would reject, and some that it might accept.
const INVALID: [&str; 6] = [
    r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "address", "namespace": "bad"},
        "spec": {"clusterIP": "10.96.0.300", "ports": [{"port": 80}]}}"#,
    r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "port", "namespace": "bad"},
        "spec": {"clusterIP": "10.96.2.1", "ports": [{"port": 0}, {"name": "x", "port": 70000}]}}"#,
    r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "protocol", "namespace": "bad"},
        "spec": {"clusterIP": "10.96.2.2", "ports": [{"port": 80, "protocol": "QUIC"}]}}"#,
    r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "type", "namespace": "bad"},
        "spec": {"clusterIP": 7, "ports": "none"}}"#,
    r#"{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "family", "namespace": "bad", "labels": {"kubernetes.io/service-name": "port"}},
        "addressType": "IPv5", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 1}]}"#,
    r#"{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "address", "namespace": "bad", "labels": {"kubernetes.io/service-name": "port"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["nowhere"]}, {"addresses": []}], "ports": [{"port": -1}]}"#,
];
/// The number of Services among them.
const INVALID_SERVICES: usize = 4;
