//! Targets that change a packet or decide about it.

use std::net::{IpAddr, SocketAddr};

use ferroute_iptables::Target;

use super::foreign::{Words, number, value_and_mask};
use crate::{Effect, Hook, PacketState, Verdict, record::Record};

/// The result of a target that does not lead to another chain.
pub(crate) enum TargetResult {
    /// The next rule follows.
    Continue(Option<Effect>),
    /// The chain of the hook ends.
    Accept(Effect),
    /// The walk ends.
    End(Option<Effect>, Verdict),
}

impl PacketState<'_> {
    /// Applies a target. Those that lead to another chain, or back from one, do nothing here.
    pub(crate) fn apply_target(&mut self, target: &Target, hook: Hook, record: &mut Record) -> TargetResult {
        match target {
            Target::Jump(_) | Target::Goto(_) | Target::Return => TargetResult::Continue(None),
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
            Target::Other(text) => self.apply_words(text, hook, record).unwrap_or_else(|| {
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
    fn apply_words(&mut self, text: &str, hook: Hook, record: &mut Record) -> Option<TargetResult> {
        let words = Words::parse(text)?;
        Some(match words.name {
            "CONNMARK" => self.connmark(&words)?,
            "MASQUERADE" => self.masquerade_target(words.has("--random-fully"), record),
            "REDIRECT" => {
                let port = first_port(words.argument("--to-ports"), self.destination.port())?;
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
                let (address, port) = translation(words.argument("--to-destination")?)?;
                let address = address.unwrap_or(self.destination.ip());
                TargetResult::Accept(self.dnat(SocketAddr::new(address, port.unwrap_or(self.destination.port()))))
            }
            "SNAT" => {
                let (address, _) = translation(words.argument("--to-source")?)?;
                TargetResult::Accept(self.snat(address.unwrap_or(self.source.ip())))
            }
            _ => return None,
        })
    }

    fn connmark(&mut self, words: &Words<'_>) -> Option<TargetResult> {
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

/// Returns the address and port of a translation; `None` if it names several.
fn translation(text: &str) -> Option<(Option<IpAddr>, Option<u16>)> {
    let single = |text: &str| match text.split_once('-') {
        Some((first, last)) => (first == last).then(|| first.to_owned()),
        None => Some(text.to_owned()),
    };
    let address = |text: &str| single(text)?.parse::<IpAddr>().ok();
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, port) = rest.split_once(']')?;
        let port = port.strip_prefix(':').map(|port| first_port(Some(port), 0));
        return Some((Some(address(inside)?), port.map_or(Some(None), |port| port.map(Some))?));
    }
    match text.rsplit_once(':') {
        Some(("", port)) => Some((None, Some(first_port(Some(port), 0)?))),
        Some((ip, port)) if !ip.contains(':') => Some((Some(address(ip)?), Some(first_port(Some(port), 0)?))),
        _ => Some((Some(address(text)?), None)),
    }
}

/// Returns the first port of a range.
fn first_port(text: Option<&str>, default: u16) -> Option<u16> {
    text.map_or(Some(default), |text| text.split(['-', '/']).next()?.parse().ok())
}

/// Returns an address with the network's prefix and its own host part.
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

/// Reports whether a target has no effect on the packet, or only one that no rule here matches on.
pub(crate) fn is_irrelevant(target: &Target) -> bool {
    const IRRELEVANT: [&str; 24] = [
        "LOG",
        "NFLOG",
        "ULOG",
        "AUDIT",
        "TRACE",
        "CT",
        "SET",
        "TCPMSS",
        "DSCP",
        "CHECKSUM",
        "CLASSIFY",
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
        "HMARK",
        "ACCOUNT",
    ];
    match target {
        Target::Other(text) => {
            let name = text.split(' ').next().unwrap_or_default();
            IRRELEVANT.contains(&name) && !is_notrack(text)
        }
        _ => false,
    }
}

/// Reports whether a target excludes the packet from connection tracking.
fn is_notrack(target: &str) -> bool {
    let mut words = target.split(' ');
    match words.next() {
        Some("NOTRACK") => true,
        Some("CT") => words.any(|word| word == "--notrack"),
        _ => false,
    }
}
