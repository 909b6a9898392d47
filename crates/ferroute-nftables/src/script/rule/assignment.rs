//! Assignments of marks and other values.

use super::{
    super::{
        expression,
        lexer::{Cursor, join},
    },
    Reading, RuleReader,
};
use crate::model::{Foreign, Outcome, Words};

impl RuleReader {
    /// Reads the value of `meta mark set` and others.
    pub(super) fn assign(
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
}

/// What a statement assigns a value to.
pub(super) enum Assigned {
    /// A mark.
    Mark { to_connection: bool },
    /// A part of a header that rules and routes depend on.
    Header,
    /// Something that no rule here matches on.
    Other,
}

/// Reads the beginning of an assignment: `meta mark set`. The position stays if this is none.
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
