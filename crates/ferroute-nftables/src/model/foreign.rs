//! Constructs that only rules of other programs use, and that can be evaluated.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    CmpOp, Element, IfName, Name, Property, Value,
    nat::{NatKind, NatTarget, flags_text, range_text},
    property::{FibResult, HASH_INPUTS, Hashed},
    words::Words,
};

/// A construct of other programs' rules that is kept as the kernel lists it, but whose effect is known.
///
/// Values of all types are numbers: the bytes of addresses, names and others, in network byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// `operand op value`.
    Compare {
        /// The left-hand side.
        operand: Operand,
        /// The operator.
        op: CmpOp,
        /// The right-hand side.
        value: u128,
    },
    /// `operand first-last`.
    Range {
        /// The left-hand side.
        operand: Operand,
        /// The smallest value of the range.
        first: u128,
        /// The largest value of the range.
        last: u128,
        /// Whether the value must be in the range.
        eq: bool,
    },
    /// `key @set`.
    Lookup {
        /// The key.
        key: Vec<Operand>,
        /// Set with keys of this type.
        set: Name,
        /// Whether the set must contain the key.
        eq: bool,
    },
    /// `key vmap @map`.
    Vmap {
        /// The key.
        key: Vec<Operand>,
        /// Map from keys of this type to verdicts.
        map: Name,
    },
    /// `meta mark set` or `ct mark set`: changes the mark to `mark & mask ^ xor`.
    SetMark {
        /// Set the mark of the connection instead of the packet's.
        to_connection: bool,
        /// Start with the mark of the connection instead of the packet's.
        from_connection: bool,
        /// The bits to keep.
        mask: u32,
        /// The bits to flip afterwards.
        xor: u32,
    },
    /// `meta mark set key map @map` or `ct mark set key map @map`.
    SetMarkMap {
        /// Set the mark of the connection instead of the packet's.
        to_connection: bool,
        /// The key.
        key: Vec<Operand>,
        /// Map from keys of this type to marks.
        map: Name,
    },
    /// `meta mark set` or `ct mark set` to a number that differs from packet to packet, or from connection to connection.
    SetMarkNumber {
        /// Set the mark of the connection instead of the packet's.
        to_connection: bool,
        /// The number.
        number: Operand,
    },
    /// `redirect`, `dnat` or `snat`. Ends the base chain.
    Nat {
        /// The kind of translation.
        kind: NatKind,
        /// What the address and port are translated to.
        target: NatTarget,
        /// Flags of [`NAT_FLAGS`](super::NAT_FLAGS).
        flags: u32,
    },
    /// `masquerade` with ports or flags. Ends the base chain.
    Masquerade {
        /// First and last port; `None` keeps the port if possible.
        ports: Option<(u16, u16)>,
        /// Flags of [`NAT_FLAGS`](super::NAT_FLAGS).
        flags: u32,
    },
    /// `add`, `update` or `delete` of an element of a set or map.
    Element {
        /// The change.
        op: ElementOp,
        /// The set or map.
        set: Name,
        /// Key; empty if it is unknown.
        key: Vec<Operand>,
        /// The fields of the data, in a map.
        data: Vec<Source>,
        /// Text after the key, such as a timeout or a limit.
        details: String,
        /// Whether the details determine if the evaluation of the rule continues.
        is_condition: bool,
    },
    /// `ip daddr set value` and similar: replaces a property of the packet.
    Write {
        /// The property.
        property: Property,
        /// New value of the property; `None` if it is unknown.
        value: Option<Source>,
        /// The statement in `nft` syntax, without the part that is read from a map.
        text: String,
    },
}

/// A change of an element by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementOp {
    /// `add`: keeps an existing element.
    Add,
    /// `update`: also restarts the timeout of an existing element.
    Update,
    /// `delete`.
    Delete,
}

/// Source of a stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A constant.
    Constant(Value),
    /// A property of the packet.
    Operand(Box<Operand>),
    /// The data of a map.
    Map {
        /// The key.
        key: Vec<Operand>,
        /// Map from keys of this type.
        map: Name,
    },
}

/// A property, after `& mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// The property.
    pub property: Property,
    /// The bits that count.
    pub mask: u128,
    /// Number of bits by which the kernel has the value shifted to the left: for parts of a byte, such as `ip dscp`, in
    /// keys of sets.
    pub shift: u8,
}

