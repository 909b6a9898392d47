//! Watches, including those that start with a list.

use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout_at};

use super::{Interruption, Reflector, RetryReason, state::Transition};
use crate::{
    api_client::ResponseStream,
    api_server::Timing,
    body::ContentsError,
    decode::{self, Status, WatchEvent},
    error::{ApiError, Cause},
    resource::plural,
    split::Splitter,
};

impl Reflector {
    /// Watches from `version`, which the last list or watch has reached.
    pub(super) async fn watch(&mut self, version: &str) -> Result<(), Interruption> {
        self.objects.settle(version);
        match self.open_watch(&[("resourceVersion", version)]).await {
            Ok((response, deadline)) => self.read_watch(response, deadline).await,
            Err(Interruption::Failed(error)) if error.status == Some(StatusCode::GONE) => {
                self.transition(Transition::Expired);
                Err(Interruption::Retry(RetryReason::Expired))
            }
            Err(Interruption::Failed(error)) => {
                if error.status.is_some_and(rejects_request) {
                    self.transition(Transition::Rejected);
                }
                Err(error.into())
            }
            Err(interruption) => Err(interruption),
        }
    }

    /// Starts a watch. Also returns the time by which the server must have ended it.
    pub(super) async fn open_watch(
        &mut self,
        parameters: &[(&str, &str)],
    ) -> Result<(ResponseStream, Instant), Interruption> {
        let seconds = self.client.timing.random_watch_seconds();
        let seconds_text = seconds.to_string();
        let mut all = vec![("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", &*seconds_text)];
        all.extend_from_slice(parameters);
        let response = self.request("watch", &all).await?;
        tracing::debug!(resource = ?self.collection.resource, ?parameters, seconds, "watch started");
        self.events.flush().await?;
        Ok((response, Instant::now() + Duration::from_secs(seconds) + self.client.timing.watch_grace))
    }

    pub(super) async fn read_watch(&mut self, response: ResponseStream, deadline: Instant) -> Result<(), Interruption> {
        let ResponseStream { mut contents, url, media_type } = response;
        let start = Instant::now();
        let Timing { max_backoff, watch_idle, streaming_list_timeout, .. } = self.client.timing;
        let (mut last_received, mut last_listed) = (start, start);
        let mut splitter = Splitter::stream(media_type);
        let mut has_received = false;
        loop {
            let listing = self.is_listing();
            let silent = self.sends_bookmarks.then(|| last_received + watch_idle);
            let until = match listing {
                // Bookmarks and spaces are no progress of a list.
                true => deadline.min(last_listed + streaming_list_timeout),
                false => {
                    let success = self.error.is_some().then(|| start + max_backoff);
                    [silent, success].into_iter().flatten().fold(deadline, Instant::min)
                }
            };
            let part = match timeout_at(until, contents.next()).await {
                Err(_) if listing => return Err(Interruption::Retry(RetryReason::StreamingUnsupported)),
                Err(_) if Instant::now() >= deadline => return Err(Interruption::Retry(RetryReason::Overdue)),
                Err(_) if silent.is_some_and(|silent| Instant::now() >= silent) => {
                    // Another server behind the same address may send none.
                    self.sends_bookmarks = false;
                    return Err(Interruption::Retry(RetryReason::Silent));
                }
                Err(_) => {
                    // It has been open long enough to count as a success, although no object has changed.
                    self.succeeded();
                    self.events.flush().await?;
                    continue;
                }
                Ok(Some(Ok(part))) => part,
                Ok(Some(Err(error @ ContentsError::Invalid(_)))) => {
                    return Err(error.into_api_error(&url, plural(self.collection.resource)).into());
                }
                Ok(end) => {
                    let lasted = start.elapsed() >= max_backoff;
                    if lasted && !listing {
                        self.backoff.reset();
                    }
                    return match end {
                        None if lasted && !listing && !splitter.is_within_object() => Ok(()),
                        _ if (lasted || has_received) && !listing => Err(Interruption::Retry(RetryReason::Interrupted)),
                        end => {
                            let cause = end.and_then(Result::err).map(|error| Cause::whole(&error));
                            Err(ApiError::ConnectionLost { url: url.to_string(), cause }.into())
                        }
                    };
                }
            };
            last_received = Instant::now();
            let (mut bytes, mut has_object) = (&*part, false);
            while let Some(event) = splitter.next(&mut bytes).map_err(|error| self.invalid(&url, &error))? {
                let event = decode::watch_event(media_type, event).map_err(|error| self.invalid(&url, &error))?;
                has_object |= matches!(event, WatchEvent::Applied(_));
                self.receive(event, &url)?;
                has_received = true;
                self.events.flush_full().await?;
            }
            self.events.flush().await?;
            if has_object {
                last_listed = Instant::now();
            }
        }
    }

    fn receive(&mut self, event: WatchEvent<'_>, url: &str) -> Result<(), Interruption> {
        let listing = self.is_listing();
        let version = match event {
            WatchEvent::Applied(object) if listing => self.objects.listed(object, self.events.batch()),
            WatchEvent::Applied(object) => self.objects.applied(object, self.events.batch()),
            WatchEvent::Deleted(object) => self.objects.deleted(object, self.events.batch()),
            WatchEvent::Bookmark { version, ends_list } => return self.bookmark(version, ends_list),
            WatchEvent::Error(status) => return Err(self.ended(status, url)),
            WatchEvent::Unknown(kind) => {
                tracing::debug!("ignoring a watch event of unknown type {kind:?}");
                None
            }
        };
        // The objects of a list have separate versions, which differ from the list's.
        if !listing {
            if let Some(version) = version {
                self.transition(Transition::Changed(version));
            }
            self.succeeded();
        }
        Ok(())
    }

    fn bookmark(&mut self, version: String, ends_list: bool) -> Result<(), Interruption> {
        if self.is_listing() {
            if ends_list {
                self.listed(version);
            }
            return Ok(());
        }
        self.transition(Transition::Bookmark(version.clone()));
        if self.is_listing() {
            return Err(Interruption::Retry(RetryReason::RolledBack));
        }
        self.objects.settle(&version);
        self.sends_bookmarks = true;
        self.succeeded();
        Ok(())
    }

    /// The server ends the watch with a status.
    fn ended(&mut self, status: Status, url: &str) -> Interruption {
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if code == StatusCode::GONE {
            self.transition(Transition::Expired);
            return Interruption::Retry(RetryReason::Expired);
        }
        if rejects_request(code) {
            self.transition(Transition::Rejected);
        }
        ApiError::from_status(url, "watch", self.collection.resource, code, status).into()
    }

    fn invalid(&self, url: &str, error: &(dyn std::error::Error + 'static)) -> ApiError {
        let resource = plural(self.collection.resource);
        ApiError::InvalidResponse { url: url.to_owned(), resource, cause: Cause::whole(error) }
    }
}

/// Reports whether sending the same request again is pointless.
fn rejects_request(code: StatusCode) -> bool {
    let retriable = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS];
    code.is_client_error() && !retriable.contains(&code)
}
