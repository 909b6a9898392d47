use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ferroute_iptables::CtStates;
use ferroute_nftables::{
    Value,
    kernel::MemoryTable,
    model::{Element, Field, Interface, InterfaceName, Key, Match, Name, Relation},
};

use crate::state::State;

/// Whether a packet meets a condition.
#[derive(Debug, PartialEq)]
pub(super) enum Finding {
    /// It does.
    Match,
    /// It does not. A sentence tells what the condition asks for and what the packet has.
    Mismatch(String),
    /// That cannot be told; the condition as a sentence.
    Unknown(String),
}

/// Why a map says nothing of a packet.
pub(super) enum Missing {
    /// It has no such key, as a sentence tells.
    Absent(String),
    /// That cannot be told; «it has the key» as a sentence.
    Unknown(String),
}

/// The numbers that chance has chosen for fields of a statement.
pub(super) type Chosen = Option<u32>;

impl State<'_> {
    /// Whether the packet meets a condition.
    pub(super) fn meets(&self, condition: &Match, table: &MemoryTable, chosen: Chosen) -> Finding {
        let (source, destination) = (self.packet.source.ip(), self.packet.destination.ip());
        match condition {
            Match::Member { key, set, is } => match self.find(table, set, key, chosen) {
                Ok(_) if *is => Finding::Match,
                Err(Missing::Absent(_)) if !*is => Finding::Match,
                Err(Missing::Absent(why)) => Finding::Mismatch(why),
                Err(Missing::Unknown(condition)) if *is => Finding::Unknown(condition),
                Err(Missing::Unknown(condition)) => Finding::Unknown(format!("not {condition}")),
                Ok(_) => self.hold(false, || match self.key(key, chosen) {
                    Ok(key) => format!("{} is in @{set}", KeyText(&key)),
                    Err(why) => why,
                }),
            },
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
            Match::New => self
                .hold(self.connection.intersects(CtStates::NEW), || format!("connection state is {}", self.connection)),
            Match::Translated => self
                .hold(self.connection.intersects(CtStates::DNAT), || "the destination was not translated".to_owned()),
            Match::Marked(bits) => {
                let mark = self.mark;
                self.hold(mark & bits != 0, || format!("mark is {mark:#x}, without {bits:#x}"))
            }
            Match::Family(family) => {
                let has = self.packet.sent.family();
                self.hold(has == *family, || format!("it is an {has} packet, not {family}"))
            }
            Match::Compare { field, mask, relation, value } => self.compare(*field, *mask, *relation, *value, chosen),
            Match::Within { field, first, last, is } => match self.value(*field, chosen) {
                Ok(has) => self.hold((*first <= has && has <= *last) == *is, || {
                    refusal(name_of(*field), has, &format!("{first} to {last}"), !*is)
                }),
                Err(why) => Finding::Unknown(format!("{why} within {first} to {last}")),
            },
        }
    }

    fn compare(&self, field: Field, mask: u32, relation: Relation, with: Value, chosen: Chosen) -> Finding {
        let unknown = |what: &str| Finding::Unknown(format!("{what} compared with {with}"));
        let has = match (field, self.value(field, chosen)) {
            // Only the kernel knows the other bits.
            (Field::ConnectionStatus, _) if mask & !STATUS_NAT != 0 => return unknown("the connection's status"),
            (Field::ConnectionStatus, _) => Value::Number(self.status() & mask),
            (_, Ok(Value::Number(number))) => Value::Number(number & mask),
            (_, Ok(value)) => value,
            // Of an address that is elsewhere it is known what it is not.
            (Field::SourceKind | Field::DestinationKind, Err(_)) if [LOCAL, MULTICAST].contains(&with) => {
                return self.hold(relation != Relation::Equal, || format!("{} is not {with}", name_of(field)));
            }
            (_, Err(why)) => return unknown(&why),
        };
        let holds = match relation {
            Relation::Equal => with.contains(has),
            Relation::NotEqual => !with.contains(has),
            relation => relation.holds(has.cmp(&with)),
        };
        let masked = if mask == u32::MAX { String::new() } else { format!(" & {mask:#010x}") };
        self.hold(holds, || match relation {
            Relation::Equal => format!("{}{masked} is {has}, not {with}", name_of(field)),
            Relation::NotEqual => format!("{}{masked} is {has}, and {with} is excluded", name_of(field)),
            Relation::Less | Relation::AtMost => format!("{}{masked} is {has}, which is too great", name_of(field)),
            Relation::Greater | Relation::AtLeast => format!("{}{masked} is {has}, which is too small", name_of(field)),
        })
    }

    /// The element that a set or map has for the packet, or why there is none.
    pub(super) fn find<'t>(
        &self,
        table: &'t MemoryTable,
        map: &Name,
        fields: &[Field],
        chosen: Chosen,
    ) -> Result<&'t Element, Missing> {
        let key = self.key(fields, chosen).map_err(|why| Missing::Unknown(format!("{why} is in @{map}")))?;
        table.find(map, &key).ok_or_else(|| match table.unread(map) {
            0 if self.explains => Missing::Absent(format!("{} is not in @{map}", KeyText(&key))),
            0 => Missing::Absent(String::new()),
            _ => Missing::Unknown(format!("{} is in @{map}", KeyText(&key))),
        })
    }

    fn key(&self, fields: &[Field], chosen: Chosen) -> Result<Key, String> {
        let mut key = Key::new();
        for field in fields {
            key.push(self.value(*field, chosen)?);
        }
        Ok(key)
    }

    /// What the packet has, or what it is that cannot be told.
    fn value(&self, field: Field, chosen: Chosen) -> Result<Value, String> {
        Ok(match field {
            Field::Source => self.packet.source.ip().into(),
            Field::Destination => self.packet.destination.ip().into(),
            Field::NoDestination => Value::Address(match self.packet.destination.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            }),
            Field::Protocol => Value::protocol(self.packet.sent.protocol),
            Field::Port => Value::Port(self.packet.destination.port()),
            Field::SourcePort => Value::Port(self.packet.source.port()),
            Field::Priority => self.priority.into(),
            Field::SlotOwner => self.priority.owner().into(),
            Field::Mark => Value::Number(self.mark),
            Field::InputInterface => interface(self.packet.in_interface),
            Field::OutputInterface => interface(self.packet.out_interface),
            Field::ConnectionState if self.connection.intersects(CtStates::UNTRACKED) => Value::Number(STATE_UNTRACKED),
            Field::ConnectionState => Value::Number(STATE_NEW),
            Field::ConnectionStatus => return Err("the connection's status".to_owned()),
            Field::SourceKind => self.kind(self.packet.source.ip())?,
            Field::DestinationKind => self.kind(self.packet.destination.ip())?,
            Field::Random { first, .. } => Value::Number(chosen.unwrap_or(first)),
        })
    }

    /// Which of `RTN_*` an address is. To tell the other kinds takes more of a routing table than we have.
    fn kind(&self, address: IpAddr) -> Result<Value, String> {
        if self.packet.host.owns(address) {
            Ok(LOCAL)
        } else if address.is_multicast() {
            Ok(MULTICAST)
        } else {
            Err(format!("the type of {address}"))
        }
    }

    /// `IPS_SRC_NAT` and `IPS_DST_NAT`.
    fn status(&self) -> u32 {
        let bit = |state, bit| if self.connection.intersects(state) { bit } else { 0 };
        bit(CtStates::SNAT, STATUS_SNAT) | bit(CtStates::DNAT, STATUS_DNAT)
    }

    fn hold(&self, holds: bool, why: impl FnOnce() -> String) -> Finding {
        match holds {
            true => Finding::Match,
            false if self.explains => Finding::Mismatch(why()),
            false => Finding::Mismatch(String::new()),
        }
    }
}

