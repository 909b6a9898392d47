//! Sets and maps.

use std::net::IpAddr;

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{
    expression,
    lexer::{Cursor, Token, split, unquoted},
};
use crate::kernel::ReadElements;
use crate::model::{Data, DataType, Element, IfName, Key, Name, Set, SetKind, Value, Values, Verdict, Words};

/// Types of the fields of keys or data of a set.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(pub(super) Vec<Words>);

/// A reader of the declaration of a set or map.
pub(super) struct SetReader {
    family: IpFamily,
    is_map: bool,
}

impl SetReader {
    pub(super) fn new(family: IpFamily, is_map: bool) -> Self {
        Self { family, is_map }
    }

    /// Reads the body of a declaration.
    pub(super) fn read(&self, name: Name, body: &[Token]) -> (Set, Vec<Element>, ReadElements) {
        let mut cursor = Cursor::new(body);
        let (mut key, mut data) = (Fields::default(), Fields::default());
        let mut lists: Vec<&[Token]> = Vec::new();
        let mut has_data = self.is_map;
        let (mut kind, mut size) = (SetKind::Exact, 0);
        while !cursor.is_at_end() {
            match cursor.take() {
                keyword @ ("type" | "typeof") => {
                    let words = cursor.statement();
                    let at = words.iter().position(|word| word.text == ":").unwrap_or(words.len());
                    key = self.fields(keyword, &words[..at]);
                    data = self.fields(keyword, words.get(at + 1..).unwrap_or_default());
                    has_data &= words.get(at + 1).is_none_or(|word| !OBJECTS.contains(&word.text.as_str()));
                }
                "size" => size = cursor.take().parse().unwrap_or(0),
                "flags" => {
                    let flags = cursor.statement();
                    let has = |flag: &str| flags.iter().any(|word| word.text == flag);
                    if has("dynamic") {
                        kind = SetKind::Dynamic { size: 0, expires: true };
                    } else if has("interval") {
                        kind = SetKind::Interval;
                    }
                }
                "elements" | "elements=" => {
                    cursor.accept("=");
                    cursor.accept("{");
                    lists.extend(cursor.block());
                }
                _ => {}
            }
        }
        let (mut elements, mut read) = (Vec::new(), ReadElements::default());
        for list in lists {
            let (more, other) = read_elements(list, &key, has_data.then_some(&data));
            elements.extend(more);
            read.conditions.extend(other.conditions);
            read.undecoded += other.undecoded;
        }
        let set = Set::new(name, key.0.iter().map(|words| data_type(*words)).collect::<Vec<_>>());
        let set = if self.is_map { set.verdict_map() } else { set };
        if let SetKind::Dynamic { size: max, .. } = &mut kind {
            *max = size;
        }
        (set.kind(kind), elements, read)
    }

    fn fields(&self, keyword: &str, words: &[Token]) -> Fields {
        let parts = words.split(|word| word.text == ".");
        Fields(parts.filter(|part| !part.is_empty()).map(|part| self.field(keyword, part)).collect())
    }

    fn field(&self, keyword: &str, words: &[Token]) -> Words {
        if keyword == "type" {
            return type_words(&words[0].text);
        }
        let property = expression::property(&mut Cursor::new(words), self.family).map(|(property, _)| property);
        property.map_or(Words::Number, |property| property.words(family_of(words).unwrap_or(self.family)))
    }
}

/// Returns the IP family of `ip saddr` or `ip6 saddr`.
fn family_of(words: &[Token]) -> Option<IpFamily> {
    match words.iter().map(|word| word.text.as_str()).find(|word| ["ip", "ip6"].contains(word))? {
        "ip" => Some(IpFamily::V4),
        _ => Some(IpFamily::V6),
    }
}

