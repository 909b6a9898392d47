//! Text of addresses as C's `inet_ntop`, and therefore every iptables program, formats them.
//!
//! The rules of a large cluster contain several hundred thousand addresses, so this bypasses the formatting machinery.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use arrayvec::ArrayString;

/// Length of the longest address with port: eight groups of four digits, seven colons, brackets, a port. An IPv4-mapped
/// address (`[::ffff:255.255.255.255]:65535`) is shorter.
const MAX_LEN: usize = 8 * 4 + 7 + 2 + 6;

/// Text of an address, optionally with a port.
pub(crate) type AddressText = ArrayString<MAX_LEN>;

/// Formats an address: `10.0.0.1`, `fd00::1`, `::10.0.0.1`.
pub(crate) fn address(address: IpAddr) -> AddressText {
    let mut text = AddressText::new();
    push_address(&mut text, address);
    text
}

/// Formats an address with a port: `10.0.0.1:80`, `[fd00::1]:80`.
pub(crate) fn socket(address: IpAddr, port: u16) -> AddressText {
    let mut text = AddressText::new();
    if address.is_ipv6() {
        text.push('[');
    }
    push_address(&mut text, address);
    if address.is_ipv6() {
        text.push(']');
    }
    text.push(':');
    push_number(&mut text, port);
    text
}

fn push_address(text: &mut AddressText, address: IpAddr) {
    match address {
        IpAddr::V4(address) => push_v4(text, address),
        // C differs from Rust in this case: an address with exactly six leading groups of zeros is printed as an
        // embedded IPv4 address.
        IpAddr::V6(address) if matches!(address.segments(), [0, 0, 0, 0, 0, 0, seventh, _] if seventh != 0) => {
            let [.., a, b, c, d] = address.octets();
            text.push_str("::");
            push_v4(text, Ipv4Addr::new(a, b, c, d));
        }
        IpAddr::V6(address) => {
            fmt::Write::write_fmt(text, format_args!("{address}")).expect("the longest address fits");
        }
    }
}

fn push_v4(text: &mut AddressText, address: Ipv4Addr) {
    for (n, octet) in address.octets().into_iter().enumerate() {
        if n > 0 {
            text.push('.');
        }
        push_number(text, octet.into());
    }
}

fn push_number(text: &mut AddressText, number: u16) {
    if number >= 10 {
        push_number(text, number / 10);
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sockets_are_formatted_as_kube_proxy_hashes_them(socket: SocketAddr) {
            // Rust formats embedded IPv4 addresses only if they are mapped; no pod has another kind.
            prop_assume!(!matches!(socket, SocketAddr::V6(v6) if v6.ip().segments()[..6] == [0; 6]));
            let plain = SocketAddr::new(socket.ip(), socket.port());
            prop_assert_eq!(&*super::socket(socket.ip(), socket.port()), plain.to_string());
        }
    }

    #[test]
    fn the_longest_socket_fits() {
        let longest = "[1111:2222:3333:4444:5555:6666:7777:8888]:65535";
        let socket: SocketAddr = longest.parse().unwrap();
        assert_eq!(&*super::socket(socket.ip(), socket.port()), longest);
        assert_eq!(longest.len(), MAX_LEN);
    }
}
