//! The annotations of Services and EndpointSlices that choose how endpoints share connections.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::{NonZeroU16, NonZeroU32},
};

use ferroute_api::{
    labels,
    spelling::{did_you_mean, similar},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Errors, MAX_ERRORS, parse_ip, parse_network};
use crate::{
    Balancing, ConnectionLimits, ConnectionRate, Ejection, Endpoint, IpFamily, Method, OverLimit, SourceRangesScope,
    TableSize, limits::MAX_SOURCE_RANGES, networks,
};

/// Parses the annotations of a Service. An invalid value is ignored and recorded.
pub(super) fn parse_balancing(errors: &mut Errors, annotations: &BTreeMap<String, String>) -> Balancing {
    if annotations.is_empty() {
        return Balancing::default();
    }
    let mut value = |key: &str, parse: &dyn Fn(&str) -> Result<Method, String>| {
        let text = annotations.get(key)?;
        Some(errors.keep_or_ignore(annotation(key), parse(text.trim())))
    };
    // The first existing annotation decides, even if its value is invalid: a typing error must not select another
    // method.
    let method = value(labels::LOAD_BALANCING, &own_method)
        .or_else(|| value(labels::CILIUM_ALGORITHM, &cilium_method))
        .or_else(|| value(labels::KUBE_ROUTER_SCHEDULER, &scheduler))
        .flatten();
    let mut value = Annotations { errors, annotations };
    Balancing {
        method,
        table_size: value.parse(labels::HASH_TABLE_SIZE, table_size).unwrap_or_default(),
        passive_ejection: value.parse(labels::PASSIVE_EJECTION, ejection),
        slow_start: value.parse(labels::SLOW_START, seconds),
        zone_weight: value.parse(labels::ZONE_WEIGHT, zone_weight),
        drain_timeout: value.parse(labels::DRAIN_TIMEOUT, seconds),
    }
}

impl Errors {
    /// Records that these annotations have no effect, because the Service does not have what they are about.
    fn ignore_without(&mut self, annotations: &BTreeMap<String, String>, keys: &[&str], missing: &str) {
        for key in keys.iter().filter(|key| annotations.contains_key(**key)) {
            self.ignore(annotation(key), format!("no effect, because the Service has no {missing}"));
        }
    }
}

/// Records that annotations of Ferroute which an object of this kind does not have are ignored; `read` are those that it
/// has.
pub(super) fn ignore_unknown(
    errors: &mut Errors,
    kind: &str,
    read: &'static [&'static str],
    annotations: &BTreeMap<String, String>,
) {
    let own = |key: &str| key.starts_with(labels::OWN_PREFIX);
    let unknown = annotations.keys().filter(|key| own(key) && !read.contains(&key.as_str()));
    // More would not be kept.
    for key in unknown.take(MAX_ERRORS) {
        let problem = if labels::reads_annotation(key) {
            format!("{kind}s do not have this annotation")
        } else {
            format!("unknown annotation{}", did_you_mean(similar(key, read.iter().copied().filter(|key| own(key)))))
        };
        errors.ignore(annotation(key), problem);
    }
}

/// Parses the limits of the connections to a Service; `None` if there are none. An invalid value is ignored and
/// recorded.
pub(super) fn parse_limits(errors: &mut Errors, annotations: &BTreeMap<String, String>) -> Option<ConnectionLimits> {
    if annotations.is_empty() {
        return None;
    }
    let mut value = Annotations { errors: &mut *errors, annotations };
    let limits = ConnectionLimits {
        connections: value.parse(labels::MAX_CONNECTIONS, connections),
        client_connections: value.parse(labels::MAX_CONNECTIONS_PER_CLIENT, connections),
        rate: value.parse(labels::MAX_NEW_CONNECTIONS, str::parse::<ConnectionRate>),
        client_rate: value.parse(labels::MAX_NEW_CONNECTIONS_PER_CLIENT, str::parse::<ConnectionRate>),
        over_limit: value.parse(labels::OVER_LIMIT, over_limit).unwrap_or_default(),
    };
    if limits.kinds().next().is_none() {
        errors.ignore_without(annotations, &[labels::OVER_LIMIT], "limits of connections");
        return None;
    }
    Some(limits)
}

