//! The annotations of Services and EndpointSlices that choose how endpoints share connections.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU32};

use ferroute_api::labels;

use super::{Errors, parse_ip};
use crate::{Balancing, ConnectionLimits, ConnectionRate, Endpoint, Method, OverLimit, TableSize};

/// Parses the annotations of a Service. An invalid value is ignored and recorded.
pub(super) fn parse_balancing(errors: &mut Errors, annotations: &BTreeMap<String, String>) -> Balancing {
    if annotations.is_empty() {
        return Balancing::default();
    }
    let mut value = |key: &str, parse: &dyn Fn(&str) -> Result<Method, String>| {
        let text = annotations.get(key)?;
        Some(errors.keep_or_ignore(annotation(key), parse(text.trim())))
    };
    // The first one that exists decides, even if its value is invalid: a typing error must not select another method.
    let method = value(labels::LOAD_BALANCING, &own_method)
        .or_else(|| value(labels::CILIUM_ALGORITHM, &cilium_method))
        .or_else(|| value(labels::KUBE_ROUTER_SCHEDULER, &scheduler))
        .flatten();
    let size = annotations.get(labels::HASH_TABLE_SIZE);
    let table_size =
        size.and_then(|text| errors.keep_or_ignore(annotation(labels::HASH_TABLE_SIZE), table_size(text.trim())));
    let ejection = annotations.get(labels::PASSIVE_EJECTION);
    let passive_ejection = ejection
        .and_then(|text| errors.keep_or_ignore(annotation(labels::PASSIVE_EJECTION), yes_or_no(text.trim())))
        .unwrap_or_default();
    Balancing { method, table_size: table_size.unwrap_or_default(), passive_ejection }
}

/// Parses the limits of the connections to a Service; `None` if it has none. An invalid value is ignored and recorded.
pub(super) fn parse_limits(errors: &mut Errors, annotations: &BTreeMap<String, String>) -> Option<ConnectionLimits> {
    if annotations.is_empty() {
        return None;
    }
    let mut value = Annotations { errors, annotations };
    let limits = ConnectionLimits {
        connections: value.parse(labels::MAX_CONNECTIONS, connections),
        client_connections: value.parse(labels::MAX_CONNECTIONS_PER_CLIENT, connections),
        rate: value.parse(labels::MAX_NEW_CONNECTIONS, str::parse::<ConnectionRate>),
        client_rate: value.parse(labels::MAX_NEW_CONNECTIONS_PER_CLIENT, str::parse::<ConnectionRate>),
        over_limit: value.parse(labels::OVER_LIMIT, over_limit).unwrap_or_default(),
    };
    limits.kinds().next().is_some().then_some(limits)
}

/// The annotations of an object that is being parsed.
struct Annotations<'a> {
    errors: &'a mut Errors,
    annotations: &'a BTreeMap<String, String>,
}

impl Annotations<'_> {
    /// Returns the valid value of an annotation that exists.
    fn parse<T>(&mut self, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.errors.keep_or_ignore(annotation(key), parse(self.annotations.get(key)?.trim()))
    }
}

/// The weights of the endpoints of a slice.
pub(super) struct Weights {
    /// The weight of all others.
    default: u16,
    single: BTreeMap<IpAddr, u16>,
}

impl Weights {
    /// Parses the annotations of a slice. An invalid value is ignored and recorded.
    pub(super) fn parse(errors: &mut Errors, annotations: &BTreeMap<String, String>) -> Self {
        let mut value = |key: &str, parse: &dyn Fn(&str) -> Result<Self, String>| {
            Some(errors.keep_or_ignore(annotation(key), parse(annotations.get(key)?)).unwrap_or_default())
        };
        let own = value(labels::WEIGHT, &weights);
        own.or_else(|| value(labels::CILIUM_WEIGHT, &|text| Ok(weight(text.trim())?.into()))).unwrap_or_default()
    }

    /// Returns the weight of the endpoint with this address.
    pub(super) fn of(&self, address: IpAddr) -> u16 {
        self.single.get(&address).copied().unwrap_or(self.default)
    }
}

impl Default for Weights {
    fn default() -> Self {
        Endpoint::DEFAULT_WEIGHT.into()
    }
}

impl From<u16> for Weights {
    fn from(default: u16) -> Self {
        Self { default, single: BTreeMap::new() }
    }
}

/// Parses weights that are separated by spaces or commas: one for all endpoints, or `address=weight`.
fn weights(text: &str) -> Result<Weights, String> {
    let mut weights = Weights::default();
    for part in text.split([' ', ',', '\n']).filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((address, number)) => _ = weights.single.insert(parse_ip(address)?, weight(number)?),
            None => weights.default = weight(part)?,
        }
    }
    Ok(weights)
}

fn weight(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|weight| *weight <= MAX_WEIGHT)
        .ok_or_else(|| format!("invalid weight {text:?} (want a number from 0 to {MAX_WEIGHT}, or address=number)"))
}

/// The largest weight. The ratio of two weights is at most as large, and lists stay short.
const MAX_WEIGHT: u16 = 256;

/// Returns the path of an annotation.
pub(super) fn annotation(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}

fn own_method(text: &str) -> Result<Method, String> {
    Method::from_name(text).ok_or_else(|| {
        let names = Method::ALL.map(Method::as_str).join(", ");
        format!("unsupported value {text:?} (want {names})")
    })
}

/// Cilium hashes source and destination, addresses and ports.
fn cilium_method(text: &str) -> Result<Method, String> {
    match text {
        "random" => Ok(Method::Random),
        "maglev" => Ok(Method::SourcePortHash),
        _ => Err(format!("unsupported value {text:?} (want random or maglev)")),
    }
}

fn scheduler(text: &str) -> Result<Method, String> {
    Method::from_scheduler(text).ok_or_else(|| format!("unsupported value {text:?} (want rr, wrr, lc, wlc, sh or mh)"))
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("unsupported value {text:?} (want true or false)"))
}

fn connections(text: &str) -> Result<NonZeroU32, String> {
    let max = ConnectionLimits::MAX_CONNECTIONS;
    text.parse()
        .ok()
        .filter(|number: &NonZeroU32| number.get() <= max)
        .ok_or_else(|| format!("invalid number of connections {text:?} (want 1 to {max})"))
}

fn over_limit(text: &str) -> Result<OverLimit, String> {
    [OverLimit::Reject, OverLimit::Drop]
        .into_iter()
        .find(|value| value.as_str() == text)
        .ok_or_else(|| format!("unsupported value {text:?} (want reject or drop)"))
}

fn table_size(text: &str) -> Result<TableSize, String> {
    text.parse().ok().and_then(TableSize::new).ok_or_else(|| {
        let sizes = TableSize::ALL.map(|size| size.to_string()).join(", ");
        format!("unsupported value {text:?} (want {sizes})")
    })
}
