//! Rules.

mod assignment;
mod comparison;
mod element;
mod nat;

use ferroute_core::IpFamily;

use self::{
    assignment::assignment,
    comparison::{after_operator, comparison, mask_of_key},
    nat::{nat_flags, ports},
};
use super::{
    expression::{self, Requirements},
    lexer::{Cursor, MODULE, Token, join, unquoted},
    read_chain,
    set::{Fields, read_elements, verdict},
};
use crate::kernel::ReadElements;
use crate::model::{
    Chain, ChainWithRules, CmpOp, Comment, Element, Field, Foreign, Match, Name, Opaque, Operand, Outcome, Property,
    RejectWith, Rule, Set, SetKind, Statement, Value, Verdict, parse_duration,
};

/// Reader for the rules of one table.
pub(super) struct RuleReader {
    family: IpFamily,
    /// The table sees packets of both IP families.
    is_inet: bool,
    /// The sets without a name.
    pub(super) sets: Vec<(Set, Vec<Element>, ReadElements)>,
    /// The chains without a name.
    pub(super) chains: Vec<ChainWithRules>,
    /// How many chains without a name the current rule is in.
    depth: usize,
}

/// The statements of a rule, as far as it was read.
struct Reading {
    statements: Vec<Statement>,
    comment: Option<Comment>,
    /// The IP family that the rule requires.
    family: IpFamily,
    known: Requirements,
}

impl RuleReader {
    pub(super) fn new(family: IpFamily, is_inet: bool) -> Self {
        Self { family, is_inet, sets: Vec::new(), chains: Vec::new(), depth: 0 }
    }

    /// Reads the words of a rule; `None` if there are none.
    pub(super) fn read(&mut self, words: &[Token]) -> Option<Rule> {
        if words.is_empty() {
            return None;
        }
        let known = Requirements { family: (!self.is_inet).then_some(self.family), protocol: None };
        let mut reading = Reading { statements: Vec::new(), comment: None, family: self.family, known };
        let mut cursor = Cursor::new(words);
        while !cursor.is_at_end() {
            let start = cursor.at;
            if self.statement(&mut cursor, &mut reading).is_none() {
                cursor.at = start;
                unknown(&mut cursor, &mut reading);
            }
        }
        Some(Rule { statements: reading.statements, comment: reading.comment })
    }

