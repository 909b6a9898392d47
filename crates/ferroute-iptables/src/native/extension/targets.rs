//! The structures of targets.

use ferroute_core::IpFamily;

use super::{Extension, Info, is_of, put_address};
use crate::{RejectWith, Target};

impl Extension<'static> {
    /// Returns the module of a target; `None` if it is a verdict or not supported.
    pub(in crate::native) fn of_target(family: IpFamily, target: &Target) -> Option<Self> {
        Some(match target {
            Target::Mark { value, mask } => Self::new("MARK", 2, 8, |info| info.put_u32(0, *value).put_u32(4, *mask)),
            Target::Masquerade { random_fully } => {
                let flags = if *random_fully { NAT_RANDOM_FULLY } else { 0 };
                match family {
                    IpFamily::V4 => Self::new("MASQUERADE", 0, 24, |info| info.put_u32(0, 1).put_u32(4, flags)),
                    IpFamily::V6 => Self::new("MASQUERADE", 0, 40, |info| info.put_u32(0, flags)),
                }
            }
            Target::Dnat { address, port } => {
                is_of(family, *address).then_some(())?;
                let flags = NAT_MAP_IPS | port.map_or(0, |_| NAT_PROTO_SPECIFIED);
                let port = port.unwrap_or(0).to_be_bytes();
                Self::new("DNAT", 2, 48, |info| {
                    let info = put_address(put_address(info.put_u32(0, flags), 4, *address), 20, *address);
                    info.put(36, &port).put(38, &port)
                })
            }
            Target::Reject(with) => {
                let number = reject_words(family).iter().find(|(_, word)| *word == with.as_str())?.0;
                Self::new("REJECT", 0, 8, |info| info.put_u32(0, number))
            }
            Target::Jump(_)
            | Target::Goto(_)
            | Target::Accept
            | Target::Drop
            | Target::Return
            | Target::Snat { .. }
            | Target::Other(_) => return None,
        })
    }
}

impl Extension<'_> {
    /// Returns the target; `None` if it has options that [`Target`] cannot represent.
    pub(in crate::native) fn to_target(&self, family: IpFamily) -> Option<Target> {
        let Self { name, revision, info } = self;
        match (&**name, revision, family) {
            ("MARK", 2, _) => Some(Target::Mark { value: info.u32(0)?, mask: info.u32(4)? }),
            ("MASQUERADE", 0, _) => {
                let at = if family == IpFamily::V4 { 4 } else { 0 };
                let flags = info.u32(at)?;
                let random_fully = flags == NAT_RANDOM_FULLY;
                (random_fully || flags == 0).then_some(Target::Masquerade { random_fully })
            }
            ("DNAT", 2, _) => translation(family, info, [4, 20, 36, 38]),
            // `struct nf_nat_range`, and `nf_nat_ipv4_multi_range_compat` with one range.
            ("DNAT", 1, IpFamily::V6) => translation(family, info, [4, 20, 36, 38]),
            ("DNAT", 0, IpFamily::V4) if info.u32(0)? == 1 => {
                let range = Info::Borrowed(info.as_bytes().get(4..)?);
                translation(family, &range, [4, 8, 12, 14])
            }
            ("REJECT", 0, _) => {
                let number = info.u32(0)?;
                let (_, word) = reject_words(family).iter().find(|(code, _)| *code == number)?;
                Some(Target::Reject(RejectWith::from_word(word)))
            }
            _ => None,
        }
    }
}

/// Returns the destination of a range of one address and at most one port, whose parts have these offsets.
fn translation(family: IpFamily, info: &Info<'_>, [first, last, first_port, last_port]: [usize; 4]) -> Option<Target> {
    let flags = info.u32(0)?;
    let (address, port) = (info.address(family, first)?, info.port_be(first_port)?);
    let is_one = address == info.address(family, last)? && port == info.port_be(last_port)?;
    (is_one && flags & !NAT_PROTO_SPECIFIED == NAT_MAP_IPS).then_some(())?;
    Some(Target::Dnat { address, port: (flags & NAT_PROTO_SPECIFIED != 0).then_some(port) })
}

/// The numbers of `enum ipt_reject_with` and `ip6t_reject_with`.
fn reject_words(family: IpFamily) -> &'static [(u32, &'static str)] {
    match family {
        IpFamily::V4 => &[
            (0, "icmp-net-unreachable"),
            (1, "icmp-host-unreachable"),
            (2, "icmp-proto-unreachable"),
            (3, "icmp-port-unreachable"),
            (5, "icmp-net-prohibited"),
            (6, "icmp-host-prohibited"),
            (7, "tcp-reset"),
            (8, "icmp-admin-prohibited"),
        ],
        IpFamily::V6 => &[
            (0, "icmp6-no-route"),
            (1, "icmp6-adm-prohibited"),
            (3, "icmp6-addr-unreachable"),
            (4, "icmp6-port-unreachable"),
            (6, "tcp-reset"),
            (7, "icmp6-policy-fail"),
            (8, "icmp6-reject-route"),
        ],
    }
}

const NAT_MAP_IPS: u32 = 1 << 0;
const NAT_PROTO_SPECIFIED: u32 = 1 << 1;
const NAT_RANDOM_FULLY: u32 = 1 << 4;
