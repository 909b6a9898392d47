//! The API of the page on each node, by `ferroute ui --stdio` in the pod of its proxy: one program per node, as long as the plugin runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_core::error_chain;
use ferroute_kube::ExecLimits;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    Fleet, NodeProxy,
    answer::{MAX_ANSWER, answered},
};

/// A request to the page's API, as a line of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PageRequest {
    /// Identifier of the request among those of one program.
    pub id: u64,
    /// The resource with its parameters, such as `/services/shop/web`.
    pub path: String,
    /// The rest of an earlier response is not needed any more.
    pub cancel: bool,
}

/// A part of a response, as a line of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PageResponse {
    /// The request.
    pub id: u64,
    /// The HTTP status and the media type, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<PageHead>,
    /// Further text of the body.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// There are no further parts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PageHead {
    /// The HTTP status.
    pub status: u16,
    /// The media type.
    pub media_type: String,
}

/// The pages of all nodes.
#[derive(Debug)]
pub struct NodePages {
    fleet: Fleet,
    proxies: Vec<NodeProxy>,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
}

/// A program on a node.
#[derive(Debug)]
struct Session {
    input: mpsc::Sender<Vec<u8>>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    /// Receivers of responses, by request.
    receivers: BTreeMap<u64, mpsc::Sender<PageResponse>>,
    /// Reason why the program has ended.
    ended: Option<String>,
}

/// The body of a response, some text at a time.
#[derive(Debug)]
pub struct PageBody {
    id: u64,
    session: Arc<Session>,
    parts: mpsc::Receiver<PageResponse>,
    has_ended: bool,
}

impl NodePages {
    /// Creates the pages of these proxies. No program is started until it is needed.
    pub fn new(fleet: Fleet, proxies: Vec<NodeProxy>) -> Self {
        Self { fleet, proxies, sessions: Mutex::default() }
    }

    /// Returns the API server, and the settings for queries of nodes.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Returns the proxies by the names of their nodes.
    pub fn proxies(&self) -> &[NodeProxy] {
        &self.proxies
    }

    /// Requests a resource of a node's page.
    ///
    /// # Errors
    /// If the node does not answer.
    pub async fn get(&self, node: &str, path: &str) -> Result<(PageHead, PageBody), String> {
        let session = self.session(node)?;
        let (sender, mut parts) = mpsc::channel(PARTS);
        let id = session.add(sender)?;
        let request = PageRequest { id, path: path.to_owned(), cancel: false };
        let body = |parts| PageBody { id, session: Arc::clone(&session), parts, has_ended: false };
        let ended = || session.waiting().ended.clone().unwrap_or_else(|| "the program has ended".to_owned());
        session.send(&request).await.map_err(|()| ended())?;
        let head = tokio::time::timeout(self.fleet.limit, parts.recv()).await;
        let mut body = body(parts);
        match head {
            Ok(Some(PageResponse { head: Some(head), end, .. })) => {
                body.has_ended = end;
                Ok((head, body))
            }
            Ok(_) => Err(ended()),
            Err(_) => Err(format!("no answer within {}s", self.fleet.limit.as_secs())),
        }
    }

    /// Returns the program of a node, and starts it if it does not run.
    fn session(&self, node: &str) -> Result<Arc<Session>, String> {
        let proxy = self.proxies.iter().find(|proxy| proxy.node == node);
        let proxy = proxy.ok_or_else(|| format!("no proxy runs on node {node}"))?;
        if let Some(problem) = &proxy.problem {
            return Err(problem.clone());
        }
        let mut sessions = lock(&self.sessions);
        if let Some(session) = sessions.get(node)
            && session.waiting().ended.is_none()
        {
            return Ok(Arc::clone(session));
        }
        let session = Session::start(self.fleet.clone(), proxy.clone());
        sessions.insert(node.to_owned(), Arc::clone(&session));
        Ok(session)
    }
}

impl Session {
    fn start(fleet: Fleet, proxy: NodeProxy) -> Arc<Self> {
        let (input, receiver) = mpsc::channel(QUEUE);
        let session = Arc::new(Self { input, waiting: Mutex::default() });
        let running = Arc::clone(&session);
        tokio::spawn(async move {
            let (lines, mut received) = mpsc::channel::<Vec<u8>>(QUEUE);
            let command = ["ferroute", "ui", "--stdio"].map(str::to_owned);
            let limits = ExecLimits { time: fleet.limit, output: MAX_ANSWER };
            let run = fleet.cluster.exec_session(&proxy.container, &command, limits, receiver, lines);
            let dispatch = async {
                while let Some(line) = received.recv().await {
                    if let Ok(response) = serde_json::from_slice::<PageResponse>(&line) {
                        running.deliver(response);
                    }
                }
            };
            let (output, ()) = tokio::join!(run, dispatch);
            let failure = match output.map(|output| answered(output, &[0])) {
                Ok(Ok(_)) => "the program has ended".to_owned(),
                Ok(Err(error)) => error,
                Err(error) => error_chain(&error),
            };
            let mut waiting = running.waiting();
            waiting.ended = Some(proxy.failure(failure));
            // Responses end where they are.
            waiting.receivers.clear();
        });
        session
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// Adds a receiver, and returns the number of its request.
    fn add(&self, receiver: mpsc::Sender<PageResponse>) -> Result<u64, String> {
        let mut waiting = self.waiting();
        if let Some(ended) = &waiting.ended {
            return Err(ended.clone());
        }
        waiting.last += 1;
        let id = waiting.last;
        waiting.receivers.insert(id, receiver);
        Ok(id)
    }

    async fn send(&self, request: &PageRequest) -> Result<(), ()> {
        self.input.send(line(request)).await.map_err(|_| ())
    }

    fn deliver(&self, response: PageResponse) {
        let mut waiting = self.waiting();
        let (id, end) = (response.id, response.end);
        // A dropped receiver has cancelled the request. The response to a receiver that is too slow ends: the page
        // requests it again.
        let is_gone = waiting.receivers.get(&id).is_some_and(|receiver| receiver.try_send(response).is_err());
        if end || is_gone {
            waiting.receivers.remove(&id);
        }
    }
}

impl PageBody {
    /// Waits for more text; `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Option<String> {
        if self.has_ended {
            return None;
        }
        let part = self.parts.recv().await;
        self.has_ended = part.as_ref().is_none_or(|part| part.end);
        part.map(|part| part.data)
    }
}

impl Drop for PageBody {
    fn drop(&mut self) {
        self.session.waiting().receivers.remove(&self.id);
        if !self.has_ended {
            // If the queue is full, the rest of the response is received and ignored.
            let cancel = PageRequest { id: self.id, path: String::new(), cancel: true };
            let _ = self.session.input.try_send(line(&cancel));
        }
    }
}

fn line(request: &PageRequest) -> Vec<u8> {
    let mut line = serde_json::to_vec(request).expect("text and numbers under text keys are always JSON");
    line.push(b'\n');
    line
}

/// No operation under these locks can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parts of a response that wait for its receiver.
const PARTS: usize = 256;
/// Maximum number of lines that wait in one direction.
const QUEUE: usize = 64;
