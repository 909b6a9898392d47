//! A packet's way from hook to hook: what the kernel decides without a rule.

use ferroute_core::IpFamily;

use super::walker::Walker;
use crate::{Event, Hook, Origin, Verdict, host::Way};

impl Walker<'_> {
    /// Goes to the first hook; the packet may end before it.
    pub(super) fn set_out(&mut self) -> Result<Hook, Verdict> {
        match &self.sent.origin {
            // IPv6 looks before all rules whether an address says that the packet can only come from the host itself.
            Origin::Interface(name) => {
                let ends = [self.state.source.ip(), self.state.destination.ip()];
                let inside = ends.iter().any(|end| end.is_ipv6() && end.is_loopback());
                if name != LOOPBACK && inside {
                    return Err(self.discard("addresses of the loopback interface come from outside"));
                }
                Ok(Hook::Prerouting)
            }
            Origin::Local => {
                // Without a way, the program's call fails.
                self.route(Hook::Output)?;
                Ok(Hook::Output)
            }
        }
    }

    /// Where the packet is when all chains of a hook have let it pass; or its end.
    pub(super) fn next_hook(&mut self, hook: Hook) -> Result<Hook, Verdict> {
        let here = self.host.owns(self.state.destination.ip());
        match hook {
            Hook::Prerouting => {
                if self.state.in_interface != Some(LOOPBACK) {
                    self.refuse_martian()?;
                }
                self.route(hook)?;
                Ok(if here { Hook::Input } else { Hook::Forward })
            }
            Hook::Output => {
                // The rules may have changed the destination.
                self.route(hook)?;
                Ok(Hook::Postrouting)
            }
            Hook::Forward => Ok(Hook::Postrouting),
            Hook::Postrouting if here => {
                self.looped = true;
                self.state.in_interface = Some(LOOPBACK);
                self.state.out_interface = None;
                Ok(Hook::Prerouting)
            }
            Hook::Input | Hook::Postrouting => Err(Verdict::Delivered {
                to: self.state.destination,
                from: self.state.source.ip(),
                translated: self.state.destination != self.sent.destination,
                through: self.state.out_interface.map(str::to_owned),
            }),
        }
    }

    /// Finds the packet's way; there may be none.
    fn route(&mut self, hook: Hook) -> Result<(), Verdict> {
        let host = self.host;
        let way = host.way(self.state.destination.ip());
        let sent_here = hook == Hook::Output;
        self.state.out_interface = match way {
            None => return Err(Verdict::NoRoute),
            Some(Way::Here) => sent_here.then_some(LOOPBACK),
            Some(Way::Through(route)) => Some(route.interface.as_str()),
        };
        if !self.looped {
            let to = self.state.out_interface.map(str::to_owned);
            self.log.note_detail(|| Event::Routed { to });
        }
        let leaves = matches!(way, Some(Way::Through(_)));
        let routes_localnet = host.route_localnet && self.sent.family() == IpFamily::V4;
        if sent_here && leaves && self.state.source.ip().is_loopback() && !routes_localnet {
            return Err(self.discard("a loopback address must not leave the host without route_localnet"));
        }
        Ok(())
    }

    /// Drops IPv4 packets from outside that say that they are from or to the host's inside.
    fn refuse_martian(&mut self) -> Result<(), Verdict> {
        if self.sent.family() == IpFamily::V6 {
            return Ok(());
        }
        if self.state.destination.ip().is_loopback() && !self.host.route_localnet {
            return Err(self.discard("it is for a loopback address, without route_localnet"));
        }
        if self.host.is_forged(self.state.source.ip()) {
            return Err(self.discard("it comes from outside with an address of the host itself"));
        }
        Ok(())
    }

    /// The kernel drops the packet by itself.
    pub(super) fn discard(&mut self, why: &'static str) -> Verdict {
        self.log.note(|| Event::Discarded { why });
        Verdict::Dropped
    }
}

/// The loopback interface.
const LOOPBACK: &str = "lo";
