//! Match modules and targets of `iptables-nft` in tables that also contain rules of other programs.

use std::collections::BTreeMap;

use ferroute_core::IpFamily;
use ferroute_netlink::{Attributes, Protocol, Socket};

use super::{decode, sets};
/// A reader of the expressions that stand for a module or target of `iptables` in a rule of nf_tables.
#[derive(Debug)]
pub struct CompatReader {
    family: IpFamily,
    /// The names of ipsets by number, as far as they were needed.
    names: BTreeMap<u16, Option<Box<str>>>,
}

impl CompatReader {
    /// Returns a reader for rules that packets of this family meet.
    pub fn new(family: IpFamily) -> Self {
        Self { family, names: BTreeMap::new() }
    }

    /// Returns an expression as `iptables-save` prints it: `-m NAME OPTIONS` or `-j NAME OPTIONS`. `name` is the name
    /// of the expression, `match` or `target`, and `data` its attributes. `None` if it cannot be decoded.
    pub fn text(&mut self, name: &str, data: &[u8]) -> Option<String> {
        let (mut rule, sets) = decode::extension(self.family, name, Attributes::new(data)).ok()??;
        for (_, number) in &sets {
            self.names.entry(*number).or_insert_with(|| {
                let mut socket = Socket::open(Protocol::Netfilter).ok()?;
                sets::name_of(&mut socket, *number).ok().flatten()
            });
        }
        decode::name_sets(&mut rule, &sets, |number| self.names.get(&number)?.as_deref());
        Some(rule.to_string())
    }
}
