use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ferroute_api::Pod;
use ferroute_config::ClientConnectionConfiguration;
use ferroute_core::rfc3339;
use ferroute_source::Event;
use http::{Request, header};
use kube_client::client::Body;
use serde::Deserialize;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    AccessError, ApiError, ApiWriter, Cluster, ClusterError, RequestCounter,
    access::Access,
    api_client::{self, ApiClient, NoMetrics, USER_AGENT},
    error::ErrorDeduplication,
    rate_limiter::RateLimiter,
    reflector::Reflector,
    resource::Collection,
};

/// A Kubernetes API server as a source of events.
#[derive(Debug)]
pub struct ApiServer {
    client: Arc<ApiClient>,
    node: String,
    /// Whether the Nodes of other hosts are listed, too.
    all_nodes: bool,
}

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

/// Time limits and delays of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Delay after the first failure, which then doubles. It is shortened at random by up to three quarters.
    pub initial_backoff: Duration,
    /// Longest delay after a failure.
    pub max_backoff: Duration,
    /// Maximum time until a response begins, and between two parts of a list. The API server itself has a timeout of
    /// one minute.
    pub response_timeout: Duration,
    /// Maximum time between two parts of a streaming list. Servers that do not support such lists may never start one.
    pub streaming_list_timeout: Duration,
    /// The `timeoutSeconds` of watches, in whole seconds. Each watch gets a random value, so that not all nodes reconnect
    /// together. client-go's values.
    pub watch_timeout: Range<Duration>,
    /// Maximum silence of a watch after the server has sent bookmarks, which it sends about every minute. Detects
    /// connections that are open but pass no data any more.
    pub watch_idle: Duration,
    /// Time by which a watch may exceed its timeout before the connection counts as dead.
    pub watch_grace: Duration,
    /// Period over which nodes spread requests that they would otherwise all send at once: lists after the server has
    /// lost its history, and all requests when the server is reachable again.
    pub spread: Duration,
    /// Time for which a request must be forbidden before this is reported. A starting server forbids requests until it
    /// has read its roles.
    pub forbidden_grace: Duration,
    /// Idle time of a connection before the first TCP keepalive. After twice this time without a response, the
    /// connection counts as dead.
    pub keepalive: Duration,
    /// Maximum inactivity of the credential plugin before it is killed.
    pub plugin_patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            response_timeout: Duration::from_secs(60),
            streaming_list_timeout: Duration::from_secs(10),
            watch_timeout: Duration::from_secs(300)..Duration::from_secs(600),
            watch_idle: Duration::from_secs(180),
            watch_grace: Duration::from_secs(30),
            spread: Duration::from_secs(5),
            forbidden_grace: Duration::from_secs(10),
            // client-go's value.
            keepalive: Duration::from_secs(30),
            plugin_patience: ferroute_host::program::patience(),
        }
    }
}

impl Timing {
    /// Returns a timeout for a watch, in seconds.
    pub(crate) fn random_watch_seconds(&self) -> u64 {
        let (min, max) = (self.watch_timeout.start.as_secs(), self.watch_timeout.end.as_secs());
        fastrand::u64(min..max.max(min + 1))
    }
}

/// The time of the API server is unknown.
#[derive(Debug, thiserror::Error)]
pub enum ServerTimeError {
    /// There is no response.
    #[error(transparent)]
    NoResponse(#[from] ApiError),
    /// The response has no date; responses of API servers have one.
    #[error("the response of {url} has no valid Date header")]
    NoDate {
        /// The server.
        url: String,
    },
}

impl ApiServer {
    /// Returns the API server of the configuration's `clientConnection` and of `--master`, which takes precedence over
    /// the address in the kubeconfig; if neither is set, that of the pod's service account. `node` is the name of this
    /// node's Node.
    ///
    /// Responses are requested in the configured media types, or in JSON if the server does not support them. Request
    /// bodies are always JSON.
    ///
    /// # Errors
    ///
    /// The kubeconfig or the service account cannot be read. No request is sent yet.
    pub async fn new(
        connection: &ClientConnectionConfiguration,
        master: Option<&str>,
        node: &str,
    ) -> Result<Self, AccessError> {
        let access = Access::new(connection, master);
        // Only to report mistakes at once: the first request reads the files again.
        access.load().await?;
        let rate_limiter = RateLimiter::new(connection.qps, connection.burst);
        let client =
            ApiClient::new(access, rate_limiter, connection.accepted(), Timing::default(), Arc::new(NoMetrics));
        Ok(Self { client: Arc::new(client), node: node.to_owned(), all_nodes: false })
    }

