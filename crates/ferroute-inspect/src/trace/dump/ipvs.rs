//! Virtual servers in files: the output of `ipvsadm -Sn`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ferroute_core::Protocol;
use ferroute_ipvs::{
    DUMMY_DEVICE, IpvsObjects,
    plan::{Entry, RealServer, ServerKey, SetKind},
};
use ferroute_trace::{BaseChain, ChainVerdict, Forks, Hook, Verdict, Walker};

/// The virtual servers of a host.
#[derive(Debug, Default)]
pub(super) struct SavedServers {
    servers: BTreeMap<ServerKey, Vec<(RealServer, u32)>>,
    /// Those that forward packets without a translation.
    direct: BTreeSet<ServerKey>,
}

/// Virtual servers at a hook of which the files say only that they exist.
pub(super) struct UnknownServers<'a> {
    pub(super) hook: Hook,
    pub(super) servers: Option<&'a SavedServers>,
    /// The addresses of the dummy device of ipvs mode.
    pub(super) addresses: &'a [IpAddr],
}

/// Reports whether a line is a virtual server of `ipvsadm -Sn`.
pub(super) fn is_server(line: &str) -> bool {
    line.starts_with("-A ") && key(line).is_some()
}

/// Reads `-A -t 10.96.0.1:80 -s rr`.
fn key(line: &str) -> Option<ServerKey> {
    let mut words = line.split_whitespace().skip(1);
    let protocol = match words.next()? {
        "-t" => Protocol::Tcp,
        "-u" => Protocol::Udp,
        "--sctp-service" => Protocol::Sctp,
        _ => return None,
    };
    let socket: SocketAddr = words.next()?.parse().ok()?;
    Some(ServerKey { address: socket.ip(), port: socket.port(), protocol })
}

impl SavedServers {
    /// Adds output of `ipvsadm -Sn`.
    pub(super) fn add_save(&mut self, text: &str) {
        for line in text.lines() {
            let Some(key) = key(line) else { continue };
            let words: Vec<&str> = line.split_whitespace().collect();
            let after = |option: &str| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1));
            let servers = self.servers.entry(key).or_default();
            let Some(real) = after("-r").and_then(|real| real.parse::<SocketAddr>().ok()) else { continue };
            let weight = after("-w").and_then(|weight| weight.parse().ok()).unwrap_or(1);
            servers.push((RealServer { address: real.ip(), port: real.port() }, weight));
            if !words.contains(&"-m") {
                self.direct.insert(key);
            }
        }
    }
}

impl IpvsObjects for SavedServers {
    fn real_servers(&self, key: ServerKey) -> Option<Vec<(RealServer, u32)>> {
        self.servers.get(&key).cloned()
    }

    // Rules in files refer to the ipsets there.
    fn has_entry(&self, _: SetKind, _: Entry) -> bool {
        false
    }

    fn permits_source(&self, _: ServerKey, _: IpAddr) -> bool {
        false
    }

    fn has_address(&self, _: IpAddr) -> bool {
        false
    }
}

impl BaseChain for UnknownServers<'_> {
    fn hook(&self) -> Hook {
        self.hook
    }

    fn priority(&self) -> i32 {
        if self.hook == Hook::Input { 99 } else { -98 }
    }

    fn walk<'a>(&'a self, walker: &mut Walker<'a>, _: &mut Forks<'a>) -> ChainVerdict {
        let (destination, protocol) = (walker.packet.destination(), walker.packet.protocol());
        let key = ServerKey { address: destination.ip(), port: destination.port(), protocol };
        let reason = match self.servers {
            _ if walker.packet.is_resent() => return ChainVerdict::Continue,
            Some(servers) if servers.direct.contains(&key) => {
                format!("effect of virtual server {key}, which forwards packets without a translation")
            }
            None if self.addresses.contains(&key.address) => {
                format!("virtual servers of {DUMMY_DEVICE}, which has {}: add the output of ipvsadm -Sn", key.address)
            }
            _ => return ChainVerdict::Continue,
        };
        ChainVerdict::End(Verdict::Unknown { reason })
    }
}
