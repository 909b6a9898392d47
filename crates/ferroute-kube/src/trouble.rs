use std::{error::Error, time::Duration};

use ferroute_source::{ObjectName, Problem, Resource};
use http::StatusCode;

use crate::{
    decode::Status,
    kinds::{group, kind, plural},
};

/// What goes wrong between the API server and us, for a person to act on. All of it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// No connection comes about.
    #[error("cannot reach the API server at {url}")]
    Unreachable {
        /// The server.
        url: String,
        /// Why.
        #[source]
        cause: Cause,
    },
    /// No request can be made: a token file or certificate is missing or bad, or a program that gives credentials has
    /// failed.
    #[error("cannot prepare requests to the API server{}", at(url.as_deref()))]
    Unprepared {
        /// The server, if that much is known.
        url: Option<String>,
        /// Why.
        #[source]
        cause: Cause,
    },
    /// There is no answer.
    #[error("the API server at {url} has not answered for {} s", waited.as_secs())]
    Silent {
        /// The server.
        url: String,
        /// How long nothing has come.
        waited: Duration,
    },
    /// The answer breaks off before its end.
    #[error("the connection to the API server at {url} breaks")]
    Broken {
        /// The server.
        url: String,
        /// Why, where that is known.
        #[source]
        cause: Option<Cause>,
    },
    /// The credentials are not accepted (401).
    #[error("the API server at {url} does not accept the credentials: {message}")]
    Unauthorized {
        /// The server.
        url: String,
        /// What it says.
        message: String,
    },
    /// The account may not do what a proxy must (403).
    #[error(
        "not allowed to {verb} {}: {message}. A ClusterRole bound to this account needs the rule \
         {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"list\", \"watch\"]}}{}",
        plural(*resource), group(*resource), plural(*resource), without(*resource)
    )]
    Forbidden {
        /// `list` or `watch`.
        verb: &'static str,
        /// What of.
        resource: Resource,
        /// What the server says.
        message: String,
    },
    /// Any other answer that is no success.
    #[error("the API server at {url} answers {status} when asked for {}: {message}", plural(*resource))]
    Refused {
        /// The server.
        url: String,
        /// What of.
        resource: Resource,
        /// The HTTP status.
        status: StatusCode,
        /// What the server says.
        message: String,
    },
    /// What answers is no API server, or a broken one.
    #[error("cannot make sense of what {url} sends when asked for {}", plural(*resource))]
    Senseless {
        /// The server.
        url: String,
        /// What of.
        resource: Resource,
        /// What is wrong with it.
        #[source]
        cause: Cause,
    },
    /// The same for an object that was written.
    #[error("cannot make sense of what {url} answers about {resource}")]
    Answer {
        /// The server.
        url: String,
        /// The plural of the kind.
        resource: &'static str,
        /// What is wrong with it.
        #[source]
        cause: Cause,
    },
    /// Objects without names are passed over.
    #[error("there are {} without a name, which are passed over", plural(*resource))]
    Nameless {
        /// The kind.
        resource: Resource,
        /// Why the name cannot be read, for the first of them.
        #[source]
        cause: Cause,
    },
    /// An object is passed over.
    #[error("{} {name} is passed over, what was known before stays in force", kind(*resource))]
    BadObject {
        /// The kind.
        resource: Resource,
        /// The object.
        name: ObjectName,
        /// The field, and what is wrong.
        #[source]
        cause: Cause,
    },
}

/// Why something went wrong, as text: libraries wrap causes in layers that tell people nothing, or repeat each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(String);

impl Cause {
    /// The innermost error, for libraries that wrap it.
    pub(crate) fn innermost(error: &(dyn Error + 'static)) -> Self {
        Self(chain(error).last().unwrap_or(error).to_string())
    }

    /// A text.
    pub(crate) fn text(text: String) -> Self {
        Self(text)
    }

    /// The error alone, for libraries whose errors print what caused them.
    pub(crate) fn whole(error: &(dyn Error + 'static)) -> Self {
        Self(error.to_string())
    }
}

/// The error of this type in a chain of errors.
pub(crate) fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

impl Trouble {
    /// The trouble that an answer without success means.
    pub(crate) fn answered(
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
            status => Self::Refused { url: url.to_owned(), resource, status, message },
        }
    }

    /// Whether new credentials, a new CA or a new address might help.
    pub(crate) fn may_be_configuration(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unprepared { .. } | Self::Unauthorized { .. })
    }

    /// Whether it is over as soon as the server gives any good answer. Otherwise only its contents show.
    pub(crate) fn ends_with_an_answer(&self) -> bool {
        !matches!(self, Self::Senseless { .. } | Self::Broken { .. })
    }

    /// For who takes events.
    pub(crate) fn into_problem(self) -> Problem {
        Problem::Other(Box::new(self))
    }
}

/// What is missing without these objects, where the proxy goes on without.
fn without(resource: Resource) -> &'static str {
    match resource {
        Resource::ServiceCidrs => ". Until then connections to addresses of no Service are not refused",
        Resource::Services | Resource::EndpointSlices | Resource::Nodes => "",
    }
}

fn at(url: Option<&str>) -> String {
    url.map(|url| format!(" at {url}")).unwrap_or_default()
}
