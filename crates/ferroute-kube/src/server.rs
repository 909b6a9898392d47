use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ferroute_config::MediaType;
use ferroute_source::Resource;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use kube_client::{
    Client,
    client::{AuthError, Body},
};
use tokio::{sync::Mutex, task, time::timeout};

use crate::{
    access::{Access, AccessError, Loaded},
    answer::{media_type, retry_after, status_of},
    client::{self, TokenFile},
    requests::{RequestCounter, RequestEnd},
    throttle::Throttle,
    timing::Timing,
    trouble::{Cause, Trouble, find},
};

/// The API server as something to send requests to. Shared by all followers.
#[derive(Debug)]
pub(crate) struct Server {
    access: Access,
    throttle: Throttle,
    /// How long to wait for what.
    pub(crate) timing: Timing,
    counter: Arc<dyn RequestCounter>,
    /// In which forms the server may answer, the preferred one first.
    accepted: Vec<MediaType>,
    /// The server has none of these, so JSON is asked for.
    json_only: AtomicBool,
    link: Mutex<Option<Link>>,
    links: AtomicU64,
}

/// A client made of what the files said at some time.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    token: Option<Arc<TokenFile>>,
    pub(crate) url: Arc<str>,
    /// Host and port in the URL.
    host: Arc<str>,
    number: u64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("url", &self.url).field("number", &self.number).finish_non_exhaustive()
    }
}

/// A request.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    /// Its method.
    pub(crate) method: Method,
    /// Its target.
    pub(crate) path_and_query: &'a str,
    /// The media types that it may be answered in.
    pub(crate) accept: &'a str,
    /// The media type of the body, if it has one.
    pub(crate) content_type: Option<&'static str>,
    /// The body.
    pub(crate) body: &'a str,
    /// It is answered for as long as the server likes.
    pub(crate) is_watch: bool,
}

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    /// `list` or `watch`.
    pub(crate) verb: &'static str,
    /// What of.
    pub(crate) resource: Resource,
    /// The request's target.
    pub(crate) path_and_query: &'a str,
}

/// An answer that is a success.
#[derive(Debug)]
pub(crate) struct Answer {
    /// What comes.
    pub(crate) body: Body,
    /// In which form it comes.
    pub(crate) media_type: MediaType,
    /// Who sends it, for messages.
    pub(crate) url: Arc<str>,
}

/// No answer, or none that helps.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What it is.
    pub(crate) trouble: Trouble,
    /// The status that was answered.
    pub(crate) status: Option<StatusCode>,
    /// How long the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        Self { trouble, status: None, retry_after: None }
    }
}

impl Server {
    pub(crate) fn new(
        access: Access,
        throttle: Throttle,
        accepted: Vec<MediaType>,
        timing: Timing,
        counter: Arc<dyn RequestCounter>,
    ) -> Self {
        let (json_only, link, links) = (AtomicBool::new(false), Mutex::new(None), AtomicU64::new(0));
        Self { access, throttle, timing, counter, accepted, json_only, link, links }
    }

    /// The same server with other times to wait, and nothing sent yet.
    pub(crate) fn with_timing(&self, timing: Timing) -> Self {
        self.again(timing, Arc::clone(&self.counter))
    }

    /// The same server with somebody who counts requests, and nothing sent yet.
    pub(crate) fn with_counter(&self, counter: Arc<dyn RequestCounter>) -> Self {
        self.again(self.timing.clone(), counter)
    }

    fn again(&self, timing: Timing, counter: Arc<dyn RequestCounter>) -> Self {
        Self::new(self.access.clone(), self.throttle.afresh(), self.accepted.clone(), timing, counter)
    }

    /// Asks the server and waits for its answer to begin.
    ///
    /// # Errors
    ///
    /// There is no answer, or one that is no success. The next request will read the files with credentials and
    /// addresses again where that may help.
    pub(crate) async fn ask(&self, question: &Question<'_>) -> Result<Answer, Failure> {
        let Question { verb, resource, path_and_query } = *question;
        let is_watch = verb == WATCH;
        let accept = self.accept();
        let mut outgoing =
            Outgoing { method: Method::GET, path_and_query, accept: &accept, content_type: None, body: "", is_watch };
        let (mut answer, mut url) = self.deliver(&outgoing).await?;
        if answer.status() == StatusCode::NOT_ACCEPTABLE && accept != JSON {
            outgoing.accept = JSON;
            (answer, url) = self.deliver(&outgoing).await?;
            if answer.status() != StatusCode::NOT_ACCEPTABLE && !self.json_only.swap(true, Ordering::Relaxed) {
                tracing::warn!(%url, accept, "the API server has no such media type: asking for JSON from now on");
            }
        }
        if answer.status().is_success() {
            let media_type = media_type(&answer);
            return Ok(Answer { body: answer.into_body(), media_type, url });
        }
        let code = answer.status();
        let retry_after = retry_after(&answer);
        let status = status_of(answer, self.timing.answer).await;
        let trouble = Trouble::answered(&url, verb, resource, code, status);
        Err(Failure { trouble, status: Some(code), retry_after })
    }

