use ferroute_core::{IpFamily, Outcome, Refusal};

use crate::{RejectWith, Target};

/// Returns the comment, which follows the service port's name, and the target of the rule for connections that reach no
/// endpoint; `None` for other connections.
pub fn refusal(outcome: Outcome, family: IpFamily) -> Option<(&'static str, Target)> {
    let (refusal, target) = match outcome {
        Outcome::Reject(refusal) => (refusal, Target::Reject(RejectWith::port_unreachable(family))),
        Outcome::Drop(refusal) => (refusal, Target::Drop),
        Outcome::Forward(_) | Outcome::NotOurs => return None,
    };
    let comment = match refusal {
        Refusal::NoEndpoints => "has no endpoints",
        Refusal::NoLocalEndpoints => "has no local endpoints",
        Refusal::UnsupportedProtocol => "has a protocol that userspace mode does not support",
        Refusal::SourceRanges => "is restricted to source ranges",
    };
    Some((comment, target))
}
