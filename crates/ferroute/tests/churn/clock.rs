//! The time by which the proxy is measured: without the time in which it waits for a processor that others use.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    time::{Duration, Instant},
};

/// A clock that stands still while threads of the proxy, or programs that it runs, wait for a processor. So what the proxy
/// promises can be checked on a busy machine, too.
pub(crate) struct ProxyClock {
    start: Instant,
    /// The total time of waits. Threads that wait at the same time delay it once.
    waited: Duration,
    /// The nanoseconds for which each thread has waited, as of the last reading.
    threads: HashMap<u32, u64>,
    /// Readings of the last minutes, which never decrease.
    readings: VecDeque<(Instant, Duration)>,
}

impl ProxyClock {
    pub(crate) fn new() -> Self {
        let start = Instant::now();
        let readings = [(start, Duration::ZERO)].into();
        Self { start, waited: Duration::ZERO, threads: HashMap::new(), readings }
    }

    /// Reads the clock, with this process as the proxy.
    pub(crate) fn read(&mut self, process: Option<u32>) -> Duration {
        let threads: HashMap<u32, u64> = process.map(waits).unwrap_or_default();
        let new = |(thread, waited): (&u32, &u64)| {
            waited.saturating_sub(self.threads.get(thread).copied().unwrap_or_default())
        };
        self.waited += Duration::from_nanos(threads.iter().map(new).max().unwrap_or_default());
        self.threads = threads;
        self.add(Instant::now())
    }

    fn add(&mut self, now: Instant) -> Duration {
        let before = self.readings.back().map_or(Duration::ZERO, |(_, time)| *time);
        let time = (now - self.start).saturating_sub(self.waited).max(before);
        self.readings.push_back((now, time));
        if self.readings.len() > MAX_READINGS {
            self.readings.pop_front();
        }
        time
    }

    /// Returns the last time that was at least `time` ago by this clock.
    pub(crate) fn before(&self, time: Duration) -> Option<Instant> {
        let until = self.readings.back()?.1.checked_sub(time)?;
        self.readings.iter().rev().find(|(_, reading)| *reading <= until).map(|(at, _)| *at)
    }
}

/// Returns the nanoseconds for which the threads of a process and of the programs that it runs have waited for a processor.
fn waits(process: u32) -> HashMap<u32, u64> {
    let mut waits = HashMap::new();
    let mut processes = vec![process];
    while let Some(process) = processes.pop() {
        // It may have ended.
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let number = |text: &str| text.parse::<u64>().ok();
            // Nanoseconds with a processor, nanoseconds waiting for one, time slices.
            let waited = read("schedstat").split_whitespace().nth(1).and_then(number);
            let id = thread.file_name().to_str().and_then(|name| name.parse().ok());
            waits.extend(id.zip(waited));
            processes.extend(read("children").split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    waits
}

/// Some minutes, with a reading every 50 ms.
const MAX_READINGS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_while_the_proxy_waits_and_never_goes_back() {
        let mut clock = ProxyClock::new();
        let at = |seconds| clock.start + Duration::from_secs(seconds);
        let [one, four, five, nine] = [1, 4, 5, 9].map(at);
        assert_eq!(clock.add(one), Duration::from_secs(1));
        clock.waited = Duration::from_secs(3);
        assert_eq!([four, five, nine].map(|at| clock.add(at).as_secs()), [1, 2, 6]);
        assert_eq!(clock.before(Duration::from_secs(4)), Some(five));
        assert_eq!(clock.before(Duration::from_secs(5)), Some(four));
        assert_eq!(clock.before(Duration::from_secs(7)), None);
    }

    #[test]
    fn threads_and_programs_that_wait_are_known() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let waits = waits(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(waits.contains_key(&child.id()) && waits.contains_key(&std::process::id()), "{waits:?}");
    }
}
