//! Text of match modules of protocols that few rules name, and of rates.

use super::*;
use crate::PortRange;

/// Adds an option to the text of a module: whether it is negated, and its words.
type AddOption<'a> = &'a mut dyn FnMut(bool, String) -> Option<()>;

/// `struct xt_sctp_info`, with conditions on chunks.
pub(super) fn sctp(bytes: &[u8], option: AddOption<'_>) -> Option<()> {
    let (flags, inverted) = (u32_at(bytes, 284)?, u32_at(bytes, 288)?);
    for (name, at, bit) in [("sport", 4, 1), ("dport", 0, 2)] {
        if flags & bit != 0 {
            option(inverted & bit != 0, format!("{name} {}", ports(bytes, at)?))?;
        }
    }
    if flags & 4 == 0 {
        return Some(());
    }
    let which = *[(1, "any"), (2, "all"), (4, "only")].iter().find(|(kind, _)| u32_at(bytes, 264) == Some(*kind))?;
    let map = bytes.get(8..264)?;
    let is_set = |kind: u8| map.get(..32).is_some_and(|map| native_bit(map, kind));
    let chunks = if map.iter().all(|byte| *byte == u8::MAX) {
        "ALL".to_owned()
    } else if map.iter().all(|byte| *byte == 0) {
        "NONE".to_owned()
    } else {
        let text = |kind| Some(format!("{}{}", chunk_name(kind), chunk_flags(bytes, kind)?));
        (0..=u8::MAX).filter(|kind| is_set(*kind)).map(text).collect::<Option<Vec<_>>>()?.join(",")
    };
    option(inverted & 4 != 0, format!("chunk-types {} {chunks}", which.1))
}

/// Reports whether a bit of an array of 32-bit numbers is set.
fn native_bit(numbers: &[u8], bit: u8) -> bool {
    u32_at(numbers, usize::from(bit / 32) * 4).is_some_and(|number| number >> (bit % 32) & 1 != 0)
}

/// Returns the name of a type of chunks.
fn chunk_name(kind: u8) -> String {
    let known = CHUNKS.iter().find(|(number, ..)| *number == kind);
    known.map_or_else(|| kind.to_string(), |(_, name, _)| (*name).to_owned())
}

/// Returns the condition on the flags of a type of chunks: letters of set ones in upper case.
fn chunk_flags(bytes: &[u8], kind: u8) -> Option<String> {
    let count = usize::try_from(u32_at(bytes, 280)?).ok()?.min(4);
    let (mut value, mut mask) = (0, 0);
    for flags in bytes.get(268..280)?.chunks(3).take(count).filter(|flags| flags[0] == kind) {
        (value, mask) = (flags[1], flags[2]);
    }
    if mask == 0 {
        return Some(String::new());
    }
    let letters = CHUNKS.iter().find(|(number, ..)| *number == kind).map_or("--------", |(_, _, letters)| letters);
    let shown = letters.chars().enumerate().filter(|(n, _)| mask & 0x80 >> n != 0);
    let shown = shown.map(|(n, letter)| if value & 0x80 >> n != 0 { letter } else { letter.to_ascii_lowercase() });
    Some(std::iter::once(':').chain(shown).collect())
}

/// `struct xt_dccp_info`.
pub(super) fn dccp(bytes: &[u8], option: AddOption<'_>) -> Option<()> {
    let (flags, inverted, types) = (u16_at(bytes, 8)?, u16_at(bytes, 10)?, u16_at(bytes, 12)?);
    for (name, at, bit) in [("sport", 4, 1), ("dport", 0, 2)] {
        if flags & bit != 0 {
            option(inverted & bit != 0, format!("{name} {}", ports(bytes, at)?))?;
        }
    }
    if flags & 4 != 0 {
        let names = DCCP_TYPES.iter().enumerate().filter(|(bit, _)| types >> bit & 1 != 0).map(|(_, name)| *name);
        option(inverted & 4 != 0, format!("dccp-types {}", names.collect::<Vec<_>>().join(",")))?;
    }
    if flags & 8 != 0 {
        option(inverted & 8 != 0, format!("dccp-option {}", u8_at(bytes, 14)?))?;
    }
    Some(())
}

/// `struct xt_ipcomp`.
pub(super) fn ipcomp(bytes: &[u8], option: AddOption<'_>) -> Option<()> {
    let (first, last) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
    if (first, last) != (0, u32::MAX) {
        let range = if first == last { first.to_string() } else { format!("{first}:{last}") };
        option(u8_at(bytes, 8)? & 1 != 0, format!("ipcompspi {range}"))?;
    }
    if u8_at(bytes, 9)? != 0 {
        option(false, "compres".to_owned())?;
    }
    Some(())
}

