//! UDP listeners that no rule leads to any more, and the handover of their flows.
//!
//! ```text
//!   client ──► conntrack entry ──► retired listener ──► endpoint
//!                    │ deleted once no response is outstanding
//!                    └──► the rules, for the client's next datagram
//! ```
//!
//! Conntrack sends all datagrams of a flow to the listener that got the first one, and responses find their way back by
//! the same entry. An entry is therefore deleted between two exchanges of its flow, and a listener is closed after its last
//! entry.

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, Protocol, error_chain};
use ferroute_host::{HostAddresses, KernelAddresses, conntrack};
use tokio::{sync::Notify, task::AbortHandle};

use crate::{datagram::FlowKey, udp::Flows};

/// The retired listeners of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retired {
    shared: Arc<WatchedList>,
}

#[derive(Debug, Default)]
struct WatchedList {
    state: Mutex<RetiredList>,
    added: Notify,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct RetiredList {
    listeners: Vec<Arc<RetiredListener>>,
    /// Whether a task hands flows over. It runs while there are listeners.
    is_running: bool,
}

/// A UDP listener that no rule leads to.
#[derive(Debug)]
pub(crate) struct RetiredListener {
    family: IpFamily,
    port: u16,
    flows: Arc<Flows>,
    task: AbortHandle,
    since: Instant,
}

impl RetiredListener {
    /// Retires a listener whose datagrams are received by `task`, which is aborted in the end.
    pub(crate) fn new(family: IpFamily, port: u16, flows: Arc<Flows>, task: AbortHandle) -> Self {
        Self { family, port, flows, task, since: Instant::now() }
    }

    /// Reports whether the entry of a flow must be kept for now.
    fn keeps(&self, key: &FlowKey, now: Instant) -> bool {
        // A client that sends all the time may not notice the new rules for that long.
        let is_busy_allowed = now.duration_since(self.since) < LONGEST_BUSY;
        self.flows.is_in_use(key, now, is_busy_allowed)
    }
}

impl Drop for RetiredListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Retired {
    /// Adds a listener. Must be called within a tokio runtime.
    pub(crate) fn add(&self, listener: RetiredListener) {
        let is_running = {
            let mut state = self.lock();
            state.listeners.push(Arc::new(listener));
            std::mem::replace(&mut state.is_running, true)
        };
        if is_running {
            self.shared.added.notify_one();
        } else {
            tokio::spawn(self.clone().run());
        }
    }

    /// Waits until all flows are handed over.
    pub(crate) async fn ended(&self) {
        loop {
            let emptied = self.shared.emptied.notified();
            tokio::pin!(emptied);
            // A notification between the check and the wait counts.
            emptied.as_mut().enable();
            if self.lock().listeners.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Hands flows over until no listener is left.
    async fn run(self) {
        let mut interval = FIRST_INTERVAL;
        loop {
            let listeners = self.lock().listeners.clone();
            let start = Instant::now();
            let checked = tokio::task::spawn_blocking(move || delete_entries(&listeners)).await;
            // A panic was printed; the listeners stay until the process ends.
            let Ok(in_use) = checked else { return };
            if self.close_unused(&in_use, start) {
                return;
            }
            interval = tokio::select! {
                () = tokio::time::sleep(interval) => (interval * 2).min(LONGEST_INTERVAL),
                () = self.shared.added.notified() => FIRST_INTERVAL,
            };
        }
    }

    /// Closes listeners that were not in use at `time`. Returns true if none is left.
    fn close_unused(&self, in_use: &HashSet<(IpFamily, u16)>, time: Instant) -> bool {
        let mut state = self.lock();
        state.listeners.retain(|listener| {
            in_use.contains(&(listener.family, listener.port)) || time.saturating_duration_since(listener.since) < GRACE
        });
        if !state.listeners.is_empty() {
            return false;
        }
        state.is_running = false;
        self.shared.emptied.notify_waiters();
        true
    }

    fn lock(&self) -> MutexGuard<'_, RetiredList> {
        // It is valid after each of its operations.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deletes the conntrack entries that lead to these listeners, except for entries in use. Returns the listeners that
/// have such entries.
fn delete_entries(listeners: &[Arc<RetiredListener>]) -> HashSet<(IpFamily, u16)> {
    let mut in_use = HashSet::new();
    for family in IpFamily::BOTH {
        let by_port: HashMap<u16, &RetiredListener> = listeners
            .iter()
            .filter(|listener| listener.family == family)
            .map(|listener| (listener.port, &**listener))
            .collect();
        if by_port.is_empty() {
            continue;
        }
        if let Err(error) = delete_entries_of(family, &by_port, &mut in_use) {
            // Their clients use the new rules once the entries expire.
            tracing::warn!(%family, "cannot hand UDP flows over to the new rules: {}", error_chain(&*error));
        }
    }
    in_use
}

fn delete_entries_of(
    family: IpFamily,
    listeners: &HashMap<u16, &RetiredListener>,
    in_use: &mut HashSet<(IpFamily, u16)>,
) -> Result<(), Box<dyn Error>> {
    let host: HashSet<IpAddr> = KernelAddresses::open()?.list()?.into_iter().collect();
    let result = conntrack::delete_if(family, Protocol::Udp, |entry| {
        let (local, port) = (entry.reply_source.ip(), entry.reply_source.port());
        // The port of a pod may have the same number. Packets that were not redirected are unaffected by changes of the
        // rules.
        let Some(listener) = listeners.get(&port).filter(|_| host.contains(&local)) else { return false };
        if entry.original_destination == entry.reply_source {
            return false;
        }
        let is_kept = listener.keeps(&FlowKey { client: entry.reply_destination, local }, Instant::now());
        if is_kept {
            in_use.insert((family, port));
        }
        !is_kept
    })?;
    tracing::debug!(%family, checked = result.seen, deleted = result.deleted, "handed UDP flows over to the new rules");
    Ok(())
}

/// Time between two checks of the flows; it doubles, because each reads the conntrack table.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);

/// The longest time between two checks.
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum time for which a listener stays open. The rules that led to it have been removed, but packets that passed
/// them may be in transit.
const GRACE: Duration = Duration::from_millis(500);

/// Maximum time for which a client that sends again right after each response keeps its listener.
const LONGEST_BUSY: Duration = Duration::from_secs(10);
