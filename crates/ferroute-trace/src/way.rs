//! A packet's way from hook to hook: what the kernel decides without a rule. The same in every mode.
//!
//! ```text
//!   arriving:  prerouting ──► routing ──┬─► input
//!                                       └─► forward ──► postrouting
//!   sent here: output ──► routing ──► postrouting ──┬─► leaves
//!                                                   └─► prerouting ──► input     through loopback
//! ```

use std::net::SocketAddr;

use ferroute_core::IpFamily;

use crate::{Effect, Event, Hook, Host, Origin, Packet, Verdict, host::Way};

/// A packet on its way, as far as routing looks at it.
#[derive(Clone, Debug)]
pub(crate) struct Transit<'a> {
    pub(crate) host: &'a Host,
    /// As it was sent or came in.
    pub(crate) sent: &'a Packet,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) in_interface: Option<&'a str>,
    pub(crate) out_interface: Option<&'a str>,
    /// It comes back through the loopback interface after the host has sent it to itself.
    pub(crate) looped: bool,
}

/// Writes down what happens; an event is made only if somebody wants it.
pub(crate) trait Notes {
    /// Something changed or was decided.
    fn note(&mut self, event: impl FnOnce() -> Event);

    /// Something that only a full story tells, which happens far more often.
    fn note_detail(&mut self, event: impl FnOnce() -> Event);
}

impl<'a> Transit<'a> {
    /// The packet before its first hook.
    pub(crate) fn new(host: &'a Host, sent: &'a Packet) -> Self {
        let in_interface = match &sent.origin {
            Origin::Local => None,
            Origin::Interface(name) => Some(name.as_str()),
        };
        let Packet { source, destination, .. } = *sent;
        Self { host, sent, source, destination, in_interface, out_interface: None, looped: false }
    }

    /// Goes to the first hook; the packet may end before it.
    pub(crate) fn set_out(&mut self, notes: &mut impl Notes) -> Result<Hook, Verdict> {
        match &self.sent.origin {
            // IPv6 looks before all rules whether an address says that the packet can only come from the host itself.
            Origin::Interface(name) => {
                let inside = [self.source, self.destination].iter().any(|end| end.is_ipv6() && end.ip().is_loopback());
                if name != LOOPBACK && inside {
                    return Err(discard(notes, "addresses of the loopback interface come from outside"));
                }
                Ok(Hook::Prerouting)
            }
            Origin::Local => {
                // Without a way, the program's call fails.
                self.route(Hook::Output, notes)?;
                Ok(Hook::Output)
            }
        }
    }

    /// Where the packet is when all chains of a hook have let it pass; or its end.
    pub(crate) fn next_hook(&mut self, hook: Hook, notes: &mut impl Notes) -> Result<Hook, Verdict> {
        let here = self.host.owns(self.destination.ip());
        match hook {
            Hook::Prerouting => {
                if self.in_interface != Some(LOOPBACK) {
                    self.refuse_martian(notes)?;
                }
                self.route(hook, notes)?;
                Ok(if here { Hook::Input } else { Hook::Forward })
            }
            Hook::Output => {
                // The rules may have changed the destination.
                self.route(hook, notes)?;
                Ok(Hook::Postrouting)
            }
            Hook::Forward => Ok(Hook::Postrouting),
            Hook::Postrouting if here => {
                self.looped = true;
                self.in_interface = Some(LOOPBACK);
                self.out_interface = None;
                Ok(Hook::Prerouting)
            }
            Hook::Input | Hook::Postrouting => Err(Verdict::Delivered {
                to: self.destination,
                from: self.source.ip(),
                translated: self.destination != self.sent.destination,
                through: self.out_interface.map(str::to_owned),
            }),
        }
    }

    /// Gives the packet another destination.
    pub(crate) fn translate(&mut self, after: SocketAddr) -> Effect {
        Effect::Dnat { before: std::mem::replace(&mut self.destination, after), after }
    }

    /// Gives the packet the host's address as its source.
    pub(crate) fn masquerade(&mut self, notes: &mut impl Notes) -> Result<Effect, Verdict> {
        let before = self.source.ip();
        let Some(after) = self.host.masquerade_source(self.destination.ip()) else {
            return Err(discard(notes, "there is no address to masquerade with"));
        };
        self.source.set_ip(after);
        Ok(Effect::Masquerade { before, after })
    }

    /// Finds the packet's way; there may be none.
    fn route(&mut self, hook: Hook, notes: &mut impl Notes) -> Result<(), Verdict> {
        let host = self.host;
        let way = host.way(self.destination.ip());
        let sent_here = hook == Hook::Output;
        self.out_interface = match way {
            None => return Err(Verdict::NoRoute),
            Some(Way::Here) => sent_here.then_some(LOOPBACK),
            Some(Way::Through(route)) => Some(route.interface.as_str()),
        };
        if !self.looped {
            notes.note_detail(|| Event::Routed { to: self.out_interface.map(str::to_owned) });
        }
        let leaves = matches!(way, Some(Way::Through(_)));
        let routes_localnet = host.route_localnet && self.sent.family() == IpFamily::V4;
        if sent_here && leaves && self.source.ip().is_loopback() && !routes_localnet {
            return Err(discard(notes, "a loopback address must not leave the host without route_localnet"));
        }
        Ok(())
    }

    /// Drops IPv4 packets from outside that say that they are from or to the host's inside.
    fn refuse_martian(&self, notes: &mut impl Notes) -> Result<(), Verdict> {
        if self.sent.family() == IpFamily::V6 {
            return Ok(());
        }
        if self.destination.ip().is_loopback() && !self.host.route_localnet {
            return Err(discard(notes, "it is for a loopback address, without route_localnet"));
        }
        if self.host.is_forged(self.source.ip()) {
            return Err(discard(notes, "it comes from outside with an address of the host itself"));
        }
        Ok(())
    }
}

/// The kernel drops the packet by itself.
fn discard(notes: &mut impl Notes, why: &'static str) -> Verdict {
    notes.note(|| Event::Discarded { why });
    Verdict::Dropped
}

/// The loopback interface.
const LOOPBACK: &str = "lo";
