//! The walk through iptables' rules.
//!
//! ```text
//!   arriving:  prerouting ──► routing ──┬─► input                       (raw, mangle, nat; mangle, filter, nat)
//!                                       └─► forward ──► postrouting     (mangle, filter; mangle, nat)
//!   sent here: output ──► routing ──► postrouting ──┬─► leaves          (raw, mangle, nat, filter; mangle, nat)
//!                                                   └─► prerouting ──► input, through the loopback interface
//! ```
//!
//! A walker stands at one rule with the packet as it is there. Where chance decides, it splits in two; everything that
//! happened before the split is shared, so a choice among many endpoints costs no more than its rules.

mod conditions;
mod path;
mod walker;

use ferroute_iptables::RuleSet;

use self::{
    path::{Path, Trail},
    walker::Walker,
};
use crate::{Ending, Host, Packet, Story};

/// Everything that can become of a packet, without the stories.
pub fn endings(rules: &RuleSet, host: &Host, packet: &Packet) -> Vec<Ending> {
    walk::<()>(rules, host, packet).into_iter().map(|(ending, ())| ending).collect()
}

/// Everything that can become of a packet, and how.
pub fn stories(rules: &RuleSet, host: &Host, packet: &Packet) -> Vec<Story> {
    let endings = walk::<Trail>(rules, host, packet).into_iter();
    endings.map(|(ending, trail)| Story { events: trail.into_events(), ending }).collect()
}

fn walk<P: Path>(rules: &RuleSet, host: &Host, packet: &Packet) -> Vec<(Ending, P)> {
    let mut waiting = vec![Walker::new(rules, host, packet)];
    let mut ended = Vec::new();
    while let Some(mut walker) = waiting.pop() {
        let (verdict, path) = walker.run(&mut |other| {
            // Conditions that we do not know split the walk too; a bound keeps many of them from going on for ever.
            let room = waiting.len() < MOST_WAITING;
            if room {
                waiting.push(other);
            }
            room
        });
        ended.push((walker.ending(verdict), path));
    }
    ended
}

/// How many ways may be open at once. Endpoints take one at a time; the rest is room for unknown conditions.
const MOST_WAITING: usize = 1024;

#[cfg(test)]
mod tests;
