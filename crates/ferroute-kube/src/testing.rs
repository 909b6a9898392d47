//! A fake API server for tests: it serves lists and watches over HTTP, in JSON and protobuf, and fails on demand.
//!
//! It stores objects without validation, and the history of all changes, so that it can list any earlier version. It
//! supports the requests of a proxy, including writes, and those of `kubectl ferroute`: it runs programs in pods.

mod behaviour;
mod body;
pub(crate) mod encode;
mod exec;
pub mod fuzz;
mod serve;
mod store;
mod write;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use ferroute_api::labels;
use ferroute_source::Resource;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use self::{behaviour::Signals, exec::ExecHandler, store::Store};
pub use self::{
    behaviour::{Behaviour, Fault, Streaming},
    exec::{ExecRequest, ExecResponse},
};

/// A fake API server on a free port of the loopback interface. Dropping it stops it.
#[derive(Debug)]
pub struct FakeApiServer {
    shared: Arc<ServedCluster>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct ServedCluster {
    state: Mutex<ClusterData>,
    /// Wakes the watches.
    signals: watch::Sender<Signals>,
    /// Bytes of all bodies of lists and watches.
    sent: Arc<AtomicU64>,
    lists: Lists,
}

/// Counts lists, including streaming ones.
#[derive(Clone, Debug, Default)]
struct Lists {
    begun: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

/// A list that is being sent. It ends when this is dropped.
#[derive(Debug)]
struct OpenList(Lists);

impl Lists {
    fn begin(&self) -> OpenList {
        self.begun.fetch_add(1, Ordering::Relaxed);
        OpenList(self.clone())
    }
}

impl Drop for OpenList {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct ClusterData {
    store: Store,
    behaviour: Behaviour,
    faults: Vec<Fault>,
    requests: Vec<String>,
    accept_headers: Vec<String>,
    authorization_headers: Vec<String>,
    /// The header `accept-encoding` of all requests, empty without it.
    encodings: Vec<String>,
    writes: Vec<(String, Value)>,
    /// Objects that a user reads, and no proxy.
    pods: Vec<Value>,
    /// Other objects that a user reads, by path.
    user_objects: BTreeMap<String, Value>,
    exec: Option<ExecHandler>,
}

impl ServedCluster {
    /// Changes the state and wakes the watches.
    fn change<T>(&self, change: impl FnOnce(&mut ClusterData) -> T) -> T {
        let result = change(&mut self.state());
        self.signals.send_modify(|signals| signals.changes += 1);
        result
    }

    fn state(&self) -> MutexGuard<'_, ClusterData> {
        self.state.lock().expect("no code that holds it panics")
    }
}

impl FakeApiServer {
    /// Starts a server without objects.
    ///
    /// # Panics
    ///
    /// No port is free.
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts a server at an address.
    ///
    /// # Panics
    ///
    /// The address is not free.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let signals = watch::channel(Signals::default()).0;
        let shared =
            Arc::new(ServedCluster { state: Mutex::default(), signals, sent: Arc::default(), lists: Lists::default() });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { shared, address, task }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Creates or replaces an object. Sets its version and returns it.
    pub fn apply(&self, resource: Resource, object: Value) -> u64 {
        self.change(|state| state.store.apply(resource, object))
    }

    /// Deletes an object; `namespace` is empty for Nodes. Reports whether it existed.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> bool {
        self.change(|state| state.store.delete(resource, namespace, name))
    }

    /// Returns the objects of a kind that a proxy's selectors match.
    pub fn objects(&self, resource: Resource) -> Vec<Value> {
        let state = self.shared.state();
        let now = state.store.version();
        let label = match resource {
            Resource::Services => labels::SERVICE_PROXY_NAME,
            Resource::EndpointSlices => labels::HEADLESS,
            Resource::Nodes | Resource::ServiceCidrs => "",
        };
        let objects = state.store.at(now, resource).into_values();
        objects.filter(|object| store::matches_label_selector(object, &format!("!{label}"))).collect()
    }

