//! Statements of other programs' rules that are not evaluated: their text and possible effects.

use ferroute_netlink::nf_tables::{NFTA_LOG_GROUP, NFTA_LOG_PREFIX};

use super::{super::constants::*, Parts};
use crate::model::{Outcome, Printable};

/// Returns the text of a statement in `nft` syntax, and its possible effects; `None` if it is unknown.
pub(super) fn text(parts: &Parts<'_>) -> Option<(String, Outcome)> {
    let number = |kind| parts.get(kind).and_then(|value| value.u64_be().ok());
    let short = |kind| parts.get(kind).and_then(|value| value.u16_be().ok());
    let flag = |kind, bit: u32| parts.u32(kind).is_some_and(|flags| flags & bit != 0);
    Some(match &*parts.expression.name {
        "log" => {
            let mut text = "log".to_owned();
            if let Some(prefix) = parts.text(NFTA_LOG_PREFIX) {
                text += &format!(" prefix \"{}\"", Printable(prefix));
            }
            if let Some(group) = short(NFTA_LOG_GROUP) {
                text += &format!(" group {group}");
            }
            (text, Outcome::Nothing)
        }
        "limit" => (limit(parts)?, Outcome::Condition),
        "last" => ("last".to_owned(), Outcome::Nothing),
        "quota" => {
            let over = if flag(2, 1) { "over " } else { "" };
            (format!("quota {over}{}", bytes(number(1)?)), Outcome::Condition)
        }
        "connlimit" => {
            let over = if flag(2, 1) { "over " } else { "" };
            let text = format!("ct count {over}{}", parts.u32(1)?);
            let outcome = Outcome::of_connection_count(&text);
            (text, outcome)
        }
        "queue" => {
            let (first, total) = (short(1).unwrap_or(0), short(2).unwrap_or(1).max(1));
            let names = [(1, "bypass"), (2, "fanout")];
            let flags = short(3).unwrap_or(0);
            let flags: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
            let flags = if flags.is_empty() { String::new() } else { format!("flags {} ", flags.join(",")) };
            let last = u32::from(first) + u32::from(total) - 1;
            let range = if total == 1 { first.to_string() } else { format!("{first}-{last}") };
            (format!("queue {flags}to {range}"), Outcome::Queue)
        }
        // A copy is sent to another host.
        "dup" => ("dup".to_owned(), Outcome::Nothing),
        "fwd" => ("fwd".to_owned(), Outcome::Anything),
        "synproxy" => {
            (format!("synproxy mss {} wscale {}", short(1).unwrap_or(0), parts.get(2)?.u8().ok()?), Outcome::Anything)
        }
        "objref" => {
            let kinds = [
                (1, "counter name", Outcome::Nothing),
                (2, "quota name", Outcome::Condition),
                (3, "ct helper set", Outcome::Nothing),
                (4, "limit name", Outcome::Condition),
                (5, "ct count name", Outcome::Condition),
                (7, "ct timeout set", Outcome::Nothing),
                (8, "meta secmark set", Outcome::Nothing),
                (9, "ct expectation set", Outcome::Nothing),
                (10, "synproxy name", Outcome::Anything),
            ];
            match (parts.u32(1), parts.text(2), parts.text(4)) {
                (Some(kind), Some(name), _) => {
                    let (_, text, outcome) = kinds.into_iter().find(|(number, ..)| *number == kind)?;
                    (format!("{text} \"{}\"", Printable(name)), outcome)
                }
                (_, _, Some(map)) => (format!("object of @{}", Printable(map)), Outcome::Condition),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn limit(parts: &Parts<'_>) -> Option<String> {
    let number = |kind| parts.get(kind).and_then(|value| value.u64_be().ok());
    let (rate, unit) = (number(NFTA_LIMIT_RATE)?, number(NFTA_LIMIT_UNIT)?);
    let unit = match unit {
        1 => "second",
        60 => "minute",
        3_600 => "hour",
        86_400 => "day",
        604_800 => "week",
        _ => return None,
    };
    let over = if parts.u32(NFTA_LIMIT_FLAGS).is_some_and(|flags| flags & 1 != 0) { "over " } else { "" };
    if parts.u32(NFTA_LIMIT_TYPE) == Some(1) {
        let burst = parts.u32(NFTA_LIMIT_BURST).filter(|burst| *burst > 0);
        let burst = burst.map_or_else(String::new, |burst| format!(" burst {}", bytes(burst.into())));
        return Some(format!("limit rate {over}{}/{unit}{burst}", bytes(rate)));
    }
    let burst = parts.u32(NFTA_LIMIT_BURST).filter(|burst| *burst != DEFAULT_BURST);
    let burst = burst.map_or_else(String::new, |burst| format!(" burst {burst} packets"));
    Some(format!("limit rate {over}{rate}/{unit}{burst}"))
}

/// Returns a number of bytes as `nft` prints it: in the largest unit of which it is a multiple.
fn bytes(number: u64) -> String {
    let (mut number, mut unit) = (number, "bytes");
    for greater in ["kbytes", "mbytes"] {
        if number == 0 || !number.is_multiple_of(1024) {
            break;
        }
        (number, unit) = (number / 1024, greater);
    }
    format!("{number} {unit}")
}

/// Burst in packets that `nft` uses for a limit without one.
const DEFAULT_BURST: u32 = 5;
// `include/uapi/linux/netfilter/nf_tables.h`.
