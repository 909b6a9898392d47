//! The API server as a user reaches it: single requests, and programs in pods.

use std::{sync::Arc, time::Duration};

use http::{Method, StatusCode};
use serde::de::DeserializeOwned;

use crate::{
    AccessError, ApiError, Timing,
    access::{Access, UserAccess},
    api_client::{ApiClient, ApiRequest, JSON, NoMetrics},
    decode::Status,
    error::Cause,
    rate_limiter::RateLimiter,
    response::{read_body, read_status},
};

/// The API server of a cluster, with the rights of a user.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub(crate) client: Arc<ApiClient>,
}

/// A request of a user has failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no valid response.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The server returns an error status.
    #[error("{message} ({status})")]
    Status {
        /// The HTTP status.
        status: StatusCode,
        /// The message of the server, which names the object and, for lack of a right, the verb.
        message: String,
    },
    /// The response is not the expected object.
    #[error("invalid response to {path}: {cause}")]
    Invalid {
        /// The path of the request.
        path: String,
        /// The cause.
        cause: String,
    },
    /// The stream to a program in a pod cannot be opened, breaks, or is not a stream of this protocol.
    #[error("cannot run a program in pod {pod}: {cause}")]
    Exec {
        /// Namespace and name of the pod.
        pod: String,
        /// The cause.
        cause: String,
    },
    /// The program in a pod takes too long.
    #[error("no result from pod {pod} after {}s", waited.as_secs_f64())]
    Late {
        /// Namespace and name of the pod.
        pod: String,
        /// Time for which the response was awaited.
        waited: Duration,
    },
}

impl Cluster {
    /// Returns the cluster of a user's kubeconfig. A request fails if it takes longer than `timeout`.
    ///
    /// # Errors
    ///
    /// The kubeconfig cannot be read. No request is sent yet.
    pub async fn new(access: UserAccess, timeout: Duration) -> Result<Self, AccessError> {
        let access = Access::User(access);
        // Only to report mistakes at once: the first request reads the files again.
        access.load().await?;
        let timing = Timing { response_timeout: timeout, ..Timing::default() };
        let client = ApiClient::new(access, RateLimiter::new(-1.0, 0), Vec::new(), timing, Arc::new(NoMetrics));
        Ok(Self { client: Arc::new(client) })
    }

    /// Returns the namespace of the context.
    ///
    /// # Errors
    ///
    /// The credentials cannot be obtained.
    pub async fn namespace(&self) -> Result<String, ClusterError> {
        Ok(self.client.connection().await?.0.namespace.to_string())
    }

    /// Requests an object or a list.
    ///
    /// # Errors
    ///
    /// There is no response, its status is an error, or it is not a `T`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClusterError> {
        let request = ApiRequest {
            method: Method::GET,
            path_and_query: path,
            accept: JSON,
            content_type: None,
            body: "",
            is_watch: false,
        };
        let (response, url) = self.client.send(&request).await?;
        let limit = self.client.timing.response_timeout;
        let status = response.status();
        if !status.is_success() {
            let Status { message, .. } = read_status(response, limit).await;
            return Err(ClusterError::Status { status, message });
        }
        let text = read_body(response, &url, limit).await?;
        serde_json::from_slice(&text)
            .map_err(|error| ClusterError::Invalid { path: path.to_owned(), cause: Cause::whole(&error).to_string() })
    }
}
