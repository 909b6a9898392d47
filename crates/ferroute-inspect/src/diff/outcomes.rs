use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ferroute_trace::{Leaf, Origin, Packet, Verdict};

use super::{Answer, Mismatch, SourceAddress};

/// Result of a packet, as far as sender and receiver can observe it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketOutcome {
    /// Delivered.
    Delivered {
        /// The destination.
        to: SocketAddr,
        /// The source address that the receiver sees.
        from: IpAddr,
        /// Output interface; `None` for the host itself.
        interface: Option<String>,
    },
    /// No rule of a service proxy handles it.
    Untouched,
    /// The sender gets an ICMP error or a TCP reset.
    Rejected,
    /// Dropped silently.
    Dropped,
    /// There is no route to its destination.
    NoRoute,
    /// The rules alone do not determine the outcome.
    Unknown {
        /// The unknown part.
        reason: String,
    },
}

/// All possible outcomes of a packet, each with its probability, 0 to 1.
pub type Outcomes = BTreeMap<PacketOutcome, f64>;

/// Adds up the verdicts of a trace.
pub fn outcomes(packet: &Packet, leaves: impl IntoIterator<Item = Leaf>) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for Leaf { verdict, share, assumptions, .. } in leaves {
        let outcome = match verdict {
            // Both cases of an assumption have separate shares, so the sum is not meaningful.
            _ if !assumptions.is_empty() => {
                PacketOutcome::Unknown { reason: format!("depends on whether {}", assumptions[0].condition) }
            }
            // The node's own packets always have one of its addresses.
            Verdict::Delivered { to, from, .. }
                if to == packet.destination && (from == packet.source.ip() || packet.origin == Origin::Local) =>
            {
                PacketOutcome::Untouched
            }
            Verdict::Delivered { to, from, interface, .. } => PacketOutcome::Delivered { to, from, interface },
            Verdict::Rejected { .. } => PacketOutcome::Rejected,
            Verdict::Dropped => PacketOutcome::Dropped,
            Verdict::NoRoute => PacketOutcome::NoRoute,
            Verdict::Unknown { reason } => PacketOutcome::Unknown { reason },
        };
        *outcomes.entry(outcome).or_default() += share;
    }
    outcomes
}

/// Reports whether two packets have the same outcomes with the same probabilities. The kernel's random numbers have 31
/// bits, and each of many endpoints adds a rounding error.
pub(super) fn agree(one: &Outcomes, other: &Outcomes) -> bool {
    one.keys().eq(other.keys()) && one.values().zip(other.values()).all(|(one, other)| shares_agree(*one, *other))
}

pub(super) fn shares_agree(one: f64, other: f64) -> bool {
    (one - other).abs() <= ROUNDING * one.max(other)
}

/// Returns the mismatches between the expected and the actual outcomes of a packet from `client`.
pub(super) fn mismatches(client: IpAddr, expected: &Outcomes, actual: &Outcomes) -> Vec<Mismatch> {
    if agree(expected, actual) {
        return Vec::new();
    }
    let (Some(expected_served), Some(actual_served)) = (served(expected), served(actual)) else {
        return vec![Mismatch::Answer { expected: answer(expected), actual: answer(actual) }];
    };
    let mut mismatches = Vec::new();
    let endpoints = |served: &Served| served.keys().copied().collect::<BTreeSet<_>>();
    let (expected_endpoints, actual_endpoints) = (endpoints(&expected_served), endpoints(&actual_served));
    if expected_endpoints == actual_endpoints {
        mismatches.extend(largest_share_mismatch(&expected_served, &actual_served));
    } else {
        mismatches.push(Mismatch::Endpoints {
            missing: expected_endpoints.difference(&actual_endpoints).copied().collect(),
            extra: actual_endpoints.difference(&expected_endpoints).copied().collect(),
        });
    }
    let seen = |share: &Share| if share.from == client { SourceAddress::Client } else { SourceAddress::Node };
    let sources = expected_served
        .iter()
        .filter_map(|(endpoint, expected)| Some((seen(expected), seen(actual_served.get(endpoint)?))));
    let unequal: BTreeSet<(SourceAddress, SourceAddress)> =
        sources.filter(|(expected, actual)| expected != actual).collect();
    mismatches.extend(unequal.into_iter().map(|(expected, actual)| Mismatch::Source { expected, actual }));
    mismatches
}

/// The endpoints that receive packets.
type Served = BTreeMap<SocketAddr, Share>;

struct Share {
    from: IpAddr,
    share: f64,
}

/// Returns the endpoints that receive the packet; `None` if it can have another outcome.
fn served(outcomes: &Outcomes) -> Option<Served> {
    let each = outcomes.iter().map(|(outcome, share)| match outcome {
        PacketOutcome::Delivered { to, from, .. } => Some((*to, Share { from: *from, share: *share })),
        _ => None,
    });
    each.collect()
}

/// Returns the endpoint whose share differs most.
fn largest_share_mismatch(expected: &Served, actual: &Served) -> Option<Mismatch> {
    let pairs = expected
        .iter()
        .filter_map(|(endpoint, expected)| Some((endpoint, expected.share, actual.get(endpoint)?.share)));
    let unequal = pairs.filter(|(_, expected, actual)| !shares_agree(*expected, *actual));
    let distance = |(_, expected, actual): &(&SocketAddr, f64, f64)| (expected - actual).abs();
    let largest = unequal.max_by(|one, other| distance(one).total_cmp(&distance(other)));
    largest.map(|(endpoint, expected, actual)| Mismatch::Shares { endpoint: *endpoint, expected, actual })
}

fn answer(outcomes: &Outcomes) -> Answer {
    if let Some(served) = served(outcomes) {
        return Answer::Served(served.len());
    }
    match outcomes.keys().collect::<Vec<_>>().as_slice() {
        [PacketOutcome::Rejected] => Answer::Rejected,
        [PacketOutcome::Dropped] => Answer::Dropped,
        [PacketOutcome::Untouched] => Answer::Untouched,
        [PacketOutcome::NoRoute] => Answer::Unreachable,
        _ => Answer::Mixed,
    }
}

/// Tolerated relative difference between shares. One additional endpoint among a thousand changes a share by ten times
/// as much.
const ROUNDING: f64 = 1e-4;
