//! Following one kind of objects: list, watch, and what to do when that fails.
//!
//! ```text
//!            ┌────── too old, going back in time ◄─────┐
//!            ▼                                         │
//!     list (streaming ──► or in pages) ──► watch ──► watch from the last version ──► ...
//!            ▲                  │            │
//!            └─ wait, again ◄───┴────────────┘
//! ```

mod pages;
mod stream;

use std::{sync::Arc, time::Duration};

use ferroute_source::Event;
use http::StatusCode;
use tokio::{sync::mpsc, time::sleep};

use crate::{
    backoff::Backoff,
    complaints::{Complaint, Complaints},
    kinds::Wanted,
    known::Version,
    ledger::Ledger,
    outlet::{Outlet, Stopped},
    server::{Answer, Failure, Question, Server},
    trouble::Trouble,
};

/// Follows one kind.
#[derive(Debug)]
pub(crate) struct Follower {
    wanted: Wanted,
    server: Arc<Server>,
    out: Outlet,
    ledger: Ledger,
    backoff: Backoff,
    complaints: Arc<Complaints>,
    /// What has gone wrong and not yet right again.
    complaint: Option<Complaint>,
    /// The version up to which everything has come; `None` before the first list.
    last: Option<String>,
    /// Watching from `last` is not possible, or pointless.
    must_list: bool,
    /// The server cannot list as of `last`.
    newest: bool,
    /// The next list is to come in pages: a streaming one has failed.
    paged: bool,
    /// The next list in pages is to be one page: its pages were not kept for long enough.
    whole: bool,
    /// The server gives none of these objects, so it has been told that the list is complete.
    is_without: bool,
}

/// Why something has ended before its time.
#[derive(Debug)]
enum Setback {
    /// Nobody takes events any more.
    Stopped,
    /// It is to be tried again; nobody needs to hear of it.
    Again(&'static str),
    /// It is to be tried again, and somebody may have to see to it.
    Failed(Failure),
    /// The server does not seem to know streaming lists.
    NoStreaming,
}

impl From<Stopped> for Setback {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Trouble> for Setback {
    fn from(trouble: Trouble) -> Self {
        Self::Failed(trouble.into())
    }
}

impl Follower {
    pub(crate) fn new(
        wanted: Wanted,
        server: Arc<Server>,
        complaints: Arc<Complaints>,
        batches: mpsc::Sender<Vec<Event>>,
    ) -> Self {
        Self {
            out: Outlet::new(batches),
            ledger: Ledger::new(wanted.resource),
            backoff: Backoff::new(server.timing.first_wait, server.timing.longest_wait),
            wanted,
            server,
            complaints,
            complaint: None,
            last: None,
            must_list: true,
            newest: false,
            paged: false,
            whole: false,
            is_without: false,
        }
    }

    /// Follows until nobody takes events any more.
    pub(crate) async fn run(mut self) {
        loop {
            let result = if self.must_list { self.list().await } else { self.watch().await };
            let asked = match result {
                Ok(()) => continue,
                Err(Setback::Stopped) => return,
                Err(Setback::Again(why)) => {
                    tracing::debug!(resource = ?self.wanted.resource, "again: {why}");
                    None
                }
                Err(Setback::NoStreaming) => None,
                Err(Setback::Failed(failure)) if self.wanted.is_optional() && failure.status.is_some() => {
                    self.go_without(failure)
                }
                Err(Setback::Failed(failure)) => {
                    self.complain(failure.trouble);
                    failure.retry_after
                }
            };
            if self.out.flush().await.is_err() {
                return;
            }
            sleep(self.backoff.next(asked)).await;
        }
    }

    /// Lists, and goes on watching where both are one.
    async fn list(&mut self) -> Result<(), Setback> {
        let result = match self.paged {
            true => self.list_pages().await,
            false => match self.list_streaming().await {
                Err(Setback::NoStreaming) => self.list_pages().await,
                result => result,
            },
        };
        if let Err(Setback::Failed(failure)) = &result
            && self.must_list
            && !is_about_us(failure)
        {
            // Perhaps it is the way of listing that something on the way cannot stand.
            self.paged = !self.paged;
        }
        result
    }

    /// The server gives none of the objects, and the proxy can do without: nobody is to wait for them. Gives the least
    /// time after which to ask again.
    fn go_without(&mut self, failure: Failure) -> Option<Duration> {
        if self.last.is_none() && !std::mem::replace(&mut self.is_without, true) {
            self.out.batch().push(Event::Synced(self.wanted.resource));
        }
        if failure.status == Some(StatusCode::NOT_FOUND) {
            // Nothing is wrong with an old server. After the time of a watch it may be a newer one.
            self.work_again();
            tracing::debug!(resource = ?self.wanted.resource, "the server does not know this kind");
            return Some(Duration::from_secs(self.server.timing.watch_seconds()));
        }
        self.complain(failure.trouble);
        failure.retry_after
    }

    async fn ask(&mut self, verb: &'static str, parameters: &[(&str, &str)]) -> Result<Answer, Failure> {
        let resource = self.wanted.resource;
        let path_and_query = &self.wanted.path_and_query(parameters);
        let answer = self.server.ask(&Question { verb, resource, path_and_query }).await?;
        if self.complaint.as_ref().is_some_and(Complaint::ends_with_an_answer) {
            self.work_again();
        }
        Ok(answer)
    }

    /// What the list shows is complete up to `version`.
    fn listed(&mut self, version: String) {
        self.ledger.end_listing(&version, self.out.batch());
        self.last = Some(version);
        (self.must_list, self.newest, self.paged, self.whole) = (false, false, false, false);
        self.works();
    }

    /// Notes that everything up to `version` has come.
    fn advance(&mut self, version: String) {
        let last = self.last.as_deref().map(Version::of).unwrap_or_default();
        if !Version::of(&version).is_old_to(last) {
            self.last = Some(version);
        }
    }

    /// The version that a watch or list asked for is not kept any more, or not reached yet.
    fn expired(&mut self, why: &'static str) -> Setback {
        // A list that fails like this must not ask for the version again.
        self.newest |= self.must_list;
        self.must_list = true;
        Setback::Again(why)
    }

    /// Something good has come.
    fn works(&mut self) {
        self.backoff.reset();
        self.work_again();
    }

    fn work_again(&mut self) {
        let solved = self.complaint.take().and_then(|complaint| self.complaints.settle(complaint));
        self.out.batch().extend(solved);
    }

    fn complain(&mut self, trouble: Trouble) {
        let until_answered = trouble.ends_with_an_answer();
        let problem = trouble.into_problem();
        if self.complaint.as_ref().is_some_and(|complaint| complaint.is(&problem)) {
            return;
        }
        self.work_again();
        let (complaint, event) = self.complaints.raise(problem, until_answered);
        self.complaint = Some(complaint);
        self.out.batch().extend(event);
    }
}

/// Whether a failure has to do with who asks or how often, or comes before the server sees what is asked.
fn is_about_us(failure: &Failure) -> bool {
    let status = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS];
    failure.trouble.may_be_configuration() || failure.status.is_some_and(|code| status.contains(&code))
}
