//! State of a UDP flow, which has no end: when datagrams passed, and whether a response is outstanding. Pure: the
//! caller passes the time.

use std::time::{Duration, Instant};

/// The datagrams of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// When a datagram passed last.
    last: Instant,
    /// Datagrams of the client without a response.
    unanswered: u32,
    /// When the first of them passed.
    waiting_since: Instant,
}

impl Exchange {
    /// Returns the state of a new flow.
    pub(crate) fn new(now: Instant) -> Self {
        Self { last: now, unanswered: 0, waiting_since: now }
    }

    /// Records a datagram of the client.
    pub(crate) fn sent(&mut self, now: Instant) {
        if self.unanswered == 0 {
            self.waiting_since = now;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        self.last = now;
    }

    /// Records a datagram of the endpoint.
    pub(crate) fn answered(&mut self, now: Instant, timeout: Duration) {
        // Responses that are missing for that long were lost.
        let were_lost = now.duration_since(self.waiting_since) >= timeout;
        self.unanswered = if were_lost { 0 } else { self.unanswered.saturating_sub(1) };
        self.last = now;
    }

    /// Returns the time since the last datagram.
    pub(crate) fn idle(&self, now: Instant) -> Duration {
        now.duration_since(self.last)
    }

    /// Reports whether a response may still arrive. A client that has never received a response does not wait for one.
    pub(crate) fn awaits_response(&self, now: Instant, timeout: Duration) -> bool {
        self.unanswered > 0 && now.duration_since(self.waiting_since) < timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(250);

    fn after(start: Instant, milliseconds: u64) -> Instant {
        start + Duration::from_millis(milliseconds)
    }

    #[test]
    fn each_request_awaits_its_response() {
        let start = Instant::now();
        let mut exchange = Exchange::new(start);
        assert!(!exchange.awaits_response(start, TIMEOUT));
        exchange.sent(start);
        exchange.sent(after(start, 10));
        exchange.answered(after(start, 20), TIMEOUT);
        assert!(exchange.awaits_response(after(start, 20), TIMEOUT));
        exchange.answered(after(start, 30), TIMEOUT);
        assert!(!exchange.awaits_response(after(start, 30), TIMEOUT));
        assert_eq!(exchange.idle(after(start, 50)), Duration::from_millis(20));
    }

    #[test]
    fn client_without_responses_does_not_wait_for_one() {
        let start = Instant::now();
        let mut exchange = Exchange::new(start);
        for milliseconds in 0..260 {
            exchange.sent(after(start, milliseconds));
        }
        assert!(!exchange.awaits_response(after(start, 260), TIMEOUT));
    }

    #[test]
    fn lost_response_is_not_awaited_forever() {
        let start = Instant::now();
        let mut exchange = Exchange::new(start);
        exchange.sent(start);
        exchange.sent(after(start, 300));
        exchange.answered(after(start, 301), TIMEOUT);
        exchange.sent(after(start, 302));
        exchange.answered(after(start, 303), TIMEOUT);
        assert!(!exchange.awaits_response(after(start, 303), TIMEOUT));
    }
}