    /// Reads one statement; `None` if it is not supported.
    fn statement(&mut self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        let start = cursor.at;
        let nothing = |reading: &mut Reading, cursor: &Cursor<'_>| {
            reading.opaque(join(cursor.since(start)), Outcome::Nothing);
        };
        match cursor.peek() {
            "\n" => cursor.at += 1,
            "#" => {
                cursor.at += 1;
                let name = cursor.take().trim_start_matches(MODULE);
                let kind = if name.starts_with(char::is_uppercase) { "target" } else { "match" };
                extension(kind, name, reading)?;
            }
            remark if remark.starts_with('#') => {
                cursor.at += 1;
                match cursor.peek() {
                    "counter" => reading.opaque(remark.to_owned(), Outcome::Condition),
                    _ => target(remark.trim_start_matches(['#', ' ']), reading),
                }
            }
            "comment" => {
                cursor.at += 1;
                reading.comment = Some(Comment::new(unquoted(cursor.take())));
            }
            "jump" | "goto" if cursor.peek_at(1) == "{" && self.depth >= MAX_DEPTH => return None,
            verdict @ ("jump" | "goto") if cursor.peek_at(1) == "{" => {
                cursor.at += 2;
                let block = cursor.block()?;
                let (at, name) = (self.chains.len(), Name::from(format!("__chain{}", self.chains.len())));
                // Other chains in this table have other names.
                self.chains.push(Chain::new(name.clone()).rules([]));
                self.depth += 1;
                self.chains[at] = read_chain(name.clone(), &[block], self);
                self.depth -= 1;
                let verdict = if verdict == "jump" { Verdict::Jump(name) } else { Verdict::Goto(name) };
                reading.statements.push(verdict.into());
            }
            "accept" | "drop" | "return" | "jump" | "goto" => {
                let words: Vec<&str> = cursor.tokens[cursor.at..].iter().map(|token| token.text.as_str()).collect();
                cursor.at += if ["jump", "goto"].contains(&words[0]) { 2 } else { 1 };
                reading.statements.push(verdict(&words)?.into());
            }
            "continue" => {
                cursor.at += 1;
                nothing(reading, cursor);
            }
            "counter" => {
                cursor.at += 1;
                match cursor.peek() {
                    "packets" => cursor.at += 4,
                    "name" => self.object(cursor, reading)?,
                    _ => {}
                }
                nothing(reading, cursor);
            }
            "last" => {
                cursor.at += 1;
                if cursor.accept("used") {
                    cursor.at += 1;
                }
                nothing(reading, cursor);
            }
            "log" => {
                cursor.at += 1;
                while LOG_OPTIONS.contains(&cursor.peek()) {
                    cursor.at += 2;
                    while cursor.accept(",") || ["sequence", "options"].contains(&cursor.peek()) {
                        cursor.at += 1;
                    }
                }
                nothing(reading, cursor);
            }
            "limit" | "quota" => {
                match cursor.peek_at(1) {
                    "name" => {
                        cursor.at += 1;
                        self.object(cursor, reading)?;
                    }
                    _ => limit(cursor),
                }
                reading.opaque(join(cursor.since(start)), Outcome::Condition);
            }
            "notrack" => {
                cursor.at += 1;
                reading.statements.push(Statement::Notrack);
            }
            "flow" => {
                cursor.at += 2;
                let table = cursor.take().trim_start_matches('@').to_owned();
                reading.statements.push(Statement::FlowAdd(Name::from(table.as_str())));
            }
            // A copy is sent to another host.
            "dup" => {
                cursor.at += 1;
                cursor.accept("to");
                self.skip_value(cursor, reading)?;
                if cursor.accept("device") {
                    self.skip_value(cursor, reading)?;
                }
                nothing(reading, cursor);
            }
            "reset" => {
                cursor.at += 4;
                nothing(reading, cursor);
            }
            "tproxy" => {
                cursor.at += 1;
                while ["ip", "ip6", "to"].contains(&cursor.peek()) {
                    cursor.at += 1;
                }
                cursor.at += 1;
                reading.opaque(join(cursor.since(start)), Outcome::Socket);
            }
            "queue" | "fwd" | "synproxy" => {
                let outcome = if cursor.peek() == "queue" { Outcome::Queue } else { Outcome::Anything };
                let end = (cursor.at + 1..cursor.tokens.len())
                    .find(|at| ["accept", "drop", "comment", "counter"].contains(&cursor.tokens[*at].text.as_str()));
                cursor.at = end.unwrap_or(cursor.tokens.len());
                reading.opaque(join(cursor.since(start)), outcome);
            }
            "masquerade" => {
                cursor.at += 1;
                let ports =
                    if cursor.accept("to") { Some(ports(cursor.take().trim_start_matches(':'))?) } else { None };
                let flags = nat_flags(cursor);
                match (ports, flags) {
                    (None, 0) => reading.statements.push(Statement::Masquerade { fully_random: false }),
                    _ => reading.foreign(Foreign::Masquerade { ports, flags }),
                }
            }
            "redirect" | "dnat" | "snat" => self.nat(cursor, reading)?,
            "reject" => {
                cursor.at += 1;
                let with = self.reject(cursor, reading)?;
                reading.statements.push(Statement::Reject(with));
            }
            "add" | "update" | "delete" | "set" | "meter" => self.element(cursor, reading)?,
            "xt" => {
                cursor.at += 1;
                let (kind, name) = (cursor.take(), unquoted(cursor.take()));
                extension(kind, name, reading)?;
            }
            _ => match assignment(cursor) {
                Some(left) => self.assign((start, &left), cursor, reading)?,
                None => self.condition(cursor, reading)?,
            },
        }
        Some(())
    }

    /// Reads a condition, or a lookup of a verdict.
    fn condition(&mut self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        if cursor.peek() == "ct" && cursor.peek_at(1) == "count" {
            let start = cursor.at;
            cursor.at += 2;
            cursor.accept("over");
            cursor.at += 1;
            let text = join(cursor.since(start));
            let outcome = Outcome::of_connection_count(&text);
            reading.opaque(text, outcome);
            return Some(());
        }
        if ["nfproto", "protocol"].iter().any(|key| cursor.peek() == *key || cursor.peek_at(1) == *key)
            && ["meta", "nfproto", "protocol"].contains(&cursor.peek())
        {
            let start = cursor.at;
            cursor.accept("meta");
            cursor.at += 1;
            let eq = !cursor.accept("!=");
            cursor.accept("==");
            let family = match (cursor.take(), eq) {
                ("ip" | "ipv4", true) | ("ip6" | "ipv6", false) => Some(IpFamily::V4),
                ("ip6" | "ipv6", true) | ("ip" | "ipv4", false) => Some(IpFamily::V6),
                _ => None,
            };
            if let Some(family) = family {
                reading.require(Requirements { family: Some(family), protocol: None });
                return Some(());
            }
            cursor.at = start;
        }
        let key = self.key(cursor, reading)?;
        if cursor.accept("vmap") {
            let map = self.set(cursor, &key, true)?;
            reading.foreign(Foreign::Vmap { key, map });
            return Some(());
        }
        let after = after_operator(cursor);
        if after == "{" || after.starts_with('@') {
            let eq = !cursor.accept("!=");
            cursor.accept("==");
            let set = self.set(cursor, &key, false)?;
            reading.foreign(Foreign::Lookup { key, set, eq });
            return Some(());
        }
        let [operand] = key.as_slice() else { return None };
        let foreign = comparison(*operand, cursor, reading.family)?;
        if let (Property::Field(Field::L4proto), Foreign::Compare { op: CmpOp::Eq, value, .. }) =
            (operand.property, &foreign)
        {
            reading.known.protocol = u8::try_from(*value).ok();
        }
        reading.foreign(foreign);
        Some(())
    }

    /// Reads the kind of a rejection, and adds its requirements for packets.
    fn reject(&self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<RejectWith> {
        let kind = if cursor.accept("with") { cursor.take() } else { "" };
        let family = match kind {
            "" if self.is_inet => return RejectWith::parse("icmpx", "port-unreachable"),
            "" => return Some(RejectWith::PortUnreachable),
            "tcp" => return cursor.accept("reset").then_some(RejectWith::TcpReset),
            "icmp" => Some(IpFamily::V4),
            "icmpv6" => Some(IpFamily::V6),
            _ => None,
        };
        reading.require(Requirements { family, protocol: None });
        cursor.accept("type");
        RejectWith::parse(kind, cursor.take())
    }

    /// Reads the fields of a key, and adds their requirements for packets.
    fn key(&self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<Vec<Operand>> {
        let mut key = Vec::new();
        loop {
            let (property, requirements) = expression::property(cursor, reading.family)?;
            reading.require(requirements);
            let mask = mask_of_key(cursor, property.words(reading.family));
            key.push(Operand { mask: mask.unwrap_or(u128::MAX), ..property.into() });
            if !cursor.accept(".") {
                return Some(key);
            }
        }
    }

    /// Reads the name of a set, or the elements of an anonymous set.
    fn set(&mut self, cursor: &mut Cursor<'_>, key: &[Operand], is_map: bool) -> Option<Name> {
        self.set_with(cursor, key, is_map, &Fields::default())
    }

    /// Reads a set or map like [`Self::set`], with the type of a map's data; without one, it is derived from the text.
    fn set_with(&mut self, cursor: &mut Cursor<'_>, key: &[Operand], is_map: bool, data: &Fields) -> Option<Name> {
        if let Some(name) = cursor.peek().strip_prefix('@') {
            cursor.at += 1;
            return Some(Name::from(name));
        }
        if !cursor.accept("{") {
            return None;
        }
        let fields = Fields(key.iter().map(|operand| operand.property.words(self.family)).collect());
        let (elements, read) = read_elements(cursor.block()?, &fields, is_map.then_some(data));
        let prefix = if is_map { "__map" } else { "__set" };
        let name = Name::from(format!("{prefix}{}", self.sets.len()));
        let set = Set::new(name.clone(), []).kind(SetKind::Interval);
        self.sets.push((if is_map { set.verdict_map() } else { set }, elements, read));
        Some(name)
    }

    /// Skips the name of an object: `name "web"`, or a map from a key to names.
    fn object(&mut self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        cursor.at += 1;
        self.skip_value(cursor, reading)
    }

    /// Skips an assigned value: words with commas between them, or the result of an expression. A rule ends if its map
    /// has no such key.
    fn skip_value(&mut self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        let start = cursor.at;
        let mut key = None;
        if cursor.peek() == "(" {
            let length = cursor.tokens[start..].iter().position(|token| token.text == ")")?;
            cursor.at += length + 1;
        } else {
            key = self.key(cursor, reading);
            if key.is_none() {
                cursor.at = start + 1;
            }
        }
        while [",", "&", "|", "^", "<<", ">>", "and", "or", "xor"].contains(&cursor.peek()) {
            cursor.at += 2;
            key = None;
        }
        if !cursor.accept("map") {
            return Some(());
        }
        if let Some(key) = key {
            let set = self.set(cursor, &key, false)?;
            reading.foreign(Foreign::Lookup { key, set, eq: true });
        } else if !cursor.take().starts_with('@') {
            cursor.block()?;
        }
        Some(())
    }
}

impl Reading {
    fn opaque(&mut self, text: String, outcome: Outcome) {
        self.statements.push(Statement::Opaque(Opaque { expressions: Vec::new(), text, outcome }));
    }

    fn foreign(&mut self, foreign: Foreign) {
        self.opaque(String::new(), Outcome::Foreign(foreign));
    }

    /// Adds the conditions that `nft` leaves out.
    fn require(&mut self, requirements: Requirements) {
        if let Some(family) = requirements.family.filter(|family| self.known.family != Some(*family)) {
            self.statements.push(Match::Nfproto(family).into());
            self.known.family = Some(family);
        }
        if let Some(family) = requirements.family {
            self.family = family;
        }
        if let Some(protocol) = requirements.protocol.filter(|protocol| self.known.protocol != Some(*protocol)) {
            let value = Value::Protocol(protocol);
            let (field, op) = (Field::L4proto, CmpOp::Eq);
            self.statements.push(Match::Cmp { field, mask: u32::MAX, op, value }.into());
            self.known.protocol = Some(protocol);
        }
    }
}

/// Skips `limit` or `quota` with its options.
fn limit(cursor: &mut Cursor<'_>) {
    cursor.at += 1;
    loop {
        let word = cursor.peek();
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let is_unit = LIMIT_WORDS.contains(&word.split('/').next().unwrap_or_default());
        if word.is_empty() || !(is_number || is_unit || parse_duration(word).is_some()) {
            return;
        }
        cursor.at += 1;
    }
}

/// Adds a module or target of `iptables`, whose options `nft` does not print.
fn extension(kind: &str, name: &str, reading: &mut Reading) -> Option<()> {
    match (kind, name) {
        ("match", "comment") => reading.opaque("xt match \"comment\"".to_owned(), Outcome::Nothing),
        ("match", name) => reading.opaque(format!("xt match \"{name}\""), Outcome::Condition),
        // It has the same effect without options, and its own words where iptables-save prints them, too.
        ("target", "MASQUERADE") => target(name, reading),
        ("target", name) => target(&format!("{name} …"), reading),
        _ => return None,
    }
    Some(())
}

/// Adds a target of `iptables` with words that are not its options.
fn target(text: &str, reading: &mut Reading) {
    reading.opaque(format!("-j {text}"), Outcome::Iptables);
}

/// Adds unsupported words: as a condition, if a verdict or another effect follows and they have none themselves.
fn unknown(cursor: &mut Cursor<'_>, reading: &mut Reading) {
    let (start, mut depth) = (cursor.at, 0_i32);
    // Words about a header require packets with this header.
    if cursor.peek_at(2) != "set" {
        reading.require(expression::requirements(cursor.peek()));
    }
    let mut has_effect = EFFECTS.contains(&cursor.peek());
    cursor.at += 1;
    while !cursor.is_at_end() {
        match cursor.peek() {
            "{" => depth += 1,
            "}" => depth -= 1,
            // The words after it may be those of the value: `ct mark set ct mark >> 1`.
            "set" if depth == 0 => has_effect = true,
            word if depth == 0 && STATEMENTS.contains(&word) => break,
            _ => {}
        }
        cursor.at += 1;
    }
    let outcome = if has_effect || cursor.is_at_end() { Outcome::Anything } else { Outcome::Condition };
    reading.opaque(join(cursor.since(start)), outcome);
}

/// The first words of statements with an effect on the packet.
const EFFECTS: [&str; 9] = ["jump", "goto", "reject", "masquerade", "dnat", "snat", "redirect", "tproxy", "synproxy"];
/// The first words of statements that may follow a condition.
const STATEMENTS: [&str; 22] = [
    "accept",
    "drop",
    "return",
    "jump",
    "goto",
    "continue",
    "counter",
    "log",
    "reject",
    "masquerade",
    "dnat",
    "snat",
    "redirect",
    "notrack",
    "queue",
    "limit",
    "comment",
    "tproxy",
    "synproxy",
    "flow",
    "vmap",
    "quota",
];
const LOG_OPTIONS: [&str; 6] = ["prefix", "level", "group", "snaplen", "queue-threshold", "flags"];
const LIMIT_WORDS: [&str; 14] = [
    "rate", "over", "until", "burst", "packets", "bytes", "kbytes", "mbytes", "gbytes", "second", "minute", "hour",
    "day", "used",
];
/// The maximum depth of chains without a name: the kernel's of calls (`NFT_JUMP_STACK_SIZE`).
const MAX_DEPTH: usize = 16;
