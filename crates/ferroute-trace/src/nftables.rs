//! The walk through nftables' rules.
//!
//! ```text
//!   arriving:  prerouting ──► routing ──┬─► input                  at each hook: the base chains, lowest priority first;
//!                                       └─► forward ──► postrouting              nat chains only for new connections
//!   sent here: output ──► routing ──► postrouting ──┬─► leaves
//!                                                   └─► prerouting ──► input     through loopback; not nat again
//! ```
//!
//! A walker stands at one statement of one rule with the packet as it is there. Our rules are few and all state is in maps,
//! so a way is short, whatever the size of the cluster. Chance decides in one place, the number that names an endpoint;
//! there the walker is copied for each of them. Others' rules are walked alike; where one of them asks for something that
//! is not known, the way splits in two, and where it does something that is not known, the way ends.
//!
//! Where an endpoint has a chain of its own in iptables, here it is an element of a map. In stories, the path to a DNAT
//! ends with that element, as `@endpoints 1:2`: the map, and the key's last field.
//!
//! Who is remembered is part of the input: the elements of the table's map `affinity`. The packet's
//! [`remembered`](Packet::remembered) lists mean nothing here.

mod base;
mod conditions;
mod prospect;
mod walker;

use ferroute_core::IpFamily;
use ferroute_nftables::kernel::MemoryTable;

pub(crate) use self::{base::Base, walker::Walker};
use crate::{Account, Ending, Host, Packet, Ruleset, Story, Summary};

/// Everything that can become of a packet, without the stories. The same verdict may come more than once.
///
/// `table` is that of the packet's family.
pub fn endings(table: &MemoryTable, host: &Host, packet: &Packet) -> Vec<Ending> {
    alone(table, packet).endings(host, packet)
}

/// Everything that can become of a packet, and how, rule by rule.
///
/// They are made one by one, as they are asked for.
pub fn stories<'a>(
    table: &'a MemoryTable,
    host: &'a Host,
    packet: &'a Packet,
) -> impl Iterator<Item = Story> + use<'a> {
    alone(table, packet).stories(host, packet)
}

/// Everything that can become of a packet, rule by rule, with all choices among endpoints in one place.
pub fn account(table: &MemoryTable, host: &Host, packet: &Packet) -> Account {
    alone(table, packet).account(host, packet)
}

/// What changes and decides a packet's way, with all choices among endpoints in one place.
pub fn summary(table: &MemoryTable, host: &Host, packet: &Packet) -> Summary {
    alone(table, packet).summary(host, packet)
}

/// Our table and no other rules.
fn alone<'a>(table: &'a MemoryTable, packet: &Packet) -> Ruleset<'a> {
    let name = match packet.family() {
        IpFamily::V4 => "ip ferroute",
        IpFamily::V6 => "ip6 ferroute",
    };
    let mut ruleset = Ruleset::new();
    ruleset.add_table(name, table);
    ruleset
}

#[cfg(test)]
mod tests;
