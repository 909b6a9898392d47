//! Connections through Services, while a page shows them.
//!
//! `GET /flows` has the recent flows and the summary of the last minutes. `GET /flows/events` starts with the same, as
//! event `flows-start`, and continues with changes. No events are received from the proxy or the kernel while no page
//! reads them.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use axum::{
    extract::State,
    response::{
        Sse,
        sse::{Event, KeepAlive},
    },
};
use ferroute_inspect::flows::{Flow, FlowEvent, FlowRequest, FlowStart, FlowStream, FlowSummary, Labels, Losses};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::sync::broadcast;

use crate::{
    api::{JsonText, Refusal},
    server::App,
    source::Source,
    watch::News,
};

/// The flows that pages show.
pub(crate) struct Flows {
    known: Mutex<Known>,
    news: broadcast::Sender<News>,
}

/// Initial data of a page.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Known {
    /// Whether flows are received at the moment.
    available: bool,
    /// Reason, if not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Data that the kernel provides.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<FlowStart>,
    /// Recent flows, the oldest first. Each has the number of its source.
    flows: VecDeque<Flow>,
    lost: Losses,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<FlowSummary>,
}

/// Flows that are new or have changed.
#[derive(Serialize)]
struct Changed<'a> {
    flows: &'a [Flow],
}

#[derive(Serialize)]
struct Unavailable<'a> {
    reason: &'a str,
}

impl Default for Flows {
    fn default() -> Self {
        let (news, _) = broadcast::channel(MAX_NEWS);
        Self { known: Mutex::default(), news }
    }
}

impl Flows {
    /// No operation under the lock can panic.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_readers(&self) -> bool {
        self.news.receiver_count() > 0
    }

    fn send(&self, event: &'static str, data: &impl Serialize) {
        // There may be no page.
        let _ = self.news.send(News::new(event, data));
    }

    fn set_unavailable(&self, reason: &str) {
        let mut known = self.known();
        known.available = false;
        if known.reason.as_deref() != Some(reason) {
            known.reason = Some(reason.to_owned());
            self.send("flows-unavailable", &Unavailable { reason });
        }
    }

    /// Stores an event, and sends it to the pages or adds it to the batch that is sent together.
    fn add(&self, event: FlowEvent, changed: &mut Vec<Flow>) {
        match event {
            FlowEvent::Start(start) => {
                let mut known = self.known();
                (known.available, known.reason, known.start) = (true, None, Some(start));
                // The flows that the source still has follow.
                known.flows.clear();
                known.lost = Losses::default();
            }
            FlowEvent::Flow(flow) => {
                self.known().add(&flow);
                changed.push(*flow);
            }
            FlowEvent::RecentEnd(_) => {
                changed.clear();
                let known = self.known().clone();
                self.send("flows-start", &known);
            }
            FlowEvent::Lost(lost) => {
                self.known().lost = lost;
                self.send("flows-lost", &lost);
            }
            FlowEvent::Summary(summary) => {
                self.send("flows-summary", &summary);
                self.known().summary = Some(summary);
            }
        }
    }
}

impl Known {
    fn add(&mut self, flow: &Flow) {
        match self.flows.iter_mut().rev().find(|known| known.id == flow.id) {
            Some(known) => known.clone_from(flow),
            None => {
                if self.flows.len() == MAX_FLOWS {
                    self.flows.pop_front();
                }
                self.flows.push_back(flow.clone());
            }
        }
    }
}

/// Starts to receive flows while pages read them. Ends with the application.
pub(crate) fn start(app: &Arc<App>) {
    let app = Arc::downgrade(app);
    // Without the thread, the page has no flows.
    let _ = thread::Builder::new().name("page-flows".to_owned()).spawn(move || {
        while let Some(app) = Weak::upgrade(&app) {
            if app.flows().has_readers() {
                match follow(&app) {
                    Ok(()) => app.flows().known().available = false,
                    Err(error) => {
                        app.flows().set_unavailable(&format!("{error:#}"));
                        thread::sleep(RETRY);
                    }
                }
            }
            drop(app);
            thread::sleep(INTERVAL);
        }
    });
}

