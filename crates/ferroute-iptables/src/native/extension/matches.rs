//! The structures of match modules.

use std::net::IpAddr;

use ferroute_core::{IpFamily, Protocol};

use super::{Extension, Info, is_of, put_address};
use crate::{
    AddressType, CtStates, MarkMatch, Match, PortList, PortRange, PortSide, Probability, Recent, RecentAction, Sense,
    SetMatch, SetSide, VirtualServerMatch, native::sets::SetNumbers,
};

impl Extension<'static> {
    /// Returns the module of a match; `None` if it is not supported, or one of an ipset whose number is unknown.
    pub(in crate::native) fn of_match(family: IpFamily, module: &Match, sets: &SetNumbers) -> Option<Self> {
        Some(match module {
            Match::Comment(text) => {
                let text = text.as_bytes();
                // The kernel requires a zero at the end.
                (text.len() < COMMENT && !text.contains(&0)).then_some(())?;
                Self::new("comment", 0, COMMENT, |info| info.put(0, text))
            }
            Match::Transport { protocol, source, destination } => {
                transport(*protocol, source.as_ref(), destination.as_ref())
            }
            Match::Conntrack(states) => conntrack(states, CONNTRACK_STATE),
            Match::State(states) => conntrack(states, CONNTRACK_STATE | CONNTRACK_STATE_ALIAS),
            Match::Mark(mark) => {
                let MarkMatch { value, mask } = *mark.value();
                Self::new("mark", 1, 16, |info| {
                    info.put_u32(0, value).put_u32(4, mask).put_u8(8, mark.is_negated().into())
                })
            }
            Match::AddrType { source, destination } => {
                let bit = |kind: &Option<Sense<AddressType>>| kind.as_ref().map_or(0, |kind| type_bit(*kind.value()));
                let negated = |kind: &Option<Sense<AddressType>>| kind.as_ref().is_some_and(Sense::is_negated);
                let flags = u32::from(negated(source)) | u32::from(negated(destination)) << 1;
                Self::new("addrtype", 1, 8, |info| {
                    info.put_u16(0, bit(source)).put_u16(2, bit(destination)).put_u32(4, flags)
                })
            }
            Match::Statistic(chance) => Self::new("statistic", 0, 24, |info| {
                let bits = chance.value().bits();
                // `iptables` also sets the counter of the other mode, which the kernel does not use in this one.
                info.put_u16(2, chance.is_negated().into()).put_u32(4, bits).put_u32(12, bits)
            }),
            Match::Recent(recent) => {
                let Recent { action, seconds, reap, name, mask } = recent;
                (name.len() < RECENT_NAME && is_of(family, *mask)).then_some(())?;
                let action = match action {
                    RecentAction::Check => RECENT_CHECK,
                    RecentAction::Set => RECENT_SET,
                };
                let reap = if *reap { RECENT_REAP } else { 0 };
                Self::new("recent", 1, 232, |info| {
                    let info = info.put_u32(0, seconds.unwrap_or(0)).put_u8(8, action | reap);
                    put_address(info.put(10, name.as_bytes()), 212, *mask)
                })
            }
            Match::Nfacct(name) => {
                (name.len() < 32).then_some(())?;
                Self::new("nfacct", 0, 40, |info| info.put(0, name.as_bytes()))
            }
            Match::PhysdevIsIn(sense) => {
                let inverted = if sense.is_negated() { PHYSDEV_IS_IN } else { 0 };
                Self::new("physdev", 0, 72, |info| info.put_u8(64, inverted).put_u8(65, PHYSDEV_IS_IN))
            }
            Match::Multiport { side, ports } => multiport(*side, ports)?,
            Match::Set(set) => set_match(set, sets.number(&set.value().name)?)?,
            Match::Ipvs(server) => virtual_server(family, server)?,
            Match::Other(_) => return None,
        })
    }
}

