//! Elements that rules add and delete, and values that they write, for the rest of a packet's path.

use std::{ops::Deref, rc::Rc};

use ferroute_core::IpFamily;
use ferroute_nftables::{
    ClassId, Value,
    kernel::MemoryTable,
    model::{
        CmpOp, Data, Element, ElementOp, Field, Foreign, Key, KeyText, Name, Named, Opaque, Operand, Outcome, Property,
        SetKind, Source, Statement, Values, Words,
    },
};

use super::{
    conditions::RandomNumber,
    foreign::{Known, Lookup},
};
use crate::{
    PacketState,
    changes::{Changed, ElementChange},
};

/// An element of a table, or one added on the packet's path.
pub(super) enum Held<'t> {
    Listed(&'t Element),
    Added(Rc<Element>),
}

impl Deref for Held<'_> {
    type Target = Element;

    fn deref(&self) -> &Element {
        match self {
            Self::Listed(element) => element,
            Self::Added(element) => element,
        }
    }
}

/// The element of a set or map that matches a packet.
pub(super) struct Found<'t> {
    pub(super) element: Held<'t>,
    /// Condition under which it matches, as a sentence.
    pub(super) condition: Option<String>,
}

impl<'t> Found<'t> {
    /// An element of the table.
    pub(super) fn listed(table: &MemoryTable, set: &Name, element: &'t Element) -> Self {
        let condition = table.condition(set, &element.key).map(|condition| sentence(condition, element, set));
        Self { element: Held::Listed(element), condition }
    }

    /// Returns an element that was added on the packet's path.
    fn added(set: &Name, element: &Rc<Element>, condition: Option<&str>) -> Self {
        let condition = condition.map(|condition| sentence(condition, element, set));
        Self { element: Held::Added(element.clone()), condition }
    }
}

fn sentence(condition: &str, element: &Element, set: &Name) -> String {
    format!("`{condition}` of {} in @{set} matches", KeyText(&element.key))
}

