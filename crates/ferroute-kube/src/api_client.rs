//! The client of the API server: rate limit, credentials, media types and request metrics.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ferroute_config::MediaType;
use ferroute_core::error_chain;
use ferroute_host::run_blocking;
use ferroute_source::Resource;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use kube_client::{Client, client::Body};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    access::{Access, AccessError, Loaded},
    api_server::Timing,
    authorization::{Authorization, TokenError, check_impersonation},
    body::Contents,
    error::{ApiError, Cause},
    http_client,
    rate_limiter::RateLimiter,
    response::{media_type, read_status, retry_after},
};

/// Client of an API server. All reflectors and writers of one server share it.
#[derive(Debug)]
pub(crate) struct ApiClient {
    access: Access,
    rate_limiter: RateLimiter,
    pub(crate) timing: Timing,
    counter: Arc<dyn RequestCounter>,
    /// Media types that the server may respond in, in order of preference.
    accepted: Vec<MediaType>,
    /// Whether the server supports none of them, so that JSON is requested.
    json_only: AtomicBool,
    connection: Mutex<Option<Connection>>,
    /// Held while a connection is prepared.
    renewal: tokio::sync::Mutex<()>,
    /// The number of connections so far.
    connections: AtomicU64,
    /// Whether the warning about the configuration has been logged.
    has_warned: AtomicBool,
    /// Whether the last request got no response.
    unreachable: AtomicBool,
    /// Counts the first responses after requests without a response.
    recoveries: watch::Sender<u64>,
}

/// An HTTP client with the configuration and credentials of some time.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    authorization: Option<Arc<Authorization>>,
    /// Whether the kubeconfig has `disable-compression`.
    is_uncompressed: bool,
    /// The namespace of the kubeconfig's context.
    pub(crate) namespace: Arc<str>,
    /// Validity period of the credentials; `None` if they do not expire.
    validity: Option<Validity>,
    pub(crate) url: Arc<str>,
    /// Host and port of the URL.
    host: Arc<str>,
    number: u64,
}

/// The time for which credentials are valid.
#[derive(Clone, Copy, Debug)]
struct Validity {
    /// When to renew them.
    renew_at: Instant,
    expires_at: Instant,
}

impl Validity {
    /// Returns the validity of new credentials with this lifetime.
    fn new(lifetime: Duration) -> Self {
        let now = Instant::now();
        // Short-lived credentials are not renewed for every request.
        let margin = RENEWAL_MARGIN.min(lifetime / 2);
        Self { renew_at: now + (lifetime - margin), expires_at: now + lifetime }
    }
}

impl Connection {
    /// Returns the header `authorization`, if there are credentials for it.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, ApiError> {
        let unprepared =
            |error: TokenError| ApiError::Unprepared { url: Some(self.url.to_string()), cause: Cause::whole(&error) };
        self.authorization.as_ref().map(|source| source.header().map_err(unprepared)).transpose()
    }

    /// Reports whether the credentials should be renewed.
    fn expires_soon(&self) -> bool {
        self.validity.is_some_and(|validity| Instant::now() >= validity.renew_at)
    }

    /// Reports whether the credentials are no longer valid.
    fn is_expired(&self) -> bool {
        self.validity.is_some_and(|validity| Instant::now() >= validity.expires_at)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("url", &self.url).field("number", &self.number).finish_non_exhaustive()
    }
}

/// A request to the API server.
#[derive(Debug)]
pub(crate) struct ApiRequest<'a> {
    pub(crate) method: Method,
    pub(crate) path_and_query: &'a str,
    /// The header `accept`.
    pub(crate) accept: &'a str,
    /// The media type of the body, if it has one.
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: &'a str,
    /// Whether the request is a watch, for which the latency of the server is not meaningful.
    pub(crate) is_watch: bool,
}

/// A request for the objects of a collection.
#[derive(Debug)]
pub(crate) struct CollectionRequest<'a> {
    /// `list` or `watch`.
    pub(crate) verb: &'static str,
    pub(crate) resource: Resource,
    pub(crate) path_and_query: &'a str,
}

/// A successful response whose body has not been read yet.
#[derive(Debug)]
pub(crate) struct ResponseStream {
    pub(crate) contents: Contents,
    pub(crate) media_type: MediaType,
    /// The server, for error messages.
    pub(crate) url: Arc<str>,
}

