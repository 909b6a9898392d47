//! The packets that rules refuse, while readers exist.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, Protocol};
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
        };
        packets.write(frontends)?;
        Ok(packets)
    }

    /// Returns the number of packets that were not received in time.
    pub(super) fn lost(&self) -> u64 {
        self.log.lost()
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
        let Self { log, services, seen, .. } = self;
        seen.forget(now.instant);
        log.receive(BATCH, |packet| {
            let Some(mut flow) = flow(packet, frontends, services) else { return };
            let LoggedPacket { source, destination, protocol, sequence, .. } = *packet;
            if seen.add(Attempt { source, destination, protocol, sequence }) {
                (flow.id, flow.time) = (next_id(), Some(packet.time.unwrap_or(now.wall)));
                report(Change { flow: &flow, is_new: true, has_ended: true });
            }
        })?;
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

/// Returns the flow of a logged packet; `None` if rules do not refuse it.
fn flow(packet: &LoggedPacket<'_>, frontends: &Frontends, services: &BTreeMap<IpAddr, Arc<str>>) -> Option<Flow> {
    let refuse = |state, reason| Some(Refused { state, reason });
    let owner = frontends.find(packet.destination, packet.protocol);
    let refused = match Logged::from_prefix(packet.prefix)? {
        Logged::Frontend { client, is_permitted } => owner?.refusals.as_ref()?.of(client, is_permitted),
        Logged::UnknownPort => refuse(FlowState::Rejected, Reason::UnknownPort),
        Logged::UnassignedAddress => refuse(FlowState::Dropped, Reason::UnassignedAddress),
    }?;
    let (service_port, kind) = match (refused.reason, owner) {
        (Reason::Service(_), Some(owner)) => (Some(Arc::clone(&owner.service_port)), Some(owner.kind)),
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
/// The attempts that are remembered, twice.
const MAX_SEEN: usize = 16 << 10;
