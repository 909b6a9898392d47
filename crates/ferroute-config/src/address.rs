//! Addresses and networks in the form of Kubernetes' older APIs, which accept leading zeros in IPv4 octets as decimal.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

/// An error of [`parse_host_port`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostPortError {
    /// The text cannot be split into host and port.
    Form,
    /// The host, the port or both are invalid.
    Parts { host: Option<String>, port: Option<String> },
}

/// Parses an address. An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) becomes an IPv4 address.
pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    } else {
        parse_ipv4(text).map(IpAddr::V4)
    }
}

/// Parses a network in CIDR notation and clears its host bits.
pub(crate) fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let address = if address.contains(':') { address.parse().ok()? } else { IpAddr::V4(parse_ipv4(address)?) };
    let length = parse_decimal(length)?;
    IpNet::new(address, u8::try_from(length).ok()?).ok().map(|network| network.trunc())
}

/// Parses `ip:port` or `[ip]:port` with a port from 1 to 65535.
pub(crate) fn parse_host_port(text: &str) -> Result<SocketAddr, HostPortError> {
    let (host, port) = split_host_port(text).ok_or(HostPortError::Form)?;
    let address = parse_ip(host);
    let number = port.parse::<u16>().ok().filter(|number| *number > 0);
    match (address, number) {
        (Some(address), Some(number)) => Ok(SocketAddr::new(address, number)),
        (address, number) => Err(HostPortError::Parts {
            host: address.is_none().then(|| host.to_owned()),
            port: number.is_none().then(|| port.to_owned()),
        }),
    }
}

/// Appends the port to a bare address, with brackets around an IPv6 address. Leaves other text unchanged; if it is
/// invalid, [`KubeProxyConfiguration::resolve`](crate::KubeProxyConfiguration::resolve) rejects it.
pub fn append_port(text: &mut String, port: u16) {
    if split_host_port(text).is_some() {
        return;
    }
    if parse_ip(text).is_some() {
        *text = if text.contains(':') { format!("[{text}]:{port}") } else { format!("{text}:{port}") };
    }
}

/// Splits at the last colon. An IPv6 address must be in brackets.
fn split_host_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    if host.contains(['[', ']']) || port.contains(['[', ']']) { None } else { Some((host, port)) }
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = u8::try_from(parse_decimal(parts.next()?)?).ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

/// Parses digits with any number of leading zeros.
fn parse_decimal(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match text.trim_start_matches('0') {
        "" => Some(0),
        digits => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_decimal_and_mapped_addresses_become_ipv4() {
        for (text, expected) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.00.09", Some("10.0.0.9")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("fd00::1", Some("fd00::1")),
            ("10.0.0", None),
            ("10.0.0.256", None),
            ("10.0.0.1.2", None),
            ("10.0.0.+1", None),
            ("", None),
            ("fe80::1%eth0", None),
            ("host", None),
        ] {
            assert_eq!(parse_ip(text).map(|ip| ip.to_string()).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn host_bits_of_networks_are_cleared() {
        for (text, expected) in [
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("010.1.2.3/08", Some("10.0.0.0/8")),
            ("fd00::1/64", Some("fd00::/64")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("10.0.0.0/33", None),
            ("fd00::/129", None),
            ("10.0.0.0", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/8/8", None),
            (" 10.0.0.0/8", None),
        ] {
            assert_eq!(parse_cidr(text).map(|net| net.to_string()).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn each_invalid_part_of_host_and_port_is_reported() {
        let parts = |host: Option<&str>, port: Option<&str>| {
            Err(HostPortError::Parts { host: host.map(str::to_owned), port: port.map(str::to_owned) })
        };
        for (text, expected) in [
            ("0.0.0.0:10256", Ok("0.0.0.0:10256".parse().expect("an address"))),
            ("[::]:10256", Ok("[::]:10256".parse().expect("an address"))),
            ("0.0.0.0", Err(HostPortError::Form)),
            ("::1:80", Err(HostPortError::Form)),
            ("[::1]", Err(HostPortError::Form)),
            ("[::1:80", Err(HostPortError::Form)),
            ("[[::1]]:80", Err(HostPortError::Form)),
            (":80", parts(Some(""), None)),
            ("1.2.3.4:", parts(None, Some(""))),
            ("1.2.3.4:0", parts(None, Some("0"))),
            ("1.2.3.4:65536", parts(None, Some("65536"))),
            ("host:http", parts(Some("host"), Some("http"))),
        ] {
            assert_eq!(parse_host_port(text), expected, "{text:?}");
        }
    }

    #[test]
    fn port_is_appended_only_to_a_bare_address() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:99"),
            ("fd00::1", "[fd00::1]:99"),
            ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]:99"),
            ("10.0.0.1:5", "10.0.0.1:5"),
            ("[fd00::1]:5", "[fd00::1]:5"),
            ("host", "host"),
            ("", ""),
        ] {
            let mut text = text.to_owned();
            append_port(&mut text, 99);
            assert_eq!(text, expected);
        }
    }
}
