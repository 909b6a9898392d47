use super::*;

/// `-j MASQUERADE`.
pub(super) static MASQUERADE: Entry<Target> = Entry {
    names: &["MASQUERADE"],
    options: &[],
    structures: &[("MASQUERADE", 0)],
    samples: &["-j MASQUERADE", "-j MASQUERADE --random-fully"],
    parse: |options| {
        let random_fully = !options.list.is_empty();
        let is_valid = !random_fully || options.only("--random-fully")?.is_flag();
        is_valid.then_some(Target::Masquerade { random_fully })
    },
    print: |target, out| {
        let Target::Masquerade { random_fully } = target else { return Err(fmt::Error) };
        out.write_str(if *random_fully { " -j MASQUERADE --random-fully" } else { " -j MASQUERADE" })
    },
    // `struct nf_nat_ipv4_multi_range_compat` with one range, and `nf_nat_range`.
    encode: |target, family, _| {
        let Target::Masquerade { random_fully } = target else { return None };
        let flags = if *random_fully { RANDOM_FULLY } else { 0 };
        Some(match family {
            IpFamily::V4 => Structure::new("MASQUERADE", 0, 24).put_u32(0, 1).put_u32(4, flags),
            IpFamily::V6 => Structure::new("MASQUERADE", 0, 40).put_u32(0, flags),
        })
    },
    decode: |structure, family| {
        let flags = structure.u32(if family == IpFamily::V4 { 4 } else { 0 })?;
        let random_fully = flags == RANDOM_FULLY;
        (random_fully || flags == 0).then_some(Target::Masquerade { random_fully })
    },
};

/// `-j SNAT`. Supported as text only: no mode writes it, and `iptables-save` prints those of other programs.
pub(super) static SNAT: Entry<Target> = Entry {
    names: &["SNAT"],
    options: &[],
    structures: &[],
    samples: &["-j SNAT --to-source 10.0.0.1", "-j SNAT --to-source fd00::1 --random-fully"],
    // Ports and ranges are unsupported.
    parse: |options| {
        let (to, random_fully) = match options.list {
            [to] => (to, false),
            [to, random] if random.name == "--random-fully" && random.is_flag() => (to, true),
            _ => return None,
        };
        let address = to.plain_arg().filter(|_| to.name == "--to-source")?.parse().ok()?;
        Some(Target::Snat { address, random_fully })
    },
    print: |target, out| {
        let Target::Snat { address, random_fully } = target else { return Err(fmt::Error) };
        write!(out, " -j SNAT --to-source {}", address_text::address(*address))?;
        out.write_str(if *random_fully { " --random-fully" } else { "" })
    },
    encode: |_, _, _| None,
    decode: |_, _| None,
};

/// `-j DNAT`.
pub(super) static DNAT: Entry<Target> = Entry {
    names: &["DNAT"],
    options: &[],
    structures: &[("DNAT", 0), ("DNAT", 1), ("DNAT", 2)],
    samples: &[
        "-j DNAT --to-destination 10.0.0.1",
        "-j DNAT --to-destination 10.0.0.1:80",
        "-j DNAT --to-destination fd00::1",
        "-j DNAT --to-destination [fd00::1]:80",
    ],
    parse: |options| {
        let text = options.only("--to-destination")?.plain_arg()?;
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Some(Target::Dnat { address: socket.ip(), port: Some(socket.port()) });
        }
        text.parse().ok().map(|address| Target::Dnat { address, port: None })
    },
    print: |target, out| {
        let Target::Dnat { address, port } = target else { return Err(fmt::Error) };
        out.write_str(" -j DNAT --to-destination ")?;
        out.write_str(&match port {
            None => address_text::address(*address),
            Some(port) => address_text::socket(*address, *port),
        })
    },
    // `struct nf_nat_range2`.
    encode: |target, family, _| {
        let Target::Dnat { address, port } = *target else { return None };
        (IpFamily::of(address) == family).then_some(())?;
        let flags = MAP_IPS | port.map_or(0, |_| PROTO_SPECIFIED);
        let port = port.unwrap_or(0).to_be_bytes();
        let new = Structure::new("DNAT", 2, 48).put_u32(0, flags);
        Some(new.put_address(4, address).put_address(20, address).put(36, &port).put(38, &port))
    },
    // `struct nf_nat_range2`, `nf_nat_range`, and `nf_nat_ipv4_multi_range_compat` with one range. One address with at
    // most one port is supported.
    decode: |structure, family| {
        let [flags, first, last, first_port, last_port] = match (structure.revision, family) {
            (2, _) | (1, IpFamily::V6) => [0, 4, 20, 36, 38],
            (0, IpFamily::V4) if structure.u32(0)? == 1 => [4, 8, 12, 16, 18],
            _ => return None,
        };
        let flags = structure.u32(flags)?;
        let (address, port) = (structure.address(family, first)?, structure.port_be(first_port)?);
        let is_one = address == structure.address(family, last)? && port == structure.port_be(last_port)?;
        (is_one && flags & !PROTO_SPECIFIED == MAP_IPS).then_some(())?;
        Some(Target::Dnat { address, port: (flags & PROTO_SPECIFIED != 0).then_some(port) })
    },
};

const MAP_IPS: u32 = 1 << 0;
const PROTO_SPECIFIED: u32 = 1 << 1;
const RANDOM_FULLY: u32 = 1 << 4;
