//! Expressions in which rules written by netlink differ from those that `iptables-restore` writes, with the reasons.

use std::collections::BTreeSet;

use ferroute_core::IpFamily;

use super::netlink_dump::Object;

/// A difference between expressions of the same rule.
pub(crate) struct KnownDifference {
    pub(crate) reason: &'static str,
    /// Whether the difference must occur in rules of this family that this version of the programs writes. It may also
    /// occur with others.
    pub(crate) occurs: fn([u16; 3], IpFamily) -> bool,
    /// Returns the translation of the first expressions; `None` if they are different.
    translate: fn(&[String]) -> Option<Translation>,
}

/// Number of expressions of the programs, and the expressions that are written by netlink instead.
type Translation = (usize, Vec<String>);

pub(crate) static KNOWN_DIFFERENCES: [KnownDifference; 7] = [
    KnownDifference {
        reason: "versions before 1.8.8 read ports of TCP in the structure of the module only",
        occurs: |version, _| version >= [1, 8, 9],
        translate: |expressions| port(expressions, "tcp"),
    },
    KnownDifference {
        reason: "versions before 1.8.8 read ports of UDP in the structure of the module only",
        occurs: |version, _| version >= [1, 8, 9],
        translate: |expressions| port(expressions, "udp"),
    },
    KnownDifference {
        reason: "versions before 1.8.8 read a mark in the structure of the module only",
        occurs: |version, _| version >= [1, 8, 9],
        translate: mark,
    },
    KnownDifference {
        reason: "versions before 1.8.7 ignore the length of a prefix unless there is a mask",
        occurs: |version, _| version >= [1, 8, 9],
        translate: prefix,
    },
    KnownDifference {
        reason: "older kernels and versions have revision 0 only, which is the same on machines with 64 bits",
        occurs: |version, _| version >= [1, 8, 9],
        translate: nfacct,
    },
    KnownDifference {
        reason: "the protocol of IPv4 and IPv6 packets is found in the same way, and versions before 1.8.10 do it, too",
        occurs: |version, family| version >= [1, 8, 10] && family == IpFamily::V4,
        translate: protocol,
    },
    KnownDifference {
        reason: ORDER,
        occurs: |version, _| version < [1, 8, 10],
        // The expressions may have other differences, too.
        translate: |_| None,
    },
];

const ORDER: &str =
    "most rules are for other addresses, so addresses are compared first; versions before 1.8.10 do it last";

/// Compares the rules that `iptables-restore` wrote with those that were written by netlink, and returns the reasons of
/// the differences.
///
/// # Panics
///
/// If there is an unknown difference.
pub(crate) fn compare(programs: &[Object], netlink: &[Object], name: &str) -> BTreeSet<&'static str> {
    let heads = |objects: &[Object]| -> Vec<String> { objects.iter().map(|object| object.head.clone()).collect() };
    assert_eq!(heads(programs), heads(netlink), "{name}: tables, chains, or chains of rules");
    let mut occurred = BTreeSet::new();
    for (one, other) in programs.iter().zip(netlink) {
        if one != other && !compare_rule(&one.expressions, &other.expressions, &mut occurred) {
            panic!("{name}: the programs write {one:#?}, by netlink it is {other:#?}");
        }
    }
    occurred
}

/// Reports whether all differences are known, and adds their reasons.
fn compare_rule(programs: &[String], mut netlink: &[String], occurred: &mut BTreeSet<&'static str>) -> bool {
    let ordered = addresses_first(programs);
    if ordered != programs {
        occurred.insert(ORDER);
    }
    let mut programs = &ordered[..];
    while let Some(expression) = programs.first() {
        if netlink.first() == Some(expression) {
            (programs, netlink) = (&programs[1..], &netlink[1..]);
            continue;
        }
        let known = KNOWN_DIFFERENCES.iter().find_map(|difference| {
            let (replaced, replacement) = (difference.translate)(programs)?;
            Some((difference, replaced, netlink.strip_prefix(&replacement[..])?))
        });
        let Some((difference, replaced, rest)) = known else { return false };
        occurred.insert(difference.reason);
        (programs, netlink) = (&programs[replaced..], rest);
    }
    netlink.is_empty()
}

