//! Subject of an answer: the running proxy of this network namespace, or the node and the settings that were given or
//! assumed.
//!
//! Every fact has a separate origin, because each flag replaces one fact of the running proxy.

use std::fmt;

use ferroute_core::{Escaped, error_chain};
use ferroute_proxy::control::{ProxyInfo, RequestError, request_info};
use serde::{Deserialize, Serialize};

/// Subject of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Whether a proxy runs in this network namespace.
    pub proxy: ProxyState,
    /// Reason why a running proxy gives no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The name of the node.
    pub node: Fact,
    /// Mode of the proxy; `None` for the rules of all proxies, of any mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Fact>,
    /// Configuration; `None` if the answer does not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Fact>,
    /// Source of the objects; `None` if the answer does not depend on objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<Fact>,
}

/// Whether a proxy runs in this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProxyState {
    /// The proxy runs and has responded.
    Running,
    /// No proxy runs.
    None,
    /// It is unknown whether a proxy runs, or the running one does not respond.
    Unavailable,
    /// Not relevant, because the objects are those of a demo or a bundle.
    Unrelated,
}

/// Prefix of the line for an answer of the running proxy.
pub const RUNNING_PROXY: &str = "running proxy: ";

/// A fact that an answer depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    /// The value, for people.
    pub value: String,
    /// The origin.
    pub from: Origin,
}

/// The origin of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// The running proxy.
    Proxy,
    /// The command line, or a file that it names.
    Given,
    /// The rules in the kernel.
    Kernel,
    /// No origin: a default was assumed.
    Assumed,
}

impl Fact {
    /// Creates a fact.
    pub fn new(value: impl Into<String>, from: Origin) -> Self {
        Self { value: value.into(), from }
    }
}

impl About {
    /// Returns the subject of the counters in the kernel: the rules of the running proxy or, if none runs, those of any
    /// proxy.
    ///
    /// # Errors
    /// If the host has no usable name.
    pub fn of_kernel() -> anyhow::Result<Self> {
        let proxy = Proxy::request();
        let (state, reason) = proxy.state();
        let (node, mode) = match proxy.info() {
            Some(info) => (Fact::new(&info.node, Origin::Proxy), Some(Fact::new(&info.mode, Origin::Proxy))),
            None => (Fact::new(ferroute_host::node_name("")?, Origin::Assumed), None),
        };
        Ok(Self { proxy: state, reason, node, mode, configuration: None, objects: None })
    }
}

/// The answer of the running proxy, or its absence.
#[derive(Debug)]
pub(crate) enum Proxy {
    /// A proxy runs.
    Running(Box<ProxyInfo>),
    /// No proxy runs.
    None,
    /// A process gives no answer, for this reason.
    Unavailable(String),
}

impl Proxy {
    /// Requests the facts of the proxy that runs in this network namespace.
    pub(crate) fn request() -> Self {
        match request_info() {
            Ok(info) => Self::Running(Box::new(info)),
            Err(RequestError::Unavailable(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Self::None
            }
            Err(error) => Self::Unavailable(error_chain(&error)),
        }
    }

    /// Returns the facts of the running proxy.
    pub(crate) fn info(&self) -> Option<&ProxyInfo> {
        match self {
            Self::Running(info) => Some(info),
            Self::None | Self::Unavailable(_) => None,
        }
    }

    /// Returns the state, and why a running proxy gives no answer.
    pub(crate) fn state(&self) -> (ProxyState, Option<String>) {
        match self {
            Self::Running(_) => (ProxyState::Running, None),
            Self::None => (ProxyState::None, None),
            Self::Unavailable(reason) => (ProxyState::Unavailable, Some(reason.clone())),
        }
    }
}

/// Writes one line: the proxy or node of the answer, and the given or assumed facts.
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proxy, reason, node, mode, configuration, objects } = self;
        match (proxy, reason) {
            (ProxyState::Running, _) => f.write_str(RUNNING_PROXY)?,
            (ProxyState::None, _) => f.write_str("no Ferroute proxy runs here: ")?,
            (ProxyState::Unavailable, Some(reason)) => write!(f, "no answer of a proxy ({}): ", Escaped(reason))?,
            (ProxyState::Unavailable, None) => f.write_str("no answer of a proxy: ")?,
            (ProxyState::Unrelated, _) => {}
        }
        write!(f, "node {}{}, ", Escaped(&node.value), suffix(node))?;
        match mode {
            Some(mode) => write!(f, "{} mode{}", Escaped(&mode.value), suffix(mode))?,
            None => f.write_str("rules of all proxies")?,
        }
        let more = [("objects of ", objects), ("configuration of ", configuration)];
        for (label, fact) in more.into_iter().filter_map(|(label, fact)| Some((label, fact.as_ref()?))) {
            let is_said = *proxy == ProxyState::Running && fact.from == Origin::Proxy;
            match fact.from {
                _ if is_said => {}
                Origin::Assumed => write!(f, ", {}{}", Escaped(&fact.value), suffix(fact))?,
                Origin::Proxy | Origin::Kernel | Origin::Given => write!(f, ", {label}{}", Escaped(&fact.value))?,
            }
        }
        Ok(())
    }
}

fn suffix(fact: &Fact) -> &'static str {
    match fact.from {
        Origin::Proxy => "",
        Origin::Given => " (given)",
        Origin::Kernel => " (of the rules in the kernel)",
        Origin::Assumed => " (assumed)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(proxy: ProxyState, origins: [Origin; 4]) -> String {
        let [node, mode, configuration, objects] = origins;
        let about = About {
            proxy,
            reason: (proxy == ProxyState::Unavailable).then(|| "permission denied".to_owned()),
            node: Fact::new("node-1", node),
            mode: Some(Fact::new("nftables", mode)),
            configuration: Some(match configuration {
                Origin::Assumed => Fact::new("default configuration", configuration),
                _ => Fact::new("conf.yaml", configuration),
            }),
            objects: Some(Fact::new("shop.yaml", objects)),
        };
        about.to_string()
    }

    #[test]
    fn line_says_whose_answer_it_is_and_what_is_given_or_assumed() {
        use Origin::{Assumed, Given, Kernel, Proxy};
        assert_eq!(about(ProxyState::Running, [Proxy; 4]), "running proxy: node node-1, nftables mode");
        assert_eq!(
            about(ProxyState::None, [Given, Kernel, Given, Given]),
            "no Ferroute proxy runs here: node node-1 (given), nftables mode (of the rules in the kernel), objects of shop.yaml, \
             configuration of conf.yaml"
        );
        assert_eq!(
            about(ProxyState::Running, [Proxy, Given, Given, Given]),
            "running proxy: node node-1, nftables mode (given), objects of shop.yaml, configuration of conf.yaml"
        );
        assert_eq!(
            about(ProxyState::None, [Assumed, Assumed, Assumed, Given]),
            "no Ferroute proxy runs here: node node-1 (assumed), nftables mode (assumed), objects of shop.yaml, \
             default configuration (assumed)"
        );
        assert!(about(ProxyState::Unavailable, [Given; 4]).starts_with("no answer of a proxy (permission denied): "));
        assert!(about(ProxyState::Unrelated, [Given; 4]).starts_with("node node-1 (given), "));
    }
}