impl Extension<'_> {
    /// Returns the match; `None` if it has options that [`Match`] cannot represent.
    pub(in crate::native) fn to_match(&self, family: IpFamily) -> Option<Match> {
        let Self { name, revision, info } = self;
        match (&**name, revision) {
            ("comment", 0) => info.text(0, info.as_bytes().len()).map(|text| Match::Comment(text.into())),
            ("tcp", 0) => {
                let (options, inverted) = (info.is_zero_except(|at| at < 8 || at == 11), info.u8(11)?);
                options.then(|| ports_of(Protocol::Tcp, info.ports(0)?, info.ports(4)?, inverted.into()))?
            }
            ("udp", 0) => {
                let inverted = info.u8(8)?;
                ports_of(Protocol::Udp, info.ports(0)?, info.ports(4)?, inverted.into())
            }
            ("sctp", 0) => {
                let (flags, inverted) = (info.u32(284)?, info.u32(288)?);
                (flags & !(SCTP_SOURCE | SCTP_DESTINATION) == 0).then_some(())?;
                let range = |flag, at| if flags & flag == 0 { Some(PortRange::ALL) } else { info.ports(at) };
                ports_of(Protocol::Sctp, range(SCTP_SOURCE, 4)?, range(SCTP_DESTINATION, 0)?, inverted)
            }
            ("conntrack", 1..=3) => conntrack_of(info, *revision),
            ("mark", 1) => {
                let mark = MarkMatch { value: info.u32(0)?, mask: info.u32(4)? };
                Some(Match::Mark(Sense::new(info.u8(8)? != 0, mark)))
            }
            ("addrtype", 1) => {
                let flags = info.u32(4)?;
                (flags & !3 == 0).then_some(())?;
                let kind = |at, flag| match info.u16(at)? {
                    0 => Some(None),
                    bits => {
                        let (kind, _) =
                            AddressType::KERNEL_NUMBERS.into_iter().find(|(kind, _)| type_bit(*kind) == bits)?;
                        Some(Some(Sense::new(flags & flag != 0, kind)))
                    }
                };
                Some(Match::AddrType { source: kind(0, 1)?, destination: kind(2, 2)? })
            }
            ("statistic", 0) if info.u16(0)? == 0 => {
                let chance = Probability::from_bits(info.u32(4)?)?;
                Some(Match::Statistic(Sense::new(info.u16(2)? != 0, chance)))
            }
            ("recent", 0 | 1) => recent(family, info, *revision).map(Match::Recent),
            ("nfacct", 0 | 1) => Some(Match::Nfacct(info.text(0, 32)?.into())),
            ("physdev", 0) if info.u8(65)? == PHYSDEV_IS_IN => {
                Some(Match::PhysdevIsIn(Sense::new(info.u8(64)? == PHYSDEV_IS_IN, ())))
            }
            ("multiport", 1) => multiport_of(info),
            ("ipvs", 0) => virtual_server_of(family, info).map(Match::Ipvs),
            _ => None,
        }
    }

    /// Returns a match on an ipset, without the set's name, and the set's number; `None` if it is another match or has
    /// options that [`SetMatch`] cannot represent.
    pub(in crate::native) fn to_set_match(&self) -> Option<(Sense<SetMatch>, u16)> {
        let Self { name, revision, info } = self;
        // Later revisions add options, which are zero without them.
        (name == "set" && matches!(revision, 1..=4) && info.is_zero_except(|at| at < 4)).then_some(())?;
        let (dimensions, flags) = (info.u8(2)?, info.u8(3)?);
        (dimensions <= SET_DIMENSIONS && u32::from(flags) < 2 << dimensions).then_some(())?;
        let side = |n: u8| if flags & (1 << n) == 0 { SetSide::Destination } else { SetSide::Source };
        let sides = (1..=dimensions).map(side).collect();
        Some((Sense::new(flags & SET_INVERTED != 0, SetMatch { name: "".into(), sides }), info.u16(0)?))
    }
}

