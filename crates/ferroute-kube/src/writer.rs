//! What a proxy writes to the API server: it takes a taint from its Node, and tells people what happens as Events.
//!
//! Both are rare and neither is waited for by any rule. Trying again is for who asks for it.

mod report;
mod taint;

use std::sync::Arc;

use http::{Method, StatusCode};
use serde::de::DeserializeOwned;

pub use self::report::{Regarding, Report, Reported, Severity};
use crate::{
    Permission,
    answer::{body_of, status_of},
    decode::Status,
    server::{JSON, Outgoing, Server},
    trouble::{Cause, Trouble},
};

/// Writes to the API server of an [`ApiServer`](crate::ApiServer), with the same credentials and within the same limits.
#[derive(Clone, Debug)]
pub struct ApiWriter {
    server: Arc<Server>,
    /// The name of this node's Node.
    node: Arc<str>,
}

/// Something could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// No answer, or none that makes sense. Worth another try.
    #[error(transparent)]
    Trouble(Trouble),
    /// The server does not allow it (403).
    #[error(
        "not allowed to {} {}: {message}. A ClusterRole bound to this account needs the rule {{apiGroups: [\"{}\"], \
         resources: [\"{}\"], verbs: [\"{}\"]}}",
        needed.verb, needed.resource, needed.group, needed.resource, needed.verb
    )]
    Forbidden {
        /// What a role would have to allow.
        needed: Permission,
        /// What the server says.
        message: String,
    },
    /// The server refuses. Another try helps where it has to do with the moment (409, 429, 5xx).
    #[error("the API server answers {status} when asked to {verb} {resource}: {message}")]
    Refused {
        /// `get`, `create` or `patch`.
        verb: &'static str,
        /// The plural of the kind.
        resource: &'static str,
        /// The HTTP status.
        status: StatusCode,
        /// What the server says.
        message: String,
    },
}

impl WriteError {
    /// Somebody else has changed the object in the meantime.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status: StatusCode::CONFLICT, .. })
    }

    /// There is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: StatusCode::NOT_FOUND, .. })
    }

    /// The same again may go well without anybody doing anything.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Trouble(_) => true,
            Self::Forbidden { .. } => false,
            Self::Refused { status, .. } => {
                status.is_server_error() || [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(status)
            }
        }
    }
}

impl ApiWriter {
    pub(crate) fn new(server: Arc<Server>, node: &str) -> Self {
        Self { server, node: node.into() }
    }

    /// The name of this node's Node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Sends a request with a JSON body and reads the object that is answered.
    async fn exchange<T: DeserializeOwned>(
        &self,
        deed: Permission,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<T, WriteError> {
        let (method, content_type) = match deed.verb {
            "create" => (Method::POST, Some(JSON)),
            "patch" => (Method::PATCH, Some("application/merge-patch+json")),
            _ => (Method::GET, None),
        };
        let body = body.map(ToString::to_string).unwrap_or_default();
        let outgoing =
            Outgoing { method, path_and_query: path, accept: JSON, content_type, body: &body, is_watch: false };
        let (answer, url) = self.server.deliver(&outgoing).await.map_err(WriteError::Trouble)?;
        let patience = self.server.timing.answer;
        let status = answer.status();
        if !status.is_success() {
            let Status { message, .. } = status_of(answer, patience).await;
            let Permission { verb, resource, .. } = deed;
            return Err(match status {
                StatusCode::FORBIDDEN => WriteError::Forbidden { needed: deed, message },
                status => WriteError::Refused { verb, resource, status, message },
            });
        }
        let text = body_of(answer, &url, patience).await.map_err(WriteError::Trouble)?;
        serde_json::from_slice(&text).map_err(|error| {
            let (url, cause) = (url.to_string(), Cause::whole(&error));
            WriteError::Trouble(Trouble::Answer { url, resource: deed.resource, cause })
        })
    }
}
