//! Values of flags in the syntax of Go's flag library.

use std::{ops::RangeInclusive, str::FromStr};

use crate::VModuleItem;

/// A boolean: `--flag`, `--flag=true`, `--flag=0` and so on, but not `--flag true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch(pub bool);

/// A value of `--feature-gates`: names and whether they are enabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates(pub Vec<(String, bool)>);

/// A value of `--vmodule`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VModule(pub Vec<VModuleItem>);

/// A value of a flag that is a list: comma-separated items, which may be quoted as in CSV; no items if it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct List(pub(super) Vec<String>);

/// A value of `--version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionRequest {
    /// Do not print the version.
    No,
    /// Print one line.
    Short,
    /// Print details.
    Raw,
    /// Ignored; kube-proxy runs and reports this version.
    Claim(String),
}

/// A value of `--protect-node-ports`: all ports, none, or single ones and ranges such as `22,10250-10259`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRanges(pub Vec<RangeInclusive<u16>>);

/// A flag's value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a boolean.
    #[error("not a boolean (want true or false)")]
    Switch,
    /// Not a feature gate.
    #[error("not a feature gate (want NAME=true or NAME=false)")]
    Gate,
    /// Not an item of `--vmodule`.
    #[error("not a log level for a source file (want PATTERN=LEVEL)")]
    VModule,
    /// Not an integer.
    #[error("not an integer of 32 bits")]
    Integer,
    /// Not a number.
    #[error("not a number of 32 bits")]
    Number,
    /// Not a port.
    #[error("not a port number")]
    Port,
    /// Not a log level.
    #[error("not a log level (want a number)")]
    Level,
    /// Quotes that are not those of CSV.
    #[error("not a list (want items separated by commas, in double quotes as a whole or not at all)")]
    List,
    /// Not a list of ports.
    #[error("not a list of ports (want true, false, or ports and ranges such as 22,10250-10259)")]
    Ports,
    /// Not a version request.
    #[error("not a form of the version (want true, false or raw)")]
    Version,
}

/// Parses an integer in the syntax of Go: decimal, or in the base that the prefix denotes; digits may be grouped by `_`.
pub(super) fn integer(text: &str) -> Result<i32, ValueError> {
    let (sign, number) = sign(text);
    let number = number.to_ascii_lowercase();
    let (base, digits) = match number.as_bytes() {
        [b'0', b'x', ..] => (16, &number[2..]),
        [b'0', b'o', ..] => (8, &number[2..]),
        [b'0', b'b', ..] => (2, &number[2..]),
        [b'0', _, ..] => (8, &number[1..]),
        _ => (10, &*number),
    };
    // A prefix counts as a digit.
    let digits = ungrouped(digits, base != 10).ok_or(ValueError::Integer)?;
    if !digits.chars().all(|digit| digit.is_digit(base)) {
        return Err(ValueError::Integer);
    }
    i32::from_str_radix(&format!("{sign}{digits}"), base).map_err(|_| ValueError::Integer)
}

/// Parses the number of a port in the syntax of [`integer`].
pub(super) fn port(text: &str) -> Result<u16, ValueError> {
    u16::try_from(integer(text)?).map_err(|_| ValueError::Port)
}

/// Parses a log level: decimal digits.
pub(super) fn level(text: &str) -> Result<u32, ValueError> {
    let level = text.parse().ok().filter(|level| *level <= MAX_LEVEL && text.bytes().all(|byte| byte.is_ascii_digit()));
    level.ok_or(ValueError::Level)
}