/// `struct xt_tcp`, `xt_udp` and `xt_sctp_info`.
fn transport(
    protocol: Protocol,
    source: Option<&Sense<PortRange>>,
    destination: Option<&Sense<PortRange>>,
) -> Extension<'static> {
    let range = |side: Option<&Sense<PortRange>>| side.map_or(PortRange::ALL, |side| *side.value());
    let inverted = |side: Option<&Sense<PortRange>>| u8::from(side.is_some_and(Sense::is_negated));
    let flags = inverted(source) | inverted(destination) << 1;
    let info = |info: Info<'static>| info.put_ports(0, range(source)).put_ports(4, range(destination));
    match protocol {
        Protocol::Tcp => Extension::new("tcp", 0, 16, |new| info(new).put_u8(11, flags)),
        Protocol::Udp => Extension::new("udp", 0, 16, |new| info(new).put_u8(8, flags)),
        Protocol::Sctp => {
            let given = |side: Option<&Sense<PortRange>>, flag| if side.is_some() { flag } else { 0 };
            let given = given(source, SCTP_SOURCE) | given(destination, SCTP_DESTINATION);
            Extension::new("sctp", 0, 296, |mut new| {
                if let Some(ports) = destination {
                    new = new.put_ports(0, *ports.value());
                }
                if let Some(ports) = source {
                    new = new.put_ports(4, *ports.value());
                }
                // As `iptables` does: no chunk type has flags.
                for flag in 0..4 {
                    new = new.put_u8(268 + 3 * flag, u8::MAX);
                }
                new.put_u32(284, given).put_u32(288, flags.into())
            })
        }
    }
}

fn ports_of(protocol: Protocol, source: PortRange, destination: PortRange, inverted: u32) -> Option<Match> {
    (inverted & !3 == 0).then_some(())?;
    let side = |range: PortRange, flag| {
        let side = Sense::new(inverted & flag != 0, range);
        (side != Sense::Is(PortRange::ALL)).then_some(side)
    };
    Some(Match::Transport { protocol, source: side(source, 1), destination: side(destination, 2) })
}

/// `struct xt_multiport_v1`: a list of ports, of which each first one of a range has a flag.
fn multiport(side: PortSide, ports: &Sense<PortList>) -> Option<Extension<'static>> {
    let ranges = ports.value().ranges();
    let count: usize = ranges.iter().map(|range| if range.first == range.last { 1 } else { 2 }).sum();
    (count <= MULTIPORT_PORTS).then_some(())?;
    let side = match side {
        PortSide::Source => 0,
        PortSide::Destination => 1,
        PortSide::Either => 2,
    };
    Some(Extension::new("multiport", 1, 48, |info| {
        let mut info = info.put_u8(0, side).put_u8(1, u8::try_from(count).unwrap_or(u8::MAX));
        let mut at = 0;
        for range in ranges {
            info = info.put_u16(2 + 2 * at, range.first);
            if range.first != range.last {
                info = info.put_u8(32 + at, 1).put_u16(2 + 2 * (at + 1), range.last);
                at += 1;
            }
            at += 1;
        }
        info.put_u8(47, ports.is_negated().into())
    }))
}

fn multiport_of(info: &Info<'_>) -> Option<Match> {
    let side = match info.u8(0)? {
        0 => PortSide::Source,
        1 => PortSide::Destination,
        2 => PortSide::Either,
        _ => return None,
    };
    let count = usize::from(info.u8(1)?);
    (count <= MULTIPORT_PORTS).then_some(())?;
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < count {
        let first = info.u16(2 + 2 * at)?;
        let is_range = info.u8(32 + at)? != 0;
        at += usize::from(is_range);
        (at < count).then_some(())?;
        ranges.push(PortRange { first, last: if is_range { info.u16(2 + 2 * at)? } else { first } });
        at += 1;
    }
    Some(Match::Multiport { side, ports: Sense::new(info.u8(47)? != 0, PortList::new(ranges)) })
}

