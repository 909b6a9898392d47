//! Rules.

use std::net::{IpAddr, SocketAddr};

use ferroute_core::IpFamily;
use ipnet::IpNet;

use super::{
    expression::{self, Requirements},
    lexer::{Cursor, MODULE, Token, join, unquoted},
    read_chain,
    set::{Fields, read_elements, verdict},
};
use crate::kernel::ReadElements;
use crate::model::{
    Chain, ChainWithRules, CmpOp, Comment, Element, Field, Foreign, Match, Name, NatKind, Opaque, Operand, Outcome,
    Property, RejectWith, Rule, Set, SetKind, Statement, Value, Verdict, Words, parse_duration,
};

/// A reader of the rules of one table.
pub(super) struct RuleReader {
    family: IpFamily,
    /// The table sees packets of both IP families.
    is_inet: bool,
    /// The sets without a name.
    pub(super) sets: Vec<(Set, Vec<Element>, ReadElements)>,
    /// The chains without a name.
    pub(super) chains: Vec<ChainWithRules>,
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
        Self { family, is_inet, sets: Vec::new(), chains: Vec::new() }
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
            "#" => remark(cursor, reading),
            "comment" => {
                cursor.at += 1;
                reading.comment = Some(Comment::new(unquoted(cursor.take())));
            }
            verdict @ ("jump" | "goto") if cursor.peek_at(1) == "{" => {
                cursor.at += 2;
                let name = Name::from(format!("__chain{}", self.chains.len()));
                // Chains in this one have other names.
                self.chains.push(Chain::new(name.clone()).rules([]));
                let (at, chain) = (self.chains.len() - 1, read_chain(name.clone(), cursor.block()?, self));
                self.chains[at] = chain;
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
            "dup" => {
                cursor.at = cursor.tokens.len();
                nothing(reading, cursor);
            }
            "tproxy" => {
                cursor.at += 1;
                while ["ip", "ip6", "to"].contains(&cursor.peek()) {
                    cursor.at += 1;
                }
                cursor.at += 1;
                reading.opaque(join(cursor.since(start)), Outcome::Condition);
            }
            "queue" | "fwd" | "synproxy" => {
                let end = (cursor.at + 1..cursor.tokens.len())
                    .find(|at| ["accept", "drop", "comment", "counter"].contains(&cursor.tokens[*at].text.as_str()));
                cursor.at = end.unwrap_or(cursor.tokens.len());
                reading.opaque(join(cursor.since(start)), Outcome::Anything);
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
                reading.statements.push(Statement::Reject(reject(cursor)?));
            }
            "add" | "update" | "delete" | "set" | "meter" => {
                let block_at = (cursor.at..cursor.tokens.len()).find(|at| cursor.tokens[*at].text == "{")?;
                cursor.at = block_at + 1;
                let block = cursor.block()?;
                let has = |word: &str| block.iter().any(|token| token.text == word);
                let is_condition = has("limit") || has("quota") || (has("ct") && has("count"));
                let outcome = if is_condition { Outcome::Condition } else { Outcome::Nothing };
                reading.opaque(join(cursor.since(start)), outcome);
            }
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
            reading.opaque(join(cursor.since(start)), Outcome::Condition);
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

    /// Reads the fields of a key, and adds what they require of packets.
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

    /// Reads the name of a set, or the elements of one without a name.
    fn set(&mut self, cursor: &mut Cursor<'_>, key: &[Operand], is_map: bool) -> Option<Name> {
        if let Some(name) = cursor.peek().strip_prefix('@') {
            cursor.at += 1;
            return Some(Name::from(name));
        }
        if !cursor.accept("{") {
            return None;
        }
        let fields = Fields(key.iter().map(|operand| operand.property.words(self.family)).collect());
        let data = Fields::default();
        let (elements, read) = read_elements(cursor.block()?, &fields, is_map.then_some(&data));
        let prefix = if is_map { "__map" } else { "__set" };
        let name = Name::from(format!("{prefix}{}", self.sets.len()));
        let set = Set::new(name.clone(), []).kind(SetKind::Interval);
        self.sets.push((if is_map { set.verdict_map() } else { set }, elements, read));
        Some(name)
    }

    /// Reads the value of `meta mark set` and others.
    fn assign(
        &mut self,
        (begin, left): (usize, &Assigned),
        cursor: &mut Cursor<'_>,
        reading: &mut Reading,
    ) -> Option<()> {
        let start = cursor.at;
        let to_connection = match *left {
            Assigned::Mark { to_connection } => to_connection,
            Assigned::Header => {
                let left = &mut Cursor { tokens: cursor.tokens, at: begin };
                let (property, requirements) = expression::property(left, reading.family)?;
                reading.require(requirements);
                self.skip_value(cursor, reading)?;
                let text = format!("{} set {}", property.text(reading.family), join(cursor.since(start)));
                reading.opaque(text, Outcome::Anything);
                return Some(());
            }
            Assigned::Other => {
                self.skip_value(cursor, reading)?;
                reading.opaque(join(cursor.since(begin)), Outcome::Nothing);
                return Some(());
            }
        };
        if let Some((from_connection, mask, xor)) = mark(cursor) {
            reading.foreign(Foreign::SetMark { to_connection, from_connection, mask, xor });
            return Some(());
        }
        cursor.at = start;
        let key = self.key(cursor, reading)?;
        if let ([number], false) = (key.as_slice(), cursor.peek() == "map") {
            number.number_range()?;
            reading.foreign(Foreign::SetMarkNumber { to_connection, number: *number });
            return Some(());
        }
        if !cursor.accept("map") {
            return None;
        }
        let map = self.set(cursor, &key, true)?;
        reading.foreign(Foreign::SetMarkMap { to_connection, key, map });
        Some(())
    }

    /// Skips the name of an object: `name "web"`, or a map from a key to names.
    fn object(&mut self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        cursor.at += 1;
        self.skip_value(cursor, reading)
    }

    /// Skips a value that is assigned: words with commas between them, or the result of an expression.
    fn skip_value(&mut self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        let start = cursor.at;
        if self.key(cursor, reading).is_none() {
            cursor.at = start + 1;
        }
        if cursor.accept("map") && !cursor.take().starts_with('@') {
            cursor.block()?;
        }
        while [",", "&", "|", "^", "and", "or", "xor"].contains(&cursor.peek()) {
            cursor.at += 2;
        }
        Some(())
    }

    /// Reads `redirect`, `dnat` or `snat`.
    fn nat(&mut self, cursor: &mut Cursor<'_>, reading: &mut Reading) -> Option<()> {
        let kind = match cursor.take() {
            "redirect" => NatKind::Redirect,
            "dnat" => NatKind::Destination,
            _ => NatKind::Source,
        };
        for (word, family) in [("ip", IpFamily::V4), ("ip6", IpFamily::V6)] {
            if cursor.accept(word) {
                reading.require(Requirements { family: Some(family), protocol: None });
            }
        }
        // `dnat ip addr . port to …`
        while ["addr", ".", "port"].contains(&cursor.peek()) {
            cursor.at += 1;
        }
        let prefix = cursor.accept("prefix");
        if !cursor.accept("to") {
            nat_flags(cursor);
            let foreign = Foreign::Nat { kind, addresses: None, ports: None };
            return (kind == NatKind::Redirect).then(|| reading.foreign(foreign));
        }
        let foreign = if let Some((addresses, ports)) = target(cursor.peek()) {
            cursor.at += 1;
            match addresses {
                Some((first, last)) if prefix => Foreign::NatPrefix { kind, net: network(first, last)? },
                addresses => nat_statement(kind, addresses, ports, reading)?,
            }
        } else {
            cursor.accept(":");
            let key = self.key(cursor, reading)?;
            if !cursor.accept("map") {
                return None;
            }
            let map = self.set(cursor, &key, true)?;
            Foreign::NatMap { kind, key, map, prefix }
        };
        nat_flags(cursor);
        reading.foreign(foreign);
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

/// What a statement assigns a value to.
enum Assigned {
    /// A mark.
    Mark { to_connection: bool },
    /// A part of a header that rules and routes depend on.
    Header,
    /// Something that no rule here matches on.
    Other,
}

/// Reads the beginning of an assignment: `meta mark set`. The position stays if this is none.
fn assignment(cursor: &mut Cursor<'_>) -> Option<Assigned> {
    let at = match (cursor.peek(), cursor.peek_at(1)) {
        ("mark" | "nftrace" | "priority", _) => 1,
        (raw, _) if raw.starts_with('@') => 1,
        ("ct", "original" | "reply") => 3,
        ("tcp", "option") => 4,
        _ => 2,
    };
    if cursor.peek_at(at) != "set" {
        return None;
    }
    let assigned = match (cursor.peek(), cursor.peek_at(1)) {
        ("meta", "mark") | ("mark", _) => Assigned::Mark { to_connection: false },
        ("ct", "mark") => Assigned::Mark { to_connection: true },
        ("ip" | "ip6", "saddr" | "daddr") | ("tcp" | "udp" | "th" | "sctp", "sport" | "dport") => Assigned::Header,
        (raw, _) if raw.starts_with('@') => Assigned::Header,
        _ => Assigned::Other,
    };
    cursor.at += at + 1;
    Some(assigned)
}

/// Reads a mark: a number, or bits of another mark. Returns whether it is the connection's, the mask and the flipped bits.
fn mark(cursor: &mut Cursor<'_>) -> Option<(bool, u32, u32)> {
    let mut opened = 0;
    while cursor.accept("(") {
        opened += 1;
    }
    let (from_connection, mut mask, mut xor) = match (cursor.peek(), cursor.peek_at(1)) {
        ("meta", "mark") => (false, u32::MAX, 0),
        ("ct", "mark") => (true, u32::MAX, 0),
        ("mark", _) => (false, u32::MAX, 0),
        (number, _) => (false, 0, mark_number(number)?),
    };
    cursor.at += if ["meta", "ct"].contains(&cursor.peek()) { 2 } else { 1 };
    loop {
        if opened > 0 && cursor.accept(")") {
            opened -= 1;
            continue;
        }
        let operator = cursor.peek();
        if !["&", "|", "^", "and", "or", "xor"].contains(&operator) {
            return (opened == 0).then_some((from_connection, mask, xor));
        }
        let is_after_xor = cursor.at >= 2 && cursor.tokens[cursor.at - 2].text == "xor";
        cursor.at += 1;
        let bits = mark_number(cursor.take())?;
        (mask, xor) = match operator {
            // As `nft` prints `CONNMARK --set-xmark`.
            "and" if is_after_xor => (mask & bits, xor),
            "&" | "and" => (mask & bits, xor & bits),
            "|" | "or" => (mask & !bits, xor & !bits | bits),
            _ => (mask, xor ^ bits),
        };
    }
}

fn mark_number(text: &str) -> Option<u32> {
    u32::try_from(Words::Hexadecimal(8).parse(text)?).ok()
}

/// Reads a comparison with a value or a range.
fn comparison(operand: Operand, cursor: &mut Cursor<'_>, family: IpFamily) -> Option<Foreign> {
    let words = operand.property.words(family);
    let mut mask = u128::MAX;
    if ["&", "and"].contains(&cursor.peek()) {
        cursor.at += 1;
        mask = flags_value(cursor, words)?;
    }
    // None of these flags.
    let is_none_of = mask == u128::MAX && cursor.accept("!");
    let op = match cursor.peek() {
        "!=" => Some(CmpOp::Neq),
        "==" => Some(CmpOp::Eq),
        "<" => Some(CmpOp::Lt),
        "<=" => Some(CmpOp::Lte),
        ">" => Some(CmpOp::Gt),
        ">=" => Some(CmpOp::Gte),
        _ => None,
    };
    cursor.at += usize::from(op.is_some());
    let operand = Operand { mask, ..operand };
    if let Words::Flags(_) | Words::Label = words {
        let value = flags_value(cursor, words)?;
        if cursor.accept("/") {
            // `tcp flags syn / fin,syn`
            let operand = Operand { mask: flags_value(cursor, words)?, ..operand };
            return Some(Foreign::Compare { operand, op: op.unwrap_or(CmpOp::Eq), value });
        }
        return Some(match op {
            None if mask == u128::MAX => {
                let op = if is_none_of { CmpOp::Eq } else { CmpOp::Neq };
                Foreign::Compare { operand: Operand { mask: value, ..operand }, op, value: 0 }
            }
            op => Foreign::Compare { operand, op: op.unwrap_or(CmpOp::Eq), value },
        });
    }
    let mut text = cursor.take().to_owned();
    if words == Words::Date && cursor.peek().starts_with(|c: char| c.is_ascii_digit()) {
        text += cursor.take();
    }
    let eq = match op.unwrap_or(CmpOp::Eq) {
        CmpOp::Eq => Some(true),
        CmpOp::Neq => Some(false),
        _ => None,
    };
    if words == Words::Hour && cursor.accept("-") {
        text = format!("{text}-{}", cursor.take());
    }
    let compare = |operand: Operand, value: u128| Foreign::Compare { operand, op: op.unwrap_or(CmpOp::Eq), value };
    match super::set::value(&text, words)? {
        Value::Network(net) => {
            let number = |address: IpAddr| Value::Address(address).number();
            Some(compare(Operand { mask: number(net.netmask()), ..operand }, number(net.network())))
        }
        Value::IfNamePrefix(prefix) => {
            let shift = 8 * (16 - prefix.text().len());
            let mask = u128::MAX.checked_shl(u32::try_from(shift).ok()?).unwrap_or(0);
            Some(compare(Operand { mask, ..operand }, Value::IfName(prefix).number()))
        }
        Value::PortRange(first, last) => {
            Some(Foreign::Range { operand, first: first.into(), last: last.into(), eq: eq? })
        }
        Value::OtherRange(first, last) => Some(Foreign::Range { operand, first, last, eq: eq? }),
        value => Some(compare(operand, value.number())),
    }
}

/// Returns the next word, or the one after an operator of equality.
fn after_operator<'t>(cursor: &Cursor<'t>) -> &'t str {
    if ["!=", "=="].contains(&cursor.peek()) { cursor.peek_at(1) } else { cursor.peek() }
}

/// Reads the mask of a field that is looked up: `ip saddr & 255.255.255.0 @nets`. The position stays if there is none.
fn mask_of_key(cursor: &mut Cursor<'_>, words: Words) -> Option<u128> {
    let start = cursor.at;
    let mask = if cursor.accept("&") { flags_value(cursor, words) } else { None };
    let after = after_operator(cursor);
    let is_key = after.starts_with('@') || ["{", "vmap", "map", "."].contains(&after);
    if mask.is_none() || !is_key {
        cursor.at = start;
        return None;
    }
    mask
}

/// Reads flags: `syn`, `syn,ack`, `(syn | ack)`, or a number.
fn flags_value(cursor: &mut Cursor<'_>, words: Words) -> Option<u128> {
    let is_open = cursor.accept("(");
    let mut value = 0;
    loop {
        value |= words.parse(cursor.take())?;
        if !(cursor.accept("|") || cursor.accept(",") || cursor.accept("or")) {
            break;
        }
    }
    if is_open && !cursor.accept(")") {
        return None;
    }
    Some(value)
}

/// Returns the statement of a translation to constants, in the form of those that are read from the kernel.
fn nat_statement(
    kind: NatKind,
    addresses: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
    reading: &mut Reading,
) -> Option<Foreign> {
    if let Some((first, _)) = addresses {
        reading.require(Requirements { family: Some(IpFamily::of(first)), protocol: None });
    }
    Some(Foreign::Nat { kind, addresses, ports })
}

type Target = (Option<(IpAddr, IpAddr)>, Option<(u16, u16)>);

/// Reads the new address and port of a translation.
fn target(text: &str) -> Option<Target> {
    if let Some(text) = text.strip_prefix(':') {
        return Some((None, Some(ports(text)?)));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((Some((address.ip(), address.ip())), Some((address.port(), address.port()))));
    }
    if let Ok(net) = text.parse::<IpNet>() {
        return Some((Some((net.network(), net.broadcast())), None));
    }
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse::<IpAddr>().ok()?, last.parse::<IpAddr>().ok()?))
    };
    if let Some(addresses) = range(text) {
        return Some((Some(addresses), None));
    }
    let (addresses, rest) = match text.strip_prefix('[') {
        Some(text) => text.split_once("]:")?,
        None => text.rsplit_once(':')?,
    };
    Some((Some(range(addresses)?), Some(ports(rest)?)))
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| u16::try_from(Words::Port.parse(text)?).ok();
    Some((port(first)?, port(last)?))
}

