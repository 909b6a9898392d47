//! Constructs of other programs' rules. `docs/tracing.md` lists the supported ones.

use ferroute_core::IpFamily;
use ferroute_iptables::{Rule, Target};
use ferroute_nftables::{
    Value,
    kernel::MemoryTable,
    model::{
        CmpOp, Data, Element, End, FibInterface, FibResult, Field, Foreign, IfName, Name, Named, NumberSource, Operand,
        Property, Words, fields_text,
    },
};

use super::{
    changes::Found,
    conditions::{MatchResult, NO_CONNECTION, RandomNumber},
};
use crate::{
    Origin, PacketState,
    host::{AddressKind, RoutedPacket},
    iptables::ExtensionResult,
    walk::Unknown,
};

/// The value of a property of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// This value.
    Value(u128),
    /// The packet has no such property: no comparison matches, with any operator.
    Absent,
    /// The value is unknown.
    Unknown,
}

/// The result of a lookup.
pub(super) enum Lookup<'t> {
    /// The packet has this element.
    Found(Found<'t>),
    /// There is no such element; the reason as a sentence.
    NotFound(String),
    /// The packet has no such property.
    Absent(String),
    /// One of these elements, or none.
    Possible(Vec<&'t Element>),
    /// Also elements that the model cannot represent are possible.
    Unknown,
}

impl PacketState<'_> {
    /// Matches the packet against a condition of another program; `None` if the construct is not a condition.
    pub(super) fn compares(&self, foreign: &Foreign, table: &MemoryTable, random: RandomNumber) -> Option<MatchResult> {
        let family = self.family();
        let unknown = || {
            let (positive, negated) = foreign.positive();
            let condition = format!("`{}` matches", table.foreign_text(&positive, family));
            MatchResult::Unknown(Unknown::new(condition).negated(negated))
        };
        Some(match foreign {
            Foreign::Compare { operand, op, value } => match self.known(*operand, random, *op, *value) {
                Known::Value(actual) => {
                    self.match_if(op.matches(actual.cmp(value)), || self.mismatch_reason(*operand, actual))
                }
                Known::Absent => self.match_if(false, || self.absence(operand.property)),
                Known::Unknown => unknown(),
            },
            Foreign::Range { operand, first, last, eq } => match self.known(*operand, random, CmpOp::Eq, *first) {
                Known::Value(actual) => {
                    self.match_if((*first..=*last).contains(&actual) == *eq, || self.mismatch_reason(*operand, actual))
                }
                Known::Absent => self.match_if(false, || self.absence(operand.property)),
                Known::Unknown => unknown(),
            },
            Foreign::Lookup { key, set, eq } => match self.look_up(table, set, key, random) {
                Lookup::Found(Found { condition: Some(condition), .. }) if *eq => {
                    MatchResult::Unknown(Unknown::new(condition))
                }
                Lookup::Found(Found { element, .. }) => {
                    self.match_if(*eq, || format!("{} is in the set", fields_text(&element.key, key, family)))
                }
                Lookup::NotFound(reason) => self.match_if(!*eq, || reason),
                Lookup::Absent(reason) => self.match_if(false, || reason),
                Lookup::Possible(_) | Lookup::Unknown => unknown(),
            },
            _ => return None,
        })
    }

    /// Looks up the packet's element in a set or map.
    pub(super) fn look_up<'t>(
        &self,
        table: &'t MemoryTable,
        map: &Name,
        key: &[Operand],
        random: RandomNumber,
    ) -> Lookup<'t> {
        let mut fields = Vec::with_capacity(key.len());
        for operand in key {
            match self.known(*operand, random, CmpOp::Eq, 0) {
                Known::Value(value) => fields.push(Some(value)),
                Known::Absent => return Lookup::Absent(self.absence(operand.property)),
                Known::Unknown => fields.push(None),
            }
        }
        if let Some(changed) = self.changed(table, map, &fields) {
            return changed;
        }
        let numbers: Option<Vec<u128>> = fields.iter().copied().collect();
        let exact = numbers.as_ref().and_then(|numbers| table.find_exact(map, numbers));
        let matches = |element: &&Element| {
            let mut pairs = element.key.iter().zip(&fields);
            !element.key.is_empty() && pairs.all(|(value, field)| field.is_none_or(|field| contains(*value, field)))
        };
        let mut matching = table.candidates(map).filter(matches);
        if numbers.is_some() {
            let found = exact.unwrap_or_else(|| matching.next());
            if let Some(element) = found.or_else(|| table.catch_all(map)) {
                return Lookup::Found(Found::listed(table, map, element));
            }
            return match table.undecoded(map) {
                0 => Lookup::NotFound(if self.explain { self.not_in(map, key, &fields) } else { String::new() }),
                _ => Lookup::Unknown,
            };
        }
        let possible: Vec<&Element> = matching.chain(table.catch_all(map)).collect();
        match (possible.is_empty(), table.undecoded(map)) {
            (true, 0) => Lookup::NotFound(format!("no element of the set {map} has the packet's other fields")),
            (_, 0) => Lookup::Possible(possible),
            _ => Lookup::Unknown,
        }
    }

    fn not_in(&self, map: &Name, key: &[Operand], fields: &[Option<u128>]) -> String {
        let family = self.family();
        let text = |(operand, field): (&Operand, &Option<u128>)| {
            field.map_or_else(
                || operand.text(family),
                |field| operand.property.words(family).text(field >> operand.shift),
            )
        };
        let values: Vec<String> = key.iter().zip(fields).map(text).collect();
        let place = if map.is_anonymous() { "the list".to_owned() } else { format!("@{map}") };
        format!("{} is not in {place}", values.join(" . "))
    }

    /// Returns the value of a property after its mask.
    pub(super) fn known(&self, operand: Operand, random: RandomNumber, op: CmpOp, wanted: u128) -> Known {
        match self.property(operand.property, random) {
            Known::Value(value) => Known::Value((value << operand.shift) & operand.mask),
            // The first packet of a connection is no fragment, but it may say not to make some of it.
            Known::Unknown if operand.property == Property::IpFragment && operand.mask & !FRAGMENT == 0 => {
                Known::Value(0)
            }
            // The first packet is the only one, and may not be counted.
            Known::Unknown
                if is_packet_count(operand.property) && op.matches(0.cmp(&wanted)) == op.matches(1.cmp(&wanted)) =>
            {
                Known::Value(1)
            }
            // An address of unknown type is neither local nor multicast.
            Known::Unknown
                if is_address_type(operand.property)
                    && matches!(op, CmpOp::Eq | CmpOp::Neq)
                    && [LOCAL, MULTICAST].contains(&wanted) =>
            {
                Known::Value(UNSPECIFIED)
            }
            other => other,
        }
    }

    fn property(&self, property: Property, random: RandomNumber) -> Known {
        let is_foreign = matches!(self.original.origin, Origin::Interface(_));
        if let Some(written) = self.changes.written(property) {
            return written.map_or(Known::Unknown, Known::Value);
        }
        if !self.has_connection() && is_of_connection(property) {
            return Known::Absent;
        }
        Known::Value(match property {
            Property::Field(Field::CtStatus) => self.status().into(),
            Property::Field(field) => match self.value(field, random) {
                Ok(value) => value.number(),
                Err(_) => return Known::Unknown,
            },
            Property::CtMark => self.connection_mark.into(),
            // That of the first packet: SYN alone.
            Property::TcpFlags => TCP_SYN,
            // The first packet is from the client.
            Property::CtDirection => 0,
            Property::CtZone => return self.zone.map_or(Known::Unknown, |zone| Known::Value(zone.into())),
            Property::CtProtocol => self.protocol().number().into(),
            Property::CtFamily | Property::Nfproto => match self.family() {
                IpFamily::V4 => 2,
                IpFamily::V6 => 10,
            },
            Property::CtEnd { reply, end } => {
                let (source, destination) = match reply {
                    false => self.tracked,
                    true => (self.destination, self.source),
                };
                match end {
                    End::Saddr => Value::Address(source.ip()).number(),
                    End::Daddr => Value::Address(destination.ip()).number(),
                    End::Sport => source.port().into(),
                    End::Dport => destination.port().into(),
                }
            }
            // The connection is new, and no helper of another connection expects it.
            Property::CtHelper => return Known::Absent,
            Property::PacketType => match self.address_type(self.destination.ip()) {
                Some(AddressKind::Broadcast) if is_foreign => PACKET_BROADCAST,
                Some(AddressKind::Multicast) if is_foreign => PACKET_MULTICAST,
                _ => 0,
            },
            Property::Interface { output: false } => name(self.in_interface.as_deref()),
            Property::Interface { output: true } => name(self.out_interface.as_deref()),
            Property::Fib { source, mark, interface, result } => return self.fib(source, mark, interface, result),
            Property::Sender(_) if is_foreign => return Known::Absent,
            Property::IpVersion => match self.family() {
                IpFamily::V4 => 4,
                IpFamily::V6 => 6,
            },
            Property::EtherType => match self.family() {
                IpFamily::V4 => 0x800,
                IpFamily::V6 => 0x86dd,
            },
            Property::IpHeaderLength => 5,
            Property::Number { .. } => match random {
                Some(number) => number.into(),
                None => return Known::Unknown,
            },
            // A new connection.
            Property::Named(_) if property.words(self.family()) == Words::Label => 0,
            Property::Named(named) if self.lacks_header(named) => match named.words {
                Words::Existence => 0,
                _ => return Known::Absent,
            },
            Property::Named(Named { text: "iifgroup", .. }) => return self.group_of(self.in_interface.as_deref()),
            Property::Named(Named { text: "oifgroup", .. }) => return self.group_of(self.out_interface.as_deref()),
            Property::Named(Named { text: "rt classid" | "meta rtclassid" | "rt ipsec", .. }) if !self.is_routed() => {
                return Known::Absent;
            }
            Property::Named(Named { text: "rt classid" | "meta rtclassid", .. }) if self.host().lacks_realms() => 0,
            Property::Named(Named { text: "meta ipsec" | "rt ipsec", .. }) if self.host().lacks_ipsec() => 0,
            Property::Named(Named { text, .. }) if text.starts_with("ipsec") && self.host().lacks_ipsec() => {
                return Known::Absent;
            }
            // There are no replies to a first packet yet.
            Property::Named(Named { text: "ct reply packets" | "ct reply bytes" | "ct reply avgpkt", .. }) => 0,
            // The packet itself.
            Property::Named(Named { text: "ct packets" | "ct original packets", .. }) => 1,
            // The first packet of an SCTP connection.
            Property::Named(Named { text: "sctp chunk init" | "sctp chunk init type", .. }) => 1,
            Property::Named(Named { text: "sctp chunk init flags", .. }) => 0,
            Property::Sender(_) | Property::IpFragment | Property::Named(_) | Property::Payload { .. } => {
                return Known::Unknown;
            }
        })
    }

    /// Returns the group of an interface.
    fn group_of(&self, interface: Option<&str>) -> Known {
        let Some(interface) = interface else { return Known::Absent };
        self.host().group(interface).map_or(Known::Unknown, |group| Known::Value(group.into()))
    }

    /// Reports whether the packet has no header of this kind, or no such option in it.
    fn lacks_header(&self, named: &Named) -> bool {
        named.absent || named.protocol().is_some_and(|protocol| protocol != self.protocol().number())
    }

    /// Looks up a route as the expression `fib` does.
    fn fib(&self, source: bool, mark: bool, interface: FibInterface, result: FibResult) -> Known {
        let iif = interface == FibInterface::Input;
        let ends = (self.source.ip(), self.destination.ip());
        // The source of the route back is the packet's destination, by which policy rules may select it.
        let (address, from) = if source { ends } else { (ends.1, ends.0) };
        let input = self.in_interface.as_deref();
        // A forwarded packet is looked up as if it came back on its output interface.
        let is_forwarded = source && iif && input.is_some();
        let packet = RoutedPacket {
            destination: address,
            source: Some(from),
            input: self.out_interface.as_deref().filter(|_| is_forwarded),
            mark: if mark { self.mark } else { 0 },
            transport: None,
        };
        if result == FibResult::Type {
            let interface = match interface {
                FibInterface::Any => None,
                FibInterface::Input => input,
                FibInterface::Output => self.out_interface.as_deref(),
            };
            let kind = match interface {
                _ if address.is_ipv6() && !address.is_multicast() && !self.is_local(address) => {
                    self.host.kind_for_rules(&packet)
                }
                Some(interface) => self.address_type_on(address, interface),
                None => self.address_type(address),
            };
            return kind.map_or(Known::Unknown, |kind| Known::Value(kind_number(kind).into()));
        }
        let outputs = if input == Some("lo") {
            vec!["lo".into()]
        } else {
            match self.host.interfaces_for_rules(&packet) {
                Ok(outputs) => outputs,
                Err(_) => return Known::Unknown,
            }
        };
        // For IPv6, the kernel takes one of several paths by a hash. For IPv4, it takes the first one or, with `iif`,
        // any matching one.
        let output = outputs.iter().find(|output| !iif || input == Some(&***output));
        let may_be_another = output.is_some() && outputs.iter().any(|other| Some(other) != output);
        if self.family() == IpFamily::V6 && may_be_another && (iif || result != FibResult::Existence) {
            return Known::Unknown;
        }
        Known::Value(match result {
            FibResult::Existence => output.is_some().into(),
            _ => name(output.map(AsRef::as_ref)),
        })
    }

    fn mismatch_reason(&self, operand: Operand, actual: u128) -> String {
        let family = self.family();
        match operand.property {
            Property::TcpFlags => "the first packet of a connection has the flag syn alone".to_owned(),
            Property::CtDirection => "the packet is from the client".to_owned(),
            Property::Fib { result: FibResult::Existence, .. } if actual == 0 => "there is no such route".to_owned(),
            Property::Fib { result: FibResult::Existence, .. } => "there is such a route".to_owned(),
            property => {
                let words = property.words(family);
                let actual = match words {
                    Words::Text if actual == 0 => "none".to_owned(),
                    words => words.text(actual),
                };
                format!("{} is {actual}", operand.text(family))
            }
        }
    }

    fn absence(&self, property: Property) -> String {
        if !self.has_connection() && is_of_connection(property) {
            return NO_CONNECTION.to_owned();
        }
        format!("the packet has no {}", property.text(self.family()))
    }

    /// Matches the packet against a module of `iptables`, `-m NAME OPTIONS`, or against conditions of a rule itself, such
    /// as `-s 10.0.0.0/8 -p tcp`. `None` if the text is a target.
    pub(super) fn matches_module(&self, text: &str) -> Option<ExtensionResult> {
        let rule = Rule::parse(self.family(), text);
        match (rule.target.is_some(), rule.matches.first()) {
            (true, _) => None,
            (false, Some(module)) => Some(self.matches_extension(module)),
            (false, None) => {
                Some(self.header_mismatch(&rule).map_or(ExtensionResult::Match, ExtensionResult::Mismatch))
            }
        }
    }

    /// Applies the changes that a module of `iptables` makes if it matches.
    pub(super) fn change_by_text(&mut self, text: &str) {
        Rule::parse(self.family(), text).matches.iter().for_each(|module| self.change_by_module(module));
    }

    /// Returns the target that `-j NAME OPTIONS` is.
    pub(super) fn target_of(&self, text: &str) -> Option<Target> {
        Rule::parse(self.family(), text).target
    }
}