/// Parses a number in the syntax of Go: decimal, or hexadecimal with an exponent of two; digits may be grouped by `_`.
pub(super) fn float(text: &str) -> Result<f32, ValueError> {
    let (sign, number) = sign(text);
    let number = number.to_ascii_lowercase();
    match (sign, number.as_str()) {
        (_, "inf" | "infinity") => return Ok(if sign == "-" { f32::NEG_INFINITY } else { f32::INFINITY }),
        ("", "nan") if text.len() == number.len() => return Ok(f32::NAN),
        _ => {}
    }
    let magnitude = match number.strip_prefix("0x") {
        Some(digits) => ungrouped(digits, true).and_then(|digits| hexadecimal(&digits)),
        None => ungrouped(&number, false).filter(|digits| is_decimal(digits)).and_then(|digits| digits.parse().ok()),
    };
    let magnitude = magnitude.filter(|magnitude: &f32| magnitude.is_finite()).ok_or(ValueError::Number)?;
    Ok(if sign == "-" { -magnitude } else { magnitude })
}

/// Returns the sign of a number, `-` or nothing, and the rest.
fn sign(text: &str) -> (&str, &str) {
    match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    }
}

/// Returns a number without the `_` in it; `None` if one is not between two digits. `has_prefix` reports whether a
/// prefix of the base, which counts as a digit, is before the number.
fn ungrouped(number: &str, has_prefix: bool) -> Option<String> {
    let bytes = number.as_bytes();
    let is_grouping = |at: usize| {
        let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
        (if at == 0 { has_prefix } else { is_digit(bytes.get(at - 1)) }) && is_digit(bytes.get(at + 1))
    };
    let is_valid = bytes.iter().enumerate().all(|(at, byte)| *byte != b'_' || is_grouping(at));
    is_valid.then(|| number.replace('_', ""))
}

/// Reports whether this is a decimal number without a sign: the parser also accepts names and signs.
fn is_decimal(number: &str) -> bool {
    number.starts_with(|first: char| first.is_ascii_digit() || first == '.')
}

/// Returns the value of hexadecimal digits with a point and an exponent of two, such as `1.8p1`.
fn hexadecimal(number: &str) -> Option<f32> {
    let (digits, exponent) = number.split_once('p')?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digit = |value: Option<f64>, digit: char| Some(value? * 16.0 + f64::from(digit.to_digit(16)?));
    let value = whole.chars().chain(fraction.chars()).fold(Some(0.0), digit)?;
    let exponent = exponent.parse::<i32>().ok()?;
    let scale = 4_i32.checked_mul(i32::try_from(fraction.len()).ok()?)?;
    // The range of the result is checked by the caller.
    #[expect(clippy::cast_possible_truncation, reason = "a number is rounded to 32 bits")]
    let result = (value * f64::from(exponent.checked_sub(scale)?).exp2()) as f32;
    Some(result)
}

/// The highest log level.
const MAX_LEVEL: u32 = i32::MAX as u32;

impl FromStr for Switch {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Self(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Self(false)),
            _ => Err(ValueError::Switch),
        }
    }
}

impl FromStr for Gates {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let gates = items(text).map(|item| {
            let (name, value) = item.split_once('=').ok_or(ValueError::Gate)?;
            let Switch(enabled) = value.trim().parse().map_err(|_| ValueError::Gate)?;
            Ok((name.trim().to_owned(), enabled))
        });
        gates.collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for VModule {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let levels = items(text).map(|item| {
            let (pattern, level) = item.split_once('=').filter(|(pattern, _)| !pattern.is_empty())?;
            Some(VModuleItem { file_pattern: pattern.to_owned(), verbosity: self::level(level).ok()? })
        });
        levels.collect::<Option<_>>().map(Self).ok_or(ValueError::VModule)
    }
}

impl FromStr for List {
    type Err = ValueError;

