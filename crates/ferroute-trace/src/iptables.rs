//! The walk through iptables' rules.
//!
//! ```text
//!   arriving:  prerouting ──► routing ──┬─► input                  raw, mangle, nat; mangle, filter, security, nat
//!                                       └─► forward ──► postrouting            mangle, filter, security; mangle, nat
//!   sent here: output ──► routing ──► postrouting ──┬─► leaves     raw, mangle, nat, filter, security; mangle, nat
//!                                                   └─► prerouting ──► input   through loopback; not nat again
//! ```
//!
//! A walker stands at one rule with the packet as it is there. Where chance decides, or something that we do not know,
//! it splits in two; everything that happened before is shared, so a choice among many endpoints costs no more than its
//! rules.

mod conditions;
mod stage;
mod walker;

use ferroute_iptables::RuleSet;

pub(crate) use self::{
    stage::{Base, priority, tables},
    walker::Walker,
};
use crate::{Account, Ending, Host, Packet, Ruleset, Story, Summary, path::Trail};

/// Everything that can become of a packet, without the stories. The same verdict may come more than once.
pub fn endings(rules: &RuleSet, host: &Host, packet: &Packet) -> Vec<Ending> {
    alone(rules).endings(host, packet)
}

/// Everything that can become of a packet, and how, rule by rule.
///
/// Each story tells all the rules from the start, so that of a choice among many endpoints the last one is long; they
/// are made one by one, as they are asked for.
pub fn stories(rules: &RuleSet, host: &Host, packet: &Packet) -> impl Iterator<Item = Story> + use<> {
    let ends: Vec<_> = alone(rules).walk::<Trail>(host, packet).collect();
    ends.into_iter().map(|(ending, trail)| Story { events: trail.events(), ending })
}

/// Everything that can become of a packet, rule by rule, with all choices among endpoints in one place.
pub fn account(rules: &RuleSet, host: &Host, packet: &Packet) -> Account {
    alone(rules).account(host, packet)
}

/// What changes and decides a packet's way, with all choices among endpoints in one place.
pub fn summary(rules: &RuleSet, host: &Host, packet: &Packet) -> Summary {
    alone(rules).summary(host, packet)
}

/// These rules and no others.
fn alone(rules: &RuleSet) -> Ruleset<'_> {
    let mut ruleset = Ruleset::new();
    ruleset.add_iptables(rules);
    ruleset
}

#[cfg(test)]
mod tests;
