//! The packets that rules refuse, while readers exist.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque, hash_map::Entry},
    mem,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ferroute_core::{Client, IpFamily, Protocol};
use ferroute_host::{LoggedPacket, Moment, PacketLog, PacketLogError};
use ferroute_nftables::kernel::{Kernel, NetlinkError, NetlinkKernel};

use crate::{
    Change, Flow, FlowState, Frontends, Peer, SharedFrontends,
    refusals::{Logged, Reason, Refused, table},
};

/// Receives the packets that rules refuse. The rules that log them exist as long as this value.
pub(super) struct RefusedPackets {
    log: PacketLog,
    /// Owns the tables: the kernel deletes them with its socket.
    kernel: NetlinkKernel,
    /// Revision of the frontends that the rules were written for.
    revision: Option<u64>,
    written: Instant,
    /// Services of the cluster IPs whose other ports are refused.
    services: BTreeMap<IpAddr, Arc<str>>,
    seen: Seen,
    held: Held,
}

/// Reason why refused packets cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum RefusedError {
    /// Logged packets cannot be received.
    #[error(transparent)]
    Log(#[from] PacketLogError),
    /// The rules cannot be written.
    #[error("cannot write rules that log packets")]
    Rules(#[from] NetlinkError),
}

/// Connections of the last minutes, so that repeated packets do not count as further connections.
#[derive(Debug)]
struct Seen {
    last: HashSet<Attempt>,
    before: HashSet<Attempt>,
    since: Instant,
}

/// First packets to Services with limits, until it is known whether the rules of the Service let them through.
#[derive(Debug, Default)]
struct Held {
    packets: HashMap<Sent, HeldPacket>,
    /// When each is refused.
    deadlines: VecDeque<(Instant, Sent)>,
    /// Number of packets that were not held because of the limit.
    lost: u64,
}

/// Identifies a packet before and after the translation of its destination, with high probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    source: SocketAddr,
    protocol: Protocol,
    sequence: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct HeldPacket {
    destination: SocketAddr,
    client: Client,
    time: SystemTime,
    deadline: Instant,
}

/// A connection that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    source: SocketAddr,
    destination: SocketAddr,
    protocol: Protocol,
    /// Sequence number of a TCP segment. It is the same in a repeated segment, and differs in another connection from
    /// the same port.
    sequence: Option<u32>,
}

impl RefusedPackets {
    /// Writes the rules, in the network namespace of the calling thread.
    pub(super) fn open(frontends: &SharedFrontends) -> Result<Self, RefusedError> {
        let mut packets = Self {
            log: PacketLog::open(GROUPS, BUFFER)?,
            kernel: NetlinkKernel::open()?,
            revision: None,
            written: Instant::now(),
            services: BTreeMap::new(),
            seen: Seen { last: HashSet::new(), before: HashSet::new(), since: Instant::now() },
            held: Held::default(),
        };
        packets.write(frontends)?;
        Ok(packets)
    }

    /// Returns the number of packets that were not received in time.
    pub(super) fn lost(&self) -> u64 {
        self.log.lost() + self.held.lost
    }

    /// Writes the rules again if the frontends have changed, but not more often than once per [`WRITE_INTERVAL`].
    pub(super) fn update(&mut self, frontends: &SharedFrontends) -> Result<(), RefusedError> {
        let is_current = self.revision == Some(frontends.lock().revision());
        if is_current || self.written.elapsed() < WRITE_INTERVAL { Ok(()) } else { self.write(frontends) }
    }

    fn write(&mut self, frontends: &SharedFrontends) -> Result<(), RefusedError> {
        let (mut tables, mut services) = (Vec::new(), BTreeMap::new());
        let frontends = frontends.lock();
        self.revision = Some(frontends.revision());
        for family in IpFamily::BOTH {
            if let Some(watched) = frontends.watched(family) {
                tables.push(table(&watched, self.log.group()));
                services.extend(watched.cluster_ips);
            }
        }
        drop(frontends);
        tables.iter().try_for_each(|table| self.kernel.commit(table))?;
        (self.services, self.written) = (services, Instant::now());
        Ok(())
    }

    /// Reports the connections that rules have refused since the last call, for a limited number of packets. `next_id`
    /// returns the number of a new flow.
    pub(super) fn receive(
        &mut self,
        now: Moment,
        frontends: &Frontends,
        mut next_id: impl FnMut() -> u64,
        mut report: impl FnMut(Change<'_>),
    ) -> Result<(), RefusedError> {
        let Self { log, services, seen, held, .. } = self;
        seen.forget(now.instant);
        let mut refused = |attempt: Attempt, flow: Option<Flow>, time| {
            if let Some(mut flow) = flow
                && seen.add(attempt)
            {
                (flow.id, flow.time) = (next_id(), Some(time));
                report(Change { flow: &flow, is_new: true, has_ended: true });
            }
        };
        let is_complete = log.receive(BATCH, |packet| {
            let Some(logged) = Logged::from_prefix(packet.prefix) else { return };
            let (attempt, time) = (Attempt::of(packet), packet.time.unwrap_or(now.wall));
            match logged {
                Logged::Limited { client } => held.add(attempt, client, time, now.instant),
                Logged::Admitted => held.remove(attempt),
                logged => refused(attempt, flow(attempt, logged, frontends, services), time),
            }
        })?;
        if !is_complete {
            // Which packets were let through is unknown.
            held.clear();
        }
        while let Some((attempt, HeldPacket { client, time, .. })) = held.next(now.instant) {
            refused(attempt, flow(attempt, Logged::Limited { client }, frontends, services), time);
        }
        Ok(())
    }
}

impl AsFd for RefusedPackets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.log.as_fd()
    }
}

