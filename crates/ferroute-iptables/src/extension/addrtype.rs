use super::*;

/// The type of an address in the host's routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressType {
    /// An address of another host.
    Unicast,
    /// An address of this host.
    Local,
    /// A broadcast address.
    Broadcast,
    /// An anycast address.
    Anycast,
    /// A multicast address.
    Multicast,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are rejected as unreachable.
    Unreachable,
    /// Packets are rejected as prohibited.
    Prohibit,
}

impl AddressType {
    /// Every type with its name in `iptables` and its bit in the kernel's module (`1 << RTN_*`).
    const ALL: [(Self, &str, u16); 8] = [
        (Self::Unicast, "UNICAST", 1 << 1),
        (Self::Local, "LOCAL", 1 << 2),
        (Self::Broadcast, "BROADCAST", 1 << 3),
        (Self::Anycast, "ANYCAST", 1 << 4),
        (Self::Multicast, "MULTICAST", 1 << 5),
        (Self::Blackhole, "BLACKHOLE", 1 << 6),
        (Self::Unreachable, "UNREACHABLE", 1 << 7),
        (Self::Prohibit, "PROHIBIT", 1 << 8),
    ];

    /// Returns the names of the types with these bits (`1 << RTN_*`), separated by commas.
    pub(crate) fn names(bits: u16) -> String {
        let unspecified = if bits & 1 != 0 { Some("UNSPEC") } else { None };
        let types = Self::ALL.iter().filter(|(.., bit)| bits & bit != 0).map(|(_, name, _)| *name);
        unspecified.into_iter().chain(types).collect::<Vec<_>>().join(",")
    }

    /// Returns the type with this name in `iptables`.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, name, _)| *name == word).map(|(kind, ..)| kind)
    }
}

impl fmt::Display for AddressType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].1)
    }
}

/// `-m addrtype`.
pub(super) static ADDRTYPE: Entry<Match> = Entry {
    names: &["addrtype"],
    options: &["--src-type", "--dst-type", "--limit-iface-in", "--limit-iface-out"],
    structures: &[("addrtype", 1)],
    samples: &[
        "-m addrtype --dst-type LOCAL",
        "-m addrtype ! --src-type LOCAL ! --dst-type MULTICAST",
        "-m addrtype --src-type UNICAST --dst-type BROADCAST",
        "-m addrtype --src-type ANYCAST --dst-type BLACKHOLE",
        "-m addrtype --src-type UNREACHABLE --dst-type PROHIBIT",
    ],
    parse: |options| {
        let [source, destination] = options.sides([&["--src-type"], &["--dst-type"]], AddressType::parse)?;
        (source.is_some() || destination.is_some()).then_some(Match::AddrType { source, destination })
    },
    print: |module, out| {
        let Match::AddrType { source, destination } = module else { return Err(fmt::Error) };
        out.write_str(" -m addrtype")?;
        write_sense(out, " --src-type ", source.as_ref())?;
        write_sense(out, " --dst-type ", destination.as_ref())
    },
    encode: |module, _, _| {
        let Match::AddrType { source, destination } = *module else { return None };
        let bit = |side: Option<Sense<AddressType>>| side.map_or(0, |side| AddressType::ALL[*side.value() as usize].2);
        let negated = |side: Option<Sense<AddressType>>| u32::from(side.is_some_and(|side| side.is_negated()));
        let flags = negated(source) | negated(destination) << 1;
        Some(Structure::new("addrtype", 1, 8).put_u16(0, bit(source)).put_u16(2, bit(destination)).put_u32(4, flags))
    },
    decode: |structure, _| {
        let flags = structure.u32(4)?;
        (flags & !3 == 0).then_some(())?;
        let side = |at, flag| match structure.u16(at)? {
            0 => Some(None),
            bits => {
                let (kind, ..) = AddressType::ALL.into_iter().find(|(.., bit)| *bit == bits)?;
                Some(Some(Sense::new(flags & flag != 0, kind)))
            }
        };
        Some(Match::AddrType { source: side(0, 1)?, destination: side(2, 2)? })
    },
};
