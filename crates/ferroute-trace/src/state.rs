use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ferroute_iptables::CtStates;
use ferroute_nftables::Class;

use crate::{
    Effect, Host, Packet, Verdict,
    way::{Notes, Transit},
};

/// A packet as it is at some rule, of whichever mode. It is the first one of its connection.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    pub(crate) packet: Transit<'a>,
    pub(crate) mark: u32,
    pub(crate) priority: Class,
    /// Which states its connection has.
    pub(crate) connection: CtStates,
    /// A rule at this hook has decided the connection's address here, and no other rule will.
    pub(crate) nat_is_settled: bool,
    pub(crate) remembered: &'a BTreeMap<String, u32>,
    /// Somebody will read the sentences that tell why a rule does not match; else they may be empty.
    pub(crate) explains: bool,
}

impl<'a> State<'a> {
    /// The packet before its first hook.
    pub(crate) fn new(host: &'a Host, packet: &'a Packet, explains: bool) -> Self {
        Self {
            packet: Transit::new(host, packet),
            mark: packet.mark,
            priority: Class(0),
            connection: CtStates::NEW,
            nat_is_settled: false,
            remembered: &packet.remembered,
            explains,
        }
    }

    /// No connection is tracked for the packet, so that it has no state and no translation.
    pub(crate) fn untrack(&mut self) {
        self.connection = CtStates::UNTRACKED;
    }

    /// Whether rules of nat tables see the packet.
    ///
    /// A connection's addresses are decided once: its destination where its first packet arrives or is sent, its source
    /// where it leaves or, unless it did so before, where it is delivered. A packet that comes back through the
    /// loopback interface has been sent and has left. What is not tracked has no connection.
    pub(crate) fn sees_nat(&self) -> bool {
        !self.packet.looped && !self.nat_is_settled && !self.connection.intersects(CtStates::UNTRACKED)
    }

    /// Gives the connection another destination. The kernel says that it is translated only if there is something to
    /// change.
    pub(crate) fn translate(&mut self, after: SocketAddr) -> Effect {
        let effect = self.packet.translate(after);
        if matches!(effect, Effect::Dnat { before, after } if before != after) {
            self.connection = self.connection.or(CtStates::DNAT);
        }
        self.nat_is_settled = true;
        effect
    }

    /// Gives the connection another source.
    pub(crate) fn source_from(&mut self, after: IpAddr) -> Effect {
        let before = self.packet.source.ip();
        self.packet.source.set_ip(after);
        if before != after {
            self.connection = self.connection.or(CtStates::SNAT);
        }
        self.nat_is_settled = true;
        Effect::Masquerade { before, after }
    }

    /// Gives the connection the host's address as its source, and a port at random or the one that it has.
    pub(crate) fn masquerade(&mut self, random_port: bool, notes: &mut impl Notes) -> Result<Effect, Verdict> {
        let effect = self.packet.masquerade(notes)?;
        if random_port || matches!(effect, Effect::Masquerade { before, after } if before != after) {
            self.connection = self.connection.or(CtStates::SNAT);
        }
        self.nat_is_settled = true;
        Ok(effect)
    }
}
