use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Parses an address like Kubernetes: IPv4 octets may have leading zeros and are decimal (`010.0.0.1` is `10.0.0.1`), and
/// IPv4-mapped IPv6 addresses (`::ffff:10.0.0.1`) are IPv4 addresses.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse::<IpAddr>()
        .ok()
        .or_else(|| parse_ipv4_with_zeros(text).map(IpAddr::V4))
        .map(|address| address.to_canonical())
        .ok_or_else(|| format!("invalid IP address {text:?}"))
}

/// Checks that packets from other hosts can have an address as their destination.
///
/// The API server rejects most other addresses in `externalIPs` and in endpoints, but accepts them in the status of a
/// Service, and in objects that are older than the check.
///
/// # Errors
///
/// The address cannot belong to a host, or only the host itself can use it.
pub fn check_destination(address: IpAddr) -> Result<IpAddr, String> {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let kind = match address {
        _ if address.is_unspecified() => "the unspecified address",
        _ if address.is_loopback() => "a loopback address",
        _ if is_link_local => "a link-local address",
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(Ipv4Addr::BROADCAST) => "the broadcast address",
        _ => return Ok(address),
    };
    Err(format!("{address} is {kind}"))
}

/// Parses a network such as `10.0.0.0/8` like Kubernetes: surrounding white space is ignored, host bits are cleared.
pub fn parse_network(text: &str) -> Result<IpNet, String> {
    let invalid = || format!("invalid network {text:?} (want ADDRESS/PREFIX)");
    let (address, prefix) = text.trim().split_once('/').ok_or_else(invalid)?;
    let address = parse_ip(address).map_err(|_| invalid())?;
    // `u8::from_str` would accept a sign.
    let digits = Some(prefix).filter(|prefix| prefix.bytes().all(|byte| byte.is_ascii_digit()));
    let prefix = digits.and_then(|digits| digits.parse().ok()).ok_or_else(invalid)?;
    IpNet::new(address, prefix).map(|net| net.trunc()).map_err(|_| invalid())
}

fn parse_ipv4_with_zeros(text: &str) -> Option<Ipv4Addr> {
    let mut octets = text.split('.').map(|part| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.trim_start_matches('0')).and_then(|part| match part {
            "" => Some(0),
            part => part.parse::<u8>().ok(),
        })
    });
    let mut next = || octets.next().flatten();
    let address = Ipv4Addr::new(next()?, next()?, next()?, next()?);
    octets.next().is_none().then_some(address)
}
