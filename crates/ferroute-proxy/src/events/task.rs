//! The task that writes Events.

use std::time::{Duration, SystemTime};

use ferroute_core::Backoff;
use ferroute_kube::{ApiWriter, ObjectReference, KubeEvent, EventHandle, EventType, WriteError};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Job,
    series::{Series, Step},
    sockets::{self, Claim, Conflict},
};
use crate::logging::chain;

/// See the module's text.
pub(super) struct Task {
    writer: Option<ApiWriter>,
    series: Series,
    /// It has been told that Events cannot be written, and none has been since.
    is_told: bool,
}

impl Task {
    pub(super) fn new(writer: Option<ApiWriter>) -> Self {
        Self { writer, series: Series::new(Instant::now()), is_told: false }
    }

    pub(super) async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(job) = jobs.recv().await {
            match job {
                Job::Write(report) => self.report(&report).await,
                Job::Look(claims) => self.look(claims).await,
            }
        }
    }

    async fn look(&mut self, claims: Vec<Claim>) {
        let conflicts = match tokio::task::spawn_blocking(|| sockets::conflicts(claims)).await {
            Ok(Ok(conflicts)) => conflicts,
            Ok(Err(error)) => {
                return tracing::debug!("cannot tell whether node ports are listened on: {}", chain(&error));
            }
            Err(error) => return tracing::error!("the look at local sockets has not come to its end: {error}"),
        };
        for conflict in conflicts {
            let note = conflict.text();
            tracing::warn!("{note}");
            let Conflict { claim: Claim { service, .. }, .. } = conflict;
            let regarding = ObjectReference::service(service.service.namespace(), service.service.name());
            let (event_type, reason) = (EventType::Warning, "NodePortInUse");
            self.report(&KubeEvent { regarding, event_type, reason, action: "Listen", note }).await;
        }
    }

    async fn report(&mut self, report: &KubeEvent) {
        let Some(writer) = self.writer.clone() else { return };
        let before = match self.series.happened(report, Instant::now()) {
            Step::Nothing => return,
            Step::Write => None,
            Step::Count(reported, count) => Some((reported, count)),
        };
        let written = self.write(&writer, report, before).await;
        self.series.written(report, written);
    }

    /// A few tries; what is lost then stands in the log. `before`: the Event that is there, and how often it is by now.
    async fn write(
        &mut self,
        writer: &ApiWriter,
        report: &KubeEvent,
        mut before: Option<(EventHandle, u32)>,
    ) -> Option<EventHandle> {
        let at = SystemTime::now();
        let mut backoff = Backoff::new(FIRST_PAUSE, Duration::MAX);
        for tries_left in (0..TRIES).rev() {
            let result = match &before {
                None => writer.create_event(report, at).await,
                Some((reported, count)) => writer.update_series(reported, *count, at).await.map(|()| reported.clone()),
            };
            let error = match result {
                Ok(reported) => {
                    self.is_told = false;
                    return Some(reported);
                }
                // The server keeps Events for an hour only.
                Err(error) if error.is_not_found() && before.take().is_some() => continue,
                Err(error) => error,
            };
            self.tell(&error);
            if tries_left == 0 || !error.is_transient() {
                break;
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
        None
    }

    fn tell(&mut self, error: &WriteError) {
        if std::mem::replace(&mut self.is_told, true) {
            tracing::debug!("cannot write an Event: {}", chain(error));
        } else {
            tracing::warn!("cannot write Events, all else goes on: {}", chain(error));
        }
    }
}

const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
