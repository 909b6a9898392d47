//! A reflector for one kind of object: it lists, watches, and lists again if necessary.
//!
//! [`state`] holds the received version and determines the next request; this module sends requests, reports failures,
//! and delays retries. The objects themselves are not kept, only their names and versions.

mod list;
mod objects;
mod state;
mod version_cache;
mod watch;

use std::{sync::Arc, time::Duration};

use ferroute_core::Backoff;
use ferroute_source::{Event, Problem};
use http::StatusCode;
use tokio::{
    sync::{mpsc, watch::Receiver},
    time::{Instant, sleep, sleep_until},
};

use self::{
    objects::ObjectState,
    state::{Phase, Transition},
};
use crate::{
    api_client::{ApiClient, CollectionRequest, RequestError, ResponseStream},
    api_server::Timing,
    error::{ActiveError, ApiError, ErrorDeduplication, Resolution},
    resource::Collection,
};

/// Reports one collection to the receiver of events, and its changes.
#[derive(Debug)]
pub(crate) struct Reflector {
    collection: Collection,
    client: Arc<ApiClient>,
    state: Phase,
    objects: ObjectState,
    events: EventSender,
    backoff: Backoff,
    errors: Arc<ErrorDeduplication>,
    /// The error that has been reported and not resolved.
    error: Option<ActiveError>,
    /// Time since which the server has forbidden all requests.
    forbidden_since: Option<Instant>,
    /// Whether the last request got no response.
    unreachable: bool,
    /// Notified when the server responds to any request after a failure to reach it.
    recoveries: Receiver<u64>,
    /// Whether the server has sent a bookmark, and no later watch has been silent.
    sends_bookmarks: bool,
}

/// Reason why a list or watch ended early.
#[derive(Debug)]
enum Interruption {
    /// The receiver of events is closed.
    Closed,
    /// The request is sent again, without a report.
    Retry(RetryReason),
    /// The request is sent again, and the error is reported.
    Failed(RequestError),
}

/// The time before the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// A random part of [`Timing::spread`].
    Spread,
    /// The back-off, after the delay that the server requests.
    Backoff { retry_after: Option<Duration> },
    /// The back-off, or a random part of [`Timing::spread`] after the server has responded to another request.
    UntilRecovery,
}

/// Reason why a request is sent again without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum RetryReason {
    #[error("the server does not have the requested resource version")]
    Expired,
    #[error("the server has been rolled back to an older resource version")]
    RolledBack,
    #[error("the server did not end the watch in time")]
    Overdue,
    #[error("the watch was silent although the server sends bookmarks")]
    Silent,
    #[error("the watch was interrupted")]
    Interrupted,
    #[error("the server does not support streaming lists")]
    StreamingUnsupported,
}

impl From<Closed> for Interruption {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

impl From<RequestError> for Interruption {
    fn from(error: RequestError) -> Self {
        Self::Failed(error)
    }
}

impl From<ApiError> for Interruption {
    fn from(error: ApiError) -> Self {
        Self::Failed(error.into())
    }
}

impl Reflector {
    pub(crate) fn new(
        collection: Collection,
        client: Arc<ApiClient>,
        errors: Arc<ErrorDeduplication>,
        batches: mpsc::Sender<Vec<Event>>,
    ) -> Self {
        Self {
            state: Phase::default(),
            objects: ObjectState::new(collection.resource),
            events: EventSender::new(batches),
            backoff: Backoff::new(client.timing.initial_backoff, client.timing.max_backoff),
            recoveries: client.recoveries(),
            collection,
            client,
            errors,
            error: None,
            forbidden_since: None,
            unreachable: false,
            sends_bookmarks: false,
        }
    }

