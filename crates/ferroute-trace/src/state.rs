//! State of the packet and its connection between two rules, and the decisions that the kernel makes without rules:
//! routing, and the order of the hooks.
//!
//! ```text
//!   received: prerouting ──► routing ──┬─► input
//!                                      └─► forward ──► postrouting
//!   local:    output ──► routing ──► postrouting ──┬─► leaves the host
//!                                                  └─► prerouting ──► input     through lo
//! ```

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ferroute_core::{IpFamily, Protocol};
use ferroute_iptables::CtStates;
use ferroute_ipvs::IpvsObjects;
use ferroute_nftables::{
    ClassId,
    model::{Field, Property},
};

use crate::{
    BaseChain, Effect, Event, Hook, Host, Ipsets, Origin, Packet, Ruleset, Verdict,
    changes::Changes,
    host::{AddressKind, RouteDecision, RoutedPacket},
    record::Record,
};

/// Properties of a packet that rules can change and its route depends on: source, destination and mark.
type Selector = (IpAddr, IpAddr, u32);

/// The current state of a packet in a walk.
#[derive(Clone, Debug)]
pub struct PacketState<'a> {
    pub(crate) host: &'a Host,
    /// Objects of ipvs mode, whose dummy device has addresses of the host.
    pub(crate) ipvs: &'a [&'a dyn IpvsObjects],
    /// The ipsets of other programs, if they were read.
    pub(crate) ipsets: Option<&'a Ipsets>,
    /// The packet as it was sent or received.
    pub(crate) original: &'a Packet,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// Source and destination at the time of connection tracking, which are those of the connection.
    pub(crate) tracked: (SocketAddr, SocketAddr),
    pub(crate) in_interface: Option<Arc<str>>,
    pub(crate) out_interface: Option<Arc<str>>,
    /// The next hop of the route, unless the destination is a neighbour.
    gateway: Option<IpAddr>,
    /// The route leads to the host itself.
    is_for_host: bool,
    /// Path to take if a route has several; `None` if it has not been chosen.
    pub(crate) path: Option<usize>,
    /// Weights of the paths of the last route with several paths; empty if the path was chosen.
    pub(crate) paths: Vec<u32>,
    /// Path that was taken last, with the properties by which the route was selected.
    taken: Option<(Selector, usize)>,
    /// Properties by which the route of a packet of the host itself was selected.
    routed_by: Selector,
    /// Properties by which it would be selected at the beginning of the current chain.
    entered_with: Selector,
    /// Whether the packet has been received again, on the VRF of its input interface.
    in_vrf: bool,
    pub(crate) mark: u32,
    /// The mark of the connection.
    pub(crate) connection_mark: u32,
    /// The zone of the connection; `None` if it is unknown.
    pub(crate) zone: Option<u16>,
    pub(crate) priority: ClassId,
    /// Changes that rules on the path have made.
    pub(crate) changes: Changes<'a>,
    /// States of the connection that rules can match; the packet is the first of the connection. Before connection
    /// tracking, and for untracked packets, there is no connection.
    pub(crate) connection: CtStates,
    /// Whether the packet comes back through the loopback interface after the host has sent it to itself.
    pub(crate) looped: bool,
    /// Whether a chain has sent the packet itself; see [`ChainVerdict::Resend`](crate::ChainVerdict::Resend).
    pub(crate) resent: bool,
    /// Whether the connection's NAT at this hook is complete, so that no other NAT rule is consulted.
    pub(crate) nat_is_settled: bool,
    /// Whether the reasons for mismatches are recorded; otherwise they may be empty.
    pub(crate) explain: bool,
}