/// Returns the permitted sources of a Service whose field has these ranges; empty for all.
pub(super) fn parse_source_ranges(
    errors: &mut Errors,
    mut ranges: Vec<IpNet>,
    annotations: &BTreeMap<String, String>,
) -> Vec<IpNet> {
    if annotations.is_empty() {
        return ranges;
    }
    let mut has_error = false;
    for text in list(annotations.get(labels::SOURCE_RANGES).map_or("", String::as_str)) {
        let range = errors.keep_or_ignore(annotation(labels::SOURCE_RANGES), parse_network(text));
        has_error |= range.is_none();
        ranges.extend(range);
    }
    let mut value = Annotations { errors: &mut *errors, annotations };
    let mut policy = |key: &str| annotations.get(key).map(|_| value.parse(key, denies));
    let denies = policy(labels::SOURCE_RANGES_POLICY).or_else(|| policy(labels::CILIUM_SOURCE_RANGES_POLICY));
    if ranges.is_empty() && !has_error {
        errors.ignore_without(
            annotations,
            &[labels::SOURCE_RANGES_POLICY, labels::SOURCE_RANGES_SCOPE],
            "source ranges",
        );
        return ranges;
    }
    // An error must not admit clients that the ranges, or the policy that is meant, exclude.
    match denies.unwrap_or(Some(false)) {
        Some(true) if !has_error => IpFamily::BOTH.into_iter().flat_map(|family| all_except(family, &ranges)).collect(),
        Some(false) => {
            let is_open = |family: &IpFamily| !ranges.iter().any(|net| IpFamily::of(net.addr()) == *family);
            let open: Vec<IpFamily> =
                IpFamily::BOTH.into_iter().filter(|family| has_error && is_open(family)).collect();
            ranges.extend(open.into_iter().map(no_client));
            ranges
        }
        Some(true) | None => IpFamily::BOTH.map(no_client).into(),
    }
}

/// Parses the addresses, other than those of load balancers, to which source ranges apply.
pub(super) fn parse_scope(errors: &mut Errors, annotations: &BTreeMap<String, String>) -> SourceRangesScope {
    if annotations.is_empty() {
        return SourceRangesScope::default();
    }
    // An error must not admit clients that the ranges exclude.
    let invalid = match annotations.contains_key(labels::SOURCE_RANGES_SCOPE) {
        true => SourceRangesScope::ALL,
        false => SourceRangesScope::default(),
    };
    Annotations { errors, annotations }.parse(labels::SOURCE_RANGES_SCOPE, scope).unwrap_or(invalid)
}

/// Returns the elements of a list that is separated by spaces, line breaks or commas.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_whitespace()).filter(|element| !element.is_empty())
}

fn scope(text: &str) -> Result<SourceRangesScope, String> {
    let mut scope = SourceRangesScope::default();
    for name in list(text) {
        let kinds = SourceRangesScope::NAMES.join(", ");
        scope = scope.with(name).ok_or_else(|| format!("unsupported value {name:?} (want {kinds})"))?;
    }
    Ok(scope)
}

fn denies(text: &str) -> Result<bool, String> {
    match text {
        "allow" => Ok(false),
        "deny" => Ok(true),
        _ => Err(format!("unsupported value {text:?} (want allow or deny)")),
    }
}

