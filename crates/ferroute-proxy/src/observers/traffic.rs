//! Connections, packets and bytes by service port and endpoint, for `/metrics` and commands on this node.
//!
//! ```text
//!   sync loop ──► SharedFrontends ──┐
//!                                   ├──► thread ──► TrafficTotals ──► /metrics, top, page
//!   conntrack: entries that exist, ─┘
//!              events of those that end
//! ```

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    os::fd::AsFd,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use ferroute_admin::metrics::{Traffic, Usage};
use ferroute_core::{IpFamily, error_chain};
use ferroute_flows::{self as flows, Reservation, SharedFrontends, TrafficLimits, TrafficTotals};
use ferroute_host::conntrack::{self, ConnectionEvents, list_connections};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::process::tasks::Tasks;

/// Traffic of a service port with an endpoint, in both directions, since the proxy started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficCounts {
    /// Connections.
    pub connections: u64,
    /// Packets of both directions.
    pub packets: u64,
    /// Bytes of these packets, including headers of the network layer.
    pub bytes: u64,
    /// Packets per second, in the seconds before the last reading of the proxy.
    pub packets_per_second: f64,
    /// Bytes per second, in the same time.
    pub bytes_per_second: f64,
}

/// The traffic of an endpoint of a service port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointTraffic {
    /// The service port, `namespace/name:port`.
    pub service_port: String,
    /// Address and port.
    pub endpoint: SocketAddr,
    /// Whether the service port no longer has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Traffic.
    #[serde(flatten)]
    pub counts: TrafficCounts,
}

/// The totals that were published last; empty if traffic is not counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrafficSampler(Arc<OnceLock<Arc<Mutex<Published>>>>);

#[derive(Debug, Default)]
struct Published {
    endpoints: BTreeMap<(String, SocketAddr), TrafficCounts>,
    /// The endpoints among them that service ports have.
    current: HashSet<(String, SocketAddr)>,
    others: flows::Usage,
}

impl TrafficSampler {
    /// Starts to count in the calling thread's network namespace, until all copies of `self` are dropped. `reservation` keeps the frontends up to
    /// date.
    ///
    /// # Errors
    /// If the kernel provides no events, or the thread cannot be started.
    pub(crate) fn start(
        &self,
        frontends: SharedFrontends,
        reservation: Reservation,
        tasks: &Tasks,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let events = ConnectionEvents::open_ends(BUFFER)?;
        let published = Arc::downgrade(self.0.get_or_init(Arc::default));
        let totals = TrafficTotals::new(LIMITS);
        tasks.thread("traffic", move || {
            Counter { frontends, events, totals, listed: None, pause: Duration::ZERO }.run(&published);
            drop(reservation);
        })?;
        Ok(())
    }

    /// Returns the totals for metrics; `None` if traffic is not counted.
    pub(crate) fn totals(&self) -> Option<Traffic> {
        let published = self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        let total = |((name, endpoint), counts): (&(String, SocketAddr), &TrafficCounts)| {
            let TrafficCounts { connections, packets, bytes, .. } = *counts;
            (name.clone(), *endpoint, Usage { connections, packets, bytes })
        };
        let flows::Usage { connections, packets, bytes } = published.others;
        let others = Usage { connections, packets, bytes };
        Some(Traffic { endpoints: published.endpoints.iter().map(total).collect(), others })
    }

    /// Returns the traffic of each endpoint; empty if it is not counted.
    pub(crate) fn endpoints(&self) -> Vec<EndpointTraffic> {
        let Some(published) = self.0.get() else { return Vec::new() };
        let published = published.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = |((service_port, endpoint), counts): (&(String, SocketAddr), &TrafficCounts)| EndpointTraffic {
            service_port: service_port.clone(),
            endpoint: *endpoint,
            ended: !published.current.contains(&(service_port.clone(), *endpoint)),
            counts: *counts,
        };
        published.endpoints.iter().map(endpoint).collect()
    }
}

struct Counter {
    frontends: SharedFrontends,
    events: ConnectionEvents,
    totals: TrafficTotals,
    /// When the last list began.
    listed: Option<Instant>,
    /// The time between two lists of all connections.
    pause: Duration,
}

