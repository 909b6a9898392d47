//! Comparisons with values, ranges and flags.

use std::net::IpAddr;

use ferroute_core::IpFamily;

use super::super::{lexer::Cursor, set::value};
use crate::model::{CmpOp, Foreign, Operand, Value, Words};

/// Reads a comparison with a value or a range.
pub(super) fn comparison(operand: Operand, cursor: &mut Cursor<'_>, family: IpFamily) -> Option<Foreign> {
    let words = operand.property.words(family);
    let mut mask = u128::MAX;
    if ["&", "and"].contains(&cursor.peek()) {
        cursor.at += 1;
        mask = flags_value(cursor, words)?;
    }
    let mut flipped = 0;
    match cursor.peek() {
        "^" | "xor" => {
            cursor.at += 1;
            flipped = flags_value(cursor, words)?;
        }
        // Setting bits is equivalent to clearing and flipping them.
        "|" | "or" => {
            cursor.at += 1;
            flipped = flags_value(cursor, words)?;
            let whole = match words {
                Words::Hexadecimal(digits) => {
                    u128::MAX.checked_shr(u128::BITS.saturating_sub(4 * u32::from(digits))).unwrap_or(0)
                }
                _ => u128::MAX,
            };
            mask &= whole & !flipped;
        }
        _ => {}
    }
    // Tests that none of these flags is set.
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
    if flipped != 0 && eq.is_none() {
        return None;
    }
    // A value is equal if it is so before bits of both are flipped.
    let compare = |operand: Operand, value: u128| Foreign::Compare {
        operand,
        op: op.unwrap_or(CmpOp::Eq),
        value: value ^ flipped,
    };
    if let (Words::Hexadecimal(8), Some((number, length))) = (words, text.split_once('/')) {
        // A prefix of a mark.
        let bits: u32 = length.parse().ok().filter(|bits| (1..=32).contains(bits))?;
        let operand = Operand { mask: u128::from(u32::MAX << (32 - bits)), ..operand };
        return Some(compare(operand, words.parse(number)?));
    }
    match value(&text, words)? {
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

/// Returns the next word, or the one after an equality operator.
pub(super) fn after_operator<'t>(cursor: &Cursor<'t>) -> &'t str {
    if ["!=", "=="].contains(&cursor.peek()) { cursor.peek_at(1) } else { cursor.peek() }
}

/// Reads the mask of a field in a lookup: `ip saddr & 255.255.255.0 @nets`. If there is none, the position does not
/// change.
pub(super) fn mask_of_key(cursor: &mut Cursor<'_>, words: Words) -> Option<u128> {
    let start = cursor.at;
    let mask = if cursor.accept("&") { flags_value(cursor, words) } else { None };
    let after = after_operator(cursor);
    let is_key = after.starts_with('@') || ["{", "vmap", "map", ".", ""].contains(&after);
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