    /// Sets the pods, which are served to users.
    pub fn set_pods(&self, pods: Vec<Value>) {
        self.shared.state().pods = pods;
    }

    /// Sets an object at a path, which is served to users.
    pub fn set_object(&self, path: &str, object: Value) {
        self.shared.state().user_objects.insert(path.to_owned(), object);
    }

    /// Sets the function that responds to requests to run a program in a pod.
    pub fn set_exec(&self, respond: impl Fn(&ExecRequest) -> ExecResponse + Send + Sync + 'static) {
        self.shared.state().exec = Some(ExecHandler(Arc::new(respond)));
    }

    /// Discards the history, so that no watch or list can begin before the current version.
    pub fn compact(&self) {
        self.shared.state().store.compact();
    }

    /// Goes back to the state of `version`, as after restoring a backup.
    pub fn restore(&self, version: u64) {
        self.change(|state| state.store.restore(version));
    }

    /// Changes its behaviour.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.state().behaviour);
    }

    /// Adds a fault for the next request that has none yet.
    pub fn inject(&self, fault: Fault) {
        self.shared.state().faults.push(fault);
    }

    /// Removes all faults that have not occurred yet.
    pub fn clear_faults(&self) {
        self.shared.state().faults.clear();
    }

    /// Breaks the connections of all watches, and of all responses that have stalled, in the middle of an object.
    pub fn cut_watches(&self) {
        self.shared.signals.send_modify(|signals| signals.cuts += 1);
    }

    /// Stops all watches in the middle of an object, with their connections open.
    pub fn stall_watches(&self) {
        self.shared.signals.send_modify(|signals| signals.stalls += 1);
    }

    /// Ends all watches, as at their timeout.
    pub fn end_watches(&self) {
        self.shared.signals.send_modify(|signals| signals.ends += 1);
    }

    /// Ends all watches with an error event of this status.
    pub fn fail_watches(&self, code: u16) {
        self.shared.signals.send_modify(|signals| (signals.errors, signals.code) = (signals.errors + 1, code));
    }

    /// Sends a bookmark to all watches.
    pub fn bookmark(&self) {
        self.shared.signals.send_modify(|signals| signals.bookmarks += 1);
    }

    /// Sends an event of this type to all watches, with an object that is not stored.
    pub fn send(&self, kind: &str, object: Value) {
        let message = Arc::new((kind.to_owned(), object));
        self.shared.signals.send_modify(|signals| (signals.sent, signals.message) = (signals.sent + 1, message));
    }

    /// Returns the path and query of all requests so far, in order.
    pub fn requests(&self) -> Vec<String> {
        self.shared.state().requests.clone()
    }

    /// Returns the header `accept` of all requests so far that had it, in order.
    pub fn accept_headers(&self) -> Vec<String> {
        self.shared.state().accept_headers.clone()
    }

    /// Returns the header `authorization` of all requests so far that had it, in order.
    pub fn authorization_headers(&self) -> Vec<String> {
        self.shared.state().authorization_headers.clone()
    }

    /// Returns the header `accept-encoding` of all requests so far, in order; empty without it.
    pub fn encodings(&self) -> Vec<String> {
        self.shared.state().encodings.clone()
    }

    /// Returns the number of bytes in all bodies of lists and watches so far.
    pub fn bytes_sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Returns the numbers of lists, including streaming ones, that have begun and ended so far.
    pub fn lists(&self) -> (u64, u64) {
        let Lists { begun, ended } = &self.shared.lists;
        (begun.load(Ordering::Relaxed), ended.load(Ordering::Relaxed))
    }

    /// Returns the accepted writes in order: method and path, and the body.
    pub fn writes(&self) -> Vec<(String, Value)> {
        self.shared.state().writes.clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut ClusterData) -> T) -> T {
        self.shared.change(change)
    }
}

impl Drop for FakeApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<ServedCluster>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| serve::respond(Arc::clone(&shared), request));
            // Lost clients and injected faults are expected.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).with_upgrades().await;
        });
        while connections.try_join_next().is_some() {}
    }
}
