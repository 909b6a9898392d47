//! Text of match modules and targets that planned rules never have, as `iptables-save` prints it. The structures are
//! those of `include/uapi/linux/netfilter/xt_*.h`.

mod matches;
mod rare;
mod targets;

use std::net::IpAddr;

use ferroute_core::IpFamily;

pub(super) use self::{
    matches::match_text,
    targets::{nflog_text, numbered_set, target_sets, target_text},
};
use crate::extension::Structure;

/// Returns the text in a field of this length.
fn text_at(bytes: &[u8], at: usize, length: usize) -> Option<&str> {
    str::from_utf8(bytes.get(at..at + length)?.split(|byte| *byte == 0).next()?).ok()
}

fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn address(bytes: &[u8], at: usize, family: IpFamily) -> Option<IpAddr> {
    let bytes = bytes.get(at..)?;
    Some(match family {
        IpFamily::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        IpFamily::V6 => IpAddr::from(*bytes.first_chunk::<16>()?),
    })
}