/// The failure of a request for a collection.
#[derive(Debug)]
pub(crate) struct RequestError {
    pub(crate) error: ApiError,
    /// The status of the response, if there was one.
    pub(crate) status: Option<StatusCode>,
    /// Minimum delay before the next request, as requested by the server.
    pub(crate) retry_after: Option<Duration>,
}

impl From<ApiError> for RequestError {
    fn from(error: ApiError) -> Self {
        Self { error, status: None, retry_after: None }
    }
}

/// The result of a request to the API server, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct RequestResult<'a> {
    /// Host and port of the server, as configured.
    pub host: &'a str,
    /// The method of the request.
    pub method: &'a Method,
    /// The status of the response; `None` without a response.
    pub status: Option<StatusCode>,
    /// Time until the response began; `None` for a watch, for which it is not meaningful.
    pub took: Option<Duration>,
}

/// A recorder of request metrics.
pub trait RequestCounter: std::fmt::Debug + Send + Sync {
    /// Records a request that has succeeded or failed. Must not block.
    fn record(&self, request: &RequestResult<'_>);
}

/// A recorder that discards all metrics.
#[derive(Debug)]
pub(crate) struct NoMetrics;

impl RequestCounter for NoMetrics {
    fn record(&self, _: &RequestResult<'_>) {}
}

impl ApiClient {
    pub(crate) fn new(
        access: Access,
        rate_limiter: RateLimiter,
        accepted: Vec<MediaType>,
        timing: Timing,
        counter: Arc<dyn RequestCounter>,
    ) -> Self {
        Self {
            access,
            rate_limiter,
            timing,
            counter,
            accepted,
            json_only: AtomicBool::new(false),
            connection: Mutex::new(None),
            renewal: tokio::sync::Mutex::new(()),
            connections: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
            recoveries: watch::channel(0).0,
        }
    }

    /// Returns a client of the same server with this timing, without its connection.
    pub(crate) fn with_timing(&self, timing: Timing) -> Self {
        self.copy(timing, Arc::clone(&self.counter))
    }

    /// Returns a client of the same server with this recorder of metrics, without its connection.
    pub(crate) fn with_counter(&self, counter: Arc<dyn RequestCounter>) -> Self {
        self.copy(self.timing.clone(), counter)
    }

    fn copy(&self, timing: Timing, counter: Arc<dyn RequestCounter>) -> Self {
        Self::new(self.access.clone(), self.rate_limiter.copy(), self.accepted.clone(), timing, counter)
    }

    /// Requests a collection and waits until the response begins.
    ///
    /// # Errors
    ///
    /// There is no response, or its status is an error. If this may help, the next request reads credentials and
    /// addresses from their files again.
    pub(crate) async fn get(&self, request: &CollectionRequest<'_>) -> Result<ResponseStream, RequestError> {
        let CollectionRequest { verb, resource, path_and_query } = *request;
        let is_watch = verb == WATCH;
        let accept = self.accept();
        let mut request =
            ApiRequest { method: Method::GET, path_and_query, accept: &accept, content_type: None, body: "", is_watch };
        let (mut response, mut url) = self.send(&request).await?;
        if response.status() == StatusCode::NOT_ACCEPTABLE && accept != JSON {
            request.accept = JSON;
            (response, url) = self.send(&request).await?;
            if response.status() != StatusCode::NOT_ACCEPTABLE && !self.json_only.swap(true, Ordering::Relaxed) {
                tracing::warn!(%url, accept, "the API server does not support the configured media types; using JSON");
            }
        }
        if response.status().is_success() {
            let media_type = media_type(&response);
            return Ok(ResponseStream { contents: Contents::of(response), media_type, url });
        }
        let code = response.status();
        let retry_after = retry_after(&response);
        let status = read_status(response, self.timing.response_timeout).await;
        let error = ApiError::from_status(&url, verb, resource, code, status);
        Err(RequestError { error, status: Some(code), retry_after })
    }

    /// Returns a receiver that is notified when the server responds again after a request without a response.
    pub(crate) fn recoveries(&self) -> watch::Receiver<u64> {
        self.recoveries.subscribe()
    }

    /// Returns the header `accept` for collections.
    fn accept(&self) -> String {
        if self.json_only.load(Ordering::Relaxed) {
            return JSON.to_owned();
        }
        self.accepted.iter().map(|media_type| format!("{}{DROP}", media_type.as_str())).collect::<Vec<_>>().join(",")
    }

