use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_nftables::{
    Class, Value,
    kernel::MemoryTable,
    model::{Element, Field, InterfaceName, Key, Match, Name},
};

use crate::way::Transit;

/// A packet as it is at some rule. It is the first one of its connection.
#[derive(Clone, Debug)]
pub(super) struct State<'a> {
    pub(super) packet: Transit<'a>,
    pub(super) mark: u32,
    pub(super) priority: Class,
    /// The connection has another destination than its client chose.
    pub(super) translated: bool,
    /// Somebody will read the sentences that tell why a rule does not match; else they may be empty.
    pub(super) explains: bool,
}

impl State<'_> {
    /// Whether the packet meets a condition; if not, a sentence tells what the condition asks for and what the packet
    /// has.
    pub(super) fn meets(&self, condition: &Match, table: &MemoryTable) -> Result<(), String> {
        let (source, destination) = (self.packet.source.ip(), self.packet.destination.ip());
        match condition {
            Match::Member { key, set, is } => {
                let key = self.key(key);
                let found = table.find(set, &key).is_some();
                let is_not = if *is { "is not" } else { "is" };
                self.hold(found == *is, || format!("{} {is_not} in @{set}", KeyText(&key)))
            }
            Match::Source { net, is } => {
                self.hold(net.contains(&source) == *is, || refusal("source", source, net, !*is))
            }
            Match::Destination { net, is } => {
                self.hold(net.contains(&destination) == *is, || refusal("destination", destination, net, !*is))
            }
            Match::Interface { name, is } => {
                // What the host sends has come in through an interface whose name is empty.
                let has = self.packet.in_interface.unwrap_or_default();
                let (holds, wanted) = match name {
                    InterfaceName::Exact(name) => (has == &**name, name.to_string()),
                    InterfaceName::Prefix(prefix) => (has.starts_with(&**prefix), format!("{prefix}*")),
                };
                let has = self.packet.in_interface.unwrap_or("none");
                self.hold(holds == *is, || refusal("input interface", has, &wanted, !*is))
            }
            Match::SourceIsLocal => {
                self.hold(self.packet.host.owns(source), || format!("source {source} is no address of the host"))
            }
            Match::DestinationIsLocal => self.hold(self.packet.host.owns(destination), || {
                format!("destination {destination} is no address of the host")
            }),
            Match::New => Ok(()),
            Match::Translated => self.hold(self.translated, || "the destination was not translated".to_owned()),
            Match::Marked(bits) => {
                let mark = self.mark;
                self.hold(mark & bits != 0, || format!("mark is {mark:#x}, without {bits:#x}"))
            }
        }
    }

    /// The element that a map has for the packet, or a sentence that it has none.
    pub(super) fn find<'t>(&self, table: &'t MemoryTable, map: &Name, fields: &[Field]) -> Result<&'t Element, String> {
        let key = self.key(fields);
        let none = || if self.explains { format!("{} is not in @{map}", KeyText(&key)) } else { String::new() };
        table.find(map, &key).ok_or_else(none)
    }

    fn key(&self, fields: &[Field]) -> Key {
        let value = |field: &Field| match field {
            Field::Source => self.packet.source.ip().into(),
            Field::Destination => self.packet.destination.ip().into(),
            Field::NoDestination => Value::Address(match self.packet.destination.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            }),
            Field::Protocol => Value::protocol(self.packet.sent.protocol),
            Field::Port => Value::Port(self.packet.destination.port()),
            Field::Priority => self.priority.into(),
        };
        fields.iter().map(value).collect()
    }

    fn hold(&self, holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
        match holds {
            true => Ok(()),
            false if self.explains => Err(why()),
            false => Err(String::new()),
        }
    }
}

fn refusal(what: &str, has: impl fmt::Display, wanted: &impl fmt::Display, negated: bool) -> String {
    if negated {
        format!("{what} is {has}, and {wanted} is excluded")
    } else {
        format!("{what} is {has}, not {wanted}")
    }
}

/// A key as `nft` prints it.
struct KeyText<'a>(&'a Key);

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, value) in self.0.iter().enumerate() {
            f.write_str(if n > 0 { " . " } else { "" })?;
            value.fmt(f)?;
        }
        Ok(())
    }
}