/// Returns the distinct data of possible elements, each with its text; `None` if there are too many.
pub(super) fn distinct_data<'t>(elements: &[&'t Element]) -> Option<Vec<(&'t Element, String)>> {
    let mut distinct: Vec<(&Element, String)> = Vec::new();
    for element in elements {
        if distinct.iter().all(|(other, _)| other.data != element.data) {
            let text = match &element.data {
                Some(Data::Values(values)) => values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . "),
                Some(Data::Verdict(verdict)) => verdict.to_string(),
                None => String::new(),
            };
            distinct.push((element, text));
        }
    }
    (distinct.len() <= MAX_CHOICES).then_some(distinct)
}

/// Returns the random number in a construct.
pub(super) fn number_of(foreign: &Foreign) -> Option<Property> {
    let operand = match foreign {
        Foreign::Compare { operand, .. }
        | Foreign::Range { operand, .. }
        | Foreign::SetMarkNumber { number: operand, .. } => Some(operand),
        other => other.key()?.iter().find(|operand| operand.number_range().is_some()),
    };
    operand.map(|operand| operand.property).filter(|property| Operand::from(*property).number_range().is_some())
}

/// Reports whether a property belongs to the connection, so that a packet without a connection does not have it. Its
/// state is always known.
fn is_of_connection(property: Property) -> bool {
    match property {
        Property::Field(field) => matches!(field, Field::CtStatus | Field::CtOriginalDaddr | Field::CtOriginalDport),
        Property::CtMark
        | Property::CtDirection
        | Property::CtZone
        | Property::CtProtocol
        | Property::CtFamily
        | Property::CtEnd { .. }
        | Property::CtHelper => true,
        Property::Named(named) => named.text.starts_with("ct "),
        _ => false,
    }
}