/// `struct xt_rateest_match_info`.
pub(super) fn rateest(bytes: &[u8], option: AddOption<'_>) -> Option<()> {
    let (flags, mode) = (u16_at(bytes, 32)?, u16_at(bytes, 34)?);
    let [is_inverted, is_relative, is_delta] = [1, 4, 8].map(|bit| flags & bit != 0);
    let mode = *["", "eq", "lt", "gt"].get(usize::from(mode)).filter(|mode| !mode.is_empty())?;
    if is_delta {
        option(false, "rateest-delta".to_owned())?;
    }
    option(false, format!("rateest{} {}", if is_relative { "1" } else { "" }, text_at(bytes, 0, 16)?))?;
    for (bit, unit, first, second) in [(16, "bps", 36, 44), (32, "pps", 40, 48)] {
        if flags & bit == 0 {
            continue;
        }
        let rate = |at| {
            let rate = u32_at(bytes, at)?;
            Some(if unit == "bps" { bits(u64::from(rate) * 8) } else { rate.to_string() })
        };
        if is_delta {
            option(false, format!("rateest-{unit}1 {}", rate(first)?))?;
        }
        option(is_inverted, format!("rateest-{mode}"))?;
        let words = match (is_delta, is_relative) {
            (true, _) => format!("rateest-{unit}2 {}", rate(second)?),
            (false, true) => format!("rateest-{unit}"),
            (false, false) => format!("rateest-{unit} {}", rate(second)?),
        };
        option(false, words)?;
    }
    if is_relative {
        option(false, format!("rateest2 {}", text_at(bytes, 16, 16)?))?;
    }
    Some(())
}

/// Returns the text of target RATEEST, `struct xt_rateest_target_info`.
pub(super) fn rate_estimator(bytes: &[u8]) -> Option<String> {
    let (interval, average) = (u8_at(bytes, 16)?.cast_signed(), u8_at(bytes, 17)?);
    // The shift of a second; the shortest is a quarter of it.
    let interval = 250_000u64.checked_shl(u32::try_from(i32::from(interval) + 2).ok()?)?;
    let average = interval.checked_mul(1u64.checked_shl(average.into())?)?;
    let time = |time: u64| match time {
        1_000_000.. => format!("{:.1}s", time as f64 / 1e6),
        1_000.. => format!("{:.1}ms", time as f64 / 1e3),
        _ => format!("{time}us"),
    };
    let name = text_at(bytes, 0, 16)?;
    Some(format!(
        "RATEEST --rateest-name {name} --rateest-interval {} --rateest-ewmalog {}",
        time(interval),
        time(average)
    ))
}

/// Returns a rate of bits per second.
fn bits(rate: u64) -> String {
    match rate {
        1_000_000_000.. => format!("{:.0}Mbit", rate as f64 / 1e6),
        1_000_000.. => format!("{:.0}Kbit", rate as f64 / 1e3),
        _ => format!("{rate}bit"),
    }
}

fn ports(bytes: &[u8], at: usize) -> Option<PortRange> {
    Some(PortRange { first: u16_at(bytes, at)?, last: u16_at(bytes, at + 2)? })
}

/// Numbers of types of chunks, with their names and the letters of their flags from the highest bit on.
const CHUNKS: [(u8, &str, &str); 22] = [
    (0, "DATA", "----IUBE"),
    (1, "INIT", "--------"),
    (2, "INIT_ACK", "--------"),
    (3, "SACK", "--------"),
    (4, "HEARTBEAT", "--------"),
    (5, "HEARTBEAT_ACK", "--------"),
    (6, "ABORT", "-------T"),
    (7, "SHUTDOWN", "--------"),
    (8, "SHUTDOWN_ACK", "--------"),
    (9, "ERROR", "--------"),
    (10, "COOKIE_ECHO", "--------"),
    (11, "COOKIE_ACK", "--------"),
    (12, "ECN_ECNE", "--------"),
    (13, "ECN_CWR", "--------"),
    (14, "SHUTDOWN_COMPLETE", "-------T"),
    (64, "I_DATA", "----IUBE"),
    (128, "ASCONF_ACK", "--------"),
    (130, "RE_CONFIG", "--------"),
    (132, "PAD", "--------"),
    (192, "FORWARD_TSN", "--------"),
    (193, "ASCONF", "--------"),
    (194, "I_FORWARD_TSN", "--------"),
];
/// Types of DCCP packets, from 0 on.
const DCCP_TYPES: [&str; 11] =
    ["REQUEST", "RESPONSE", "DATA", "ACK", "DATAACK", "CLOSEREQ", "CLOSE", "RESET", "SYNC", "SYNCACK", "INVALID"];
