//! Writes to the API server: removes a taint from the Node, and creates Events.
//!
//! There are no retries: both kinds of writes are rare, and no rule waits for them.

mod event;

use std::sync::Arc;

use http::{Method, StatusCode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub use self::event::{EventHandle, EventType, KubeEvent, ObjectReference};
use crate::{
    Permission,
    api_client::{ApiClient, ApiRequest, JSON},
    decode::Status,
    error::{ApiError, Cause},
    response::{read_body, read_status},
};

/// A writer to the API server of an [`ApiServer`](crate::ApiServer), with the same credentials and rate limit.
#[derive(Clone, Debug)]
pub struct ApiWriter {
    client: Arc<ApiClient>,
    /// The name of this node's Node.
    node: Arc<str>,
}

/// A write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is no valid response. Retrying may help.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The account lacks a permission (403).
    #[error(
        "not allowed to {} {}: {message}. A ClusterRole bound to this account needs the rule {{apiGroups: [\"{}\"], \
         resources: [\"{}\"], verbs: [\"{}\"]}}",
        needed.verb, needed.resource, needed.group, needed.resource, needed.verb
    )]
    Forbidden {
        /// The permission that a role must grant.
        needed: Permission,
        /// The message of the server.
        message: String,
    },
    /// The server returns any other error status. Retrying may help for 409, 429 and 5xx.
    #[error("cannot {verb} {resource}: the API server returns {status}: {message}")]
    Status {
        /// `get`, `create` or `patch`.
        verb: &'static str,
        /// The plural of the kind.
        resource: &'static str,
        /// The HTTP status.
        status: StatusCode,
        /// The message of the server.
        message: String,
    },
}

impl WriteError {
    /// Reports whether another client has changed the object in the meantime.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { status: StatusCode::CONFLICT, .. })
    }

    /// Reports whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status: StatusCode::NOT_FOUND, .. })
    }

    /// Reports whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Api(_) => true,
            Self::Forbidden { .. } => false,
            Self::Status { status, .. } => {
                status.is_server_error() || [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(status)
            }
        }
    }
}

/// The fields of a Node that are read. Taints are not decoded, so that other taints are written back unchanged.
#[derive(Debug, Deserialize)]
struct TaintedNode {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    taints: Option<Vec<Value>>,
}

impl ApiWriter {
    pub(crate) fn new(client: Arc<ApiClient>, node: &str) -> Self {
        Self { client, node: node.into() }
    }

    /// Returns the name of this node's Node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Removes every taint with this key, with any value and effect, from this node's Node. Reports whether there was
    /// one.
    ///
    /// # Errors
    ///
    /// The Node cannot be read or changed. If another client has changed it in the meantime, this is a conflict and
    /// nothing is written.
    pub async fn remove_taint(&self, key: &str) -> Result<bool, WriteError> {
        let path = format!("/api/v1/nodes/{}", self.node);
        let node: TaintedNode = self.request(Permission::nodes("get"), &path, None).await?;
        let taints = node.spec.taints.unwrap_or_default();
        let rest: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != key).collect();
        if rest.len() == taints.len() {
            return Ok(false);
        }
        // The version makes the server reject the patch if the list of taints has changed.
        let rest = if rest.is_empty() { Value::Null } else { json!(rest) };
        let patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": rest}});
        let _: Value = self.request(Permission::nodes("patch"), &path, Some(&patch)).await?;
        Ok(true)
    }

    /// Sends a request with a JSON body and decodes the object in the response.
    async fn request<T: DeserializeOwned>(
        &self,
        permission: Permission,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, WriteError> {
        let (method, content_type) = match permission.verb {
            "create" => (Method::POST, Some(JSON)),
            "patch" => (Method::PATCH, Some("application/merge-patch+json")),
            _ => (Method::GET, None),
        };
        let body = body.map(ToString::to_string).unwrap_or_default();
        let request =
            ApiRequest { method, path_and_query: path, accept: JSON, content_type, body: &body, is_watch: false };
        let (response, url) = self.client.send(&request).await?;
        let limit = self.client.timing.response_timeout;
        let status = response.status();
        if !status.is_success() {
            let Status { message, .. } = read_status(response, limit).await;
            let Permission { verb, resource, .. } = permission;
            return Err(match status {
                StatusCode::FORBIDDEN => WriteError::Forbidden { needed: permission, message },
                status => WriteError::Status { verb, resource, status, message },
            });
        }
        let text = read_body(response, &url, limit).await?;
        serde_json::from_slice(&text).map_err(|error| {
            let (url, cause) = (url.to_string(), Cause::whole(&error));
            ApiError::InvalidResponse { url, resource: permission.resource, cause }.into()
        })
    }
}
