use std::{
    io::{self, BufRead},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

/// The supervisor has to stop: it received a signal, or the command that started it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub(super) struct Stopped;

/// The events that stop the supervisor.
pub(super) struct Events {
    receiver: Receiver<Event>,
    detached: bool,
}

enum Event {
    /// The cluster keeps running when the command that created it ends.
    Detach,
    /// Standard input was closed.
    InputClosed,
    /// A signal was received.
    Signal,
}

impl Events {
    /// Starts to listen for signals and on standard input.
    pub(super) fn listen() -> io::Result<Self> {
        let (sender, receiver) = channel();
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let signal_sender = sender.clone();
        thread::spawn(move || {
            for _ in signals.forever() {
                let _ = signal_sender.send(Event::Signal);
            }
        });
        thread::spawn(move || read_input(&sender));
        Ok(Self { receiver, detached: false })
    }

    /// Waits for this time, or until the supervisor has to stop.
    pub(super) fn wait(&mut self, time: Duration) -> Result<(), Stopped> {
        let end = Instant::now() + time;
        loop {
            match self.receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Event::Detach) => self.detached = true,
                Ok(Event::InputClosed) if self.detached => {}
                Ok(Event::InputClosed | Event::Signal) | Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
            }
        }
    }
}

fn read_input(events: &Sender<Event>) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if line == DETACH {
            let _ = events.send(Event::Detach);
        }
    }
    let _ = events.send(Event::InputClosed);
}

/// The line on standard input that keeps the cluster running when the input closes.
pub(crate) const DETACH: &str = "detach";
