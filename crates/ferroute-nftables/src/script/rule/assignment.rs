//! Assignments of marks and other values.

use super::{
    super::{
        expression,
        lexer::{Cursor, join},
        set::Fields,
    },
    Reading, RuleReader,
};
use crate::model::{ClassId, Field, Foreign, Outcome, PriorityBits, Property, Source, Statement, Value, Words};

impl RuleReader {
    /// Reads the value of `meta mark set` and others.
    pub(super) fn assign(
        &mut self,
        (begin, left_of): (usize, &Assigned),
        cursor: &mut Cursor<'_>,
        reading: &mut Reading,
    ) -> Option<()> {
        let start = cursor.at;
        let to_connection = match *left_of {
            Assigned::Mark { to_connection } => to_connection,
            Assigned::Header | Assigned::Other => {
                let left = &mut Cursor { tokens: cursor.tokens, at: begin };
                let property = expression::property(left, reading.family).filter(|_| left.peek() == "set");
                let is_header = matches!(left_of, Assigned::Header);
                let Some((property, requirements)) = property else {
                    self.skip_value(cursor, reading)?;
                    let text = join(cursor.since(begin));
                    let outcome = match text.strip_prefix("ct original zone set ") {
                        Some(zone) => Outcome::Zone(zone.parse().ok()),
                        None if is_header => Outcome::Anything,
                        None => Outcome::Nothing,
                    };
                    reading.opaque(text, outcome);
                    return Some(());
                };
                reading.require(requirements);
                if property == Property::Field(Field::MetaPriority)
                    && let Some(change) = priority_bits(cursor)
                {
                    reading.statements.push(Statement::MetaPriorityBits(change));
                    return Some(());
                }
                let value = self.written(property, cursor, reading)?;
                let is_map = matches!(value, Some(Source::Map { .. }));
                let name = property.text(reading.family);
                let text =
                    if is_map { format!("{name} set") } else { format!("{name} set {}", join(cursor.since(start))) };
                match property {
                    Property::CtZone => {
                        let zone = join(cursor.since(start)).parse().ok();
                        reading.opaque(text, Outcome::Zone(zone));
                    }
                    property if is_header && !property.is_end() => reading.opaque(text, Outcome::Anything),
                    property => reading.foreign(Foreign::Write { property, value, text }),
                }
                return Some(());
            }
        };
        if let Some((from_connection, mask, xor)) =
            mark(cursor).filter(|_| !["map", ">>", "<<"].contains(&cursor.peek()))
        {
            reading.foreign(Foreign::SetMark { to_connection, from_connection, mask, xor });
            return Some(());
        }
        cursor.at = start;
        let key = self.key(cursor, reading)?;
        if let ([number], false) = (key.as_slice(), cursor.peek() == "map") {
            if !matches!(number.property, Property::Field(Field::Jhash { .. })) {
                number.number_range()?;
            }
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

    /// Reads a value that is written; `Some(None)` if it is unknown.
    fn written(
        &mut self,
        property: Property,
        cursor: &mut Cursor<'_>,
        reading: &mut Reading,
    ) -> Option<Option<Source>> {
        let start = cursor.at;
        let is_alone = ![",", "&", "|", "^", "and", "or", "xor", ".", "map"].contains(&cursor.peek_at(1));
        let words = property.words(reading.family);
        // A name is in quotes, unlike the beginning of an expression.
        let is_alone = is_alone && (words != Words::Text || cursor.peek().starts_with('"'));
        if let Some(number) = words.parse(cursor.peek()).filter(|_| is_alone) {
            cursor.at += 1;
            return Some(Some(Source::Constant(Value::Other(number))));
        }
        if let Some(key) = self.key(cursor, reading) {
            if cursor.accept("map") {
                let map = self.set_with(cursor, &key, true, &Fields(vec![property.words(reading.family)]))?;
                return Some(Some(Source::Map { key, map }));
            }
            if let ([operand], false) = (key.as_slice(), ["&", "|", "^"].contains(&cursor.peek())) {
                return Some(Some(Source::Operand(Box::new(*operand))));
            }
        }
        cursor.at = start;
        self.skip_value(cursor, reading)?;
        Some(None)
    }
}

/// Target of an assignment.
pub(super) enum Assigned {
    /// A mark.
    Mark { to_connection: bool },
    /// A part of a header that rules and routes depend on.
    Header,
    /// A target that no supported rule matches.
    Other,
}

/// Reads the beginning of an assignment: `meta mark set`. If there is none, the position does not change.
pub(super) fn assignment(cursor: &mut Cursor<'_>) -> Option<Assigned> {
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
        ("ip" | "ip6", "saddr" | "daddr" | "protocol" | "nexthdr")
        | ("tcp", "flags")
        | ("tcp" | "udp" | "th" | "sctp", "sport" | "dport") => Assigned::Header,
        (raw, _) if raw.starts_with('@') => Assigned::Header,
        _ => Assigned::Other,
    };
    cursor.at += at + 1;
    Some(assigned)
}

/// Reads a mark: a number, or bits of another mark. Returns whether it is the connection's mark, the mask, and the
/// flipped bits.
fn mark(cursor: &mut Cursor<'_>) -> Option<(bool, u32, u32)> {
    let mut opened = 0;
    while cursor.accept("(") {
        opened += 1;
    }
    let (from_connection, mut mask, mut xor) = match (cursor.peek(), cursor.peek_at(1)) {
        ("meta", "mark") => (false, u32::MAX, 0),
        ("ct", "mark") => (true, u32::MAX, 0),
        ("mark", _) => (false, u32::MAX, 0),
        (number, _) => (false, 0, self::number(Words::Hexadecimal(8), number)?),
    };
    cursor.at += if ["meta", "ct"].contains(&cursor.peek()) { 2 } else { 1 };
    (mask, xor) = bits(cursor, opened, (mask, xor), Words::Hexadecimal(8))?;
    Some((from_connection, mask, xor))
}

/// Reads the bits of a class id: `meta priority & 5f:fffd | 50:1`. If there are none, the position does not change.
fn priority_bits(cursor: &mut Cursor<'_>) -> Option<PriorityBits> {
    let start = cursor.at;
    if (cursor.peek(), cursor.peek_at(1)) == ("meta", "priority") {
        cursor.at += 2;
        let read = bits(cursor, 0, (u32::MAX, 0), Words::ClassId).filter(|(mask, xor)| mask & xor == 0);
        // A key of a map begins in the same way.
        let is_key = [".", "map"].contains(&cursor.peek());
        if let Some((mask, xor)) = read.filter(|(mask, _)| *mask != u32::MAX && !is_key) {
            return Some(PriorityBits::new(ClassId(mask), ClassId(xor)));
        }
        cursor.at = start;
    }
    None
}

/// Reads operators on bits that were masked and flipped, with numbers in these words, in as many parentheses.
fn bits(
    cursor: &mut Cursor<'_>,
    mut opened: usize,
    (mut mask, mut xor): (u32, u32),
    words: Words,
) -> Option<(u32, u32)> {
    loop {
        if opened > 0 && cursor.accept(")") {
            opened -= 1;
            continue;
        }
        let operator = cursor.peek();
        if !["&", "|", "^", "and", "or", "xor"].contains(&operator) {
            return (opened == 0).then_some((mask, xor));
        }
        let is_after_xor = cursor.at >= 2 && cursor.tokens[cursor.at - 2].text == "xor";
        cursor.at += 1;
        let bits = number(words, cursor.take())?;
        (mask, xor) = match operator {
            // As `nft` prints `CONNMARK --set-xmark`.
            "and" if is_after_xor => (mask & bits, xor),
            "&" | "and" => (mask & bits, xor & bits),
            "|" | "or" => (mask & !bits, xor & !bits | bits),
            _ => (mask, xor ^ bits),
        };
    }
}

fn number(words: Words, text: &str) -> Option<u32> {
    u32::try_from(words.parse(text)?).ok()
}
