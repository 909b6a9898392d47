//! New connections by service port and endpoint, counted from flows, for rules without counters.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use super::Sample;
use crate::flows::{Flow, FlowEvent, FlowRequest, FlowState, FlowStream};

/// Counts flows on a separate thread until it is dropped.
pub(super) struct FlowCounts(Arc<Tally>);

#[derive(Default)]
struct Tally {
    counted: Mutex<Counted>,
    has_ended: AtomicBool,
}

/// The connections so far.
#[derive(Default)]
struct Counted {
    sample: Sample,
    /// The flows that are counted and not over.
    open: HashSet<u64>,
    error: Option<String>,
}

impl FlowCounts {
    /// Starts to count the flows of the proxy that runs in this network namespace.
    ///
    /// # Errors
    /// If the proxy provides none.
    pub(super) fn start() -> anyhow::Result<Self> {
        let request = FlowRequest { follow: true, ..FlowRequest::default() };
        let mut stream = FlowStream::from_proxy(&request)?;
        // The first flows are those that began while the proxy listed the existing ones: they are of an earlier time.
        let (mut counted, mut settled) = (Counted::default(), Instant::now() + PATIENCE);
        while Instant::now() < settled {
            match stream.next(Some(settled))? {
                Some(FlowEvent::Start(_)) => settled = Instant::now() + SETTLING,
                Some(FlowEvent::Flow(flow)) => counted.add(&flow, None),
                Some(_) => {}
                None => break,
            }
        }
        stream.ensure_open()?;
        let since = Some(SystemTime::now());
        let shared = Arc::new(Tally { counted: Mutex::new(counted), ..Tally::default() });
        let counter = shared.clone();
        thread::Builder::new().spawn(move || {
            while !counter.has_ended.load(Relaxed) {
                let next = stream.next(Some(Instant::now() + CHECK));
                match next.and_then(|event| stream.ensure_open().map(|()| event)) {
                    Ok(Some(FlowEvent::Flow(flow))) => counter.counted().add(&flow, since),
                    Ok(_) => {}
                    Err(error) => {
                        counter.counted().error = Some(format!("{error:#}"));
                        return;
                    }
                }
            }
        })?;
        Ok(Self(shared))
    }

    /// Returns the connections so far.
    ///
    /// # Errors
    /// If there are no more flows, for example because the proxy has ended.
    pub(super) fn read(&self) -> anyhow::Result<Sample> {
        let counted = self.0.counted();
        match &counted.error {
            Some(error) => anyhow::bail!("{error}"),
            None => Ok(counted.sample.clone()),
        }
    }
}

impl Drop for FlowCounts {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Relaxed);
    }
}

impl Tally {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        // The numbers are valid even if a thread panicked while it held the lock.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    /// Counts a flow once, unless it is older than `since`; `None` if all flows are.
    fn add(&mut self, flow: &Flow, since: Option<SystemTime>) {
        let is_over = matches!(flow.state, FlowState::Closed | FlowState::Reset | FlowState::Refused);
        let is_counted = if is_over { self.open.remove(&flow.id) } else { !self.open.insert(flow.id) };
        let endpoint = flow.endpoint.as_ref().and_then(|peer| Some(SocketAddr::new(peer.address, peer.port?)));
        if let (false, Some(service_port), Some(endpoint)) = (is_counted, &flow.service_port, endpoint)
            && since.is_some_and(|since| flow.time.is_some_and(|time| time >= since))
        {
            self.sample.add(service_port, endpoint, 1);
        }
        // Discards connections whose end was lost.
        if self.open.len() > MAX_OPEN {
            self.open.clear();
        }
    }
}

/// Time in which the proxy lists the existing connections.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time in which the proxy sends what it has received before.
const SETTLING: Duration = Duration::from_millis(100);
/// Maximum time for which the thread continues after it is no longer needed.
const CHECK: Duration = Duration::from_millis(200);
/// More flows than the proxy follows.
const MAX_OPEN: usize = 100_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferroute_core::Protocol;

    use super::*;
    use crate::flows::Peer;

    #[test]
    fn each_connection_counts_once_unless_it_is_older() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let flow = |id, state, seconds| Flow {
            id,
            time: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
            state,
            protocol: Protocol::Tcp,
            client: Peer::new("10.244.0.9:1000".parse().unwrap()),
            service_port: Some("shop/web:http".into()),
            kind: None,
            destination: "10.96.0.1:80".parse().unwrap(),
            endpoint: Some(Peer::new("10.244.0.2:8080".parse().unwrap())),
            reason: None,
            answer_seconds: None,
            duration_seconds: None,
            packets: None,
            bytes: None,
        };
        let mut counted = Counted::default();
        for flow in [
            flow(1, FlowState::Open, 101),
            flow(1, FlowState::Closed, 101),
            flow(2, FlowState::Refused, 102),
            flow(3, FlowState::Unanswered, 103),
            flow(3, FlowState::Open, 103),
            flow(4, FlowState::Closed, 99),
        ] {
            counted.add(&flow, Some(since));
        }
        let mut expected = Sample::default();
        expected.add("shop/web:http", "10.244.0.2:8080".parse().unwrap(), 3);
        assert_eq!(counted.sample, expected);
        assert_eq!(counted.open, HashSet::from([3]));
    }
}