impl From<Property> for Operand {
    fn from(property: Property) -> Self {
        Self { property, mask: u128::MAX, shift: 0 }
    }
}

impl Operand {
    /// Returns the operand in `nft` syntax.
    pub fn text(self, family: IpFamily) -> String {
        let (left, words) = (self.property.text(family), self.property.words(family));
        match (self.mask, words) {
            (u128::MAX, _) => left,
            (mask, Words::Flags(_)) if mask.count_ones() > 1 => format!("{left} & ({})", words.text(mask)),
            (mask, _) => format!("{left} & {}", words.text(mask)),
        }
    }

    /// Returns the first value and the number of values of a random number; `None` for other properties.
    pub fn number_range(self) -> Option<(u32, u32)> {
        match self.property {
            Property::Number { first, count, .. } => Some((first, count)),
            Property::Field(super::Field::NumgenRandom { first, count } | super::Field::NumgenInc { first, count }) => {
                Some((first, count))
            }
            _ => None,
        }
    }
}

impl Foreign {
    /// Returns a comparison of a property without a mask.
    pub fn compare(property: Property, op: CmpOp, value: u128) -> Self {
        Self::Compare { operand: property.into(), op, value }
    }

    /// Reports whether this is a condition, and no change.
    pub fn is_condition(&self) -> bool {
        matches!(self, Self::Compare { .. } | Self::Range { .. } | Self::Lookup { .. })
    }

    /// Returns the condition without its negation, and whether it is negated.
    pub fn positive(&self) -> (Self, bool) {
        match self.clone() {
            Self::Compare { operand, op: CmpOp::Neq, value } if !is_any_flag(operand, value, IpFamily::V4) => {
                (Self::Compare { operand, op: CmpOp::Eq, value }, true)
            }
            Self::Range { operand, first, last, eq } => (Self::Range { operand, first, last, eq: true }, !eq),
            Self::Lookup { key, set, eq } => (Self::Lookup { key, set, eq: true }, !eq),
            other => (other, false),
        }
    }

    /// Returns the key of a lookup; `None` for other constructs.
    pub fn key(&self) -> Option<&[Operand]> {
        match self {
            Self::Lookup { key, .. }
            | Self::Vmap { key, .. }
            | Self::SetMarkMap { key, .. }
            | Self::Nat { target: NatTarget::Map { key, .. }, .. }
            | Self::Element { key, .. }
            | Self::Write { value: Some(Source::Map { key, .. }), .. } => Some(key),
            _ => None,
        }
    }

    /// Returns the set or map that is looked up.
    pub fn looks_up(&self) -> Option<&Name> {
        match self {
            Self::Lookup { set, .. } => Some(set),
            Self::Vmap { map, .. }
            | Self::SetMarkMap { map, .. }
            | Self::Nat { target: NatTarget::Map { map, .. }, .. }
            | Self::Write { value: Some(Source::Map { map, .. }), .. } => Some(map),
            _ => None,
        }
    }

    /// Returns the construct in `nft` syntax. `elements` returns the elements of anonymous sets.
    pub fn text(&self, family: IpFamily, elements: &Elements<'_>) -> String {
        let not = |eq: bool| if eq { "" } else { "!= " };
        let set = |name: &Name, key: &[Operand]| set_text(name, key, family, elements);
        let mark = |connection: bool| if connection { "ct mark" } else { "meta mark" };
        match self {
            Self::Compare { operand, op, value } => comparison_text(*operand, *op, *value, family),
            Self::Range { operand, first, last, eq } => {
                let words = operand.property.words(family);
                format!("{} {}{}-{}", operand.text(family), not(*eq), words.text(*first), words.text(*last))
            }
            Self::Lookup { key, set: name, eq } => {
                format!("{} {}{}", key_text(key, family), not(*eq), set(name, key))
            }
            Self::Vmap { key, map } => format!("{} vmap {}", key_text(key, family), set(map, key)),
            Self::SetMark { to_connection, from_connection, mask, xor } => {
                format!("{} set {}", mark(*to_connection), mark_text(mark(*from_connection), *mask, *xor))
            }
            Self::SetMarkMap { to_connection, key, map } => {
                let set = data_set_text(map, key, Some(Words::Hexadecimal(8)), family, elements);
                format!("{} set {} map {set}", mark(*to_connection), key_text(key, family))
            }
            Self::SetMarkNumber { to_connection, number } => {
                format!("{} set {}", mark(*to_connection), number.text(family))
            }
            Self::Nat { kind, target, flags } => {
                format!("{}{}", target.text(*kind, family, elements), flags_text(*flags))
            }
            Self::Masquerade { ports, flags } => {
                let to = ports.map_or_else(String::new, |ports| format!(" to :{}", range_text(ports)));
                format!("masquerade{to}{}", flags_text(*flags))
            }
            Self::Element { op, set: name, key, data, details, .. } => {
                let key = if key.is_empty() { "key".to_owned() } else { key_text(key, family) };
                let data: Vec<String> = data.iter().map(|source| source.text(family)).collect();
                let data = if data.is_empty() { String::new() } else { format!(" : {}", data.join(" . ")) };
                format!("{} @{name} {{ {key}{details}{data} }}", op.name())
            }
            Self::Write { property, value: Some(Source::Map { key, map }), text } => {
                let set = data_set_text(map, key, Some(property.words(family)), family, elements);
                format!("{text} {} map {set}", key_text(key, family))
            }
            Self::Write { text, .. } => text.clone(),
        }
    }
}