/// Returns networks that cover a family, except for the addresses of the denied networks. At most one more than the limit of
/// a Service: the rest of IPv6 without a few thousand addresses is a million networks.
fn all_except(family: IpFamily, denied: &[IpNet]) -> Vec<IpNet> {
    let denied: Vec<IpNet> = denied.iter().copied().filter(|net| IpFamily::of(net.addr()) == family).collect();
    // Each gap ends before a denied network, the last one with the family. Aggregated networks are sorted.
    let mut first = Some(all(family).network());
    let gaps = IpNet::aggregate(&denied).into_iter().map(Some).chain([None]).filter_map(|denied| {
        let start = first?;
        let end = match denied {
            Some(denied) => {
                first = neighbor(denied.broadcast(), 1);
                neighbor(denied.network(), -1)?
            }
            None => all(family).broadcast(),
        };
        (start <= end).then(|| networks(start, end))
    });
    let rest: Vec<IpNet> = gaps.flatten().flatten().take(MAX_SOURCE_RANGES + 1).collect();
    if rest.is_empty() { vec![no_client(family)] } else { rest }
}

/// Returns the address before or after another one; `None` beyond the last of a family.
fn neighbor(address: IpAddr, step: i8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            u32::from(address).checked_add_signed(step.into()).map(|bits| Ipv4Addr::from(bits).into())
        }
        IpAddr::V6(address) => {
            u128::from(address).checked_add_signed(step.into()).map(|bits| Ipv6Addr::from(bits).into())
        }
    }
}

fn all(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
        IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
    }
}

/// The unspecified address, which no connection has as its source.
fn no_client(family: IpFamily) -> IpNet {
    IpNet::from(all(family).addr())
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
    /// Weight of all other endpoints.
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

/// Parses a list of weights: one for all endpoints, or `address=weight`.
fn weights(text: &str) -> Result<Weights, String> {
    let mut default = None;
    let mut single = BTreeMap::new();
    for part in list(text) {
        let previous = match part.split_once('=') {
            Some((address, number)) => single.insert(parse_ip(address)?, weight(number)?),
            None => default.replace(weight(part)?),
        };
        if let Some(previous) = previous {
            return Err(format!("{part:?} and an earlier weight, {previous}, are for the same endpoints"));
        }
    }
    Ok(Weights { default: default.unwrap_or(Endpoint::DEFAULT_WEIGHT), single })
}

fn weight(text: &str) -> Result<u16, String> {
    text.parse()
        .ok()
        .filter(|weight| *weight <= MAX_WEIGHT)
        .ok_or_else(|| format!("invalid weight {text:?} (want a number from 0 to {MAX_WEIGHT}, or address=number)"))
}

/// Maximum weight. It also bounds the ratio of two weights, so that lists stay short.
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

fn ejection(text: &str) -> Result<Ejection, String> {
    Ejection::ALL
        .into_iter()
        .find(|value| value.as_str() == text)
        .ok_or_else(|| format!("unsupported value {text:?} (want true, refused or false)"))
}

/// Parses a time such as `30s`, `10m` or `1h`, up to a day.
fn seconds(text: &str) -> Result<NonZeroU32, String> {
    let units = [("s", 1), ("m", 60), ("h", 3_600)];
    let parse = |(unit, factor): (&str, u32)| text.strip_suffix(unit)?.parse::<u32>().ok()?.checked_mul(factor);
    let seconds = units.into_iter().find_map(parse).filter(|seconds| *seconds <= MAX_SECONDS).and_then(NonZeroU32::new);
    seconds.ok_or_else(|| format!("invalid time {text:?} (want a number with s, m or h, from 1s to 24h)"))
}

/// A day.
const MAX_SECONDS: u32 = 86_400;

fn zone_weight(text: &str) -> Result<NonZeroU16, String> {
    text.parse()
        .ok()
        .filter(|weight: &NonZeroU16| weight.get() <= MAX_ZONE_WEIGHT)
        .ok_or_else(|| format!("invalid weight {text:?} (want a number from 1 to {MAX_ZONE_WEIGHT})"))
}

/// The largest weight of the node's zone: lists stay short.
const MAX_ZONE_WEIGHT: u16 = 64;

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
