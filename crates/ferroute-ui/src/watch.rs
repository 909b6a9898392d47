//! Follows the source, the kernel's counters and the syncs while a page is open, and sends changes to all open pages.

use std::{
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant, SystemTime},
};

use ferroute_core::{IpFamily, rfc3339};
use ferroute_inspect::{
    about::About,
    top::{Counters, Row, Sample, by_service_port, rates},
};
use ferroute_proxy::control::request_traffic;
use serde::Serialize;

use crate::{
    server::App,
    source::{Source, Version},
};

/// News for all open pages.
#[derive(Clone, Debug)]
pub(crate) struct News {
    /// The type of the event.
    pub(crate) event: &'static str,
    /// JSON.
    pub(crate) data: Arc<str>,
}

#[derive(Serialize)]
struct Rates {
    at: String,
    interval: f64,
    rates: Vec<Row>,
}

#[derive(Serialize)]
struct Unavailable {
    reason: String,
}

impl News {
    pub(crate) fn new(event: &'static str, data: &impl Serialize) -> Self {
        let data = serde_json::to_string(data).expect("text and numbers under text keys are always JSON");
        Self { event, data: data.into() }
    }
}

/// Starts all tasks, which end with the application.
pub(crate) fn start(app: &Arc<App>) {
    let app = Arc::downgrade(app);
    // A missing thread only makes the page less lively.
    let _ = thread::Builder::new().name("watch".to_owned()).spawn(move || follow(&app));
}

fn follow(app: &Weak<App>) {
    let mut state = Watch::default();
    while let Some(app) = app.upgrade() {
        state.reload(&app);
        if app.has_viewers() {
            state.read_counters(&app);
            state.read_traffic(&app);
            state.read_syncs(&app);
        } else {
            // They may be a subscription to the kernel's events.
            (state.counters, state.sample) = (None, None);
        }
        drop(app);
        thread::sleep(INTERVAL);
    }
}

#[derive(Default)]
struct Watch {
    version: Option<Version>,
    loading: Pace,
    counters: Option<Counters>,
    counting: Pace,
    traffic: Pace,
    sample: Option<(Instant, Sample)>,
    reason: Option<String>,
    recording: Pace,
    last_sync: Option<(SystemTime, usize)>,
}

/// Limits the part of the time that is spent on work whose cost is not known before.
#[derive(Default)]
struct Pace {
    next: Option<Instant>,
}

impl Pace {
    fn is_due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// Runs `work`. It is due again when `least`, and `share` times its duration, have passed.
    fn run<T>(&mut self, least: Duration, share: u32, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.next = Some(Instant::now() + least.max(start.elapsed() * share));
        result
    }
}

impl Watch {
    fn reload(&mut self, app: &App) {
        let version = app.source().version();
        let (changed, least) = match version {
            Version::Files(_) => (self.version != Some(version), Duration::ZERO),
            Version::Unknown(least) => (self.loading.is_due() && (self.version.is_none() || app.has_viewers()), least),
        };
        if !changed || !self.loading.is_due() {
            return;
        }
        // The server has loaded the first state.
        let is_first = self.version.replace(version).is_none();
        if is_first {
            self.loading.run(least, 0, || ());
            return;
        }
        self.load(app, least);
    }

    fn load(&mut self, app: &App, least: Duration) {
        let share = if app.source().demo().is_some() { WAIT_SHARE } else { COST_SHARE };
        if let Err(error) = self.loading.run(least, share, || app.reload()) {
            tracing::warn!("cannot load the objects again: {error:#}");
        }
    }

    fn read_counters(&mut self, app: &App) {
        if !app.source().has_kernel() || !self.counting.is_due() {
            return;
        }
        let mut counters = self.counters.take();
        let is_first = counters.is_none();
        let read = self.counting.run(COUNTER_INTERVAL, COST_SHARE, || {
            app.source().on_node(|| {
                let mut counters = match counters.take() {
                    Some(counters) => counters,
                    None => Counters::open(&About::of_kernel()?)?,
                };
                let sample = counters.read()?;
                anyhow::Ok((counters, Instant::now(), sample))
            })
        });
        match read.and_then(|read| read) {
            Ok((counters, at, sample)) => {
                (self.counters, self.reason) = (Some(counters), None);
                if is_first {
                    // Opening the counters takes longer than reading them, and is not repeated.
                    self.counting.next = Some(Instant::now() + COUNTER_INTERVAL);
                }
                if let Some((before, last)) = self.sample.replace((at, sample)) {
                    let elapsed = at - before;
                    let (_, sample) = self.sample.as_ref().expect("it was set above");
                    let all = rates(&last, sample, elapsed).into_iter().filter(|row| row.per_second > 0.0);
                    let desired = app.view().desired.clone();
                    let rates = by_service_port(all.collect(), IpFamily::BOTH.map(|family| desired.table(family)));
                    let at = rfc3339::format(SystemTime::now(), 3).unwrap_or_default();
                    app.history().add(at.clone(), &rates);
                    app.send(News::new("rates", &Rates { at, interval: elapsed.as_secs_f64(), rates }));
                }
            }
            Err(error) => {
                self.sample = None;
                let reason = format!("{error:#}");
                if self.reason.as_ref() != Some(&reason) {
                    app.send(News::new("rates-unavailable", &Unavailable { reason: reason.clone() }));
                }
                self.reason = Some(reason);
            }
        }
    }

    /// Sends the traffic that the proxy has counted since the last time, if it counts any.
    fn read_traffic(&mut self, app: &App) {
        if !app.source().has_kernel() || !self.traffic.is_due() {
            return;
        }
        let read = self.traffic.run(TRAFFIC_INTERVAL, COST_SHARE, || app.source().on_node(request_traffic));
        let Ok(Ok(traffic)) = read else { return };
        let changed = app.history().set_traffic(traffic);
        if !changed.is_empty() {
            app.send(News::new("traffic", &changed));
        }
    }

    /// Sends new syncs to pages. Bundles have none.
    fn read_syncs(&mut self, app: &App) {
        if matches!(app.source(), Source::Bundle { .. } | Source::Objects(_)) || !self.recording.is_due() {
            return;
        }
        let Ok(Some(bundle)) = self.recording.run(SYNC_INTERVAL, WAIT_SHARE, || app.source().recording()) else {
            return;
        };
        let last = bundle.syncs.last().map(|sync| (sync.at, bundle.syncs.len()));
        if self.last_sync != last {
            self.last_sync = last;
            app.send(News::new("timeline", &serde_json::json!({})));
            if app.source().demo().is_some() {
                // It may be that of an ejection, which no file shows.
                self.load(app, Duration::ZERO);
            }
        }
    }
}

/// The interval at which files are looked at.
const INTERVAL: Duration = Duration::from_millis(250);

/// The shortest time between two readings of the counters.
const COUNTER_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two readings of the proxy's totals, which it updates every five seconds.
const TRAFFIC_INTERVAL: Duration = Duration::from_secs(2);

/// The shortest time between two looks at the syncs.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Reading takes at most one part in this number of the time.
const COST_SHARE: u32 = 20;

/// The same for the recording, and for the demo that loads it, which mostly wait for the proxy.
const WAIT_SHARE: u32 = 4;