impl ElementOp {
    /// Returns the first word of the statement.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

impl Source {
    fn text(&self, family: IpFamily) -> String {
        match self {
            Self::Constant(value) => value.to_string(),
            Self::Operand(operand) => operand.text(family),
            Self::Map { key, map } => format!("{} map @{map}", key_text(key, family)),
        }
    }
}

/// Returns the elements of a set; `None` if the set is not anonymous, or unknown.
pub type Elements<'a> = dyn Fn(&Name) -> Option<Vec<Element>> + 'a;

/// Returns the fields of a key in `nft` syntax.
pub fn key_text(key: &[Operand], family: IpFamily) -> String {
    key.iter().map(|operand| operand.text(family)).collect::<Vec<_>>().join(" . ")
}

/// Returns a set in `nft` syntax: by its name or, if it is anonymous, with its elements.
pub(crate) fn set_text(name: &Name, key: &[Operand], family: IpFamily, elements: &Elements<'_>) -> String {
    data_set_text(name, key, None, family, elements)
}

/// Like `set_text`, for a set, or a map whose data are written in these words.
fn data_set_text(
    name: &Name,
    key: &[Operand],
    data: Option<Words>,
    family: IpFamily,
    elements: &Elements<'_>,
) -> String {
    let Some(elements) = elements(name) else { return format!("@{name}") };
    let mut texts: Vec<String> =
        elements.iter().take(SHOWN_ELEMENTS).map(|element| element_text(element, key, data, family)).collect();
    if elements.len() > SHOWN_ELEMENTS {
        texts.push("…".to_owned());
    }
    format!("{{ {} }}", texts.join(", "))
}

fn element_text(element: &Element, key: &[Operand], words: Option<Words>, family: IpFamily) -> String {
    let mut text = if element.key.is_empty() { "*".to_owned() } else { fields_text(&element.key, key, family) };
    if let Some(data) = &element.data {
        text += " : ";
        text += &match data {
            super::Data::Values(values) => match values.as_slice() {
                [Value::Address(first), Value::Address(last)] => network_text(*first, *last),
                [Value::Other(number)] if words.is_some() => {
                    words.map_or_else(String::new, |words| words.text(*number))
                }
                values => super::join(values, " . "),
            },
            super::Data::Verdict(verdict) => verdict.to_string(),
        };
    }
    text
}

/// Returns a network or range in `nft` syntax.
fn network_text(first: IpAddr, last: IpAddr) -> String {
    network(first, last).map_or_else(|| format!("{first}-{last}"), |net| net.to_string())
}

/// Returns the values of a key's fields in `nft` syntax.
pub fn fields_text(values: &[Value], key: &[Operand], family: IpFamily) -> String {
    let field = |(n, value): (usize, &Value)| {
        let Some(operand) = key.get(n) else { return value.to_string() };
        let text = |number: u128| operand.property.words(family).text(number >> operand.shift);
        match *value {
            Value::Integer(number) => text(number.into()),
            Value::Other(number) => text(number),
            Value::OtherRange(first, last) => format!("{}-{}", text(first), text(last)),
            value => value.to_string(),
        }
    };
    values.iter().enumerate().map(field).collect::<Vec<_>>().join(" . ")
}

/// Returns a comparison in `nft` syntax.
pub(super) fn comparison_text(operand: Operand, op: CmpOp, value: u128, family: IpFamily) -> String {
    let (left, words, mask) = (operand.property.text(family), operand.property.words(family), operand.mask);
    let operator = match op {
        CmpOp::Eq => "==",
        CmpOp::Neq => "!=",
        CmpOp::Lt => "<",
        CmpOp::Lte => "<=",
        CmpOp::Gt => ">",
        CmpOp::Gte => ">=",
    };
    // `nft` leaves out the operator `==`, except for flags, where that means something else.
    let is_implicit = op == CmpOp::Eq && !matches!(words, Words::Flags(_));
    let short = if is_implicit { String::new() } else { format!("{operator} ") };
    if is_any_flag(operand, value, family) && op == CmpOp::Neq {
        return format!("{left} {}", words.flags(mask, ","));
    }
    if let Some(text) = prefix_text(words, mask, value) {
        return format!("{left} {short}{text}");
    }
    match (mask, words) {
        (u128::MAX, Words::Existence) => {
            format!("{left} {}", words.text(u128::from((value != 0) == (op == CmpOp::Eq))))
        }
        (u128::MAX, _) => format!("{left} {short}{}", words.text(value)),
        (mask, Words::Flags(_)) if mask.count_ones() > 1 => {
            format!("{left} & ({}) {operator} {}", words.text(mask), words.text(value))
        }
        (mask, _) => format!("{left} & {} {operator} {}", words.text(mask), words.text(value)),
    }
}

/// Reports whether a comparison with `!=` tests for any of some flags: `flags & mask != 0`.
fn is_any_flag(operand: Operand, value: u128, family: IpFamily) -> bool {
    let is_flags = |words| matches!(words, Words::Flags(_) | Words::Label);
    value == 0 && operand.mask != u128::MAX && is_flags(operand.property.words(family))
}

/// Returns a network, or a prefix of a name; `None` for other masks.
fn prefix_text(words: Words, mask: u128, value: u128) -> Option<String> {
    match words {
        Words::Ipv4 => {
            let mask = u32::try_from(mask).ok()?;
            let net = Ipv4Net::with_netmask(u32::try_from(value).ok()?.into(), mask.into()).ok()?;
            Some(net.to_string())
        }
        Words::Ipv6 if mask != u128::MAX => Some(Ipv6Net::with_netmask(value.into(), mask.into()).ok()?.to_string()),
        Words::Text if mask != u128::MAX => {
            Some(format!("\"{}*\"", String::from_utf8_lossy(IfName::from_bytes(value.to_be_bytes()).text())))
        }
        _ => None,
    }
}

/// Returns a changed mark in `nft` syntax.
fn mark_text(mark: &str, mask: u32, xor: u32) -> String {
    match (mask, xor) {
        (u32::MAX, 0) => mark.to_owned(),
        (0, xor) => format!("{xor:#010x}"),
        (mask, 0) => format!("{mark} & {mask:#010x}"),
        (mask, xor) if mask == !xor => format!("{mark} | {xor:#010x}"),
        (u32::MAX, xor) => format!("{mark} ^ {xor:#010x}"),
        (mask, xor) => format!("{mark} & {mask:#010x} ^ {xor:#010x}"),
    }
}

/// Returns the network with this first and last address.
pub(crate) fn network(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let mut nets = (0..=128).filter_map(|length| IpNet::new(first, length).ok());
    nets.find(|net| net.network() == first && net.broadcast() == last)
}

/// Returns the inputs of a `jhash`, as far as they are distinguished.
pub(crate) fn hash_inputs(all: impl IntoIterator<Item = Hashed>) -> [Option<Hashed>; HASH_INPUTS] {
    let mut inputs = [None; HASH_INPUTS];
    inputs.iter_mut().zip(all).for_each(|(input, of_packet)| *input = Some(of_packet));
    inputs
}

/// Returns `fib … oif` as a property: compared with an interface, or for existence.
pub(crate) fn fib_existence(property: Property) -> Property {
    match property {
        Property::Fib { source, mark, interface, .. } => {
            Property::Fib { source, mark, interface, result: FibResult::Existence }
        }
        other => other,
    }
}

/// Maximum number of shown elements of an anonymous set.
const SHOWN_ELEMENTS: usize = 12;