impl Counter {
    fn run(mut self, published: &Weak<Mutex<Published>>) {
        loop {
            let start = Instant::now();
            if let Err(error) = self.list() {
                tracing::debug!("cannot count traffic: {}", error_chain(&error));
            }
            let Some(published) = published.upgrade() else { return };
            let elapsed = self.listed.replace(start).map(|last| start - last);
            let current = self.current_endpoints();
            published.lock().unwrap_or_else(PoisonError::into_inner).update(&self.totals, current, elapsed);
            drop(published);
            self.pause = INTERVAL.max(start.elapsed() * PAUSE_FACTOR);
            self.receive_until(start + self.pause);
        }
    }

    /// Returns the endpoints with totals that service ports have.
    fn current_endpoints(&self) -> HashSet<(String, SocketAddr)> {
        let with_total: HashSet<(&str, SocketAddr)> =
            self.totals.separate().map(|(name, endpoint, _)| (name, endpoint)).collect();
        let ports = self.frontends.lock().endpoints();
        let sockets =
            ports.iter().flat_map(|(name, endpoints)| endpoints.iter().map(|endpoint| (&**name, endpoint.socket())));
        let current = sockets.filter(|endpoint| with_total.contains(endpoint));
        current.map(|(name, endpoint)| (name.to_owned(), endpoint)).collect()
    }

    fn list(&mut self) -> Result<(), conntrack::Error> {
        let Self { frontends, totals, .. } = self;
        totals.begin_list();
        for family in IpFamily::BOTH {
            list_connections(family, |connection| totals.listed(connection, &frontends.lock()))?;
        }
        totals.end_list();
        Ok(())
    }

    /// Handles the ends of connections.
    fn receive_until(&mut self, end: Instant) {
        let Self { frontends, events, totals, .. } = self;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // A failure is that of the next receive.
            let _ = poll(
                &mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)],
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
            );
            let mut count = 0;
            let received = events.receive(BATCH, |_, connection| {
                count += 1;
                totals.ended(connection, &frontends.lock());
            });
            if let Err(error) = received {
                tracing::debug!("cannot count the ends of connections: {}", error_chain(&error));
                thread::sleep(PAUSE);
            } else if count > 0 {
                // To wake up for each of many connections would cost more than the events.
                thread::sleep(PAUSE);
            }
        }
    }
}

impl Published {
    /// Sets new totals, `elapsed` time after the last ones. `current` has the endpoints that service ports have.
    fn update(&mut self, totals: &TrafficTotals, current: HashSet<(String, SocketAddr)>, elapsed: Option<Duration>) {
        self.current = current;
        let seconds = elapsed.map(|elapsed| elapsed.as_secs_f64()).filter(|seconds| *seconds > 0.0);
        let per_second =
            |before: u64, now: u64| seconds.map_or(0.0, |seconds| now.saturating_sub(before) as f64 / seconds);
        let before = std::mem::take(&mut self.endpoints);
        self.endpoints = totals
            .separate()
            .map(|(name, endpoint, flows::Usage { connections, packets, bytes })| {
                let port = (name.to_owned(), endpoint);
                let last = before.get(&port).copied().unwrap_or_default();
                let packets_per_second = per_second(last.packets, packets);
                let bytes_per_second = per_second(last.bytes, bytes);
                (port, TrafficCounts { connections, packets, bytes, packets_per_second, bytes_per_second })
            })
            .collect();
        self.others = totals.rest();
    }
}

/// Maximum numbers of endpoints with separate totals, and of connections that are counted before they end.
const LIMITS: TrafficLimits = TrafficLimits { endpoints: 10_000, connections: 65_536 };

/// Bytes of events that wait in the kernel: those of some 20,000 connections.
const BUFFER: usize = 4 << 20;

/// Minimum time between two lists.
const INTERVAL: Duration = Duration::from_secs(5);

/// Minimum ratio of the pause to the duration of a list.
const PAUSE_FACTOR: u32 = 30;

/// The events that are handled at once.
const BATCH: usize = 4_096;

/// The pause after events, in which more arrive.
const PAUSE: Duration = Duration::from_millis(20);
