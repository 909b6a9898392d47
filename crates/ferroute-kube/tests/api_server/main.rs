//! The source with a fake API server, over HTTP.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod compression;
mod credentials;
mod exec;
mod faults;
mod listing;
mod media_types;
mod properties;
mod recovery;
mod requests;
mod server_time;
mod tls;
mod watching;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use ferroute_config::{ClientConnectionConfiguration, MediaType};
use ferroute_core::NamespacedName;
use ferroute_kube::{ApiServer, Timing, testing::FakeApiServer};
use ferroute_source::{Event, Problem, Resource};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{timeout, timeout_at},
};

const NODE: &str = "node-1";

/// Short delays. The limit of a streaming list is long, so that a busy machine does not fall back to pages.
fn timing() -> Timing {
    Timing {
        initial_backoff: Duration::from_millis(4),
        max_backoff: Duration::from_millis(40),
        response_timeout: Duration::from_secs(20),
        streaming_list_timeout: Duration::from_secs(20),
        spread: Duration::from_millis(10),
        forbidden_grace: Duration::ZERO,
        ..Timing::default()
    }
}

/// Protobuf, which is the default.
fn connection() -> ClientConnectionConfiguration {
    connection_in(MediaType::Protobuf)
}

fn connection_in(media_type: MediaType) -> ClientConnectionConfiguration {
    let content_type = media_type.as_str().to_owned();
    ClientConnectionConfiguration { qps: -1.0, content_type, ..ClientConnectionConfiguration::default() }
}

/// The media types of responses.
const MEDIA_TYPES: [MediaType; 2] = [MediaType::Protobuf, MediaType::Json];

fn service(name: &str, ip: &str) -> Value {
    json!({"metadata": {"namespace": "default", "name": name}, "spec": {"clusterIP": ip}})
}

fn slice(name: &str, address: &str) -> Value {
    let labels = json!({"kubernetes.io/service-name": name});
    json!({"metadata": {"namespace": "default", "name": name, "labels": labels}, "addressType": "IPv4",
           "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]})
}

fn node(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
}

fn service_cidr(name: &str, network: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"cidrs": [network]}})
}

/// The state that results from the events. Checks that no event is redundant.
#[derive(Clone, Debug, Default)]
struct Observed {
    /// The version and one characteristic value of each object.
    objects: BTreeMap<(Resource, String), (u64, String)>,
    synced: BTreeMap<Resource, usize>,
    /// The addresses of the server.
    addresses: Vec<SocketAddr>,
    /// Problems that are not resolved.
    problems: BTreeSet<String>,
    /// Number of problems that are invalid objects.
    invalid_objects: usize,
    /// All events, as text.
    log: Vec<String>,
}

impl Observed {
    fn take(&mut self, event: Event) {
        match event {
            Event::ServiceApplied(service) => {
                let value = service.spec.cluster_ip.unwrap_or_default();
                self.applied(Resource::Services, &service.metadata, value);
            }
            Event::SliceApplied(slice) => {
                let value = slice.endpoints.iter().flat_map(|endpoint| endpoint.addresses.clone()).collect();
                self.applied(Resource::EndpointSlices, &slice.metadata, value);
            }
            Event::NodeApplied(node) => {
                let value = node.status.addresses.iter().map(|address| address.address.as_str()).collect();
                self.applied(Resource::Nodes, &node.metadata, value);
            }
            Event::ServiceCidrApplied(cidr) => {
                self.applied(Resource::ServiceCidrs, &cidr.metadata, cidr.spec.cidrs.concat());
            }
            Event::ServiceDeleted(name) => self.deleted(Resource::Services, &name),
            Event::SliceDeleted(name) => self.deleted(Resource::EndpointSlices, &name),
            Event::NodeDeleted(name) => self.deleted(Resource::Nodes, &name),
            Event::ServiceCidrDeleted(name) => self.deleted(Resource::ServiceCidrs, &name),
            Event::ApiServer(addresses) => self.addresses = addresses,
            Event::Synced(resource) => *self.synced.entry(resource).or_default() += 1,
            Event::Problem(problem) => {
                self.invalid_objects += usize::from(is_invalid_object(&problem));
                self.log.push(format!("problem: {}", problem.text()));
                assert!(self.problems.insert(problem.text()), "reported twice: {}", problem.text());
            }
            Event::Resolved(problem) => {
                self.invalid_objects -= usize::from(is_invalid_object(&problem));
                self.log.push(format!("resolved: {}", problem.text()));
                assert!(self.problems.remove(&problem.text()), "resolved, but never reported: {}", problem.text());
            }
        }
    }

    fn applied(&mut self, resource: Resource, metadata: &ferroute_api::ObjectMeta, value: String) {
        let name = NamespacedName::from_metadata(metadata).to_string();
        let version = metadata.resource_version.as_ref().unwrap().parse().unwrap();
        self.log.push(format!("{resource:?} {name} {value}"));
        let before = self.objects.insert((resource, name.clone()), (version, value));
        assert_ne!(before.map(|(version, _)| version), Some(version), "emitted twice: {name}");
    }