/// `struct xt_set_info_match_v4`, with the number of the set, its dimensions and a bit for each that is a source.
fn set_match(set: &Sense<SetMatch>, number: u16) -> Option<Extension<'static>> {
    let SetMatch { name: _, sides } = set.value();
    let dimensions = u8::try_from(sides.len()).ok().filter(|dimensions| *dimensions <= SET_DIMENSIONS)?;
    let inverted = if set.is_negated() { SET_INVERTED } else { 0 };
    let flags = (1..).zip(sides).fold(inverted, |flags, (n, side)| match side {
        SetSide::Source => flags | 1 << n,
        SetSide::Destination => flags,
    });
    Some(Extension::new("set", 4, 48, |info| info.put_u16(0, number).put_u8(2, dimensions).put_u8(3, flags)))
}

/// `struct xt_ipvs_mtinfo`.
fn virtual_server(family: IpFamily, server: &VirtualServerMatch) -> Option<Extension<'static>> {
    let VirtualServerMatch { address, protocol, port } = *server;
    is_of(family, address).then_some(())?;
    Some(Extension::new("ipvs", 0, 40, |info| {
        let info = put_address(put_address(info, 0, address), 16, all_ones(family));
        info.put(32, &port.to_be_bytes()).put_u8(34, protocol.number()).put_u8(39, IPVS_SERVER)
    }))
}

fn virtual_server_of(family: IpFamily, info: &Info<'_>) -> Option<VirtualServerMatch> {
    let is_one = info.address(family, 16)? == all_ones(family) && info.u8(39)? == IPVS_SERVER;
    (is_one && info.is_zero_except(|at| at < 35 || at == 39)).then_some(())?;
    let protocol = Protocol::from_number(info.u8(34)?)?;
    Some(VirtualServerMatch { address: info.address(family, 0)?, protocol, port: info.port_be(32)? })
}

/// `struct xt_conntrack_mtinfo3` with a condition on the state.
fn conntrack(states: &Sense<CtStates>, flags: u16) -> Extension<'static> {
    let negated = u16::from(states.is_negated()) * CONNTRACK_STATE;
    let bits = CtStates::KERNEL_BITS.iter().filter(|(state, _)| states.value().intersects(*state));
    let mask = bits.fold(0, |mask, (_, bit)| mask | bit);
    Extension::new("conntrack", 3, CONNTRACK, |info| info.put_u16(146, flags).put_u16(148, negated).put_u16(150, mask))
}

/// `struct xt_conntrack_mtinfo1`, whose state is a byte, and the later ones.
fn conntrack_of(info: &Info<'_>, revision: u32) -> Option<Match> {
    let (flags, inverted) = (info.u16(146)?, info.u16(148)?);
    let mask = if revision == 1 { info.u8(150)?.into() } else { info.u16(150)? };
    let is_alias = flags & CONNTRACK_STATE_ALIAS != 0;
    (flags & !CONNTRACK_STATE_ALIAS == CONNTRACK_STATE && info.is_zero_except(|at| (146..154).contains(&at)))
        .then_some(())?;
    let known = CtStates::KERNEL_BITS.iter().filter(|(_, bit)| mask & bit != 0);
    let (states, bits) =
        known.fold((CtStates::default(), 0), |(states, bits), (state, bit)| (states.or(*state), bits | bit));
    let states = Sense::new(inverted & CONNTRACK_STATE != 0, states);
    (bits == mask).then_some(if is_alias { Match::State(states) } else { Match::Conntrack(states) })
}