    /// The header `accept` of questions.
    fn accept(&self) -> String {
        if self.json_only.load(Ordering::Relaxed) {
            return JSON.to_owned();
        }
        self.accepted.iter().map(|media_type| media_type.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Sends a request and waits for its answer to begin, whatever its status; gives also who it comes from.
    ///
    /// # Errors
    ///
    /// There is no answer. The next request will read the files with credentials and addresses again where that may help.
    pub(crate) async fn deliver(&self, outgoing: &Outgoing<'_>) -> Result<(Response<Body>, Arc<str>), Trouble> {
        self.throttle.turn().await;
        loop {
            let (link, fresh) = self.link().await?;
            match self.send(&link, outgoing).await {
                Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                    self.drop_link(&link).await;
                    // Credentials of a program or in a file may just have been renewed; nobody needs to hear of that.
                    if fresh {
                        return Ok((answer, link.url));
                    }
                }
                Ok(answer) => return Ok((answer, link.url)),
                Err(trouble) => {
                    if trouble.may_be_configuration() {
                        self.drop_link(&link).await;
                    }
                    return Err(trouble);
                }
            }
        }
    }

    /// The present client, or a new one; the second value says which.
    pub(crate) async fn link(&self) -> Result<(Link, bool), Trouble> {
        let mut slot = self.link.lock().await;
        if let Some(link) = &*slot {
            return Ok((link.clone(), false));
        }
        let loaded = self.access.load().await;
        let Loaded { config, token_file } = loaded.map_err(|error| unprepared(None, &error))?;
        let url: Arc<str> = config.cluster_url.to_string().trim_end_matches('/').into();
        let host: Arc<str> = config.cluster_url.authority().map_or("", |authority| authority.as_str()).into();
        // It may run a program and wait for it.
        let built = task::spawn_blocking(move || client::build(&config)).await;
        let client = match built {
            Ok(built) => built
                .map_err(|error| Trouble::Unprepared { url: Some(url.to_string()), cause: Cause::whole(&error) })?,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down.
                Err(_) => std::future::pending().await,
            },
        };
        let number = self.links.fetch_add(1, Ordering::Relaxed);
        let token = token_file.map(|path| Arc::new(TokenFile::new(path)));
        let link = Link { client, token, url, host, number };
        Ok((slot.insert(link).clone(), true))
    }

    /// The next request gets a new client, unless another one has seen to that.
    async fn drop_link(&self, link: &Link) {
        let mut slot = self.link.lock().await;
        slot.take_if(|present| present.number == link.number);
    }

    async fn send(&self, link: &Link, outgoing: &Outgoing<'_>) -> Result<Response<Body>, Trouble> {
        let unprepared = |error: &(dyn std::error::Error + 'static)| Trouble::Unprepared {
            url: Some(link.url.to_string()),
            cause: Cause::whole(error),
        };
        let mut request = Request::builder()
            .method(outgoing.method.clone())
            .uri(outgoing.path_and_query)
            .header(header::ACCEPT, outgoing.accept)
            .header(header::USER_AGENT, USER_AGENT)
            .body(match outgoing.body {
                "" => Body::empty(),
                body => Body::from(body.as_bytes().to_vec()),
            })
            .map_err(|error| unprepared(&error))?;
        if let Some(content_type) = outgoing.content_type {
            request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(token) = &link.token {
            let token = token.header().map_err(|error| unprepared(&error))?;
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        let waited = self.timing.answer;
        let start = Instant::now();
        let sent = timeout(waited, link.client.send(request)).await;
        self.counter.ended(&RequestEnd {
            host: &link.host,
            method: &outgoing.method,
            status: sent.as_ref().ok().and_then(|sent| Some(sent.as_ref().ok()?.status())),
            took: (!outgoing.is_watch).then(|| start.elapsed()),
        });
        match sent {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(unsent(&link.url, &error)),
            Err(_) => Err(Trouble::Silent { url: link.url.to_string(), waited }),
        }
    }
}

fn unprepared(url: Option<String>, error: &AccessError) -> Trouble {
    let text = match std::error::Error::source(error) {
        // The library's errors print what has caused them.
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    Trouble::Unprepared { url, cause: Cause::text(text) }
}

/// No request got out, or no answer came in.
pub(crate) fn unsent(url: &str, error: &kube_client::Error) -> Trouble {
    let url = url.to_owned();
    match find::<AuthError>(error) {
        Some(error) => Trouble::Unprepared { url: Some(url), cause: Cause::whole(error) },
        None => Trouble::Unreachable { url, cause: Cause::innermost(error) },
    }
}

/// The media type that every server has.
pub(crate) const JSON: &str = "application/json";

/// The verb of watches.
const WATCH: &str = "watch";

/// Names us in the API server's audit log and priority rules.
pub(crate) const USER_AGENT: &str = concat!("ferroute/", env!("CARGO_PKG_VERSION"));
