//! The text form of planned objects, in the syntax of the tools that read it: `ip -batch`, `ipset restore`,
//! `iptables-restore` and `ipvsadm --restore`.

use std::{collections::BTreeSet, fmt, net::Ipv4Addr};

use ferroute_core::{IpFamily, Protocol};

use super::{
    FLAG_PERSISTENT, FLAG_SOURCE_HASH, IpvsPlan, RealServer, ServerConfig, ServerKey,
    sets::{SetKind, SetType},
};
use crate::{
    DUMMY_DEVICE,
    sets::{HASH_SIZE, capacity},
};

impl fmt::Display for IpvsPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family();
        writeln!(f, "# {}-restore", if family == IpFamily::V4 { "iptables" } else { "ip6tables" })?;
        write!(f, "{}", self.chains().to_rule_set(family))?;
        self.write_objects(f)
    }
}

impl IpvsPlan {
    /// Writes all objects except the rules.
    pub(super) fn write_objects(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let family = self.family();
        writeln!(out, "# ipset restore")?;
        let mut entries = BTreeSet::new();
        self.for_each_entry(|kind, entry| _ = entries.insert((kind, entry)));
        SetKind::ALL
            .into_iter()
            .try_for_each(|kind| writeln!(out, "{}", Creation { kind, family, entries: self.set_size(kind) }))?;
        for (kind, entry) in entries {
            writeln!(out, "add {} {entry}", kind.name(family))?;
        }
        writeln!(out, "# ipvsadm --restore")?;
        for (key, server) in self.servers() {
            let scheduler = &self.context().scheduler;
            let config = server.settings(scheduler).with_scheduler(scheduler);
            writeln!(out, "{}", ServerLine { command: "-A", key: *key, config: &config })?;
            for (real, weight) in server.real_servers().iter() {
                let weight = Some(weight.into());
                writeln!(out, "{}", RealServerLine { command: "-a", key: *key, real, weight })?;
            }
        }
        writeln!(out, "# ip -batch")?;
        self.addresses().try_for_each(|address| writeln!(out, "{}", AddressLine { command: "add", address }))
    }
}

/// An argument line of `ip -batch` that adds or deletes an address of the dummy device.
pub(crate) struct AddressLine {
    pub(crate) command: &'static str,
    pub(crate) address: std::net::IpAddr,
}

impl fmt::Display for AddressLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, address } = self;
        write!(f, "address {command} {address}/{} dev {DUMMY_DEVICE}", if address.is_ipv4() { 32 } else { 128 })
    }
}

/// The line of `ipset restore` that creates a set.
pub(crate) struct Creation {
    pub(crate) kind: SetKind,
    pub(crate) family: IpFamily,
    /// The number of entries that follow.
    pub(crate) entries: usize,
}

impl fmt::Display for Creation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set_type = self.kind.set_type();
        write!(f, "create {} {}", self.kind.name(self.family), set_type.as_str())?;
        if set_type == SetType::Port {
            return f.write_str(" range 0-65535");
        }
        let family = if self.family == IpFamily::V4 { "inet" } else { "inet6" };
        write!(f, " family {family} hashsize {HASH_SIZE} maxelem {}", capacity(self.entries))
    }
}

/// The options of `ipvsadm` that identify a virtual server: `-t 10.96.0.1:80`.
struct Identity(ServerKey);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = match self.0.protocol {
            Protocol::Tcp => "-t",
            Protocol::Udp => "-u",
            Protocol::Sctp => "--sctp-service",
        };
        write!(f, "{option} {}", self.0.socket())
    }
}

/// A line of `ipvsadm --restore` for a virtual server.
pub(crate) struct ServerLine<'a> {
    pub(crate) command: &'static str,
    pub(crate) key: ServerKey,
    pub(crate) config: &'a ServerConfig,
}

impl fmt::Display for ServerLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, key, config: ServerConfig { scheduler, flags, timeout, netmask } } = self;
        write!(f, "{command} {} -s {scheduler}", Identity(*key))?;
        if flags & FLAG_PERSISTENT != 0 {
            write!(f, " -p {timeout}")?;
            match netmask {
                Some(mask) if key.address.is_ipv4() => write!(f, " -M {}", Ipv4Addr::from(mask.to_ne_bytes()))?,
                Some(length) => write!(f, " -M {length}")?,
                None => {}
            }
        }
        if flags & FLAG_SOURCE_HASH != 0 {
            write!(f, " -b {scheduler}-port")?;
        }
        Ok(())
    }
}

/// A line of `ipvsadm --restore` that deletes a virtual server.
pub(crate) struct DeletionLine(pub(crate) ServerKey);

impl fmt::Display for DeletionLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-D {}", Identity(self.0))
    }
}

/// A line of `ipvsadm --restore` for a real server.
pub(crate) struct RealServerLine {
    pub(crate) command: &'static str,
    pub(crate) key: ServerKey,
    pub(crate) real: RealServer,
    pub(crate) weight: Option<u32>,
}

impl fmt::Display for RealServerLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, key, real, weight } = self;
        write!(f, "{command} {} -r {real}", Identity(*key))?;
        weight.map_or(Ok(()), |weight| write!(f, " -m -w {weight}"))
    }
}