impl<'a> PacketState<'a> {
    /// The packet before its first hook.
    pub(crate) fn new(host: &'a Host, rules: &'a Ruleset<'a>, original: &'a Packet, explain: bool) -> Self {
        let ipvs = rules.ipvs();
        let in_interface = match &original.origin {
            Origin::Local => None,
            Origin::Interface(name) => Some(name.as_str().into()),
        };
        let mut source = original.source;
        if original.origin == Origin::Local && ipvs.iter().any(|objects| objects.has_address(original.destination.ip()))
        {
            // The route to an address of the dummy device has this address as its source.
            source.set_ip(original.destination.ip());
        }
        Self {
            host,
            ipvs,
            ipsets: rules.ipsets(),
            original,
            source,
            destination: original.destination,
            tracked: (original.source, original.destination),
            in_interface,
            out_interface: None,
            gateway: None,
            is_for_host: false,
            path: None,
            paths: Vec::new(),
            taken: None,
            routed_by: (source.ip(), original.destination.ip(), original.mark),
            entered_with: (source.ip(), original.destination.ip(), original.mark),
            in_vrf: false,
            mark: original.mark,
            connection_mark: 0,
            zone: Some(0),
            priority: ClassId(0),
            changes: Changes::default(),
            connection: BEFORE_TRACKING,
            looped: false,
            resent: false,
            nat_is_settled: false,
            explain,
        }
    }

