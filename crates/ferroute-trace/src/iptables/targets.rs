//! Targets that change a packet or decide on it.

use std::net::{IpAddr, SocketAddr};

use ferroute_iptables::{SetSide, Target};
use ferroute_nftables::{
    ClassId,
    model::{Field, Property},
};

use super::foreign::{Words, number, value_and_mask};
use crate::{Effect, Hook, PacketState, Verdict, record::Record, walk::Unknown};

/// The result of a target that does not lead to another chain.
pub(crate) enum TargetResult {
    /// The next rule follows.
    Continue(Option<Effect>),
    /// The chain of the hook ends.
    Accept(Effect),
    /// The chain of the hook ends if the condition, whose result is unknown, is true; otherwise the packet is dropped.
    AcceptIf(Unknown, Effect),
    /// The target selects one of this number of addresses, and requires the number of one.
    Choose(u32),
    /// The walk ends.
    End(Option<Effect>, Verdict),
}

impl PacketState<'_> {
    /// Applies a target that does not lead to another chain or back from one. `nth` selects one of several addresses.
    pub(crate) fn apply_target(
        &mut self,
        target: &Target,
        hook: Hook,
        nth: Option<u32>,
        record: &mut Record,
    ) -> TargetResult {
        match target {
            Target::Return => TargetResult::Continue(None),
            Target::Jump(chain) | Target::Goto(chain) => {
                TargetResult::End(None, Verdict::Unknown { reason: format!("effect of `-j {chain}`") })
            }
            Target::Accept => TargetResult::Accept(Effect::Accept),
            Target::Drop => dropped(),
            Target::Reject(with) => {
                let with = with.as_str().to_owned();
                TargetResult::End(Some(Effect::Reject { with: with.clone() }), Verdict::Rejected { with })
            }
            Target::Mark { value, mask } => {
                let before = self.mark;
                self.mark = (before & !mask) ^ value;
                TargetResult::Continue(Some(Effect::Mark { before, after: self.mark }))
            }
            Target::Dnat { address, port } => {
                let port = port.unwrap_or(self.destination.port());
                TargetResult::Accept(self.dnat(SocketAddr::new(*address, port)))
            }
            Target::Snat { address, .. } => TargetResult::Accept(self.snat(*address)),
            Target::Masquerade { random_fully } => self.masquerade_target(*random_fully, record),
            Target::Other(text) if is_notrack(text) => {
                self.untrack();
                TargetResult::Continue(None)
            }
            Target::Other(_) if is_irrelevant(target) => TargetResult::Continue(None),
            Target::Other(text) if text.is_empty() => {
                TargetResult::End(None, Verdict::Unknown { reason: "effect of a rule that cannot be read".to_owned() })
            }
            Target::Other(text) => self.apply_words(text, hook, nth, record).unwrap_or_else(|| {
                TargetResult::End(None, Verdict::Unknown { reason: format!("effect of `-j {text}`") })
            }),
        }
    }

    fn masquerade_target(&mut self, random: bool, record: &mut Record) -> TargetResult {
        match self.masquerade(random, record) {
            Ok(effect) => TargetResult::Accept(effect),
            Err(verdict) => TargetResult::End(None, verdict),
        }
    }

    /// Applies a target in the text of `iptables-save`: `NAME OPTIONS`.
    fn apply_words(&mut self, text: &str, hook: Hook, nth: Option<u32>, record: &mut Record) -> Option<TargetResult> {
        let words = Words::parse(text)?;
        Some(match words.name {
            "CT" => {
                if let Some(zone) = words.argument("--zone").or_else(|| words.argument("--zone-orig")) {
                    self.set_zone(zone.parse().ok());
                }
                TargetResult::Continue(None)
            }
            "CLASSIFY" => {
                let (major, minor) = words.argument("--set-class")?.split_once(':')?;
                let number = |text| u16::from_str_radix(text, 16).ok();
                self.set_priority(ClassId::new(number(major)?, number(minor)?));
                TargetResult::Continue(None)
            }
            "SET" => self.set_target(&words)?,
            "CONNMARK" => self.connmark(&words)?,
            "MASQUERADE" => self.masquerade_target(words.has("--random-fully"), record),
            "NFQUEUE" => TargetResult::AcceptIf(
                Unknown::new(format!("the program of `-j {text}` accepts the packet")),
                Effect::Accept,
            ),
            "TPROXY" => {
                let (before, (value, mask)) =
                    (self.mark, value_and_mask(words.argument("--tproxy-mark").unwrap_or("0/0"))?);
                self.mark = before & !mask ^ value;
                let effect = match before == self.mark {
                    true => Effect::Accept,
                    false => Effect::Mark { before, after: self.mark },
                };
                TargetResult::AcceptIf(Unknown::new(format!("`-j {text}` finds a socket")), effect)
            }
            "HMARK" => {
                let count = number(words.argument("--hmark-mod")?)?;
                let first = words.argument("--hmark-offset").map_or(Some(0), number)?;
                match nth {
                    None => TargetResult::Choose(Some(count).filter(|count| (1..=MAX_ADDRESSES).contains(count))?),
                    Some(nth) => {
                        let before = std::mem::replace(&mut self.mark, first.wrapping_add(nth));
                        TargetResult::Continue(Some(Effect::Mark { before, after: self.mark }))
                    }
                }
            }
            "REDIRECT" => {
                let ports = words.argument("--to-ports").map(port_range);
                let port = match ports {
                    Some(ports) => self.port_in(ports?.0, None),
                    None => self.destination.port(),
                };
                let Some(address) = self.redirect_address(hook) else {
                    return Some(dropped());
                };
                TargetResult::Accept(self.dnat(SocketAddr::new(address, port)))
            }
            "NETMAP" => {
                let network: ipnet::IpNet = words.argument("--to")?.parse().ok()?;
                if matches!(hook, Hook::Prerouting | Hook::Output) {
                    let address = mapped(self.destination.ip(), network)?;
                    TargetResult::Accept(self.dnat(SocketAddr::new(address, self.destination.port())))
                } else {
                    TargetResult::Accept(self.snat(mapped(self.source.ip(), network)?))
                }
            }
            "DNAT" => {
                let (addresses, ports) = translation(words.argument("--to-destination")?)?;
                let address = match addresses {
                    None => self.destination.ip(),
                    Some(addresses) => match nth_of(addresses, nth)? {
                        Ok(address) => address,
                        Err(count) => return Some(TargetResult::Choose(count)),
                    },
                };
                let port = ports.map_or(self.destination.port(), |(ports, base)| self.port_in(ports, base));
                TargetResult::Accept(self.dnat(SocketAddr::new(address, port)))
            }
            "SNAT" => {
                let (addresses, ports) = translation(words.argument("--to-source")?)?;
                // A source in the range is kept.
                let (own, port) = (self.source.ip(), self.source.port());
                let is_free = ports.is_none_or(|((first, last), _)| (first..=last).contains(&port));
                let is_in = |(first, last): &(IpAddr, IpAddr)| is_free && (*first..=*last).contains(&own);
                match addresses.filter(|addresses| !is_in(addresses)).map(|addresses| nth_of(addresses, nth)) {
                    None => TargetResult::Accept(self.snat(own)),
                    Some(selected) => match selected? {
                        Ok(address) => TargetResult::Accept(self.snat(address)),
                        Err(count) => TargetResult::Choose(count),
                    },
                }
            }
            _ => return None,
        })
    }

    /// Applies target SET: adds entries to ipsets or deletes them, and takes the mark of an entry.
    fn set_target(&mut self, words: &Words<'_>) -> Option<TargetResult> {
        let mut effect = None;
        for (_, option, arguments) in &words.options {
            let is_added = match *option {
                "--add-set" => Some(true),
                "--del-set" => Some(false),
                "--map-set" => None,
                _ => continue,
            };
            let [name, sides] = arguments.as_slice() else { return None };
            let sides = sides.split(',').map(|side| match side {
                "src" => Some(SetSide::Source),
                "dst" => Some(SetSide::Destination),
                _ => None,
            });
            let sides: Vec<SetSide> = sides.collect::<Option<_>>()?;
            match is_added {
                Some(is_added) => self.change_ipset(name, &sides, is_added),
                None if words.has("--map-mark") => {
                    if let Some((mark, mask)) = self.mark_in_ipset(name, &sides)? {
                        let before = self.mark;
                        self.mark = before & !mask ^ mark;
                        effect = (before != self.mark).then_some(Effect::Mark { before, after: self.mark });
                    }
                }
                None if words.has("--map-prio") => self.changes.write(Property::Field(Field::MetaPriority), None),
                None => {}
            }
        }
        Some(TargetResult::Continue(effect))
    }

    fn connmark(&mut self, words: &Words<'_>) -> Option<TargetResult> {
        if !self.has_connection() {
            return Some(TargetResult::Continue(None));
        }
        if let Some(value) = words.argument("--set-xmark").or_else(|| words.argument("--set-mark")) {
            let (value, mask) = value_and_mask(value)?;
            self.connection_mark = self.connection_mark & !mask ^ value;
        } else if let Some(bits) = words.argument("--and-mark") {
            self.connection_mark &= number(bits)?;
        } else if let Some(bits) = words.argument("--or-mark") {
            self.connection_mark |= number(bits)?;
        } else if let Some(bits) = words.argument("--xor-mark") {
            self.connection_mark ^= number(bits)?;
        } else if words.has("--save-mark") {
            let (packet, connection) = masks(words)?;
            self.connection_mark = self.connection_mark & !connection ^ (self.mark & packet);
        } else if words.has("--restore-mark") {
            let (packet, connection) = masks(words)?;
            let before = self.mark;
            self.mark = before & !packet ^ (self.connection_mark & connection);
            let effect = Effect::Mark { before, after: self.mark };
            return Some(TargetResult::Continue((before != self.mark).then_some(effect)));
        } else {
            return None;
        }
        Some(TargetResult::Continue(None))
    }

    /// Returns the port to which a translation of the destination to a range of ports leads: a port in the range is
    /// kept, or shifted by its distance from `base`.
    pub(crate) fn port_in(&self, (first, last): (u16, u16), base: Option<u16>) -> u16 {
        let port = self.destination.port();
        match base {
            Some(base) => {
                let count = u32::from(last.saturating_sub(first)) + 1;
                let offset = u32::from(port.wrapping_sub(base)) % count;
                first.wrapping_add(u16::try_from(offset).unwrap_or(0))
            }
            None if (first..=last).contains(&port) => port,
            None => first,
        }
    }

    /// Returns the address that REDIRECT sends packets to: that of the input interface, or localhost.
    pub(crate) fn redirect_address(&self, hook: Hook) -> Option<IpAddr> {
        if hook == Hook::Output {
            return Some(self.family().localhost());
        }
        let interface = self.in_interface.as_deref()?;
        self.host.address_of(interface, self.family())
    }
}