fn is_address_type(property: Property) -> bool {
    matches!(
        property,
        Property::Field(Field::FibSaddrType | Field::FibDaddrType) | Property::Fib { result: FibResult::Type, .. }
    )
}

/// Reports whether a property is the number of packets of a connection.
fn is_packet_count(property: Property) -> bool {
    matches!(property, Property::Named(named) if ["ct packets", "ct original packets"].contains(&named.text))
}

/// Reports whether a number is the same for all packets of a connection.
pub(super) fn is_fixed(property: Property) -> bool {
    matches!(property, Property::Number { source: NumberSource::Hash(_) | NumberSource::SymmetricHash, .. })
}

fn contains(value: Value, wanted: u128) -> bool {
    (value.first().number()..=value.last().number()).contains(&wanted)
}

fn name(interface: Option<&str>) -> u128 {
    u128::from_be_bytes(IfName::new(interface.unwrap_or_default()).bytes())
}

/// Returns the `RTN_*` number.
pub(super) fn kind_number(kind: AddressKind) -> u32 {
    match kind {
        AddressKind::Unicast => 1,
        AddressKind::Local => 2,
        AddressKind::Broadcast => 3,
        AddressKind::Multicast => 5,
        AddressKind::Blackhole => 6,
        AddressKind::Unreachable => 7,
        AddressKind::Prohibit => 8,
    }
}

/// Maximum number of different results of a lookup that are followed.
const MAX_CHOICES: usize = 8;
/// The flag for more fragments and the offset.
const FRAGMENT: u128 = 0x3fff;
const UNSPECIFIED: u128 = 0;
const LOCAL: u128 = 2;
const MULTICAST: u128 = 5;
/// The TCP flag of a connection's first packet.
const TCP_SYN: u128 = 0x02;
/// `PACKET_BROADCAST`.
const PACKET_BROADCAST: u128 = 1;
/// `PACKET_MULTICAST`.
const PACKET_MULTICAST: u128 = 2;
