//! Service ports whose desired rules are not active although syncs succeed.

use std::fmt;

use ferroute_core::{IpFamily, NamespacedName, Protocol, ServicePortName};
use serde::{Deserialize, Serialize};

/// A service port whose desired rules are not active although the last sync succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnappliedPort {
    /// `namespace/name:port`.
    pub service_port: String,
    /// The IP family.
    pub family: IpFamily,
    /// The protocol.
    pub protocol: Protocol,
    /// The reason, and the state of the service port.
    #[serde(flatten)]
    pub state: Unapplied,
}

/// The reason why desired rules are not active, and what is active instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unapplied {
    /// The error of the kernel, or of the program that writes rules to it; `None` if a limit of the mode is exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the last accepted rules stay active, so that there are rules at all.
    pub keeps_rules: bool,
}

/// The service ports of a Service whose desired rules are not active.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnappliedService {
    /// Whether the kernel has any rules of the Service.
    pub has_rules: bool,
    /// The service ports.
    pub ports: Vec<UnappliedPort>,
}

impl UnappliedPort {
    /// Creates the state of a service port.
    pub fn new(name: &ServicePortName, family: IpFamily, error: Option<String>, keeps_rules: bool) -> Self {
        let state = Unapplied { error, keeps_rules };
        Self { service_port: name.to_string(), family, protocol: name.protocol, state }
    }

    /// Reports whether this is the service port with a name, in an IP family.
    pub fn is(&self, name: &ServicePortName, family: IpFamily) -> bool {
        (self.family, self.protocol) == (family, name.protocol) && self.service_port == name.to_string()
    }

    /// Reports whether it is a port of a Service.
    pub fn is_of(&self, service: &NamespacedName) -> bool {
        let rest = self.service_port.strip_prefix(service.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }
}

impl fmt::Display for UnappliedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service_port, family, protocol, state } = self;
        write!(f, "the {family} rules of {service_port} ({protocol}) are not applied: {state}")
    }
}

impl fmt::Display for Unapplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.error, self.keeps_rules) {
            (Some(error), true) => {
                write!(f, "the kernel refuses the new rules ({error}); the last accepted ones stay active")
            }
            (Some(error), false) => write!(f, "the kernel refuses the rules ({error}); there are no earlier ones"),
            (None, _) => f.write_str("there are more service ports than the mode can serve"),
        }
    }
}
