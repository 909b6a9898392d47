//! The cluster's objects in the API server.

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant},
};

use ferroute_api::EndpointSlice;
use ferroute_kube::testing::FakeApiServer;
use ferroute_source::Resource;
use http::{Method, Request, request};
use kube_client::{Client, Config};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use crate::{
    common::cluster::{self, NODE, NODE_IP, PORT, Size, cluster_ip, service_of_round},
    control_plane::{self, ControlPlane, Server, TOKEN},
    node,
    prober::Probe,
};

/// A cluster in the API server. Each Service has one of two sets of endpoints: its own, which refuse connections, or
/// [`node::reachable`] ones, which accept them.
pub(crate) struct Cluster {
    size: Size,
    api: Api,
    runtime: Runtime,
    /// Whether the endpoints are reachable, by the number of the Service. Services are numbered from 1, because the API server's own
    /// Service has the first address.
    reachable: Vec<bool>,
    /// The number of changes so far.
    round: u32,
}

impl Cluster {
    /// Creates all objects.
    pub(crate) fn create(control_plane: &ControlPlane, size: Size) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let api = match &control_plane.server {
            Server::Kubernetes { .. } => {
                let mut config = Config::new(format!("https://127.0.0.1:{}", control_plane::PORT).parse().unwrap());
                config.accept_invalid_certs = true;
                let _context = runtime.enter();
                Api::Kubernetes(Client::try_from(config).unwrap())
            }
            Server::Fake { server, .. } => Api::Fake(server.clone()),
        };
        let cluster = Self { size, api, runtime, reachable: vec![false; size.services as usize], round: 0 };
        cluster.runtime.block_on(async {
            cluster.api.until_ready().await;
            cluster.create_all().await;
        });
        cluster
    }

    async fn create_all(&self) {
        let addresses = json!([{"type": "InternalIP", "address": NODE_IP}]);
        let node = json!({"metadata": {"name": NODE}, "status": {"addresses": addresses}});
        self.api.write(Resource::Nodes, Method::POST, node).await;
        self.api.create_namespace().await;
        let mut writers = JoinSet::new();
        for writer in 1..=WRITERS {
            let (api, size) = (self.api.clone(), self.size);
            writers.spawn(async move {
                for number in (writer..=size.services).step_by(WRITERS as usize) {
                    api.write(Resource::Services, Method::POST, value(&cluster::service(number))).await;
                    let slice = value(&slice(size, number, false));
                    api.write(Resource::EndpointSlices, Method::POST, slice).await;
                }
            });
        }
        writers.join_all().await;
    }

    /// Gives the Services of [`Cluster::spread`] reachable endpoints or their own.
    pub(crate) fn set_reachable(&mut self, reachable: bool) {
        for number in self.numbers() {
            self.reachable[number as usize - 1] = reachable;
            self.runtime.block_on(self.api.clone().put(slice(self.size, number, reachable)));
        }
    }

    /// Returns the frontends of some Services all over the cluster, among them the first and the last one.
    pub(crate) fn spread(&self) -> Vec<SocketAddr> {
        self.numbers().map(frontend).collect()
    }

    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let last = self.size.services - 1;
        (0..SPREAD).map(move |i| 1 + i * last / (SPREAD - 1))
    }

    /// Changes the endpoints of the next Service that has unreachable ones, and probes it.
    pub(crate) fn change(&mut self, probes: &Sender<Probe>) {
        loop {
            let (slice, to) = self.next_change();
            let answered = self.runtime.block_on(self.api.clone().put(slice));
            if let Some(to) = to {
                probes.send(Probe::new(to, answered, LONGEST)).unwrap();
                return;
            }
        }
    }

    /// Changes endpoints at a rate for a while, for another Service each time, and probes up to [`PROBES`] of them per
    /// second. Returns how long it took.
    pub(crate) fn churn(&mut self, rate: u32, duration: Duration, probes: &Sender<Probe>) -> Duration {
        let start = Instant::now();
        let count = (f64::from(rate) * duration.as_secs_f64()) as u32;
        let every = rate.div_ceil(PROBES);
        let patience = LONGEST.min(self.until_changed_again(rate));
        let changes: Vec<_> = (0..count).map(|_| self.next_change()).collect();
        self.runtime.block_on(async {
            let mut ticks = interval(Duration::from_secs(1) / rate);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut requests = JoinSet::new();
            for (i, (slice, to)) in (0..).zip(changes) {
                ticks.tick().await;
                let (api, probes) = (self.api.clone(), probes.clone());
                requests.spawn(async move {
                    let answered = api.put(slice).await;
                    if let Some(to) = to.filter(|_| i % every == 0) {
                        probes.send(Probe::new(to, answered, patience)).unwrap();
                    }
                });
                while requests.try_join_next().is_some() {}
            }
            requests.join_all().await;
        });
        start.elapsed()
    }

    /// Returns the time between two changes of the same Service at a rate. A proxy that takes longer may still have the rules of the
    /// change before, so that it cannot be measured.
    pub(crate) fn until_changed_again(&self, rate: u32) -> Duration {
        Duration::from_secs_f64(f64::from(self.size.services) / f64::from(rate))
    }

    /// Returns the next change, and the frontend to probe if endpoints become reachable.
    fn next_change(&mut self) -> (EndpointSlice, Option<SocketAddr>) {
        let number = 1 + service_of_round(self.size, self.round);
        self.round += 1;
        let reachable = &mut self.reachable[number as usize - 1];
        *reachable = !*reachable;
        (slice(self.size, number, *reachable), reachable.then(|| frontend(number)))
    }
}