fn dropped() -> TargetResult {
    TargetResult::End(Some(Effect::Drop), Verdict::Dropped)
}

/// Returns the masks of the packet's and of the connection's mark.
fn masks(words: &Words<'_>) -> Option<(u32, u32)> {
    let mask = |option| words.argument(option).map_or(Some(u32::MAX), number);
    let both = words.has("--mask").then(|| mask("--mask"));
    match both {
        Some(both) => Some((both?, both?)),
        None => Some((mask("--nfmask")?, mask("--ctmask")?)),
    }
}

/// The first and the last address of a translation.
type Addresses = (IpAddr, IpAddr);

/// First and last port of a translation, and the port from which ports are counted.
type Ports = ((u16, u16), Option<u16>);

/// Returns the addresses and the ports of a translation.
fn translation(text: &str) -> Option<(Option<Addresses>, Option<Ports>)> {
    let addresses = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse::<IpAddr>().ok()?, last.parse::<IpAddr>().ok()?))
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, ports) = rest.split_once(']')?;
        let ports = match ports.strip_prefix(':') {
            Some(ports) => Some(port_range(ports)?),
            None => None,
        };
        return Some((Some(addresses(inside)?), ports));
    }
    match text.rsplit_once(':') {
        Some(("", ports)) => Some((None, Some(port_range(ports)?))),
        Some((ip, ports)) if !ip.contains(':') => Some((Some(addresses(ip)?), Some(port_range(ports)?))),
        _ => Some((Some(addresses(text)?), None)),
    }
}