    /// Lists and watches until the receiver of events is closed.
    pub(crate) async fn run(mut self) {
        loop {
            self.recoveries.mark_unchanged();
            let result = match &self.state {
                Phase::List(list) => self.list(list.clone()).await,
                Phase::Watch { version } => self.watch(&version.clone()).await,
            };
            let pause = match result {
                Ok(()) => continue,
                Err(Interruption::Closed) => return,
                Err(Interruption::Retry(reason)) => {
                    tracing::debug!(resource = ?self.collection.resource, state = ?self.state, "retrying: {reason}");
                    match reason {
                        // The server has just responded, so it is not too busy for a list. All other nodes may have
                        // received the same response.
                        RetryReason::Expired | RetryReason::RolledBack => Pause::Spread,
                        _ => Pause::Backoff { retry_after: None },
                    }
                }
                Err(Interruption::Failed(error)) => self.failed(error),
            };
            if self.events.flush().await.is_err() {
                return;
            }
            self.pause(pause).await;
        }
    }

    /// Reports a failed request. Returns the pause before the next one.
    fn failed(&mut self, error: RequestError) -> Pause {
        let is_without_response = error.error.is_without_response();
        if std::mem::replace(&mut self.unreachable, is_without_response) && error.status.is_some() {
            // A starting server responds with errors for some seconds; the long delays were for its absence.
            self.backoff.reset();
        }
        if self.collection.is_optional() && error.status.is_some() {
            return Pause::Backoff { retry_after: self.continue_without(error) };
        }
        let retry_after = error.retry_after;
        self.report(error.error);
        match is_without_response {
            true => Pause::UntilRecovery,
            false => Pause::Backoff { retry_after },
        }
    }

    async fn pause(&mut self, pause: Pause) {
        let Timing { max_backoff, spread, .. } = self.client.timing;
        let spread = part_of(spread);
        match pause {
            Pause::Spread => sleep(spread).await,
            Pause::Backoff { retry_after } => {
                sleep(jittered(self.backoff.next_delay(), retry_after, max_backoff)).await;
            }
            Pause::UntilRecovery => {
                let end = Instant::now() + jittered(self.backoff.next_delay(), None, max_backoff);
                tokio::select! {
                    () = sleep_until(end) => {}
                    // The client owns the sender, so this is not an error.
                    _ = self.recoveries.changed() => sleep_until(end.min(Instant::now() + spread)).await,
                }
            }
        }
    }

    /// Reports an optional collection as synced although the server does not return it. Returns the minimum delay
    /// before the next request.
    fn continue_without(&mut self, error: RequestError) -> Option<Duration> {
        self.objects.unavailable(self.events.batch());
        if error.status == Some(StatusCode::NOT_FOUND) {
            // An old server is not an error. After the time of a watch, it may be a newer one.
            self.resolve();
            tracing::debug!(resource = ?self.collection.resource, "not supported by the server");
            return Some(Duration::from_secs(self.client.timing.random_watch_seconds()));
        }
        self.report(error.error);
        error.retry_after
    }

    async fn request(
        &mut self,
        verb: &'static str,
        parameters: &[(&str, &str)],
    ) -> Result<ResponseStream, RequestError> {
        let resource = self.collection.resource;
        let path_and_query = &self.collection.path_and_query(parameters);
        let response = self.client.get(&CollectionRequest { verb, resource, path_and_query }).await;
        if response.as_ref().map_or_else(|error| error.status.is_some(), |_| true) {
            let resolved = self.errors.responded();
            self.events.batch().extend(resolved);
        }
        let response = response?;
        (self.forbidden_since, self.unreachable) = (None, false);
        if self.error.as_ref().is_some_and(|error| error.resolution() != Resolution::Contents) {
            self.resolve();
        }
        Ok(response)
    }

    fn transition(&mut self, transition: Transition) {
        self.state = std::mem::take(&mut self.state).next(transition);
    }

    fn is_listing(&self) -> bool {
        matches!(self.state, Phase::List(_))
    }

    /// Completes the list as of `version`.
    fn listed(&mut self, version: String) {
        tracing::debug!(resource = ?self.collection.resource, version, "listed");
        self.objects.end_list(&version, self.events.batch());
        self.transition(Transition::Listed(version));
        self.succeeded();
    }

