//! Watches, and lists that come as the beginning of a watch.

use http::StatusCode;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{Follower, Setback};
use crate::{
    decode::{self, Message, Status},
    known::Version,
    server::Answer,
    split::Splitter,
    trouble::{Cause, Trouble},
};

impl Follower {
    /// Lists by a watch that begins with all there is, and goes on with it.
    pub(super) async fn list_streaming(&mut self) -> Result<(), Setback> {
        self.ledger.begin_listing();
        let last = self.last.clone().filter(|_| !self.newest);
        let mut parameters = vec![("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
        parameters.extend(last.iter().map(|last| ("resourceVersion", last.as_str())));
        match self.open(&parameters).await {
            Err(Setback::Failed(failure)) if failure.status.is_some_and(means_unknown) => Err(Setback::NoStreaming),
            Err(Setback::Failed(failure)) if failure.status.is_some_and(means_expired) && last.is_some() => {
                Err(self.expired("the server cannot list as of the last version"))
            }
            Err(setback) => Err(setback),
            Ok((answer, deadline)) => self.read(answer, deadline).await,
        }
    }

    /// Watches from where the list or the last watch has ended.
    pub(super) async fn watch(&mut self) -> Result<(), Setback> {
        let last = self.last.clone().unwrap_or_default();
        // What is up to there will not come again, or is not news if it does.
        self.ledger.settle(&last);
        match self.open(&[("resourceVersion", &last)]).await {
            Ok((answer, deadline)) => self.read(answer, deadline).await,
            Err(Setback::Failed(failure)) if failure.status == Some(StatusCode::GONE) => {
                Err(self.expired("the last version is too old to watch from"))
            }
            Err(Setback::Failed(failure)) => {
                self.must_list |= failure.status.is_some_and(blames_the_question);
                Err(failure.into())
            }
            Err(setback) => Err(setback),
        }
    }

    /// Begins a watch; gives also when it must be over.
    async fn open(&mut self, parameters: &[(&str, &str)]) -> Result<(Answer, Instant), Setback> {
        let seconds = self.server.timing.watch_seconds();
        let seconds_text = seconds.to_string();
        let mut all = vec![("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", &*seconds_text)];
        all.extend_from_slice(parameters);
        let answer = self.ask("watch", &all).await?;
        self.out.flush().await?;
        let timing = &self.server.timing;
        Ok((answer, Instant::now() + std::time::Duration::from_secs(seconds) + timing.grace))
    }

    async fn read(&mut self, answer: Answer, deadline: Instant) -> Result<(), Setback> {
        let Answer { mut body, url, media_type } = answer;
        let start = Instant::now();
        let mut splitter = Splitter::stream(media_type);
        let mut has_brought = false;
        loop {
            let listing = self.ledger.is_listing();
            let until = match listing {
                true => Instant::now() + self.server.timing.quiet,
                false if self.complaint.is_some() => deadline.min(start + self.server.timing.longest_wait),
                false => deadline,
            };
            let frame = match timeout_at(until, body.frame()).await {
                Err(_) if listing => return Err(Setback::NoStreaming),
                Err(_) if Instant::now() >= deadline => {
                    return Err(Setback::Again("the watch has not ended in time"));
                }
                Err(_) => {
                    // It has been open for so long that it works, though there is nothing to tell.
                    self.works();
                    self.out.flush().await?;
                    continue;
                }
                Ok(Some(Ok(frame))) => frame,
                Ok(end) => {
                    let lasted = start.elapsed() >= self.server.timing.longest_wait;
                    if lasted && !listing {
                        // Nothing is wrong with it, even where nothing has come.
                        self.backoff.reset();
                    }
                    return match end {
                        None if lasted && !listing && !splitter.is_within_object() => Ok(()),
                        _ if (lasted || has_brought) && !listing => Err(Setback::Again("the watch has broken off")),
                        end => {
                            let error = end.and_then(Result::err);
                            let cause = error.map(|error| Cause::innermost(&error));
                            Err(Trouble::Broken { url: url.to_string(), cause }.into())
                        }
                    };
                }
            };
            let mut bytes = frame.data_ref().map_or(&[][..], |data| data);
            while let Some(message) = splitter.next(&mut bytes).map_err(|error| self.senseless(&url, &error))? {
                let message = decode::message(media_type, message).map_err(|error| self.senseless(&url, &error))?;
                self.message(message, &url)?;
                has_brought = true;
                self.out.relieve().await?;
            }
            self.out.flush().await?;
        }
    }

    fn message(&mut self, message: Message<'_>, url: &str) -> Result<(), Setback> {
        let listing = self.ledger.is_listing();
        let version = match message {
            Message::Applied(object) => self.ledger.applied(object, self.out.batch()),
            Message::Deleted(object) => self.ledger.deleted(object, self.out.batch()),
            Message::Bookmark { version, ends_listing } => {
                return self.bookmark(version, ends_listing);
            }
            Message::Error(status) => return Err(self.ended(status, url)),
            Message::Unknown(kind) => {
                tracing::debug!("passing over a message of a watch of the unknown type {kind:?}");
                None
            }
        };
        // Objects of a list tell their own versions, not the list's.
        if !listing {
            version.into_iter().for_each(|version| self.advance(version));
            self.works();
        }
        Ok(())
    }

    fn bookmark(&mut self, version: String, ends_listing: bool) -> Result<(), Setback> {
        if self.ledger.is_listing() {
            if ends_listing {
                self.listed(version);
            }
            return Ok(());
        }
        let last = self.last.as_deref().map(Version::of).unwrap_or_default();
        if Version::of(&version).is_before(last) {
            // Somebody has put back an old state: what is known from after it means nothing any more.
            self.must_list = true;
            return Err(self.expired("the server has gone back in time"));
        }
        self.ledger.settle(&version);
        self.last = Some(version);
        self.works();
        Ok(())
    }

    /// The server ends the watch, and says why.
    fn ended(&mut self, status: Status, url: &str) -> Setback {
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if code == StatusCode::GONE {
            return self.expired("the version is too old to go on watching from");
        }
        self.must_list |= blames_the_question(code);
        Trouble::answered(url, "watch", self.wanted.resource, code, status).into()
    }

    fn senseless(&self, url: &str, error: &(dyn std::error::Error + 'static)) -> Trouble {
        Trouble::Senseless { url: url.to_owned(), resource: self.wanted.resource, cause: Cause::whole(error) }
    }
}

/// How servers answer parameters that they do not know or have switched off.
fn means_unknown(code: StatusCode) -> bool {
    let codes = [
        StatusCode::BAD_REQUEST,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];
    codes.contains(&code)
}

/// The version is not kept any more, or the server has not got so far yet.
fn means_expired(code: StatusCode) -> bool {
    [StatusCode::GONE, StatusCode::GATEWAY_TIMEOUT].contains(&code)
}

/// Asking the same again is pointless.
fn blames_the_question(code: StatusCode) -> bool {
    let others = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS];
    code.is_client_error() && !others.contains(&code)
}
