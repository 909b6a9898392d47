//! Settings of Services and endpoints that some modes do not support.

use std::fmt;

use crate::{Endpoint, Method, ModeTraits, ServicePort, SourceRangesScope, parse::FieldError};

/// A setting that a mode does not support, and ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnsupportedSetting {
    /// The method that chooses endpoints.
    Method(Method),
    /// Weights of endpoints.
    Weights,
    /// Slow start of new endpoints.
    SlowStart,
    /// The preference of endpoints in the node's zone.
    ZoneWeight,
    /// The deadline of connections to terminating endpoints.
    DrainTimeout,
    /// Source ranges of other addresses than those of load balancers.
    SourceRangesScope,
    /// Limits of connections.
    Limits,
}

impl ModeTraits {
    /// Returns the settings of a service port that the mode does not support, without those of its endpoints.
    pub fn unsupported(&self, port: &ServicePort) -> impl Iterator<Item = UnsupportedSetting> {
        let balancing = &port.balancing;
        let method = balancing.method.filter(|method| !self.methods.contains(method)).map(UnsupportedSetting::Method);
        let has_scope = port.source_ranges_scope != SourceRangesScope::default();
        let others = [
            (balancing.slow_start.is_some() && !self.weights, UnsupportedSetting::SlowStart),
            (balancing.zone_weight.is_some() && !self.weights, UnsupportedSetting::ZoneWeight),
            (balancing.drain_timeout.is_some() && !self.drain_timeouts, UnsupportedSetting::DrainTimeout),
            (has_scope && !self.source_ranges_scope, UnsupportedSetting::SourceRangesScope),
            (port.limits.is_some() && !self.limits, UnsupportedSetting::Limits),
        ];
        method
            .into_iter()
            .chain(others.into_iter().filter(|(is_unsupported, _)| *is_unsupported).map(|(_, setting)| setting))
    }

    /// Reports whether the mode ignores an endpoint's weight. Endpoints of weight 0 get no connections in any mode.
    pub fn ignores_weight(&self, weight: u16) -> bool {
        !self.weights && weight > Endpoint::DEFAULT_WEIGHT
    }
}

impl UnsupportedSetting {
    /// Returns the error that reports the setting.
    pub(crate) fn error(self) -> FieldError {
        FieldError { field: "metadata.annotations".to_owned(), problem: format!("the proxy mode does not {self}") }
    }
}

impl fmt::Display for UnsupportedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method(method) => write!(f, "support {method} load balancing, and uses its own method"),
            Self::Weights => f.write_str("support weights: all endpoints have the same share"),
            Self::SlowStart => f.write_str("support slow start of new endpoints: all endpoints have the same share"),
            Self::ZoneWeight => f.write_str("support weights of zones: all endpoints have the same share"),
            Self::DrainTimeout => f.write_str("support a deadline of connections to terminating endpoints"),
            Self::SourceRangesScope => {
                f.write_str("apply source ranges to other addresses than those of load balancers")
            }
            Self::Limits => f.write_str("support limits of connections"),
        }
    }
}
