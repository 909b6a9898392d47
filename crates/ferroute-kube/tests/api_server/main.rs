//! The source against a double of an API server, over HTTP.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod clock;
mod credentials;
mod faults;
mod listing;
mod media_types;
mod properties;
mod requests;
mod tls;
mod watching;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ferroute_config::{ClientConnectionConfiguration, MediaType};
use ferroute_kube::{ApiServer, Timing, testing::ApiDouble};
use ferroute_source::{Event, ObjectName, Resource};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{timeout, timeout_at},
};

const NODE: &str = "node-1";

/// Waits that make tests quick. That of a streaming list is long, so that a busy machine does not turn one into pages.
fn timing() -> Timing {
    Timing {
        first_wait: Duration::from_millis(4),
        longest_wait: Duration::from_millis(40),
        answer: Duration::from_secs(20),
        quiet: Duration::from_secs(20),
        ..Timing::default()
    }
}

/// In protobuf, as it is where nobody configures anything else.
fn connection() -> ClientConnectionConfiguration {
    connection_in(MediaType::Protobuf)
}

fn connection_in(media_type: MediaType) -> ClientConnectionConfiguration {
    let content_type = media_type.as_str().to_owned();
    ClientConnectionConfiguration { qps: -1.0, content_type, ..ClientConnectionConfiguration::default() }
}

/// The forms that answers come in.
const FORMS: [MediaType; 2] = [MediaType::Protobuf, MediaType::Json];

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

/// What somebody who takes the events knows. Checks on the way that nothing is told in vain.
#[derive(Debug, Default)]
struct Told {
    /// Version and one telling value of each object.
    objects: BTreeMap<(Resource, String), (u64, String)>,
    synced: BTreeMap<Resource, usize>,
    /// Problems that last.
    problems: BTreeSet<String>,
    /// All events, in words.
    log: Vec<String>,
}

impl Told {
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
            Event::Synced(resource) => *self.synced.entry(resource).or_default() += 1,
            Event::Problem(problem) => {
                self.log.push(format!("problem: {}", problem.text()));
                assert!(self.problems.insert(problem.text()), "told twice: {}", problem.text());
            }
            Event::Solved(problem) => {
                self.log.push(format!("solved: {}", problem.text()));
                assert!(self.problems.remove(&problem.text()), "never told: {}", problem.text());
            }
        }
    }

    fn applied(&mut self, resource: Resource, metadata: &ferroute_api::ObjectMeta, value: String) {
        let name = ObjectName::of(metadata).to_string();
        let version = metadata.resource_version.as_ref().unwrap().parse().unwrap();
        self.log.push(format!("{resource:?} {name} {value}"));
        let before = self.objects.insert((resource, name.clone()), (version, value));
        assert_ne!(before.map(|(version, _)| version), Some(version), "told twice: {name}");
    }

    fn deleted(&mut self, resource: Resource, name: &ObjectName) {
        self.log.push(format!("{resource:?} {name} deleted"));
        let known = self.objects.remove(&(resource, name.to_string()));
        assert!(known.is_some(), "deleted, but never told: {name}");
    }

    fn is_synced(&self, times: usize) -> bool {
        Resource::ALL.iter().all(|resource| self.synced.get(resource).is_some_and(|count| *count >= times))
    }

    fn has(&self, resource: Resource, name: &str, value: &str) -> bool {
        self.objects.get(&(resource, name.to_owned())).is_some_and(|(_, told)| told == value)
    }
}

/// Somebody who takes the events.
struct Following {
    told: Told,
    batches: mpsc::Receiver<Vec<Event>>,
    task: JoinHandle<()>,
    marks: usize,
}

impl Following {
    /// Follows the double.
    async fn start(double: &ApiDouble) -> Self {
        Self::start_with(double, timing()).await
    }

    async fn start_with(double: &ApiDouble, timing: Timing) -> Self {
        Self::start_by(double, &connection(), timing).await
    }