fn type_words(name: &str) -> Words {
    match name {
        "ipv4_addr" => Words::Ipv4,
        "ipv6_addr" => Words::Ipv6,
        "inet_service" => Words::Port,
        "ifname" | "iface_index" => Words::Text,
        "ether_addr" | "ll_addr" => Words::Ether,
        _ => {
            let of_type = TYPES.iter().find(|(data_type, _)| *data_type == name);
            let expression = of_type.map(|(_, expression)| split(expression));
            let property = expression.and_then(|words| expression::property(&mut Cursor::new(&words), IpFamily::V4));
            property.map_or(Words::Number, |(property, _)| property.words(IpFamily::V4))
        }
    }
}

/// Data types of `nft`, each with an expression that has it. Values of others are numbers.
const TYPES: [(&str, &str); 24] = [
    ("inet_proto", "meta l4proto"),
    ("mark", "meta mark"),
    ("classid", "meta priority"),
    ("ct_state", "ct state"),
    ("ct_status", "ct status"),
    ("ct_dir", "ct direction"),
    ("ct_label", "ct label"),
    ("ct_event", "ct event"),
    ("fib_addrtype", "fib daddr type"),
    ("pkt_type", "meta pkttype"),
    ("nf_proto", "meta nfproto"),
    ("ether_type", "ether type"),
    ("iface_type", "meta iiftype"),
    ("devgroup", "meta iifgroup"),
    ("realm", "rt classid"),
    ("uid", "meta skuid"),
    ("gid", "meta skgid"),
    ("day", "meta day"),
    ("hour", "meta hour"),
    ("time", "meta time"),
    ("tcp_flag", "tcp flags"),
    ("dscp", "ip dscp"),
    ("icmp_type", "icmp type"),
    ("icmpv6_type", "icmpv6 type"),
];

/// Reports whether words after the key of an element decide whether it matches.
pub(super) fn has_condition(extras: &[&str]) -> bool {
    condition(extras).is_some()
}

fn data_type(words: Words) -> DataType {
    match words {
        Words::Ipv4 => DataType::Ipv4Addr,
        Words::Ipv6 => DataType::Ipv6Addr,
        Words::Port => DataType::InetService,
        Words::ClassId => DataType::ClassId,
        Words::Text => DataType::IfName,
        _ => DataType::Other { length: 4, host_order: true },
    }
}

/// Reads elements and their other properties. `data` are the fields of a map's data.
pub(super) fn read_elements(list: &[Token], key: &Fields, data: Option<&Fields>) -> (Vec<Element>, ReadElements) {
    let (mut elements, mut read) = (Vec::new(), ReadElements::default());
    for words in list.split(|word| word.text == ",") {
        let words: Vec<&str> = words.iter().map(|word| word.text.as_str()).filter(|word| *word != "\n").collect();
        if words.is_empty() {
            continue;
        }
        match read_element(&words, key, data) {
            Some((element, condition)) => {
                read.conditions.extend(condition.map(|condition| (element.key.clone(), condition.into())));
                elements.push(element);
            }
            None => read.undecoded += 1,
        }
    }
    (elements, read)
}

/// Returns an element and its condition.
fn read_element(words: &[&str], key: &Fields, data: Option<&Fields>) -> Option<(Element, Option<String>)> {
    let at = words.iter().position(|word| *word == ":").unwrap_or(words.len());
    // Counters, timeouts and comments follow the key.
    let end = words[..at].iter().position(|word| EXTRAS.contains(word)).unwrap_or(at);
    let mut element = Element::with_key(match &words[..end] {
        ["*"] => Key::new(),
        words => {
            let fields = words.split(|word| *word == ".").map(|part| part.join(" "));
            let values = fields.zip(&key.0).map(|(text, words)| value(&text, *words));
            values.collect::<Option<Key>>().filter(|values| values.len() == key.0.len())?
        }
    });
    if let Some(fields) = data {
        element.data = Some(read_data(words.get(at + 1..)?, fields)?);
    }
    Some((element, condition(&words[end..at])))
}