    /// Reads the credentials and prepares a connection, which the first request does otherwise. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// A certificate, a key or a token cannot be used, or a credential plugin has failed.
    pub async fn prepare(&self) -> Result<(), ApiError> {
        self.client.connection().await.map(drop)
    }

    /// Sets the time limits and delays.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { client: Arc::new(self.client.with_timing(timing)), ..self }
    }

    /// Sets whether all Nodes are listed and watched, and not only that of this node.
    #[must_use]
    pub fn with_all_nodes(self, all_nodes: bool) -> Self {
        Self { all_nodes, ..self }
    }

    /// Sets the recorder of request metrics.
    #[must_use]
    pub fn with_counter(self, counter: Arc<dyn RequestCounter>) -> Self {
        Self { client: Arc::new(self.client.with_counter(counter)), ..self }
    }

    /// Returns the pods on the node. Proxies are not permitted to list them, but users may be.
    ///
    /// # Errors
    ///
    /// See [`Cluster::get`].
    pub async fn pods_of_node(&self) -> Result<Vec<Pod>, ClusterError> {
        let cluster = Cluster { client: Arc::clone(&self.client) };
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}&resourceVersion=0", self.node);
        cluster.get::<PodList>(&path).await.map(|list| list.items)
    }

    /// Returns a writer to the same server.
    pub fn writer(&self) -> ApiWriter {
        ApiWriter::new(Arc::clone(&self.client), &self.node)
    }

    /// Lists and watches all resources, and sends their events until the receiver is closed. Dropping the future ends it
    /// too.
    ///
    /// Errors do not end it: they are sent as problems, and the requests are retried. Each kind has its own list, so a
    /// slice may arrive before its Service.
    pub async fn follow(self, batches: mpsc::Sender<Vec<Event>>) {
        let errors = Arc::new(ErrorDeduplication::default());
        let run = |collection| {
            Reflector::new(collection, Arc::clone(&self.client), Arc::clone(&errors), batches.clone()).run()
        };
        let all = async {
            // First, so that an address that needs no name resolution is known before any object.
            tokio::join!(
                self.report_addresses(&batches),
                run(Collection::services()),
                run(Collection::endpoint_slices()),
                run(Collection::nodes((!self.all_nodes).then_some(&*self.node))),
                run(Collection::service_cidrs())
            );
        };
        tokio::select! {
            () = all => {}
            () = batches.closed() => {}
        }
    }

    /// Sends the server's addresses whenever they change. If they cannot be resolved, the last ones stay.
    async fn report_addresses(&self, batches: &mpsc::Sender<Vec<Event>>) {
        let mut reported = None;
        loop {
            if let Some(addresses) = self.client.addresses().await
                && reported.as_ref() != Some(&addresses)
            {
                if batches.send(vec![Event::ApiServer(addresses.clone())]).await.is_err() {
                    return;
                }
                reported = Some(addresses);
            }
            // A failed lookup may have a separate cause, such as a name server that is not reachable yet.
            sleep(if reported.is_some() { ADDRESS_INTERVAL } else { ADDRESS_RETRY }).await;
        }
    }

    /// Returns the time of the API server, in whole seconds. It is outdated by the transit time of the response.
    ///
    /// # Errors
    ///
    /// There is no response, or it has no date. Responses with an error status have one.
    pub async fn server_time(&self) -> Result<SystemTime, ServerTimeError> {
        let connection = self.client.connection().await?.0;
        let request = Request::get("/version")
            .header(header::USER_AGENT, USER_AGENT)
            .body(Body::empty())
            .expect("the path is valid");
        let waited = self.client.timing.response_timeout;
        let response = match timeout(waited, connection.client.send(request)).await {
            Ok(response) => response.map_err(|error| api_client::no_response(&connection.url, &error))?,
            Err(_) => return Err(ApiError::Timeout { url: connection.url.to_string(), waited }.into()),
        };
        let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok());
        let time = date.and_then(rfc3339::parse_http_date);
        time.ok_or_else(|| ServerTimeError::NoDate { url: connection.url.to_string() })
    }
}

/// Interval at which the server's addresses are resolved again.
const ADDRESS_INTERVAL: Duration = Duration::from_secs(60);

/// The same, until they have been resolved once.
const ADDRESS_RETRY: Duration = Duration::from_secs(1);