/// Returns the slice of a Service with its own endpoints, or with reachable ones.
fn slice(size: Size, number: u32, reachable: bool) -> EndpointSlice {
    match reachable {
        true => cluster::slice_with(number, (0..size.endpoints).map(node::reachable)),
        false => cluster::slice(size, number),
    }
}

fn frontend(number: u32) -> SocketAddr {
    (cluster_ip(number), PORT).into()
}

/// A client of an API server.
#[derive(Clone)]
enum Api {
    Kubernetes(Client),
    Fake(Arc<FakeApiServer>),
}

impl Api {
    async fn until_ready(&self) {
        let Self::Kubernetes(client) = self else { return };
        let deadline = Instant::now() + START;
        while let Err(error) = client.request_text(request("/readyz").body(Vec::new()).unwrap()).await {
            assert!(Instant::now() < deadline, "the API server is not ready: {error}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Creates the namespace of all objects.
    async fn create_namespace(&self) {
        if let Self::Kubernetes(client) = self {
            send(client, Method::POST, "/api/v1/namespaces", &json!({"metadata": {"name": NAMESPACE}})).await;
        }
    }

    /// Creates or replaces an object.
    async fn write(&self, resource: Resource, method: Method, object: Value) {
        match self {
            Self::Kubernetes(client) => {
                let mut path = path(resource);
                if method == Method::PUT {
                    path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                }
                send(client, method, &path, &object).await;
            }
            Self::Fake(server) => _ = server.apply(resource, object),
        }
    }

    /// Replaces a slice, and returns the time of the answer.
    async fn put(self, slice: EndpointSlice) -> Instant {
        self.write(Resource::EndpointSlices, Method::PUT, value(&slice)).await;
        Instant::now()
    }
}

async fn send(client: &Client, method: Method, path: &str, object: &Value) {
    let request = request(path).method(method).header("content-type", "application/json");
    let request = request.body(serde_json::to_vec(object).unwrap()).unwrap();
    client.request_text(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn request(path: &str) -> request::Builder {
    Request::builder().uri(path).header("authorization", format!("Bearer {TOKEN}"))
}

/// Returns the path of the objects of a kind.
fn path(resource: Resource) -> String {
    match resource {
        Resource::Services => format!("/api/v1/namespaces/{NAMESPACE}/services"),
        Resource::EndpointSlices => format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
        _ => "/api/v1/nodes".to_owned(),
    }
}

fn value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

/// The namespace of all objects.
const NAMESPACE: &str = "bench";
/// The number of objects that are created at the same time.
const WRITERS: u32 = 16;
/// The number of Services that show whether rules are complete.
const SPREAD: u32 = 16;
/// The most changes that are probed per second.
const PROBES: u32 = 20;
/// The time until a probe is given up.
const LONGEST: Duration = Duration::from_secs(60);
const START: Duration = Duration::from_secs(60);