/// Reads `8080`, `8080-8090` or `8080-8090/80`.
fn port_range(text: &str) -> Option<Ports> {
    let (range, base) = match text.split_once('/') {
        Some((range, base)) => (range, Some(base.parse().ok()?)),
        None => (text, None),
    };
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some(((first.parse().ok()?, last.parse().ok()?), base))
}

/// Returns an address of a range by number, or the number of addresses; `None` if there are too many.
fn nth_of((first, last): (IpAddr, IpAddr), nth: Option<u32>) -> Option<Result<IpAddr, u32>> {
    match (address_count(first, last)?, nth) {
        (1, _) => Some(Ok(first)),
        (_, Some(nth)) => Some(Ok(nth_address(first, nth))),
        (count, None) => Some(Err(count)),
    }
}

/// Returns the number of addresses in a range; `None` if there are too many to be distinguished.
pub(crate) fn address_count(first: IpAddr, last: IpAddr) -> Option<u32> {
    let number = |address| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    let count = number(last).checked_sub(number(first))?.checked_add(1)?;
    u32::try_from(count).ok().filter(|count| *count <= MAX_ADDRESSES)
}

/// Maximum number of addresses of a range, and of marks of a hash, that are distinguished.
pub(crate) const MAX_ADDRESSES: u32 = 64;

