//! The walk through nftables' rules.
//!
//! ```text
//!   arriving:  prerouting ──► routing ──┬─► input                  at each hook: the base chains, lowest priority first;
//!                                       └─► forward ──► postrouting              nat chains only for new connections
//!   sent here: output ──► routing ──► postrouting ──┬─► leaves
//!                                                   └─► prerouting ──► input     through loopback; not nat again
//! ```
//!
//! A walker stands at one statement of one rule with the packet as it is there. Rules are few and all state is in maps,
//! so a way is short, whatever the size of the cluster. Chance decides in one place, the number that names an endpoint;
//! there the walker is copied for each of them.
//!
//! Where an endpoint has a chain of its own in iptables, here it is an element of a map. In stories, the path to a DNAT
//! ends with that element, as `@endpoints 1:2`: the map, and the key's last field.
//!
//! Who is remembered is part of the input: the elements of the table's map `affinity`. The packet's
//! [`remembered`](Packet::remembered) lists mean nothing here. What is *not* here: tables of others.

mod conditions;
mod log;
mod walker;

use ferroute_nftables::kernel::MemoryTable;

use self::{
    log::{Detail, Log},
    walker::Walker,
};
use crate::{Ending, Host, Packet, Story, Summary, Verdict};

/// Everything that can become of a packet, without the stories. The same verdict may come more than once.
///
/// `table` is that of the packet's family.
pub fn endings(table: &MemoryTable, host: &Host, packet: &Packet) -> Vec<Ending> {
    walk(table, host, packet, Detail::Nothing).map(|(ending, _)| ending).collect()
}

/// Everything that can become of a packet, and how, rule by rule.
///
/// They are made one by one, as they are asked for.
pub fn stories<'a>(
    table: &'a MemoryTable,
    host: &'a Host,
    packet: &'a Packet,
) -> impl Iterator<Item = Story> + use<'a> {
    walk(table, host, packet, Detail::Everything).map(|(ending, log)| Story { events: log.events, ending })
}

/// What changes and decides a packet's way, with all choices among endpoints in one place.
pub fn summary(table: &MemoryTable, host: &Host, packet: &Packet) -> Summary {
    let ends = walk(table, host, packet, Detail::Effects);
    Summary::of(ends.map(|(ending, log)| Story { events: log.events, ending }))
}

/// The ends, in the order of rules and endpoints; each is looked for when it is asked for.
fn walk<'a>(
    table: &'a MemoryTable,
    host: &'a Host,
    packet: &'a Packet,
    detail: Detail,
) -> impl Iterator<Item = (Ending, Log)> + use<'a> {
    let mut waiting = vec![Walker::new(table, host, packet, detail)];
    let mut ended = 0;
    std::iter::from_fn(move || {
        let mut walker = waiting.pop()?;
        ended += 1;
        // Rules that let chance decide again and again double the ways each time. Ours do not.
        let verdict = if ended < MOST_ENDINGS {
            walker.run(&mut waiting)
        } else {
            waiting.clear();
            Verdict::Unknown { why: format!("there are more than {MOST_ENDINGS} ways") }
        };
        Some(walker.end(verdict))
    })
}

/// How many ends a walk may have. Each endpoint takes one, and an index has 16 bits.
const MOST_ENDINGS: usize = 1 << 17;

#[cfg(test)]
mod tests;
