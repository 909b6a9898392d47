//! A double of an API server, for tests: it speaks list and watch over HTTP, as the real one does, in JSON and protobuf,
//! and fails on demand.
//!
//! It keeps objects as they are given, checks nothing, and remembers every change, so that it can show any state of the
//! past. It knows just the requests that a proxy makes, writing among them.

mod behaviour;
mod body;
pub(crate) mod encode;
mod serve;
mod store;
mod write;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use ferroute_source::Resource;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
};

pub use self::behaviour::{Behaviour, Fault, Streaming};
use self::{behaviour::Signals, store::Store};

/// An API server double on a port of its own on the loopback interface. It ends when it is dropped.
#[derive(Debug)]
pub struct ApiDouble {
    shared: Arc<Shared>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the watches.
    signals: watch::Sender<Signals>,
}

#[derive(Debug, Default)]
struct State {
    store: Store,
    behaviour: Behaviour,
    faults: Vec<Fault>,
    requests: Vec<String>,
    accepted: Vec<String>,
    writes: Vec<(String, Value)>,
}

impl Shared {
    /// Changes something and wakes the watches.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.signals.send_modify(|signals| signals.changes += 1);
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code that holds it panics")
    }
}

impl ApiDouble {
    /// Starts it, with nothing in it.
    ///
    /// # Panics
    ///
    /// No port can be had.
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts it at an address.
    ///
    /// # Panics
    ///
    /// The address cannot be had.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { state: Mutex::default(), signals: watch::channel(Signals::default()).0 });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { shared, address, task }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is, as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts an object in the place of the one of its name, if any, and gives its version, which is set in it.
    pub fn apply(&self, resource: Resource, object: Value) -> u64 {
        self.change(|state| state.store.apply(resource, object))
    }

    /// Deletes an object; `namespace` is empty for Nodes. Whether it was there.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> bool {
        self.change(|state| state.store.delete(resource, namespace, name))
    }

    /// All objects of a kind that the requests of a proxy can see, without those that other proxies take care of.
    pub fn objects(&self, resource: Resource) -> Vec<Value> {
        let state = self.shared.state();
        let now = state.store.version();
        state.store.at(now, resource).into_values().filter(store::is_ours).collect()
    }

    /// Forgets the past, so that no watch or list can begin before now.
    pub fn forget(&self) {
        self.shared.state().store.forget();
    }

    /// Goes back to the state of `version`, as when a backup has been put back.
    pub fn restore(&self, version: u64) {
        self.change(|state| state.store.restore(version));
    }

    /// Changes how it answers from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.state().behaviour);
    }

    /// The next request meets with this fault; further faults come after those that wait already.
    pub fn fault(&self, fault: Fault) {
        self.shared.state().faults.push(fault);
    }

    /// Takes back all faults that wait.
    pub fn clear_faults(&self) {
        self.shared.state().faults.clear();
    }

    /// Breaks all watches in the middle of an object.
    pub fn cut(&self) {
        self.shared.signals.send_modify(|signals| signals.cuts += 1);
    }

    /// Ends all watches regularly, as when their time is over.
    pub fn end_watches(&self) {
        self.shared.signals.send_modify(|signals| signals.ends += 1);
    }

    /// Ends all watches with a message that has this status.
    pub fn end_watches_with(&self, code: u16) {
        self.shared.signals.send_modify(|signals| (signals.errors, signals.code) = (signals.errors + 1, code));
    }

    /// Sends all watches a bookmark.
    pub fn bookmark(&self) {
        self.shared.signals.send_modify(|signals| signals.bookmarks += 1);
    }

    /// Sends all watches a message of this type with an object that it does not keep.
    pub fn send(&self, kind: &str, object: Value) {
        let message = Arc::new((kind.to_owned(), object));
        self.shared.signals.send_modify(|signals| (signals.sent, signals.message) = (signals.sent + 1, message));
    }

    /// The targets of all requests so far, in their order.
    pub fn requests(&self) -> Vec<String> {
        self.shared.state().requests.clone()
    }

    /// The header `accept` of all requests so far that had it, in their order.
    pub fn accepted(&self) -> Vec<String> {
        self.shared.state().accepted.clone()
    }

    /// What has been written and taken, in order: method and target, and the body.
    pub fn writes(&self) -> Vec<(String, Value)> {
        self.shared.state().writes.clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.shared.change(change)
    }
}

impl Drop for ApiDouble {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| serve::answer(Arc::clone(&shared), request));
            // That a client goes away, or a fault cuts the connection, is what this is for.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}