/// Returns the words after the key of an element on which its match depends.
fn condition(extras: &[&str]) -> Option<String> {
    let mut is_condition = false;
    let words = extras.iter().filter(|word| {
        if EXTRAS.contains(word) {
            is_condition = CONDITIONS.contains(word);
        }
        is_condition
    });
    let words: Vec<&str> = words.copied().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

pub(super) fn read_data(words: &[&str], fields: &Fields) -> Option<Data> {
    if let Some(verdict) = verdict(words) {
        return Some(Data::Verdict(verdict));
    }
    let parts: Vec<String> = words.split(|word| *word == ".").map(|part| part.join(" ")).collect();
    let mut values = Values::new();
    for (n, text) in parts.iter().enumerate() {
        let words = fields.0.get(n).copied().or_else(|| guess(text))?;
        match value(text, words)? {
            // Of a translation that keeps the host part.
            Value::Network(net) => {
                values.try_push(Value::Address(net.network())).ok()?;
                values.try_push(Value::Address(net.broadcast())).ok()?;
            }
            value => values.try_push(value).ok()?,
        }
    }
    (!values.is_empty()).then_some(Data::Values(values))
}

/// Returns the type of a value of data whose type is not declared.
fn guess(text: &str) -> Option<Words> {
    let address = text.split(['/', '-']).next()?.parse::<IpAddr>();
    Some(match address {
        Ok(IpAddr::V4(_)) => Words::Ipv4,
        Ok(IpAddr::V6(_)) => Words::Ipv6,
        Err(_) if text.starts_with("0x") => Words::Hexadecimal(8),
        Err(_) => Words::Port,
    })
}

/// Reads a verdict.
pub(super) fn verdict(words: &[&str]) -> Option<Verdict> {
    Some(match words {
        ["accept", ..] => Verdict::Accept,
        ["drop", ..] => Verdict::Drop,
        ["return", ..] => Verdict::Return,
        ["continue", ..] => Verdict::Continue,
        ["jump", chain, ..] => Verdict::Jump(Name::from(unquoted(chain))),
        ["goto", chain, ..] => Verdict::Goto(Name::from(unquoted(chain))),
        _ => return None,
    })
}

/// Reads a value, network or range.
pub(super) fn value(text: &str, words: Words) -> Option<Value> {
    // A variable of a script without a definition.
    if text.starts_with('$') {
        return None;
    }
    if let Words::Ipv4 | Words::Ipv6 = words {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Value::Address(address));
        }
        if let Ok(net) = text.parse::<IpNet>() {
            return Some(Value::Network(net.trunc()));
        }
    }
    if words == Words::Text {
        let name = unquoted(text);
        return Some(match name.strip_suffix('*') {
            Some(prefix) => Value::IfNamePrefix(IfName::new(prefix)),
            None => Value::IfName(IfName::new(name)),
        });
    }
    if let Words::Flags(_) = words {
        let mut flags = text.trim_matches(['(', ')']).split('|');
        let value = flags.try_fold(0, |value, flag| Some(value | words.parse(flag.trim())?));
        return value.map(Value::Other);
    }
    if let Some(number) = words.parse(text) {
        return Some(if words == Words::Port {
            Value::Port(u16::try_from(number).ok()?)
        } else {
            Value::Other(number)
        });
    }
    let (first, last) = text.split_once('-')?;
    let (first, last) = (words.parse(first)?, words.parse(last)?);
    Some(match words {
        Words::Port => Value::PortRange(u16::try_from(first).ok()?, u16::try_from(last).ok()?),
        _ => Value::OtherRange(first, last),
    })
}

/// First words of the types of maps to names of objects, which no rule compares.
const OBJECTS: [&str; 6] = ["counter", "quota", "limit", "ct", "secmark", "synproxy"];
/// Words that begin a condition of an element.
const CONDITIONS: [&str; 3] = ["limit", "ct", "quota"];
/// Words that may follow the key of an element.
pub(super) const EXTRAS: [&str; 8] = ["counter", "timeout", "expires", "comment", "limit", "ct", "quota", "last"];