    /// Returns the packet as it was sent or received.
    pub fn original(&self) -> &'a Packet {
        self.original
    }

    /// Returns the host that the packet is walked through.
    pub fn host(&self) -> &'a Host {
        self.host
    }

    /// Reports whether `address` is one of the host's, including those of ipvs mode's dummy device.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.host.owns(address) || self.ipvs.iter().any(|objects| objects.has_address(address))
    }

    /// Returns the type of an address; `None` if it depends on routing tables that are unknown.
    pub(crate) fn address_type(&self, address: IpAddr) -> Option<AddressKind> {
        if self.is_local(address) { Some(AddressKind::Local) } else { self.host.address_type(address) }
    }

    /// Returns the type of an address for packets that arrive on an interface: only addresses of that interface are the host's.
    pub(crate) fn address_type_on(&self, address: IpAddr, interface: &str) -> Option<AddressKind> {
        match self.address_type(address)? {
            AddressKind::Local | AddressKind::Broadcast => self.host.address_type_on(address, interface),
            kind => Some(kind),
        }
    }

    /// Returns the IP family of the addresses.
    pub fn family(&self) -> IpFamily {
        self.original.family()
    }

    /// Returns the transport protocol.
    pub fn protocol(&self) -> Protocol {
        self.original.protocol
    }

    /// Returns the current source.
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// Returns the current destination.
    pub fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// Returns the current mark.
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// Reports whether a virtual server has handled the packet, or a chain has sent it itself; see
    /// [`ChainVerdict::Resend`](crate::ChainVerdict::Resend). Corresponds to the kernel's `skb->ipvs_property`.
    pub fn is_resent(&self) -> bool {
        self.resent
    }

    // === NAT ===

    /// Reports whether chains of the NAT type are consulted.
    ///
    /// NAT is set up once for a connection: the destination when the first packet is received or sent, the source when
    /// it leaves or is delivered. A packet that comes back through the loopback interface has already been sent and has
    /// left. An untracked packet has no connection.
    pub(crate) fn sees_nat(&self) -> bool {
        !self.looped && !self.nat_is_settled && self.has_connection()
    }

    /// Changes the connection's destination. The kernel sets the status bit only if the address or port changes.
    pub fn dnat(&mut self, after: SocketAddr) -> Effect {
        let before = std::mem::replace(&mut self.destination, after);
        if before != after {
            self.connection = self.connection.or(CtStates::DNAT);
        }
        self.nat_is_settled = true;
        Effect::Dnat { before, after }
    }

    /// Changes the connection's source address.
    pub fn snat(&mut self, after: IpAddr) -> Effect {
        let before = self.source.ip();
        self.source.set_ip(after);
        if before != after {
            self.connection = self.connection.or(CtStates::SNAT);
        }
        self.nat_is_settled = true;
        Effect::Masquerade { before, after }
    }

    /// Replaces the packet by the first packet of a connection that a local process opens on behalf of the sender.
    pub(crate) fn connect(&mut self, endpoint: SocketAddr) -> Effect {
        let before = std::mem::replace(&mut self.destination, endpoint);
        // The kernel chooses a port.
        let transport = Some((self.protocol(), self.source.port(), endpoint.port()));
        let source = match self.is_local(endpoint.ip()) {
            true => endpoint.ip(),
            false => self.host.source_to(endpoint.ip(), transport).unwrap_or(before.ip()),
        };
        self.source.set_ip(source);
        (self.mark, self.connection, self.looped) = (0, BEFORE_TRACKING, false);
        Effect::Connect { before, after: endpoint }
    }

    /// Changes the connection's source to the host's address on the output interface, with a random port if
    /// `random_port`. The packet is dropped if there is no such address.
    pub(crate) fn masquerade(&mut self, random_port: bool, record: &mut Record) -> Result<Effect, Verdict> {
        let interface = self.out_interface.as_deref().unwrap_or_default();
        let Some(after) = self.host.masquerade_source(self.destination.ip(), interface, self.gateway) else {
            return Err(discard(record, "the output interface has no address for masquerading"));
        };
        let effect = self.snat(after);
        if random_port {
            self.connection = self.connection.or(CtStates::SNAT);
        }
        Ok(effect)
    }

    /// Reports whether the packet has a route, which it has after the hook prerouting.
    pub(crate) fn is_routed(&self) -> bool {
        self.out_interface.is_some() || self.is_for_host || self.looped
    }

    /// Reports whether the packet has a connection. Packets have none before connection tracking, and untracked packets
    /// never have one.
    pub(crate) fn has_connection(&self) -> bool {
        !self.connection.intersects(BEFORE_TRACKING.or(CtStates::UNTRACKED))
    }

    /// Passes connection tracking, which sets up the connection.
    pub(crate) fn track(&mut self) {
        if self.connection == BEFORE_TRACKING {
            self.connection = CtStates::NEW;
            // Rules may have written other addresses before.
            if (self.source, self.destination) != (self.original.source, self.original.destination) {
                self.tracked = (self.source, self.destination);
            }
        }
    }

    /// Excludes the packet from connection tracking: it has no state and no NAT. Has no effect after connection
    /// tracking.
    pub(crate) fn untrack(&mut self) {
        if self.connection == BEFORE_TRACKING {
            self.connection = CtStates::UNTRACKED;
        }
    }

    /// Sets the zone of the connection; `None` if it is unknown. Has no effect after connection tracking.
    pub(crate) fn set_zone(&mut self, zone: Option<u16>) {
        if self.connection == BEFORE_TRACKING {
            self.zone = zone;
        }
    }

    /// Replaces the priority.
    pub(crate) fn set_priority(&mut self, priority: ClassId) {
        self.changes.forget(Property::Field(Field::MetaPriority));
        self.priority = priority;
    }

    // === hooks and routing ===

    /// Begins a chain.
    pub(crate) fn enter_chain(&mut self) {
        self.entered_with = self.selector();
    }

    /// Ends a chain. At the output hook, some select the route again.
    pub(crate) fn leave_chain(&mut self, hook: Hook, chain: &dyn BaseChain) {
        let now = self.selector();
        let has_other_destination = chain.is_nat() && now.1 != self.entered_with.1;
        if hook == Hook::Output && (has_other_destination || chain.routes_again() && now != self.entered_with) {
            self.routed_by = now;
        }
    }

    fn selector(&self) -> Selector {
        (self.source.ip(), self.destination.ip(), self.mark)
    }

    /// Returns the packet's first hook, or the verdict if the kernel drops it before.
    pub(crate) fn first_hook(&mut self, record: &mut Record) -> Result<Hook, Verdict> {
        match &self.original.origin {
            // IPv6 checks for loopback addresses from outside before prerouting (`ip6_rcv_core`), IPv4 after.
            Origin::Interface(name) => {
                let is_loopback = |end: SocketAddr| end.is_ipv6() && end.ip().is_loopback();
                if name != LOOPBACK && (is_loopback(self.source) || is_loopback(self.destination)) {
                    return Err(discard(record, "loopback address received on another interface"));
                }
                Ok(Hook::Prerouting)
            }
            Origin::Local => {
                self.routed_by = self.selector();
                // Without a route, the system call fails.
                self.route(Hook::Output, record)?;
                Ok(Hook::Output)
            }
        }
    }

    /// Returns the hook that follows `hook`, or the verdict after the last one.
    pub(crate) fn next_hook(&mut self, hook: Hook, record: &mut Record) -> Result<Hook, Verdict> {
        self.nat_is_settled = false;
        match hook {
            Hook::Prerouting => {
                if let Some(vrf) = self.next_vrf() {
                    self.in_interface = Some(vrf);
                    self.in_vrf = true;
                    self.nat_is_settled = true;
                    return Ok(Hook::Prerouting);
                }
                if self.in_interface.as_deref() != Some(LOOPBACK) {
                    self.drop_martians(record)?;
                }
                self.route(hook, record)?;
                Ok(if self.is_for_host { Hook::Input } else { Hook::Forward })
            }
            Hook::Output => {
                // The rules may have changed the destination.
                self.route(hook, record).map_err(|verdict| match verdict {
                    // The packet has been sent: no program gets the error, and TCP sends it again.
                    Verdict::Rejected { .. } => Verdict::Dropped,
                    verdict => verdict,
                })?;
                Ok(Hook::Postrouting)
            }
            Hook::Forward => Ok(Hook::Postrouting),
            Hook::Postrouting if self.is_for_host => {
                self.looped = true;
                self.in_interface = Some(LOOPBACK.into());
                self.out_interface = None;
                Ok(Hook::Prerouting)
            }
            Hook::Postrouting if self.is_lost_in_bridge() => Err(discard(
                record,
                "a bridge returns no packets to the port from which they came, unless it is in hairpin mode",
            )),
            Hook::Input | Hook::Postrouting => Err(Verdict::Delivered {
                to: self.destination,
                from: self.source.ip(),
                translated: self.destination != self.original.destination,
                interface: self.out_interface.as_deref().map(str::to_owned),
            }),
        }
    }

    /// Sends the packet from the output hook to its current destination. The connection's destination is not translated
    /// again.
    pub(crate) fn resend(&mut self, record: &mut Record) -> Result<Hook, Verdict> {
        self.resent = true;
        self.in_interface = None;
        self.routed_by = self.selector();
        self.route(Hook::Output, record)?;
        self.nat_is_settled = true;
        Ok(Hook::Output)
    }

    /// Reports whether the packet would not get back to the sender if the sender itself is the endpoint.
    fn is_lost_in_bridge(&self) -> bool {
        let (Origin::Interface(input), Some(output), Some(router)) =
            (&self.original.origin, self.out_interface.as_deref(), &self.host.router)
        else {
            return false;
        };
        // The host's own connection, as in userspace mode, has the host's address.
        let is_own = self.tracked.0.ip() == self.destination.ip();
        is_own && input == output && !router.returns_packets(output, self.family())
    }

    /// Returns the VRF on which the packet is received next: the kernel passes it through prerouting again, without
    /// NAT.
    fn next_vrf(&self) -> Option<Arc<str>> {
        let interface = self.in_interface.as_deref().filter(|_| !self.in_vrf)?;
        self.host.router.as_ref()?.vrf(interface)
    }

    /// Looks up the route.
    fn route(&mut self, hook: Hook, record: &mut Record) -> Result<(), Verdict> {
        let is_output = hook == Hook::Output;
        let destination = if is_output { self.routed_by.1 } else { self.destination.ip() };
        let decision = match self.looped || self.is_local(destination) {
            // A packet that the host has sent to itself keeps its route.
            true => RouteDecision::Local { source: None },
            false => self.host.decide(&self.routed(is_output)),
        };
        let decision = match decision {
            RouteDecision::Paths(mut paths) => {
                let selector = if is_output { self.routed_by } else { self.selector() };
                let path = match (self.path.take(), self.taken) {
                    (Some(path), _) => path,
                    // The route of a packet of the host itself is looked up again, but its result can differ only if
                    // the packet has changed.
                    (None, Some((by, path))) if by == selector => path,
                    (None, _) => {
                        self.paths = paths.iter().map(|(weight, _)| *weight).collect();
                        0
                    }
                };
                self.taken = Some((selector, path));
                if path < paths.len() { paths.swap_remove(path).1 } else { RouteDecision::Unreachable }
            }
            decision => decision,
        };
        self.gateway = None;
        self.is_for_host = false;
        match decision {
            // A path does not consist of further paths.
            RouteDecision::Paths(_) => return Err(Verdict::NoRoute),
            RouteDecision::Local { .. } => {
                self.is_for_host = true;
                self.out_interface = is_output.then(|| LOOPBACK.into());
            }
            RouteDecision::Unicast { interface, gateway, .. } => {
                self.out_interface = Some(interface);
                self.gateway = gateway;
            }
            RouteDecision::Unreachable => return Err(Verdict::NoRoute),
            RouteDecision::Prohibited => {
                record.step(|| Event::Discarded { reason: "prohibit route".into() });
                return Err(Verdict::Rejected { with: PROHIBITED[self.family().index()].to_owned() });
            }
            RouteDecision::Dropped(reason) => {
                record.step(|| Event::Discarded { reason });
                return Err(Verdict::Dropped);
            }
            RouteDecision::Unknown(reason) => return Err(Verdict::Unknown { reason }),
        }
        if !self.looped {
            record.detail(|| Event::Routed { interface: self.out_interface.as_deref().map(str::to_owned) });
        }
        if let Some(interface) = self.out_interface.as_deref()
            && is_output
            && !self.is_for_host
            && self.source.ip().is_loopback()
            && !self.host.routes_localhost(self.family(), interface)
        {
            return Err(discard(record, LOST_LOOPBACK[self.family().index()]));
        }
        Ok(())
    }

    fn routed(&self, is_output: bool) -> RoutedPacket<'_> {
        let (source, destination, mark) = if is_output { self.routed_by } else { self.selector() };
        RoutedPacket {
            destination,
            // The kernel refuses lookups for packets of the host from addresses that the host does not have.
            source: Some(source).filter(|source| !is_output || self.host.owns(*source)),
            input: self.in_interface.as_deref().filter(|name| !is_output && *name != LOOPBACK),
            mark,
            transport: Some((self.protocol(), self.source.port(), self.destination.port())),
        }
    }

    /// Drops received IPv4 packets that claim to be from the host itself or for its loopback interface.
    fn drop_martians(&self, record: &mut Record) -> Result<(), Verdict> {
        if self.family() == IpFamily::V6 {
            return Ok(());
        }
        if self.destination.ip().is_loopback() && !self.host.route_localnet {
            return Err(discard(record, "martian destination: loopback address without route_localnet"));
        }
        if self.host.is_martian_source(self.source.ip()) {
            return Err(discard(record, "martian source: the host's own address received from outside"));
        }
        Ok(())
    }
}

/// Records that the kernel drops the packet without a rule.
fn discard(record: &mut Record, reason: &'static str) -> Verdict {
    record.step(|| Event::Discarded { reason: reason.into() });
    Verdict::Dropped
}

/// Reason why packets of the host itself with a loopback source do not result in a connection, by family.
const LOST_LOOPBACK: [&str; 2] = [
    "loopback source leaving the host without route_localnet",
    "loopback source leaving the host through an interface without a local route to ::1 for the replies",
];

/// The replies to packets with a `prohibit` route.
const PROHIBITED: [&str; 2] = ["icmp-admin-prohibited", "icmp6-adm-prohibited"];

/// State that the kernel reports for packets without a connection, unless a rule has excluded them from tracking.
const BEFORE_TRACKING: CtStates = CtStates::INVALID;

/// The loopback interface.
const LOOPBACK: &str = "lo";
