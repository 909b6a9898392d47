use super::*;

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port; not below the first.
    pub last: u16,
}

impl PortRange {
    /// Every port, which is no condition.
    pub const ALL: Self = Self { first: 0, last: u16::MAX };

    /// Returns the range of one port.
    pub fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Reports whether the range contains `port`.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Parses `80`, `80:90`, `:90`, `80:`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let number = |text: &str, default| if text.is_empty() { Some(default) } else { text.parse().ok() };
        let range = match text.split_once(':') {
            None => Self::one(text.parse().ok()?),
            Some((first, last)) => Self { first: number(first, 0)?, last: number(last, u16::MAX)? },
        };
        (range.first <= range.last).then_some(range)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}:{}", self.first, self.last) }
    }
}

/// `-m tcp`, `-m udp` and `-m sctp`.
pub(super) static TRANSPORT: Entry<Match> = Entry {
    names: &["tcp", "udp", "sctp"],
    options: &[
        "--sport",
        "--source-port",
        "--dport",
        "--destination-port",
        "--tcp-flags",
        "--syn",
        "--tcp-option",
        "--chunk-types",
    ],
    structures: &[("tcp", 0), ("udp", 0), ("sctp", 0)],
    samples: &[
        "-m tcp",
        "-m tcp ! --sport 5 ! --dport 80:90",
        "-m udp ! --sport 1000:2000 --dport 0:53",
        "-m sctp --sport 5",
        "-m sctp --sport 5 ! --dport 80",
    ],
    parse: |options| {
        let protocol = options.name.parse().ok()?;
        let names: [&[&str]; 2] = [&["--sport", "--source-port"], &["--dport", "--destination-port"]];
        let is_condition = |ports: &Sense<PortRange>| *ports != Sense::Is(PortRange::ALL);
        let [source, destination] = options.sides(names, PortRange::parse)?.map(|side| side.filter(is_condition));
        Some(Match::Transport { protocol, source, destination })
    },
    print: |module, out| {
        let Match::Transport { protocol, source, destination } = module else { return Err(fmt::Error) };
        out.write_str(" -m ")?;
        out.write_str(protocol.as_str())?;
        write_sense(out, " --sport ", source.as_ref())?;
        write_sense(out, " --dport ", destination.as_ref())
    },
    // `struct xt_tcp`, `xt_udp` and `xt_sctp_info`.
    encode: |module, _, _| {
        let Match::Transport { protocol, source, destination } = module else { return None };
        let inverted = |side: Option<Sense<PortRange>>| u8::from(side.is_some_and(|side| side.is_negated()));
        let flags = inverted(*source) | inverted(*destination) << 1;
        let range = |side: Option<Sense<PortRange>>| side.map_or(PortRange::ALL, |side| *side.value());
        let new = |name| Structure::new(name, 0, 16).put_ports(0, range(*source)).put_ports(4, range(*destination));
        Some(match protocol {
            Protocol::Tcp => new("tcp").put_u8(11, flags),
            Protocol::Udp => new("udp").put_u8(8, flags),
            Protocol::Sctp => {
                let (mut new, mut given) = (Structure::new("sctp", 0, 296).put_u32(288, flags.into()), 0);
                for (side, at, flag) in [(destination, 0, SCTP_DESTINATION), (source, 4, SCTP_SOURCE)] {
                    if let Some(ports) = side {
                        new = new.put_ports(at, *ports.value());
                        given |= flag;
                    }
                }
                // As `iptables` does: no chunk type has flags.
                (0..4).fold(new.put_u32(284, given), |new, n| new.put_u8(268 + 3 * n, u8::MAX))
            }
        })
    },
    decode: |structure, _| {
        let protocol = structure.name.parse().ok()?;
        let (source, destination) = (structure.ports(0), structure.ports(4));
        let (source, destination, inverted) = match protocol {
            Protocol::Tcp => {
                structure.is_zero_except(|at| at < 8 || at == 11).then_some(())?;
                (source?, destination?, structure.u8(11)?.into())
            }
            Protocol::Udp => (source?, destination?, structure.u8(8)?.into()),
            Protocol::Sctp => {
                let flags = structure.u32(284)?;
                (flags & !(SCTP_SOURCE | SCTP_DESTINATION) == 0).then_some(())?;
                let range = |flag, at| if flags & flag == 0 { Some(PortRange::ALL) } else { structure.ports(at) };
                (range(SCTP_SOURCE, 4)?, range(SCTP_DESTINATION, 0)?, structure.u32(288)?)
            }
        };
        (inverted & !3 == 0).then_some(())?;
        let side = |range: PortRange, flag| {
            let side = Sense::new(inverted & flag != 0, range);
            (side != Sense::Is(PortRange::ALL)).then_some(side)
        };
        Some(Match::Transport { protocol, source: side(source, 1), destination: side(destination, 2) })
    },
};

const SCTP_SOURCE: u32 = 1 << 0;
const SCTP_DESTINATION: u32 = 1 << 1;