impl<'a> PacketState<'a> {
    /// Returns the effect of the changes on the packet's path on a key: its element, or the reason why there is none.
    /// `None` if they have no effect.
    pub(super) fn changed<'t>(&self, table: &'t MemoryTable, set: &Name, key: &[Option<u128>]) -> Option<Lookup<'t>> {
        Some(match self.changes.element(table, set, key) {
            Changed::No => return None,
            Changed::Added(element, condition) => Lookup::Found(Found::added(set, element, condition)),
            Changed::Deleted => match table.catch_all(set) {
                Some(element) => Lookup::Found(Found::listed(table, set, element)),
                None => Lookup::NotFound(format!("an earlier rule has deleted the element from @{set}")),
            },
            Changed::Perhaps => Lookup::Unknown,
        })
    }

    /// Adds or deletes an element with a key that planned rules use.
    pub(super) fn change_planned(
        &mut self,
        table: &'a MemoryTable,
        set: &Name,
        key: &[Field],
        op: ElementOp,
        data: Option<Field>,
    ) {
        let exists = self.find(table, set, key, None).is_ok_and(|found| !found.key.is_empty());
        let fields: Option<Vec<Value>> = key.iter().map(|field| self.value(*field, None).ok()).collect();
        let values = fields.unwrap_or_default();
        let numbers = values.iter().map(|value| Some(value.number())).collect();
        let data = data.and_then(|field| self.value(field, None).ok());
        let data = data.map(|value| Data::Values(Values::from_iter([value])));
        self.store(table, set, op, exists, (numbers, values), data, None);
    }

    /// Adds an element of another program, or deletes it. Returns why that fails.
    pub(super) fn change_element(
        &mut self,
        table: &'a MemoryTable,
        (op, set): (ElementOp, &Name),
        key: &[Operand],
        data: &[Source],
        condition: Option<&str>,
        random: RandomNumber,
    ) -> Result<(), String> {
        let exists = match self.look_up(table, set, key, random) {
            Lookup::Found(found) => !key.is_empty() && !found.element.key.is_empty(),
            Lookup::Absent(reason) => return Err(reason),
            Lookup::NotFound(_) | Lookup::Possible(_) | Lookup::Unknown => false,
        };
        let family = self.family();
        let known = key.iter().map(|operand| match self.known(*operand, random, CmpOp::Eq, 0) {
            Known::Value(value) => Some(value),
            Known::Absent | Known::Unknown => None,
        });
        let numbers: Vec<Option<u128>> = known.collect();
        if let Some(SetKind::Dynamic { size, .. }) = table.set(set).map(|set| set.kind).filter(|_| !exists)
            && op != ElementOp::Delete
            && size > 0
            && table.elements(set).count() + table.undecoded(set) >= size as usize
        {
            return Err(format!("@{set} is full: it has {size} elements"));
        }
        let values = key
            .iter()
            .zip(&numbers)
            .map(|(operand, number)| typed(operand.property, number.map(|number| number >> operand.shift)?, family));
        let key = values.collect::<Option<Vec<_>>>().unwrap_or_default();
        let data: Option<Values> = data.iter().map(|source| self.stored(table, source, random)).collect();
        let data = data.filter(|data| !data.is_empty()).map(Data::Values);
        self.store(table, set, op, exists, (numbers, key), data, condition);
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of an element, which the two callers have in different forms"
    )]
    fn store(
        &mut self,
        table: &'a MemoryTable,
        set: &Name,
        op: ElementOp,
        exists: bool,
        (numbers, values): (Vec<Option<u128>>, Vec<Value>),
        data: Option<Data>,
        condition: Option<&str>,
    ) {
        if exists && op != ElementOp::Delete {
            // The existing element does not change.
            return;
        }
        let key = values.into_iter().take(Key::new().capacity()).collect();
        let element = (op != ElementOp::Delete).then(|| Rc::new(Element { data, ..Element::with_key(key) }));
        let condition = condition.map(str::to_owned);
        self.changes.add_element(ElementChange { table, set: set.clone(), key: numbers, element, condition });
    }

    /// Returns the value of a source for this packet; `None` if it is unknown.
    pub(super) fn stored(&self, table: &MemoryTable, source: &Source, random: RandomNumber) -> Option<Value> {
        match source {
            Source::Constant(value) => Some(*value),
            Source::Operand(operand) => match self.known(**operand, random, CmpOp::Eq, 0) {
                Known::Value(number) => typed(operand.property, number >> operand.shift, self.family()),
                Known::Absent | Known::Unknown => None,
            },
            Source::Map { key, map } => match self.look_up(table, map, key, random) {
                Lookup::Found(Found { element, condition: None }) => match &element.data {
                    Some(Data::Values(values)) => values.first().copied(),
                    _ => None,
                },
                _ => None,
            },
        }
    }

    /// Keeps the value that a field has if a condition matches, or does not: all later conditions on it are then known.
    pub(super) fn assume_value(&mut self, condition: &Statement, matches: bool) {
        let Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) = condition else { return };
        if let Foreign::Compare { operand, op, value } = foreign
            && *op == if matches { CmpOp::Eq } else { CmpOp::Neq }
            && *operand == Operand::from(operand.property)
            && is_kept(operand.property)
        {
            self.changes.write(operand.property, Some(*value));
        }
    }

    /// Writes a value to a property; returns `false` if the value is unknown and the packet's path depends on it.
    pub(super) fn write(&mut self, property: Property, value: Option<Value>) -> bool {
        let number = value.map(|value| value.number());
        let address = number.and_then(|number| match typed(Property::Field(Field::Saddr), number, self.family()) {
            Some(Value::Address(address)) => Some(address),
            _ => None,
        });
        let port = number.and_then(|number| u16::try_from(number).ok());
        match (property, address, port) {
            (Property::Field(Field::Saddr), Some(address), _) => self.source.set_ip(address),
            (Property::Field(Field::Daddr), Some(address), _) => self.destination.set_ip(address),
            (Property::Field(Field::Sport), _, Some(port)) => self.source.set_port(port),
            (Property::Field(Field::Dport), _, Some(port)) => self.destination.set_port(port),
            (property, ..) if property.is_end() => return false,
            (Property::Field(Field::MetaPriority), ..) if number.is_some() => {
                self.set_priority(ClassId(number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)));
            }
            // A connection keeps its existing labels.
            (property, ..) if property.words(self.family()) == Words::Label => {
                let known = self.changes.written(property).unwrap_or(Some(0));
                self.changes.write(property, known.zip(number).map(|(known, number)| known | number));
            }
            (property, ..) => self.changes.write(property, number),
        }
        true
    }
}

/// Reports whether a packet of unknown content keeps a property on its whole path, unless a rule writes it.
fn is_kept(property: Property) -> bool {
    const KEPT: [&str; 9] = ["ip ", "ip6 ", "tcp ", "udp ", "sctp ", "ether ", "vlan ", "osf ", "meta cpu"];
    match property {
        Property::Sender(_) => true,
        Property::Named(Named { text, .. }) => {
            let is_changed = ["ip ttl", "ip6 hoplimit"].contains(text) || text.ends_with("checksum");
            !is_changed && KEPT.iter().any(|start| text.starts_with(start))
        }
        _ => false,
    }
}

/// Returns a number as a value of a property's type.
fn typed(property: Property, number: u128, family: IpFamily) -> Option<Value> {
    Some(match property.words(family) {
        Words::Ipv4 => Value::Address(std::net::Ipv4Addr::from(u32::try_from(number).ok()?).into()),
        Words::Ipv6 => Value::Address(std::net::Ipv6Addr::from(number).into()),
        Words::Port => Value::Port(u16::try_from(number).ok()?),
        Words::ClassId => Value::ClassId(ClassId(u32::try_from(number).ok()?)),
        _ => Value::Other(number),
    })
}
