use super::*;

/// The side of a packet whose port `multiport` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSide {
    /// The source port (`--sports`).
    Source,
    /// The destination port (`--dports`).
    Destination,
    /// Either port (`--ports`).
    Either,
}

impl PortSide {
    /// Every side with its option, in the order of the kernel's numbers (`enum xt_multiport_flags`).
    const ALL: [(Self, &str); 3] =
        [(Self::Source, "--sports"), (Self::Destination, "--dports"), (Self::Either, "--ports")];
}

/// A list of ports and port ranges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortList(Box<[PortRange]>);

impl PortList {
    /// Creates a list in this order.
    pub fn new(ranges: impl Into<Box<[PortRange]>>) -> Self {
        Self(ranges.into())
    }

    /// Returns the ports and port ranges.
    pub fn ranges(&self) -> &[PortRange] {
        &self.0
    }

    /// Reports whether the list contains `port`.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(port))
    }

    fn parse(text: &str) -> Option<Self> {
        text.split(',').map(PortRange::parse).collect::<Option<_>>().map(Self)
    }
}

impl fmt::Display for PortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, range) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            range.fmt(f)?;
        }
        Ok(())
    }
}

/// `-m multiport`.
pub(super) static MULTIPORT: Entry<Match> = Entry {
    names: &["multiport"],
    options: &["--sports", "--dports", "--ports"],
    structures: &[("multiport", 1)],
    samples: &["-m multiport --sports 53", "-m multiport --dports 80,443,8000:8010", "-m multiport ! --ports 53"],
    parse: |options| {
        let [list] = options.list else { return None };
        let (side, _) = PortSide::ALL.into_iter().find(|(_, option)| *option == list.name)?;
        Some(Match::Multiport { side, ports: list.sense(PortList::parse)? })
    },
    print: |module, out| {
        let Match::Multiport { side, ports } = module else { return Err(fmt::Error) };
        out.write_str(" -m multiport")?;
        write_sense(out, &format!(" {} ", PortSide::ALL[*side as usize].1), Some(ports))
    },
    // `struct xt_multiport_v1`: a list of ports; the first port of a range has a flag.
    encode: |module, _, _| {
        let Match::Multiport { side, ports } = module else { return None };
        let (mut new, mut at) = (Structure::new("multiport", 1, 48).put_u8(0, *side as u8), 0);
        for range in &ports.value().0 {
            let is_range = range.first != range.last;
            let end = at + 1 + usize::from(is_range);
            (end <= MAX_PORTS).then_some(())?;
            new = new.put_u16(2 + 2 * at, range.first).put_u16(2 * end, range.last).put_u8(32 + at, is_range.into());
            at = end;
        }
        Some(new.put_u8(1, u8::try_from(at).ok()?).put_u8(47, ports.is_negated().into()))
    },
    decode: |structure, _| {
        let (side, _) = *PortSide::ALL.get(usize::from(structure.u8(0)?))?;
        let count = usize::from(structure.u8(1)?);
        (count <= MAX_PORTS).then_some(())?;
        let (mut ranges, mut at) = (Vec::new(), 0);
        while at < count {
            let end = at + 1 + usize::from(structure.u8(32 + at)? != 0);
            (end <= count).then_some(())?;
            ranges.push(PortRange { first: structure.u16(2 + 2 * at)?, last: structure.u16(2 * end)? });
            at = end;
        }
        Some(Match::Multiport { side, ports: Sense::new(structure.u8(47)? != 0, PortList::new(ranges)) })
    },
};

/// `XT_MULTI_PORTS`.
const MAX_PORTS: usize = 15;
