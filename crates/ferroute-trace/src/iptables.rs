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
mod path;
mod stage;
mod walker;

use ferroute_iptables::RuleSet;

use self::{
    path::{Effects, Path, Trail},
    walker::Walker,
};
use crate::{Ending, Host, Packet, Story, Summary, Verdict};

/// Everything that can become of a packet, without the stories. The same verdict may come more than once.
pub fn endings(rules: &RuleSet, host: &Host, packet: &Packet) -> Vec<Ending> {
    walk::<()>(rules, host, packet).into_iter().map(|(ending, ())| ending).collect()
}

/// Everything that can become of a packet, and how, rule by rule.
///
/// Each story tells all the rules from the start, so that of a choice among many endpoints the last one is long; they
/// are made one by one, as they are asked for.
pub fn stories(rules: &RuleSet, host: &Host, packet: &Packet) -> impl Iterator<Item = Story> + use<> {
    let ends = walk::<Trail>(rules, host, packet).into_iter();
    ends.map(|(ending, trail)| Story { events: trail.events(), ending })
}

/// What changes and decides a packet's way, with all choices among endpoints in one place.
pub fn summary(rules: &RuleSet, host: &Host, packet: &Packet) -> Summary {
    let ends = walk::<Effects>(rules, host, packet).into_iter();
    Summary::of(ends.map(|(ending, effects)| Story { events: effects.0, ending }))
}

fn walk<P: Path>(rules: &RuleSet, host: &Host, packet: &Packet) -> Vec<(Ending, P)> {
    let mut ended = Vec::new();
    let mut first = Walker::<P>::new(rules, host, packet);
    if let Err(verdict) = first.start() {
        ended.push(first.end(verdict));
        return ended;
    }
    let mut waiting = vec![first];
    while let Some(mut walker) = waiting.pop() {
        // Conditions that are not known may double the ways again and again.
        let verdict = if ended.len() < MOST_ENDINGS {
            walker.run(&mut waiting)
        } else {
            Verdict::Unknown { why: format!("there are more than {MOST_ENDINGS} ways") }
        };
        ended.push(walker.end(verdict));
    }
    ended
}

/// How many ends a walk may have. Each endpoint takes one; the rest is room for conditions that are not known.
const MOST_ENDINGS: usize = 1 << 14;

#[cfg(test)]
mod tests;