fn port(expressions: &[String], module: &str) -> Option<Translation> {
    let [load, compare, ..] = expressions else { return None };
    let port = equals(compare)?;
    let port = u16::from_str_radix(port, 16).ok().filter(|_| load == "payload to=1 base=2 offset=2 length=2")?;
    let port: String = port.to_ne_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let info = format!("0000ffff{port}{port}{}", "00".repeat(8));
    Some((2, vec![format!("match name={module} revision=0 info={info}")]))
}

fn mark(expressions: &[String]) -> Option<Translation> {
    let [load, mask, compare, ..] = expressions else { return None };
    let mask = mask.strip_prefix("bitwise from=1 to=1 length=4 operation=0 mask={value=")?;
    let mask = mask.strip_suffix("} xor={value=00000000}").filter(|_| load == "meta key=3 to=1")?;
    let (mark, inverted) = match equals(compare) {
        Some(mark) => (mark, "00"),
        None => (differs(compare)?, "01"),
    };
    Some((3, vec![format!("match name=mark revision=1 info={mark}{mask}{inverted}{}", "00".repeat(7))]))
}

fn prefix(expressions: &[String]) -> Option<Translation> {
    let [load, compare, ..] = expressions else { return None };
    let (offset, length) = load.strip_prefix("payload to=1 base=1 offset=")?.split_once(" length=")?;
    let complete = if matches!(offset, "12" | "16") { 4 } else { 16 };
    let bytes = equals(compare).or_else(|| differs(compare))?;
    let length: usize = length.parse().ok().filter(|length| 2 * length == bytes.len())?;
    let rest = "00".repeat(complete - length);
    let (mask, xor) = ("ff".repeat(length) + &rest, "00".repeat(complete));
    Some((
        2,
        vec![
            format!("payload to=1 base=1 offset={offset} length={complete}"),
            format!("bitwise from=1 to=1 length={complete} operation=0 mask={{value={mask}}} xor={{value={xor}}}"),
            compare.replace(bytes, &format!("{bytes}{rest}")),
        ],
    ))
}

fn nfacct(expressions: &[String]) -> Option<Translation> {
    let info = expressions.first()?.strip_prefix("match name=nfacct revision=1 ")?;
    Some((1, vec![format!("match name=nfacct revision=0 {info}")]))
}

fn protocol(expressions: &[String]) -> Option<Translation> {
    let load = expressions.first()?;
    (load == "payload to=1 base=1 offset=9 length=1").then(|| (1, vec!["meta key=16 to=1".to_owned()]))
}

/// Moves the comparisons of addresses before those of interfaces and the protocol.
fn addresses_first(expressions: &[String]) -> Vec<String> {
    let begins = |at: usize, text: &str| expressions.get(at).is_some_and(|expression| expression.starts_with(text));
    let mut addresses = 0;
    while ["6", "7", "16"].iter().any(|key| begins(addresses, &format!("meta key={key} "))) {
        addresses += 2;
    }
    let mut end = addresses;
    while ["8", "12", "16", "24"].iter().any(|offset| begins(end, &format!("payload to=1 base=1 offset={offset} "))) {
        end += if begins(end + 1, "bitwise ") { 3 } else { 2 };
    }
    [&expressions[addresses..end], &expressions[..addresses], &expressions[end..]].concat()
}

/// Returns the value that a comparison requires.
fn equals(comparison: &str) -> Option<&str> {
    comparison.strip_prefix("cmp from=1 operation=0 data={value=")?.strip_suffix('}')
}

/// Returns the value that a comparison excludes.
fn differs(comparison: &str) -> Option<&str> {
    comparison.strip_prefix("cmp from=1 operation=1 data={value=")?.strip_suffix('}')
}