fn interface(name: Option<&str>) -> Value {
    Value::Interface(Interface::new(name.unwrap_or_default()))
}

fn refusal(what: &str, has: impl fmt::Display, wanted: &impl fmt::Display, negated: bool) -> String {
    if negated {
        format!("{what} is {has}, and {wanted} is excluded")
    } else {
        format!("{what} is {has}, not {wanted}")
    }
}

fn name_of(field: Field) -> &'static str {
    match field {
        Field::Source => "source",
        Field::Destination | Field::NoDestination => "destination",
        Field::Protocol => "protocol",
        Field::Port => "destination port",
        Field::SourcePort => "source port",
        Field::Priority | Field::SlotOwner => "priority",
        Field::Mark => "mark",
        Field::InputInterface => "input interface",
        Field::OutputInterface => "output interface",
        Field::ConnectionState => "connection state",
        Field::ConnectionStatus => "connection status",
        Field::SourceKind => "type of the source",
        Field::DestinationKind => "type of the destination",
        Field::Random { .. } => "the random number",
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

/// `RTN_LOCAL` and `RTN_MULTICAST`.
const LOCAL: Value = Value::Number(2);
const MULTICAST: Value = Value::Number(5);
/// `NF_CT_STATE_BIT(IP_CT_NEW)` and `NF_CT_STATE_UNTRACKED_BIT`.
const STATE_NEW: u32 = 8;
const STATE_UNTRACKED: u32 = 64;
/// `IPS_SRC_NAT`, `IPS_DST_NAT` and both.
const STATUS_SNAT: u32 = 0x10;
const STATUS_DNAT: u32 = 0x20;
const STATUS_NAT: u32 = STATUS_SNAT | STATUS_DNAT;
