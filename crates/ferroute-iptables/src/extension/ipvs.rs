use super::*;

/// A match on the virtual server of the packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServerMatch {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// `-m ipvs`.
pub(super) static IPVS: Entry<Match> = Entry {
    names: &["ipvs"],
    options: &["--vproto", "--vaddr", "--vport"],
    structures: &[("ipvs", 0)],
    samples: &["-m ipvs --vproto 6 --vaddr 10.0.0.1 --vport 80", "-m ipvs --vproto 132 --vaddr fd00:96::1 --vport 80"],
    parse: |options| {
        let [protocol, address, port] = options.exactly(["--vproto", "--vaddr", "--vport"])?;
        Some(Match::Ipvs(VirtualServerMatch {
            address: address.plain_arg()?.trim_end_matches("/32").trim_end_matches("/128").parse().ok()?,
            protocol: Protocol::from_number(protocol.plain_arg()?.parse().ok()?)?,
            port: port.plain_arg()?.parse().ok()?,
        }))
    },
    print: |module, out| {
        let Match::Ipvs(VirtualServerMatch { address, protocol, port }) = module else { return Err(fmt::Error) };
        let (number, address) = (protocol.number(), address_text::address(*address));
        write!(out, " -m ipvs --vproto {number} --vaddr {address} --vport {port}")
    },
    // `struct xt_ipvs_mtinfo`.
    encode: |module, family, _| {
        let Match::Ipvs(VirtualServerMatch { address, protocol, port }) = *module else { return None };
        (IpFamily::of(address) == family).then_some(())?;
        let new = Structure::new("ipvs", 0, 40).put_address(0, address).put_address(16, all_ones(family));
        Some(new.put(32, &port.to_be_bytes()).put_u8(34, protocol.number()).put_u8(39, SERVER))
    },
    decode: |structure, family| {
        let is_one = structure.address(family, 16)? == all_ones(family) && structure.u8(39)? == SERVER;
        (is_one && structure.is_zero_except(|at| at < 35 || at == 39)).then_some(())?;
        let (address, protocol) = (structure.address(family, 0)?, Protocol::from_number(structure.u8(34)?)?);
        Some(Match::Ipvs(VirtualServerMatch { address, protocol, port: structure.port_be(32)? }))
    },
};

/// `XT_IPVS_IPVS_PROPERTY`, `XT_IPVS_PROTO`, `XT_IPVS_VADDR` and `XT_IPVS_VPORT`.
const SERVER: u8 = 0x0f;

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
            let written = module.encode(family, &SetNumbers::default()).unwrap();
            assert_eq!((&*written.name, written.revision, written.as_bytes()), ("ipvs", 0, &bytes[..]));
            assert_eq!(Match::decode(&written, family), Some(module));
            // A negated address.
            bytes[38] = 1 << 2;
            let negated = Structure { name: "ipvs".into(), revision: 0, bytes: Bytes::Borrowed(&bytes) };
            assert_eq!(Match::decode(&negated, family), None);
        }
    }
}