/// Receives flows until no page has read them for a while, or until the objects used for looking up Services have
/// changed.
fn follow(app: &App) -> anyhow::Result<()> {
    let request =
        FlowRequest { recent: true, follow: true, summary_seconds: SUMMARY_SECONDS, ..FlowRequest::default() };
    anyhow::ensure!(app.source().has_kernel(), "flows can only be read by root, on the node itself");
    let mut view = app.view();
    let desired = Arc::clone(&view.desired);
    // The proxy follows its objects itself.
    let has_proxy = matches!(app.source(), Source::Node(_) | Source::Demo(_));
    let mut stream = app.source().on_node(|| match has_proxy {
        true => FlowStream::from_proxy(&request),
        false => FlowStream::from_kernel(&desired, &request),
    })??;
    let mut labels = Labels::new(&desired);
    let (flows, mut last_reader, mut changed) = (app.flows(), Instant::now(), Vec::new());
    loop {
        let until = Instant::now() + INTERVAL;
        while let Some(mut event) = stream.next(Some(until))? {
            labels.apply(&mut event);
            flows.add(event, &mut changed);
            if changed.len() >= MAX_CHANGED {
                break;
            }
        }
        if !changed.is_empty() {
            flows.send("flows", &Changed { flows: &changed });
            changed.clear();
        }
        if flows.has_readers() {
            last_reader = Instant::now();
        }
        let current = app.view();
        let is_old = current.revision != view.revision;
        if last_reader.elapsed() > LINGER || is_old && !has_proxy {
            return Ok(());
        }
        if is_old {
            let earlier = std::mem::replace(&mut labels, Labels::new(&current.desired));
            labels.keep(earlier);
            view = current;
        }
        stream.ensure_open()?;
    }
}

/// `GET /flows`
pub(crate) async fn flows(State(app): State<Arc<App>>) -> Result<JsonText, Refusal> {
    let mut known = app.flows().known().clone();
    // A page that has just been opened gets the reason of its own attempt, or the flows.
    if !known.available && known.reason.is_none() {
        known.reason = Some(NO_READER.to_owned());
    }
    JsonText::new(&known)
}

const NO_READER: &str = "flows are received only while a page reads /flows/events";

/// `GET /flows/events`
pub(crate) async fn events(State(app): State<Arc<App>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let receiver = app.flows().news.subscribe();
    let first = News::new("flows-start", &*app.flows().known());
    let news = stream::unfold((receiver, app), async |(mut receiver, app)| match receiver.recv().await {
        Ok(news) => Some((news, (receiver, app))),
        // A page that cannot keep up starts again with all data.
        Err(broadcast::error::RecvError::Lagged(_)) => {
            let first = News::new("flows-start", &*app.flows().known());
            Some((first, (receiver, app)))
        }
        Err(broadcast::error::RecvError::Closed) => None,
    });
    let event = |news: News| Ok(Event::default().event(news.event).data(&*news.data));
    Sse::new(stream::iter([first]).chain(news).map(event)).keep_alive(KeepAlive::default())
}

/// The flows that a page gets when it is opened.
const MAX_FLOWS: usize = 1000;
/// The news that a slow page can be behind.
const MAX_NEWS: usize = 64;
/// The flows that are sent together at most.
const MAX_CHANGED: usize = 500;
/// The interval at which changes are sent together.
const INTERVAL: Duration = Duration::from_millis(250);
/// The interval of summaries.
const SUMMARY_SECONDS: u32 = 2;
/// Time for which flows are received after the last page was closed, because the page may only be reloading.
const LINGER: Duration = Duration::from_secs(3);
/// The delay after flows could not be received.
const RETRY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use ferroute_core::Protocol;
    use ferroute_inspect::flows::{FlowState, Peer};

    use super::*;

    fn flow(id: u64, state: FlowState) -> FlowEvent {
        FlowEvent::Flow(Box::new(Flow {
            id,
            time: None,
            state,
            protocol: Protocol::Tcp,
            client: Peer::new("10.244.0.9:1000".parse().unwrap()),
            service_port: Some("shop/web:http".into()),
            kind: None,
            destination: "10.96.0.1:80".parse().unwrap(),
            endpoint: None,
            reason: None,
            answer_seconds: None,
            duration_seconds: None,
            packets: None,
            bytes: None,
        }))
    }

    #[test]
    fn changed_flows_replace_those_of_the_same_number_and_memory_is_bounded() {
        let flows = Flows::default();
        let mut changed = Vec::new();
        flows.add(FlowEvent::Start(FlowStart::default()), &mut changed);
        for id in 0..2 * MAX_FLOWS as u64 {
            flows.add(flow(id, FlowState::Open), &mut changed);
        }
        flows.add(flow(2 * MAX_FLOWS as u64 - 2, FlowState::Closed), &mut changed);
        let known = flows.known().clone();
        assert_eq!(known.flows.len(), MAX_FLOWS);
        assert_eq!(known.flows[MAX_FLOWS - 2].state, FlowState::Closed);
        assert!(known.available && known.reason.is_none());
        // Another subscription of the same source replaces them.
        flows.add(FlowEvent::Lost(Losses { missed: 1, ..Losses::default() }), &mut changed);
        flows.add(FlowEvent::Start(FlowStart::default()), &mut changed);
        assert!(flows.known().flows.is_empty() && flows.known().lost.is_empty());
    }
}
