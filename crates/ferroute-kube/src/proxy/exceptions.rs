//! `NO_PROXY`: the servers that are reached without a proxy.

use std::net::IpAddr;

use ipnet::IpNet;

/// The entries of `NO_PROXY`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Exceptions {
    everything: bool,
    networks: Vec<IpNet>,
    hosts: Vec<Host>,
}

/// An entry that is not a network.
#[derive(Debug, PartialEq, Eq)]
struct Host {
    kind: HostKind,
    /// The only matching port, if the entry has one.
    port: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum HostKind {
    Address(IpAddr),
    /// A name and the names below it.
    Domain(String),
    /// The names below a name, which begins with a dot.
    Subdomains(String),
}

impl Exceptions {
    /// Parses a list with commas. Entries are networks, or addresses or names with or without a port; `*` matches all
    /// servers, `example.com` includes its subdomains, `.example.com` and `*.example.com` match only the subdomains.
    pub(super) fn parse(text: &str) -> Self {
        let mut exceptions = Self::default();
        for entry in text.split(',').map(|entry| entry.trim().to_lowercase()).filter(|entry| !entry.is_empty()) {
            if entry == "*" {
                exceptions.everything = true;
            } else if let Ok(network) = entry.parse() {
                exceptions.networks.push(network);
            } else {
                exceptions.hosts.extend(Host::parse(&entry));
            }
        }
        exceptions
    }

    /// Reports whether a server is reached without a proxy. As in Go, this always applies to the loopback interface.
    pub(super) fn contains(&self, host: &str, port: u16) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_lowercase();
        let address = host.parse::<IpAddr>().ok();
        let is_loopback = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        is_loopback
            || self.everything
            || address.is_some_and(|address| self.networks.iter().any(|network| network.contains(&address)))
            || self.hosts.iter().any(|entry| entry.contains(&host, address, port))
    }
}

impl Host {
    fn parse(entry: &str) -> Option<Self> {
        let (host, port) = split_port(entry);
        if host.is_empty() {
            return None;
        }
        let name = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        let kind = match (host.parse(), name.starts_with('.')) {
            (Ok(address), _) => HostKind::Address(address),
            (Err(_), true) => HostKind::Subdomains(name.to_owned()),
            (Err(_), false) => HostKind::Domain(name.to_owned()),
        };
        Some(Self { kind, port: port.map(str::to_owned) })
    }

    fn contains(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        let is_host = match &self.kind {
            HostKind::Address(own) => address == Some(*own),
            HostKind::Domain(name) => {
                host.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            HostKind::Subdomains(suffix) => host.ends_with(suffix.as_str()),
        };
        is_host && self.port.as_ref().is_none_or(|own| *own == port.to_string())
    }
}

/// Splits `HOST:PORT`, where an IPv6 address with a port is in brackets.
fn split_port(entry: &str) -> (&str, Option<&str>) {
    if let Some((address, rest)) = entry.strip_prefix('[').and_then(|entry| entry.split_once(']')) {
        return (address, rest.strip_prefix(':').filter(|port| !port.is_empty()));
    }
    match entry.split_once(':') {
        // Several colons belong to an IPv6 address.
        Some((host, port)) if !port.contains(':') => (host, Some(port).filter(|port| !port.is_empty())),
        _ => (entry, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_match_as_in_go() {
        for (list, url, is_without_proxy) in [
            ("*", "10.0.0.1:6443", true),
            ("192.0.2.1, *", "api.example:6443", true),
            ("10.0.0.0/8", "10.0.0.1:6443", true),
            ("10.0.0.0/8", "11.0.0.1:6443", false),
            ("10.0.0.1", "10.0.0.1:6443", true),
            ("10.0.0.1:6443", "10.0.0.1:6443", true),
            ("10.0.0.1:443", "10.0.0.1:6443", false),
            ("fd00::/8", "[fd00::1]:6443", true),
            ("fd00::1", "[fd00::1]:6443", true),
            ("[fd00::1]", "[fd00::1]:6443", true),
            ("[fd00::1]:6443", "[fd00::1]:6443", true),
            ("[fd00::1]:443", "[fd00::1]:6443", false),
            ("example.com", "example.com:6443", true),
            ("example.com", "api.EXAMPLE.com:6443", true),
            ("EXAMPLE.COM", "api.example.com:6443", true),
            ("example.com", "notexample.com:6443", false),
            ("example.com:6443", "api.example.com:6443", true),
            ("example.com:443", "api.example.com:6443", false),
            (".example.com", "example.com:6443", false),
            (".example.com", "api.example.com:6443", true),
            ("*.example.com", "example.com:6443", false),
            ("*.example.com", "api.example.com:6443", true),
            ("*example.com", "api.example.com:6443", false),
            (":6443, ,10.0.0.2", "10.0.0.1:6443", false),
            ("", "10.0.0.1:6443", false),
            ("", "localhost:6443", true),
            ("", "127.0.0.9:6443", true),
            ("", "[::1]:6443", true),
        ] {
            let (host, port) = url.rsplit_once(':').unwrap();
            let contains = Exceptions::parse(list).contains(host, port.parse().unwrap());
            assert_eq!(contains, is_without_proxy, "NO_PROXY={list} {url}");
        }
    }
}