fn network(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let mut nets = (0..=128).filter_map(|length| IpNet::new(first, length).ok());
    nets.find(|net| net.network() == first && net.broadcast() == last)
}

/// Reads the flags of a translation (`NF_NAT_RANGE_*`).
fn nat_flags(cursor: &mut Cursor<'_>) -> u32 {
    let mut flags = 0;
    loop {
        flags |= match cursor.peek() {
            "random" => 1 << 2,
            "persistent" => 1 << 3,
            "fully-random" => 1 << 4,
            "," => 0,
            _ => return flags,
        };
        cursor.at += 1;
    }
}

fn reject(cursor: &mut Cursor<'_>) -> Option<RejectWith> {
    if !cursor.accept("with") {
        return Some(RejectWith::PortUnreachable);
    }
    let kind = cursor.take();
    if kind == "tcp" {
        return cursor.accept("reset").then_some(RejectWith::TcpReset);
    }
    cursor.accept("type");
    RejectWith::parse(kind, cursor.take())
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

/// Reads what `nft` prints after `#` for what it cannot express: `xt_tcp`, `xt_MASQUERADE`.
fn remark(cursor: &mut Cursor<'_>, reading: &mut Reading) {
    cursor.at += 1;
    let name = cursor.take().trim_start_matches(MODULE);
    let kind = if name.starts_with(char::is_uppercase) { "target" } else { "match" };
    extension(kind, name, reading);
}

/// Adds a module or target of `iptables`, whose options `nft` does not print.
fn extension(kind: &str, name: &str, reading: &mut Reading) -> Option<()> {
    match (kind, name) {
        ("match", "comment") => reading.opaque("xt match \"comment\"".to_owned(), Outcome::Nothing),
        ("match", name) => reading.opaque(format!("xt match \"{name}\""), Outcome::Condition),
        ("target", "MASQUERADE") => reading.statements.push(Statement::Masquerade { fully_random: false }),
        ("target", name) => reading.opaque(format!("-j {name}"), Outcome::Iptables),
        _ => return None,
    }
    Some(())
}

/// Adds words that are not supported: as a condition, if a statement follows that decides something.
fn unknown(cursor: &mut Cursor<'_>, reading: &mut Reading) {
    let (start, mut depth) = (cursor.at, 0_i32);
    cursor.at += 1;
    while !cursor.is_at_end() {
        match cursor.peek() {
            "{" => depth += 1,
            "}" => depth -= 1,
            word if depth == 0 && STATEMENTS.contains(&word) => break,
            _ => {}
        }
        cursor.at += 1;
    }
    let outcome = if cursor.is_at_end() { Outcome::Anything } else { Outcome::Condition };
    reading.opaque(format!("unknown: {}", join(cursor.since(start))), outcome);
}

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