/// Returns the address at this distance from the first one.
pub(crate) fn nth_address(first: IpAddr, n: u32) -> IpAddr {
    match first {
        IpAddr::V4(first) => IpAddr::V4(u32::from(first).wrapping_add(n).into()),
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).wrapping_add(n.into()).into()),
    }
}

/// Returns an address with the network's prefix and the host part of `address`.
fn mapped(address: IpAddr, network: ipnet::IpNet) -> Option<IpAddr> {
    match (address, network) {
        (IpAddr::V4(address), ipnet::IpNet::V4(network)) => {
            let (host, net) = (u32::from(network.hostmask()), u32::from(network.network()));
            Some(IpAddr::V4((u32::from(address) & host | net).into()))
        }
        (IpAddr::V6(address), ipnet::IpNet::V6(network)) => {
            let (host, net) = (u128::from(network.hostmask()), u128::from(network.network()));
            Some(IpAddr::V6((u128::from(address) & host | net).into()))
        }
        _ => None,
    }
}

/// Reports whether a target has no effect on the packet, or only an effect that no supported match uses.
pub(crate) fn is_irrelevant(target: &Target) -> bool {
    const IRRELEVANT: [&str; 20] = [
        "LOG",
        "NFLOG",
        "ULOG",
        "AUDIT",
        "TRACE",
        "TCPMSS",
        "DSCP",
        "CHECKSUM",
        "TOS",
        "TTL",
        "HL",
        "TEE",
        "ECN",
        "SECMARK",
        "CONNSECMARK",
        "IDLETIMER",
        "LED",
        "RATEEST",
        "TCPOPTSTRIP",
        "ACCOUNT",
    ];
    match target {
        Target::Other(text) => {
            let name = text.split(' ').next().unwrap_or_default();
            IRRELEVANT.contains(&name)
        }
        _ => false,
    }
}

/// Reports whether a target only adds entries to ipsets or deletes them.
pub(super) fn changes_set(target: &Target) -> bool {
    matches!(target, Target::Other(text) if text.starts_with("SET ") && !text.contains("--map-set"))
}

/// Reports whether a target excludes the packet from connection tracking.
fn is_notrack(target: &str) -> bool {
    let mut words = target.split(' ');
    match words.next() {
        Some("NOTRACK") => true,
        // `nft` prints the words of `iptables -L`.
        Some("CT") => words.any(|word| ["--notrack", "notrack"].contains(&word)),
        _ => false,
    }
}