    /// Resets the back-off and resolves the reported error.
    fn succeeded(&mut self) {
        self.backoff.reset();
        self.resolve();
    }

    fn resolve(&mut self) {
        let resolved = self.error.take().and_then(|error| self.errors.resolve(error));
        self.events.batch().extend(resolved);
    }

    fn report(&mut self, error: ApiError) {
        if matches!(error, ApiError::Forbidden { .. }) {
            let since = *self.forbidden_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.client.timing.forbidden_grace {
                tracing::debug!(resource = ?self.collection.resource, "{error}");
                return self.resolve();
            }
        } else {
            self.forbidden_since = None;
        }
        let resolution = error.resolution();
        let problem = Problem::from(error);
        if self.error.as_ref().is_some_and(|active| self.errors.is_active(active, &problem)) {
            return;
        }
        self.resolve();
        let (active, event) = self.errors.report(problem, resolution);
        self.error = Some(active);
        self.events.batch().extend(event);
    }
}

/// Gathers events into batches.
#[derive(Debug)]
struct EventSender {
    sender: mpsc::Sender<Vec<Event>>,
    batch: Vec<Event>,
}

/// The receiver of events is closed.
#[derive(Debug)]
struct Closed;

impl EventSender {
    fn new(sender: mpsc::Sender<Vec<Event>>) -> Self {
        Self { sender, batch: Vec::new() }
    }

    /// Returns the batch, to add events to.
    fn batch(&mut self) -> &mut Vec<Event> {
        &mut self.batch
    }

    /// Sends the batch if it is full. Batches are small because the objects of a list are held in memory only while they
    /// wait here.
    async fn flush_full(&mut self) -> Result<(), Closed> {
        if self.batch.len() < FULL_BATCH { Ok(()) } else { self.flush().await }
    }

    /// Sends the batch.
    async fn flush(&mut self) -> Result<(), Closed> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.sender.send(std::mem::take(&mut self.batch)).await.map_err(|_| Closed)
    }
}

/// Returns 25 to 100 % of `delay`, at random, so that nodes that fail together do not retry together. `retry_after`,
/// which the server requests of all clients, is added; values above ten times `max` are ignored.
fn jittered(delay: Duration, retry_after: Option<Duration>, max: Duration) -> Duration {
    let retry_after = retry_after.unwrap_or_default().min(max.saturating_mul(10));
    retry_after + delay.mul_f64(0.25 + 0.75 * fastrand::f64())
}

/// Returns a random part of a period over which nodes spread their requests.
fn part_of(spread: Duration) -> Duration {
    spread.mul_f64(fastrand::f64())
}

/// Events in a full batch. A queue of a few dozen batches of slices with a hundred endpoints each is some megabytes.
const FULL_BATCH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(8);
    const MAX: Duration = Duration::from_secs(30);

    #[test]
    fn delays_are_shortened_by_chance() {
        let delays: std::collections::BTreeSet<_> = (0..8).map(|_| jittered(DELAY, None, MAX)).collect();
        assert!(delays.len() > 1);
        assert!(delays.iter().all(|delay| (DELAY / 4..=DELAY).contains(delay)), "{delays:?}");
    }

    #[test]
    fn retry_after_is_the_least_delay_within_reason() {
        let delay = |seconds| jittered(DELAY, Some(Duration::from_secs(seconds)), MAX);
        assert!(delay(20) > Duration::from_secs(20));
        assert!(delay(1_000_000) <= Duration::from_secs(308));
    }

    #[test]
    fn spread_requests_are_distributed_over_the_whole_period() {
        let mut nodes_by_second = [0; 5];
        for _ in 0..1000 {
            nodes_by_second[part_of(Duration::from_secs(5)).as_secs() as usize] += 1;
        }
        // 200 are expected; 280 is six standard deviations more.
        assert!(nodes_by_second.iter().all(|nodes| *nodes < 280), "{nodes_by_second:?}");
    }
}