    /// Reads a line of CSV, like the flag library of kube-proxy. Empty items are kept.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut rest = text.strip_suffix('\n').unwrap_or(text);
        let mut items = Vec::new();
        if rest.is_empty() {
            return Ok(Self(items));
        }
        loop {
            let item = match rest.strip_prefix('"') {
                Some(quoted) => {
                    let mut item = String::new();
                    rest = quoted;
                    loop {
                        let (part, after) = rest.split_once('"').ok_or(ValueError::List)?;
                        item.push_str(part);
                        // Two quotes stand for one.
                        match after.strip_prefix('"') {
                            Some(more) => {
                                item.push('"');
                                rest = more;
                            }
                            None => {
                                rest = after;
                                break item;
                            }
                        }
                    }
                }
                None => {
                    let (item, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                    rest = after;
                    if item.contains('"') {
                        return Err(ValueError::List);
                    }
                    item.to_owned()
                }
            };
            items.push(item);
            match rest.strip_prefix(',') {
                Some(after) => rest = after,
                None if rest.is_empty() => return Ok(Self(items)),
                None => return Err(ValueError::List),
            }
        }
    }
}

impl FromStr for PortRanges {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        // Port numbers are parsed first: `1` is a port number.
        let range = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (0 < first && first <= last).then_some(first..=last)
        };
        match (items(text).map(range).collect(), text.parse()) {
            (Some(ranges), _) => Ok(Self(ranges)),
            (None, Ok(Switch(true))) => Ok(Self(vec![1..=u16::MAX])),
            (None, Ok(Switch(false))) => Ok(Self::default()),
            (None, Err(_)) => Err(ValueError::Ports),
        }
    }
}

impl FromStr for VersionRequest {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "raw" => Ok(Self::Raw),
            claim if claim.starts_with('v') => Ok(Self::Claim(claim.to_owned())),
            _ => match text.parse() {
                Ok(Switch(true)) => Ok(Self::Short),
                Ok(Switch(false)) => Ok(Self::No),
                Err(_) => Err(ValueError::Version),
            },
        }
    }
}

/// Splits a comma-separated list, which may be empty or end with a comma.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|item| !item.is_empty())
}

/// Returns the items of all values of a flag.
pub(super) fn all_items(lists: &[List]) -> Vec<String> {
    lists.iter().flat_map(|List(items)| items.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_lines_of_csv() {
        for (text, items) in [
            ("", &[][..]),
            ("a", &["a"]),
            ("a,b", &["a", "b"]),
            ("\"a\",\"b\"", &["a", "b"]),
            ("\"a,b\",c", &["a,b", "c"]),
            ("\"a\"\"b\"", &["a\"b"]),
            ("a,", &["a", ""]),
            (",a", &["", "a"]),
            ("a, b", &["a", " b"]),
            ("\"\"", &[""]),
        ] {
            assert_eq!(
                text.parse::<List>().map(|List(items)| items),
                Ok(items.iter().map(ToString::to_string).collect())
            );
        }
        for text in ["\"a", "\"a\"b", "a\"b\"", "a, \"b\"", "\""] {
            assert_eq!(text.parse::<List>(), Err(ValueError::List), "{text}");
        }
    }

    #[test]
    fn integers_have_the_bases_of_go() {
        for (text, value) in [
            ("14", 14),
            ("+14", 14),
            ("-14", -14),
            ("0", 0),
            ("014", 12),
            ("0o14", 12),
            ("0x1F", 31),
            ("-0X1f", -31),
            ("0b101", 5),
            ("0x1_0", 16),
            ("1_000", 1000),
            ("0_17", 15),
            ("-2147483648", i32::MIN),
        ] {
            assert_eq!(integer(text), Ok(value), "{text}");
        }
        for text in ["", "-", "+", "09", "0x", "1__0", "1.5", "- 1", "--1", "0x-1", "x", "2147483648"] {
            assert_eq!(integer(text), Err(ValueError::Integer), "{text}");
        }
    }

    #[test]
    fn numbers_have_the_syntax_of_go() {
        for (text, value) in [
            ("1_0e1", 100.0),
            ("0x1p4", 16.0),
            ("0x1.8p1", 3.0),
            ("-0x.8p1", -1.0),
            (".5", 0.5),
            ("-inf", f32::NEG_INFINITY),
        ] {
            assert_eq!(float(text), Ok(value), "{text}");
        }
        assert!(float("NaN").is_ok_and(f32::is_nan));
    }
}