impl Seen {
    /// Adds an attempt, and reports whether it is new.
    fn add(&mut self, attempt: Attempt) -> bool {
        let is_new = !self.last.contains(&attempt) && !self.before.contains(&attempt);
        self.last.insert(attempt);
        is_new
    }

    /// Discards attempts that are too old, or too many.
    fn forget(&mut self, now: Instant) {
        let age = now.duration_since(self.since);
        if age > REPETITION || self.last.len() > MAX_SEEN {
            (self.before, self.since) = (mem::take(&mut self.last), now);
        }
    }
}

impl Attempt {
    fn of(packet: &LoggedPacket<'_>) -> Self {
        let LoggedPacket { source, destination, protocol, sequence, .. } = *packet;
        Self { source, destination, protocol, sequence }
    }

    fn sent(self) -> Sent {
        Sent { source: self.source, protocol: self.protocol, sequence: self.sequence }
    }
}

impl Held {
    /// Holds a packet.
    fn add(&mut self, attempt: Attempt, client: Client, time: SystemTime, now: Instant) {
        if self.deadlines.len() >= MAX_HELD {
            self.lost += 1;
            return;
        }
        let deadline = now + HOLD;
        let held = HeldPacket { destination: attempt.destination, client, time, deadline };
        if let Entry::Vacant(entry) = self.packets.entry(attempt.sent()) {
            entry.insert(held);
            self.deadlines.push_back((deadline, attempt.sent()));
        }
    }

    /// Gives up a packet that was let through.
    fn remove(&mut self, attempt: Attempt) {
        self.packets.remove(&attempt.sent());
    }

    /// Removes a packet that has not been let through in time, and returns it.
    fn next(&mut self, now: Instant) -> Option<(Attempt, HeldPacket)> {
        while let Some((deadline, sent)) = self.deadlines.front().copied()
            && deadline <= now
        {
            self.deadlines.pop_front();
            // The same packet may have been repeated since.
            if self.packets.get(&sent).is_some_and(|held| held.deadline == deadline)
                && let Some(held) = self.packets.remove(&sent)
            {
                let Sent { source, protocol, sequence } = sent;
                return Some((Attempt { source, destination: held.destination, protocol, sequence }, held));
            }
        }
        None
    }

    /// Gives up all packets.
    fn clear(&mut self) {
        self.packets.clear();
        self.deadlines.clear();
    }
}

/// Returns the flow of a logged packet; `None` if rules do not refuse it.
fn flow(packet: Attempt, logged: Logged, frontends: &Frontends, services: &BTreeMap<IpAddr, Arc<str>>) -> Option<Flow> {
    let refuse = |state, reason| Some(Refused { state, reason });
    let owner = frontends.find(packet.destination, packet.protocol);
    let refused = match logged {
        Logged::Frontend { client, is_permitted } => owner?.refusals.as_ref()?.of(client, is_permitted),
        // The Service may have lost its endpoints a moment ago.
        Logged::Limited { client } => owner?
            .refusals
            .as_ref()
            .and_then(|refusals| refusals.of(client, true))
            .or_else(|| owner?.over_limit.map(Refused::over_limit)),
        Logged::Admitted => None,
        Logged::UnknownPort => refuse(FlowState::Rejected, Reason::UnknownPort),
        Logged::UnassignedAddress => refuse(FlowState::Dropped, Reason::UnassignedAddress),
    }?;
    let (service_port, kind) = match (refused.reason, owner) {
        (Reason::Service(_) | Reason::Limit, Some(owner)) => (Some(Arc::clone(&owner.service_port)), Some(owner.kind)),
        // A port that the Service got a moment ago.
        (_, Some(_)) => return None,
        (_, None) => (services.get(&packet.destination.ip()).cloned(), None),
    };
    Some(Flow {
        id: 0,
        time: None,
        state: refused.state,
        protocol: packet.protocol,
        client: Peer::client(packet.source, packet.destination),
        service_port,
        kind,
        destination: packet.destination,
        endpoint: None,
        reason: Some(refused.reason.as_str().into()),
        answer_seconds: None,
        duration_seconds: None,
        packets: None,
        bytes: None,
    })
}

/// Groups of the kernel's log that are tried. Other programs use low numbers.
const GROUPS: RangeInclusive<u16> = 63_310..=63_325;
/// The bytes of packets that wait in the kernel.
const BUFFER: usize = 1 << 20;
/// The datagrams that are handled at once, each with up to twenty packets.
const BATCH: usize = 64;
/// The shortest time between two changes of the rules.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// The time for which a client repeats its first segment (`net.ipv4.tcp_syn_retries`).
const REPETITION: Duration = Duration::from_secs(130);
/// The time after which a packet that was not let through is refused: longer than the kernel collects packets for.
const HOLD: Duration = Duration::from_millis(200);
/// Packets that are held at the same time.
const MAX_HELD: usize = 16 << 10;
/// The attempts that are remembered, twice.
const MAX_SEEN: usize = 16 << 10;
