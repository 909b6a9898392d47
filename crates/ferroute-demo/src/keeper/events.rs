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

/// The keeper was told to stop, or whoever started it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("told to stop")]
pub(super) struct Stopped;

/// Tells the keeper when to stop.
pub(super) struct Events {
    receiver: Receiver<Event>,
    kept: bool,
}

enum Event {
    /// The cluster may outlive whoever started it.
    Keep,
    /// Standard input has ended.
    LetGo,
    /// A signal came.
    Stop,
}

impl Events {
    /// Listens to signals and to standard input from now on.
    pub(super) fn listen() -> io::Result<Self> {
        let (sender, receiver) = channel();
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let of_signals = sender.clone();
        thread::spawn(move || {
            // Each send fails only when the keeper has ended.
            for _ in signals.forever() {
                let _ = of_signals.send(Event::Stop);
            }
        });
        thread::spawn(move || hold_leash(&sender));
        Ok(Self { receiver, kept: false })
    }

    /// Waits for that time, or until the keeper has to stop.
    pub(super) fn pause(&mut self, time: Duration) -> Result<(), Stopped> {
        let end = Instant::now() + time;
        loop {
            match self.receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Event::Keep) => self.kept = true,
                Ok(Event::LetGo) if self.kept => {}
                Ok(Event::LetGo | Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
            }
        }
    }
}

fn hold_leash(events: &Sender<Event>) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if line == KEEP {
            let _ = events.send(Event::Keep);
        }
    }
    let _ = events.send(Event::LetGo);
}

/// What whoever started the keeper says so that the cluster outlives him.
pub(crate) const KEEP: &str = "keep";
