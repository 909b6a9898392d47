use std::{
    collections::HashMap,
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use ferroute_source::{Event, Problem, Resource};
use http::StatusCode;

use crate::{
    decode::Status,
    resource::{group, plural},
};

/// An error between the API server and this proxy. All requests are retried; the messages are for administrators.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No connection can be established.
    #[error("cannot reach the API server at {url}")]
    Unreachable {
        /// The server.
        url: String,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// No request can be made: a token file or certificate is missing or invalid, or a credential plugin has failed.
    #[error("cannot prepare requests to the API server{}", at(url.as_deref()))]
    Unprepared {
        /// The server, if the configuration could be read.
        url: Option<String>,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// The server does not respond.
    #[error("no response from the API server at {url} for {} s", waited.as_secs())]
    Timeout {
        /// The server.
        url: String,
        /// How long nothing was received.
        waited: Duration,
    },
    /// A response ends too early.
    #[error("lost the connection to the API server at {url}")]
    ConnectionLost {
        /// The server.
        url: String,
        /// The cause, if it is known.
        #[source]
        cause: Option<Cause>,
    },
    /// The server rejects the credentials (401).
    #[error("the API server at {url} rejects the credentials: {message}")]
    Unauthorized {
        /// The server.
        url: String,
        /// The message of the server.
        message: String,
    },
    /// The account lacks a permission (403).
    #[error(
        "not allowed to {verb} {}: {message}. A ClusterRole bound to this account needs the rule \
         {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"list\", \"watch\"]}}{}",
        plural(*resource), group(*resource), plural(*resource), consequence(*resource)
    )]
    Forbidden {
        /// `list` or `watch`.
        verb: &'static str,
        /// The resource.
        resource: Resource,
        /// The message of the server.
        message: String,
    },
    /// The server returns any other error status.
    #[error("the API server at {url} returns {status} for {}: {message}", plural(*resource))]
    Status {
        /// The server.
        url: String,
        /// The resource.
        resource: Resource,
        /// The HTTP status.
        status: StatusCode,
        /// The message of the server.
        message: String,
    },
    /// The response cannot be decoded: it may not come from an API server.
    #[error("invalid response from {url} to a request for {resource}")]
    InvalidResponse {
        /// The server.
        url: String,
        /// The plural of the kind.
        resource: &'static str,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// An object has no name.
    #[error("ignoring {} without a name", plural(*resource))]
    MissingName {
        /// The kind.
        resource: Resource,
        /// Why the name of the first one cannot be read.
        #[source]
        cause: Cause,
    },
}

/// The cause of an error, as text: libraries wrap it in layers that repeat each other or say nothing to administrators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    /// Takes the innermost error, for libraries that wrap it.
    pub(crate) fn innermost(error: &(dyn Error + 'static)) -> Self {
        Self(chain(error).last().unwrap_or(error).to_string())
    }

    /// Takes a text.
    pub(crate) fn text(text: String) -> Self {
        Self(text)
    }

    /// Takes the error alone, for libraries whose errors print their causes.
    pub(crate) fn whole(error: &(dyn Error + 'static)) -> Self {
        Self(error.to_string())
    }
}

/// Returns an error and its causes, outermost first.
pub(crate) fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

impl ApiError {
    /// Returns the error for a response with an error status.
    pub(crate) fn from_status(
        url: &str,
        verb: &'static str,
        resource: Resource,
        code: StatusCode,
        status: Status,
    ) -> Self {
        let Status { message, .. } = status;
        match code {
            StatusCode::UNAUTHORIZED => Self::Unauthorized { url: url.to_owned(), message },
            StatusCode::FORBIDDEN => Self::Forbidden { verb, resource, message },
            status => Self::Status { url: url.to_owned(), resource, status, message },
        }
    }

    /// Reports whether other credentials, another CA or another address may help.
    pub(crate) fn may_be_configuration(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unprepared { .. } | Self::Unauthorized { .. })
    }

    /// Reports whether any successful response resolves it. Otherwise only the contents of a response do.
    pub(crate) fn ends_with_response(&self) -> bool {
        !matches!(self, Self::InvalidResponse { .. } | Self::ConnectionLost { .. })
    }
}

impl From<ApiError> for Problem {
    fn from(error: ApiError) -> Self {
        Self::Other(Box::new(error))
    }
}

/// What does not work without this resource, where the proxy works without it.
fn consequence(resource: Resource) -> &'static str {
    match resource {
        Resource::ServiceCidrs => ". Until then connections to addresses of no Service are not refused",
        Resource::Services | Resource::EndpointSlices | Resource::Nodes => "",
    }
}

fn at(url: Option<&str>) -> String {
    url.map(|url| format!(" at {url}")).unwrap_or_default()
}

/// Error deduplication: reflectors that have the same error at the same time, as when the server is down, report it once.
#[derive(Debug, Default)]
pub(crate) struct ErrorDeduplication(Mutex<HashMap<String, Reported>>);

#[derive(Debug)]
struct Reported {
    problem: Arc<Problem>,
    /// The number of reflectors that have it.
    reflectors: usize,
}

/// An error that a reflector has reported and not resolved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ActiveError {
    text: String,
    ends_with_response: bool,
}

impl ActiveError {
    /// Reports whether it is this problem.
    pub(crate) fn is(&self, problem: &Problem) -> bool {
        self.text == problem.text()
    }

    /// Reports whether any successful response resolves it.
    pub(crate) fn ends_with_response(&self) -> bool {
        self.ends_with_response
    }
}

impl ErrorDeduplication {
    /// Reports a problem of a reflector. Returns an event if no other reflector has reported it.
    pub(crate) fn report(&self, problem: Problem, ends_with_response: bool) -> (ActiveError, Option<Event>) {
        let text = problem.text();
        let mut all = self.0.lock().expect("no code that holds it panics");
        let mut event = None;
        let reported = all.entry(text.clone()).or_insert_with(|| {
            let problem = Arc::new(problem);
            event = Some(Event::Problem(Arc::clone(&problem)));
            Reported { problem, reflectors: 0 }
        });
        reported.reflectors += 1;
        (ActiveError { text, ends_with_response }, event)
    }

    /// Resolves an error of a reflector. Returns an event if no other reflector has it.
    #[expect(clippy::needless_pass_by_value, reason = "an error is resolved once")]
    pub(crate) fn resolve(&self, error: ActiveError) -> Option<Event> {
        let mut all = self.0.lock().expect("no code that holds it panics");
        let reported = all.get_mut(&error.text)?;
        reported.reflectors -= 1;
        if reported.reflectors > 0 {
            return None;
        }
        all.remove(&error.text).map(|reported| Event::Resolved(reported.problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Problem {
        Problem::Other(text.into())
    }

    #[test]
    fn shared_error_is_reported_once_and_resolved_by_the_last_reflector() {
        let errors = ErrorDeduplication::default();
        let (first, event) = errors.report(problem("down"), true);
        assert!(matches!(event, Some(Event::Problem(_))));
        let (second, event) = errors.report(problem("down"), true);
        assert!(event.is_none());
        let (_, other) = errors.report(problem("forbidden"), true);
        assert!(other.is_some());
        assert!(errors.resolve(first).is_none());
        let Some(Event::Resolved(resolved)) = errors.resolve(second) else { panic!("the last one resolves it") };
        assert_eq!(resolved.to_string(), "down");
        assert!(errors.report(problem("down"), true).1.is_some());
    }
}