/// `struct xt_recent_mtinfo` and `xt_recent_mtinfo_v1`, which adds a mask.
fn recent(family: IpFamily, info: &Info<'_>, revision: u32) -> Option<Recent> {
    let (seconds, hits, checks) = (info.u32(0)?, info.u32(4)?, info.u8(8)?);
    let (inverted, by_destination) = (info.u8(9)?, info.u8(210)?);
    let action = match checks & !RECENT_REAP {
        RECENT_CHECK => RecentAction::Check,
        RECENT_SET => RecentAction::Set,
        _ => return None,
    };
    (hits == 0 && inverted == 0 && by_destination == 0).then_some(())?;
    let mask = match (revision, family) {
        (0, family) => all_ones(family),
        _ => info.address(family, 212)?,
    };
    Some(Recent {
        action,
        seconds: (seconds > 0).then_some(seconds),
        reap: checks & RECENT_REAP != 0,
        name: info.text(10, RECENT_NAME)?.into(),
        mask,
    })
}

fn all_ones(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => [u8::MAX; 4].into(),
        IpFamily::V6 => [u8::MAX; 16].into(),
    }
}

/// Returns the bit of an address type (`1 << RTN_*`).
fn type_bit(kind: AddressType) -> u16 {
    AddressType::KERNEL_NUMBERS.into_iter().find(|(known, _)| *known == kind).map_or(0, |(_, number)| 1 << number)
}

/// `XT_MAX_COMMENT_LEN`.
const COMMENT: usize = 256;
/// The size of `struct xt_conntrack_mtinfo3`.
const CONNTRACK: usize = 168;
const CONNTRACK_STATE: u16 = 1 << 0;
/// Printed as `-m state`.
const CONNTRACK_STATE_ALIAS: u16 = 1 << 13;
/// `XT_RECENT_NAME_LEN`.
const RECENT_NAME: usize = 200;
const RECENT_CHECK: u8 = 1 << 0;
const RECENT_SET: u8 = 1 << 1;
const RECENT_REAP: u8 = 1 << 5;
/// `IPSET_INV_MATCH`.
const SET_INVERTED: u8 = 1 << 0;
/// `IPSET_DIM_MAX`, less one for the inversion.
const SET_DIMENSIONS: u8 = 6;
/// `XT_IPVS_IPVS_PROPERTY`, `XT_IPVS_PROTO`, `XT_IPVS_VADDR` and `XT_IPVS_VPORT`.
const IPVS_SERVER: u8 = 0x0f;
const SCTP_SOURCE: u32 = 1 << 0;
const SCTP_DESTINATION: u32 = 1 << 1;
const PHYSDEV_IS_IN: u8 = 1 << 3;
/// `XT_MULTI_PORTS`.
const MULTIPORT_PORTS: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    /// As `iptables-nft` 1.8.9 writes it, which few kernels accept.
    #[test]
    fn virtual_server_is_encoded_and_decoded_as_by_iptables_nft() {
        let (mut ipv4, mut ipv6) = ([0; 40], [0; 40]);
        ipv4[..4].copy_from_slice(&[10, 0, 0, 1]);
        ipv4[16..20].fill(0xff);
        ipv6[..16].copy_from_slice(&[0xfd, 0, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        ipv6[16..32].fill(0xff);
        for (family, address, mut bytes) in [(IpFamily::V4, "10.0.0.1", ipv4), (IpFamily::V6, "fd00:96::1", ipv6)] {
            // The port, TCP, and that these and the address are compared.
            bytes[32..35].copy_from_slice(&[0, 80, 6]);
            bytes[39] = 0x0f;
            let address = address.parse().unwrap();
            let module = Match::Ipvs(VirtualServerMatch { address, protocol: Protocol::Tcp, port: 80 });
            let written = Extension::of_match(family, &module, &SetNumbers::default()).unwrap();
            assert_eq!((&*written.name, written.revision, written.info.as_bytes()), ("ipvs", 0, &bytes[..]));
            assert_eq!(written.to_match(family), Some(module));
            // A negated address.
            bytes[38] = 1 << 2;
            let negated = Extension { name: "ipvs".into(), revision: 0, info: Info::Borrowed(&bytes) };
            assert_eq!(negated.to_match(family), None);
        }
    }
}