    /// Follows the double, which answers in this form.
    async fn start_in(media_type: MediaType, double: &ApiDouble) -> Self {
        Self::start_by(double, &connection_in(media_type), timing()).await
    }

    async fn start_by(double: &ApiDouble, connection: &ClientConnectionConfiguration, timing: Timing) -> Self {
        Self::of(ApiServer::new(connection, Some(&double.url()), NODE).await.unwrap().with_timing(timing))
    }

    fn of(source: ApiServer) -> Self {
        let (sender, batches) = mpsc::channel(4);
        Self { told: Told::default(), batches, task: tokio::spawn(source.follow(sender)), marks: 0 }
    }

    /// Takes events until what is known satisfies the condition.
    async fn until(&mut self, what: &str, condition: impl Fn(&Told) -> bool) {
        let wait = async {
            while !condition(&self.told) {
                let batch = self.batches.recv().await.expect("the source goes on");
                assert!(!batch.is_empty(), "a batch holds something");
                batch.into_iter().for_each(|event| self.told.take(event));
            }
        };
        if timeout(PATIENCE, wait).await.is_err() {
            panic!("not reached: {what}; told so far: {:#?}", self.told);
        }
    }

    /// Takes the events that come within this time.
    async fn take_for(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while let Ok(batch) = timeout_at(end, self.batches.recv()).await {
            batch.expect("the source goes on").into_iter().for_each(|event| self.told.take(event));
        }
    }

    /// Takes events until all kinds have been listed.
    async fn until_synced(&mut self) {
        self.until("everything is listed", |told| told.is_synced(1)).await;
    }

    /// Takes events until this value of a Service has been told.
    async fn until_service(&mut self, name: &str, ip: &str) {
        let full = format!("default/{name}");
        self.until(&full, |told| told.has(Resource::Services, &full, ip)).await;
    }

    /// What has been told since the last call, sorted, without what was synced.
    fn news(&mut self) -> Vec<String> {
        let mut log = std::mem::take(&mut self.told.log);
        log.sort_unstable();
        log
    }

    /// Makes a change of each kind and waits for it, so that everything before it has been told too.
    async fn settle(&mut self, double: &ApiDouble) {
        self.marks += 1;
        let mark = self.marks.to_string();
        double.apply(Resource::Services, service("mark", &mark));
        double.apply(Resource::EndpointSlices, slice("mark", &mark));
        double.apply(Resource::Nodes, node(NODE, &mark));
        double.apply(Resource::ServiceCidrs, service_cidr("mark", &mark));
        self.until("the marks", |told| {
            told.has(Resource::Services, "default/mark", &mark)
                && told.has(Resource::EndpointSlices, "default/mark", &mark)
                && told.has(Resource::Nodes, NODE, &mark)
                && told.has(Resource::ServiceCidrs, "mark", &mark)
        })
        .await;
        self.told.log.retain(|line| !line.contains("mark") && !line.starts_with("Nodes"));
    }
}

/// Requests for services so far.
fn service_requests(double: &ApiDouble) -> Vec<String> {
    let selector = "labelSelector=%21service.kubernetes.io%2Fheadless%2C%21service.kubernetes.io%2Fservice-proxy-name&";
    let requests = double.requests().into_iter().filter_map(|request| {
        let query = request.strip_prefix("/api/v1/services?")?.strip_prefix(selector)?;
        // The time that a watch is to last is chosen by chance.
        let parameters = query.split('&').filter(|parameter| !parameter.starts_with("timeoutSeconds="));
        Some(parameters.collect::<Vec<_>>().join("&"))
    });
    requests.collect()
}

/// Only a test that fails waits for this long.
const PATIENCE: Duration = Duration::from_secs(120);

const STREAM: &str = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

fn watch_from(version: u64) -> String {
    format!("watch=true&allowWatchBookmarks=true&resourceVersion={version}")
}
