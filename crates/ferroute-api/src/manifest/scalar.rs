//! What a YAML scalar without quotes means: the rules of YAML 1.1 as `kubectl` applies them, which differ from those of
//! YAML 1.2 in the words for booleans (`on`, `y`) and in octal numbers (`0777`).

use std::borrow::Cow;

use super::value::Value;

/// A number, in the narrowest of the three forms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Signed(i64),
    Unsigned(u64),
    Float(f64),
}

/// Gives a scalar without quotes its type.
pub(super) fn resolve(text: Cow<'_, str>) -> Value<'_> {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true, text),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false, text)
        }
        _ if number(&text).is_some() => Value::Number(text),
        _ => Value::Text(text),
    }
}

/// Reads a number: whole ones with sign, underscores and the prefixes `0x`, `0o`, `0b` and `0` (octal), decimal
/// fractions, and the words for what is not finite. What is too big for a float is text: `123e4567` may well be the
/// short hash of a commit.
pub(super) fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return None;
    }
    match text {
        ".nan" | ".NaN" | ".NAN" => return Some(Number::Float(f64::NAN)),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Some(Number::Float(f64::INFINITY)),
        "-.inf" | "-.Inf" | "-.INF" => return Some(Number::Float(f64::NEG_INFINITY)),
        _ => {}
    }
    let plain: Cow<'_, str> = if text.contains('_') { text.replace('_', "").into() } else { text.into() };
    whole(&plain).or_else(|| fraction(&plain))
}

fn whole(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // The library's parser takes a sign here, which would be a second one.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        return 0i64.checked_sub_unsigned(size).map(Number::Signed);
    }
    Some(i64::try_from(size).map_or(Number::Unsigned(size), Number::Signed))
}

/// Digits with at most one point among them and an exponent of digits behind; not the words that Rust reads too.
fn fraction(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let shaped = all_digits(before)
        && all_digits(after)
        && !(before.is_empty() && after.is_empty())
        && !exponent.is_empty()
        && all_digits(exponent);
    let value = shaped.then(|| text.parse::<f64>().ok()).flatten()?;
    value.is_finite().then_some(Number::Float(value))
}
