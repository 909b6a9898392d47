//! Connections, packets and bytes by service port and endpoint, for `/metrics`.
//!
//! ```text
//!   sync loop ──► SharedFrontends ──┐
//!                                   ├──► thread ──► TrafficTotals ──► /metrics
//!   conntrack: entries that exist, ─┘
//!              events of those that end
//! ```

use std::{
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

use crate::process::tasks::Tasks;

/// The totals that were published last; empty if traffic is not counted.
#[derive(Debug, Default)]
pub(crate) struct TrafficSampler(OnceLock<Arc<Mutex<Traffic>>>);

impl TrafficSampler {
    /// Starts to count in the calling thread's network namespace, until `self` is dropped. `reservation` keeps the frontends up to
    /// date.
    ///
    /// # Errors
    /// If the kernel gives no events, or the thread cannot be started.
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
            Counter { frontends, events, totals, pause: Duration::ZERO }.run(&published);
            drop(reservation);
        })?;
        Ok(())
    }

    /// Returns the totals; `None` if traffic is not counted.
    pub(crate) fn get(&self) -> Option<Traffic> {
        Some(self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

struct Counter {
    frontends: SharedFrontends,
    events: ConnectionEvents,
    totals: TrafficTotals,
    /// The time between two lists of all connections.
    pause: Duration,
}

impl Counter {
    fn run(mut self, published: &Weak<Mutex<Traffic>>) {
        loop {
            let start = Instant::now();
            if let Err(error) = self.list() {
                tracing::debug!("cannot count traffic: {}", error_chain(&error));
            }
            let Some(published) = published.upgrade() else { return };
            *published.lock().unwrap_or_else(PoisonError::into_inner) = traffic(&self.totals);
            drop(published);
            self.pause = INTERVAL.max(start.elapsed() * PAUSE_FACTOR);
            self.receive_until(start + self.pause);
        }
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

fn traffic(totals: &TrafficTotals) -> Traffic {
    let usage = |usage: flows::Usage| {
        let flows::Usage { connections, packets, bytes } = usage;
        Usage { connections, packets, bytes }
    };
    let endpoints = totals.separate().map(|(name, endpoint, total)| (name.to_owned(), endpoint, usage(total)));
    Traffic { endpoints: endpoints.collect(), others: usage(totals.rest()) }
}

/// Endpoints with totals of their own, and connections that are counted before they end.
const LIMITS: TrafficLimits = TrafficLimits { endpoints: 10_000, connections: 65_536 };

/// The bytes of events that wait in the kernel: those of some 20,000 connections.
const BUFFER: usize = 4 << 20;

/// Minimum time between two lists.
const INTERVAL: Duration = Duration::from_secs(5);

/// It is at least this many times as long as a list takes.
const PAUSE_FACTOR: u32 = 30;

/// The events that are handled at once.
const BATCH: usize = 4_096;

/// The pause after events, in which more arrive.
const PAUSE: Duration = Duration::from_millis(20);