    /// Sends a request and waits until the response begins, with any status. Also returns the URL of the server.
    ///
    /// # Errors
    ///
    /// There is no response. If this may help, the next request reads credentials and addresses from their files again.
    pub(crate) async fn send(&self, request: &ApiRequest<'_>) -> Result<(Response<Body>, Arc<str>), ApiError> {
        self.rate_limiter.acquire().await;
        loop {
            let (connection, is_new) = self.connection().await?;
            match self.send_on(&connection, request).await {
                Ok(response) if response.status() == StatusCode::UNAUTHORIZED => {
                    self.drop_connection(&connection);
                    // Credentials of a plugin or in a file may just have been renewed, which is not an error to report.
                    if is_new {
                        return Ok((response, connection.url));
                    }
                }
                Ok(response) => return Ok((response, connection.url)),
                Err(error) => {
                    if error.may_be_configuration() {
                        self.drop_connection(&connection);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Returns the addresses that connections go to; `None` if the configuration cannot be read or a name cannot be
    /// resolved.
    pub(crate) async fn addresses(&self) -> Option<Vec<SocketAddr>> {
        // Requests report such errors.
        let loaded = self.access.load().await.ok()?;
        http_client::addresses(&loaded.config, loaded.proxy.as_deref()).await.ok()
    }

    /// Returns the current connection, or a new one; the second value reports whether it is new.
    ///
    /// Credentials that expire soon are renewed. Other requests use the old ones in the meantime, so that a credential
    /// plugin that hangs delays only the request that runs it.
    pub(crate) async fn connection(&self) -> Result<(Connection, bool), ApiError> {
        let usable = self.current();
        if let Some(connection) = usable.as_ref().filter(|connection| !connection.expires_soon()) {
            return Ok((connection.clone(), false));
        }
        let usable = usable.filter(|connection| !connection.is_expired());
        let _renewal = match (self.renewal.try_lock(), &usable) {
            (Ok(renewal), _) => renewal,
            (Err(_), Some(connection)) => return Ok((connection.clone(), false)),
            (Err(_), None) => self.renewal.lock().await,
        };
        // Another request may have renewed it in the meantime.
        if let Some(connection) = self.current().filter(|connection| !connection.expires_soon()) {
            return Ok((connection, false));
        }
        match (self.connect().await, usable) {
            (Ok(connection), _) => {
                *self.connection.lock().expect(NO_PANIC) = Some(connection.clone());
                Ok((connection, true))
            }
            (Err(error), Some(connection)) => {
                tracing::debug!("cannot renew credentials, which are still valid: {error}");
                Ok((connection, false))
            }
            (Err(error), None) => Err(error),
        }
    }

    fn current(&self) -> Option<Connection> {
        self.connection.lock().expect(NO_PANIC).clone()
    }

    /// Reads the files, runs the credential plugin and builds a client.
    async fn connect(&self) -> Result<Connection, ApiError> {
        let loaded = self.access.load().await;
        let Loaded { mut config, user, proxy, plugin, token_file, warning } =
            loaded.map_err(|error| unprepared(None, &error))?;
        let url: Arc<str> = config.cluster_url.to_string().trim_end_matches('/').into();
        let namespace = config.default_namespace.as_str().into();
        let is_uncompressed = config.disable_compression;
        let host: Arc<str> = config.cluster_url.authority().map_or("", |authority| authority.as_str()).into();
        if let Some(warning) = warning.filter(|_| !self.has_warned.swap(true, Ordering::Relaxed)) {
            tracing::warn!(%url, "{warning}");
        }
        let unprepared = |error: &(dyn std::error::Error + 'static)| ApiError::Unprepared {
            url: Some(url.to_string()),
            cause: Cause::text(error_chain(error)),
        };
        let mut validity = None;
        if let Some(plugin) = plugin {
            let patience = self.timing.plugin_patience;
            let credentials = run_blocking("plugin", move || plugin.run(patience)).await;
            let credentials = credentials.map_err(|error| unprepared(&error))?.map_err(|error| unprepared(&error))?;
            validity = credentials.lifetime().map(Validity::new);
            credentials.set_for(&mut config.auth_info);
        }
        check_impersonation(&config.auth_info, &user).map_err(|error| unprepared(&error))?;
        let authorization = Authorization::new(&config.auth_info, token_file, &user);
        let authorization = authorization.map_err(|error| unprepared(&error))?.map(Arc::new);
        let keepalive = self.timing.keepalive;
        let runtime = Handle::current();
        let build = move || {
            let _runtime = runtime.enter();
            http_client::build(&config, proxy.as_deref(), keepalive)
        };
        let built = run_blocking("connect", build).await.map_err(|error| unprepared(&error))?;
        let client =
            built.map_err(|error| ApiError::Unprepared { url: Some(url.to_string()), cause: Cause::whole(&error) })?;
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(Connection { client, authorization, is_uncompressed, namespace, validity, url: url.clone(), host, number })
    }

    /// Drops a connection, unless another request has replaced it already.
    fn drop_connection(&self, connection: &Connection) {
        let mut current = self.connection.lock().expect(NO_PANIC);
        current.take_if(|current| current.number == connection.number);
    }

    async fn send_on(&self, connection: &Connection, request: &ApiRequest<'_>) -> Result<Response<Body>, ApiError> {
        let unprepared = |error: &(dyn std::error::Error + 'static)| ApiError::Unprepared {
            url: Some(connection.url.to_string()),
            cause: Cause::whole(error),
        };
        let mut http_request = Request::builder()
            .method(request.method.clone())
            .uri(request.path_and_query)
            .header(header::ACCEPT, request.accept)
            .header(header::USER_AGENT, USER_AGENT)
            .body(match request.body {
                "" => Body::empty(),
                body => Body::from(body.as_bytes().to_vec()),
            })
            .map_err(|error| unprepared(&error))?;
        if let Some(content_type) = request.content_type {
            http_request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if !connection.is_uncompressed {
            // The server decides which responses to compress; see `crate::body`.
            http_request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if let Some(authorization) = connection.authorization()? {
            http_request.headers_mut().insert(header::AUTHORIZATION, authorization);
        }
        let waited = self.timing.response_timeout;
        let start = std::time::Instant::now();
        let too_many = http_client::too_many_interim_responses(&mut http_request);
        let response = async {
            tokio::select! {
                sent = connection.client.send(http_request) => sent.map_err(|error| no_response(&connection.url, &error)),
                // Its end closes the connection.
                () = too_many.notified() => Err(http_client::endless_interim_responses(&connection.url)),
            }
        };
        let sent = timeout(waited, response).await;
        self.counter.record(&RequestResult {
            host: &connection.host,
            method: &request.method,
            status: sent.as_ref().ok().and_then(|sent| Some(sent.as_ref().ok()?.status())),
            took: (!request.is_watch).then(|| start.elapsed()),
        });
        let has_responded = matches!(sent, Ok(Ok(_)));
        if self.unreachable.swap(!has_responded, Ordering::Relaxed) && has_responded {
            self.recoveries.send_modify(|recoveries| *recoveries += 1);
        }
        match sent {
            Ok(sent) => sent,
            Err(_) => Err(ApiError::Timeout { url: connection.url.to_string(), waited }),
        }
    }
}

fn unprepared(url: Option<String>, error: &AccessError) -> ApiError {
    let text = match std::error::Error::source(error) {
        // The library's errors print their causes.
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    ApiError::Unprepared { url, cause: Cause::text(text) }
}

/// Returns the error for a request without a response.
pub(crate) fn no_response(url: &str, error: &kube_client::Error) -> ApiError {
    ApiError::Unreachable { url: url.to_owned(), cause: Cause::innermost(error) }
}

/// The media type that every server supports.
pub(crate) const JSON: &str = "application/json";

/// Requests that the server omits `metadata.managedFields`, which is a third of small objects and not used. Servers
/// ignore unknown parameters (`acceptMediaTypeOptions` in `apiserver/pkg/endpoints/handlers/negotiation/negotiate.go`);
/// KEP-5958 adds this one.
const DROP: &str = ";drop=metadata.managedFields";

/// Credentials are renewed this long before they expire.
const RENEWAL_MARGIN: Duration = Duration::from_secs(60);

const NO_PANIC: &str = "no code that holds it panics";

const WATCH: &str = "watch";

/// Names Ferroute in the API server's audit log and in its priority and fairness rules.
pub(crate) const USER_AGENT: &str = concat!("ferroute/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests;
