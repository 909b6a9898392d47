use std::{
    collections::HashMap,
    error::Error,
    io,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use ferroute_source::{Event, Problem, Resource};
use http::StatusCode;
use rustls::AlertDescription;

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
    /// No request can be sent: a token file or certificate is missing or invalid, or a credential plugin has failed.
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
        /// Time for which no data was received.
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
        /// Reason why the name of the first such object cannot be read.
        #[source]
        cause: Cause,
    },
}

/// Cause of an error, as text: libraries wrap it in layers that repeat each other or are of no use to administrators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    /// Takes the innermost error, for libraries that wrap it.
    pub(crate) fn innermost(error: &(dyn Error + 'static)) -> Self {
        let innermost = chain(error).last().unwrap_or(error);
        Self(format!("{innermost}{}", handshake_hint(innermost)))
    }

    /// Takes a text.
    pub(crate) fn text(text: String) -> Self {
        Self(text)
    }

    /// Takes only the error itself, for libraries whose errors print their causes.
    pub(crate) fn whole(error: &(dyn Error + 'static)) -> Self {
        Self(error.to_string())
    }
}

/// Returns what to do about a server that has no algorithm in common with this client.
fn handshake_hint<'a>(error: &'a (dyn Error + 'static)) -> &'static str {
    // I/O errors do not return what they wrap as their source.
    let wrapped = |error: &&'a (dyn Error + 'static)| {
        let inner: &'a (dyn Error + 'static) = error.downcast_ref::<io::Error>()?.get_ref()?;
        Some(inner)
    };
    let tls = std::iter::successors(Some(error), wrapped).find_map(|error| error.downcast_ref::<rustls::Error>());
    if matches!(tls, Some(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure))) {
        ". The server's certificate needs a key with RSA of 2048 bits or more, ECDSA with P-256 or P-384, or Ed25519, and a TLS 1.2 \
         server ECDHE"
    } else {
        ""
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

    /// Reports whether the server has not responded at all.
    pub(crate) fn is_without_response(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }

    /// Returns the kind of event that resolves the error.
    pub(crate) fn resolution(&self) -> Resolution {
        match self {
            Self::Unreachable { .. } => Resolution::AnyResponse,
            Self::InvalidResponse { .. } | Self::ConnectionLost { .. } => Resolution::Contents,
            _ => Resolution::Response,
        }
    }
}

/// Event that resolves an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// Any response of the server to any request, including an error status.
    AnyResponse,
    /// A successful response to a request of the same reflector.
    Response,
    /// The contents of a response.
    Contents,
}

impl From<ApiError> for Problem {
    fn from(error: ApiError) -> Self {
        Self::Other(Box::new(error))
    }
}

/// Returns the features that do not work without this resource, for resources that the proxy can work without.
fn consequence(resource: Resource) -> &'static str {
    match resource {
        Resource::ServiceCidrs => ". Until then connections to addresses of no Service are not refused",
        Resource::Services | Resource::EndpointSlices | Resource::Nodes => "",
    }
}

fn at(url: Option<&str>) -> String {
    url.map(|url| format!(" at {url}")).unwrap_or_default()
}

/// Error deduplication: reflectors that have the same error at the same time, for example because the server is down,
/// report it once.
#[derive(Debug, Default)]
pub(crate) struct ErrorDeduplication(Mutex<ReportedErrors>);

#[derive(Debug, Default)]
struct ReportedErrors {
    by_text: HashMap<String, Reported>,
    /// Number of the last report, so that an error that is reported again is not confused with its resolved report.
    last: u64,
}

#[derive(Debug)]
struct Reported {
    number: u64,
    problem: Arc<Problem>,
    resolution: Resolution,
    /// Number of reflectors that have the error.
    reflectors: usize,
}

/// An error that a reflector has reported and not resolved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ActiveError {
    text: String,
    number: u64,
    resolution: Resolution,
}