    fn deleted(&mut self, resource: Resource, name: &NamespacedName) {
        self.log.push(format!("{resource:?} {name} deleted"));
        let removed = self.objects.remove(&(resource, name.to_string()));
        assert!(removed.is_some(), "deleted, but never emitted: {name}");
    }

    fn is_synced(&self, times: usize) -> bool {
        Resource::ALL.iter().all(|resource| self.synced.get(resource).is_some_and(|count| *count >= times))
    }

    fn has(&self, resource: Resource, name: &str, value: &str) -> bool {
        self.objects.get(&(resource, name.to_owned())).is_some_and(|(_, observed)| observed == value)
    }
}

fn is_invalid_object(problem: &Problem) -> bool {
    matches!(problem, Problem::InvalidObject { .. })
}

/// A consumer of the events.
struct Consumer {
    observed: Observed,
    batches: mpsc::Receiver<Vec<Event>>,
    task: JoinHandle<()>,
    marks: usize,
}

impl Consumer {
    /// Starts with a server.
    async fn start(fake: &FakeApiServer) -> Self {
        Self::start_with(fake, timing()).await
    }

    async fn start_with(fake: &FakeApiServer, timing: Timing) -> Self {
        Self::start_configured(fake, &connection(), timing).await
    }

    /// Starts with responses in this media type.
    async fn start_in(media_type: MediaType, fake: &FakeApiServer) -> Self {
        Self::start_configured(fake, &connection_in(media_type), timing()).await
    }

    async fn start_configured(
        fake: &FakeApiServer,
        connection: &ClientConnectionConfiguration,
        timing: Timing,
    ) -> Self {
        Self::from_source(ApiServer::new(connection, Some(&fake.url()), NODE).await.unwrap().with_timing(timing))
    }

    fn from_source(source: ApiServer) -> Self {
        let (sender, batches) = mpsc::channel(4);
        Self { observed: Observed::default(), batches, task: tokio::spawn(source.follow(sender)), marks: 0 }
    }

    /// Receives events until the condition holds.
    async fn until(&mut self, description: &str, condition: impl Fn(&Observed) -> bool) {
        let wait = async {
            while !condition(&self.observed) {
                let batch = self.batches.recv().await.expect("the source is running");
                assert!(!batch.is_empty(), "a batch is not empty");
                batch.into_iter().for_each(|event| self.observed.take(event));
            }
        };
        if timeout(PATIENCE, wait).await.is_err() {
            panic!("not reached: {description}; observed: {:#?}", self.observed);
        }
    }

    /// Receives events for this time.
    async fn receive_for(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while let Ok(batch) = timeout_at(end, self.batches.recv()).await {
            batch.expect("the source is running").into_iter().for_each(|event| self.observed.take(event));
        }
    }

    /// Receives events until all kinds are listed.
    async fn until_synced(&mut self) {
        self.until("all kinds are listed", |observed| observed.is_synced(1)).await;
    }

    /// Receives events until a Service has this cluster IP.
    async fn until_service(&mut self, name: &str, ip: &str) {
        let full = format!("default/{name}");
        self.until(&full, |observed| observed.has(Resource::Services, &full, ip)).await;
    }

    /// Returns the events since the last call except `Synced`, sorted.
    fn take_log(&mut self) -> Vec<String> {
        let mut log = std::mem::take(&mut self.observed.log);
        log.sort_unstable();
        log
    }

    /// Changes an object of each kind and waits for it, so that all earlier changes have been observed too.
    async fn catch_up(&mut self, fake: &FakeApiServer) {
        self.marks += 1;
        let mark = self.marks.to_string();
        fake.apply(Resource::Services, service("mark", &mark));
        fake.apply(Resource::EndpointSlices, slice("mark", &mark));
        fake.apply(Resource::Nodes, node(NODE, &mark));
        fake.apply(Resource::ServiceCidrs, service_cidr("mark", &mark));
        self.until("the marks", |observed| {
            observed.has(Resource::Services, "default/mark", &mark)
                && observed.has(Resource::EndpointSlices, "default/mark", &mark)
                && observed.has(Resource::Nodes, NODE, &mark)
                && observed.has(Resource::ServiceCidrs, "mark", &mark)
        })
        .await;
        self.observed.log.retain(|line| !line.contains("mark") && !line.starts_with("Nodes"));
    }
}

/// Returns the requests for Services so far.
fn service_requests(fake: &FakeApiServer) -> Vec<String> {
    let selector = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&";
    let requests = fake.requests().into_iter().filter_map(|request| {
        let query = request.strip_prefix("/api/v1/services?")?.strip_prefix(selector)?;
        // The timeout of a watch is random.
        let parameters = query.split('&').filter(|parameter| !parameter.starts_with("timeoutSeconds="));
        Some(parameters.collect::<Vec<_>>().join("&"))
    });
    requests.collect()
}

/// Only failing tests wait this long.
const PATIENCE: Duration = Duration::from_secs(120);

const STREAM: &str = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

fn watch_from(version: u64) -> String {
    format!("watch=true&allowWatchBookmarks=true&resourceVersion={version}")
}
