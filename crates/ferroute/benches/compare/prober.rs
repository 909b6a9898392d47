//! Time until connections reach a changed endpoint.

use std::{
    net::{SocketAddr, TcpStream},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ferroute_testing::NetNs;
use socket2::SockRef;

/// A frontend that is about to get a reachable endpoint.
#[derive(Debug)]
pub(crate) struct Probe {
    to: SocketAddr,
    /// When the API server answered.
    answered: Instant,
    give_up: Instant,
    /// When to try next.
    next: Instant,
}

impl Probe {
    /// Creates a probe that is given up after some time.
    pub(crate) fn new(to: SocketAddr, answered: Instant, patience: Duration) -> Self {
        Self { to, answered, give_up: answered + patience, next: answered }
    }
}

/// A thread in a client's namespace that connects to frontends until they have a reachable endpoint.
pub(crate) struct Prober {
    probes: Sender<Probe>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Prober {
    /// Starts the thread.
    pub(crate) fn start(client: &NetNs) -> Self {
        let (probes, receiver) = channel();
        // A thread starts in the namespace of the thread that starts it.
        let thread = client.run(|| thread::spawn(move || probe(&receiver)));
        Self { probes, thread }
    }

    /// Runs `work`, which sends probes, and returns the times from the API server's answer to the first connection, in
    /// ascending order. An abandoned probe counts with the time until it was abandoned.
    pub(crate) fn finish_after(self, work: impl FnOnce(&Sender<Probe>)) -> Vec<Duration> {
        let Self { probes, thread } = self;
        work(&probes);
        drop(probes);
        let mut times = thread.join().unwrap();
        times.sort_unstable();
        times
    }
}

fn probe(receiver: &Receiver<Probe>) -> Vec<Duration> {
    let (mut times, mut waiting): (_, Vec<Probe>) = (Vec::new(), Vec::new());
    loop {
        let due = waiting.iter().map(|probe| probe.next).min();
        let received = match due {
            Some(due) => receiver.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(probe) => waiting.push(probe),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match due {
                Some(due) => thread::sleep(due.saturating_duration_since(Instant::now())),
                None => return times,
            },
        }
        waiting.retain_mut(|probe| {
            let now = Instant::now();
            if now < probe.next {
                return true;
            }
            if reaches(probe.to) || now > probe.give_up {
                times.push(probe.answered.elapsed());
                return false;
            }
            // The error is at most 2 %, or a tenth of a millisecond.
            let elapsed = probe.answered.elapsed();
            probe.next = Instant::now() + (elapsed / 50).max(Duration::from_micros(100));
            true
        });
    }
}

/// Reports whether a connection from the calling thread's namespace is accepted.
pub(crate) fn reaches(to: SocketAddr) -> bool {
    let Ok(stream) = TcpStream::connect_timeout(&to, Duration::from_millis(50)) else { return false };
    // A reset avoids TIME_WAIT.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    true
}