impl ActiveError {
    /// Returns the kind of event that resolves the error.
    pub(crate) fn resolution(&self) -> Resolution {
        self.resolution
    }
}

impl ErrorDeduplication {
    /// Reports a problem of a reflector. Returns an event if no other reflector has reported it.
    pub(crate) fn report(&self, problem: Problem, resolution: Resolution) -> (ActiveError, Option<Event>) {
        let text = problem.text();
        let mut errors = self.errors();
        let ReportedErrors { by_text, last } = &mut *errors;
        let mut event = None;
        let reported = by_text.entry(text.clone()).or_insert_with(|| {
            let problem = Arc::new(problem);
            event = Some(Event::Problem(Arc::clone(&problem)));
            *last += 1;
            Reported { number: *last, problem, resolution, reflectors: 0 }
        });
        reported.reflectors += 1;
        (ActiveError { text, number: reported.number, resolution }, event)
    }

    /// Reports whether `error` is this problem and has not been resolved for all reflectors.
    pub(crate) fn is_active(&self, error: &ActiveError, problem: &Problem) -> bool {
        let is_current = |reported: &Reported| reported.number == error.number;
        error.text == problem.text() && self.errors().by_text.get(&error.text).is_some_and(is_current)
    }

    /// Resolves an error of a reflector. Returns an event if no other reflector has it.
    #[expect(clippy::needless_pass_by_value, reason = "an error is resolved once")]
    pub(crate) fn resolve(&self, error: ActiveError) -> Option<Event> {
        let mut errors = self.errors();
        let reported = errors.by_text.get_mut(&error.text).filter(|reported| reported.number == error.number)?;
        reported.reflectors -= 1;
        if reported.reflectors > 0 {
            return None;
        }
        errors.by_text.remove(&error.text).map(|reported| Event::Resolved(reported.problem))
    }

    /// Resolves, for all reflectors, the errors that end with any response. Returns their events.
    pub(crate) fn responded(&self) -> Vec<Event> {
        let mut errors = self.errors();
        let ended = errors.by_text.extract_if(|_, reported| reported.resolution == Resolution::AnyResponse);
        ended.map(|(_, reported)| Event::Resolved(reported.problem)).collect()
    }

    fn errors(&self) -> MutexGuard<'_, ReportedErrors> {
        self.0.lock().expect("no code that holds it panics")
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
        let (first, event) = errors.report(problem("down"), Resolution::Response);
        assert!(matches!(event, Some(Event::Problem(_))));
        let (second, event) = errors.report(problem("down"), Resolution::Response);
        assert!(event.is_none());
        let (_, other) = errors.report(problem("forbidden"), Resolution::Response);
        assert!(other.is_some());
        assert!(errors.resolve(first).is_none());
        let Some(Event::Resolved(resolved)) = errors.resolve(second) else { panic!("the last one resolves it") };
        assert_eq!(resolved.to_string(), "down");
        assert!(errors.report(problem("down"), Resolution::Response).1.is_some());
    }
    #[test]
    fn unreachable_server_is_resolved_for_all_reflectors_by_any_response() {
        let errors = ErrorDeduplication::default();
        let (first, _) = errors.report(problem("unreachable"), Resolution::AnyResponse);
        let (second, _) = errors.report(problem("unreachable"), Resolution::AnyResponse);
        let (_forbidden, _) = errors.report(problem("forbidden"), Resolution::Response);
        assert!(errors.is_active(&second, &problem("unreachable")));
        assert!(matches!(&*errors.responded(), [Event::Resolved(problem)] if problem.text() == "unreachable"));
        assert!(!errors.is_active(&second, &problem("unreachable")));
        // The next outage is a separate report, which the reflectors of the previous outage do not resolve.
        let (third, event) = errors.report(problem("unreachable"), Resolution::AnyResponse);
        assert!(event.is_some());
        assert!(errors.resolve(first).is_none() && errors.resolve(second).is_none());
        assert!(errors.resolve(third).is_some());
    }
}
