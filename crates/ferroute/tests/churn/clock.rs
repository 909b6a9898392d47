//! The clock by which the proxy is measured: it excludes the time in which the proxy waits for a processor that others
//! use.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    time::{Duration, Instant},
};

/// A clock that stands still while threads of the proxy, or programs that it runs, wait for a processor. The guarantees
/// of the proxy can therefore be checked on a busy machine, too.
pub(crate) struct ProxyClock {
    start: Instant,
    /// The total time of waits. Threads that wait at the same time delay it once.
    waited: Duration,
    /// Nanoseconds for which each thread has waited, as of the last reading.
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
        let threads: HashMap<u32, u64> = process.map(|id| waits(id, true)).unwrap_or_default();
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

/// Waits of this process, whose threads are clients and servers, in the last minute.
#[derive(Default)]
pub(crate) struct OwnWaits(VecDeque<(Instant, HashMap<u32, u64>)>);

impl OwnWaits {
    /// Reads them.
    pub(crate) fn read(&mut self) {
        self.add(Instant::now(), waits(std::process::id(), false));
    }

    fn add(&mut self, now: Instant, threads: HashMap<u32, u64>) {
        self.0.push_back((now, threads));
        if self.0.len() > MAX_OWN_READINGS {
            self.0.pop_front();
        }
    }

    /// Returns an upper bound of the time that one of the threads has waited between two points in time.
    pub(crate) fn longest(&self, start: Instant, end: Instant) -> Duration {
        let until = |time: Instant| self.0.partition_point(|(at, _)| *at <= time);
        let before = self.0.get(until(start).saturating_sub(1));
        let Some((_, after)) = self.0.get(until(end)).or(self.0.back()) else { return Duration::ZERO };
        let waited = |(thread, nanoseconds): (&u32, &u64)| {
            nanoseconds.saturating_sub(before.and_then(|(_, threads)| threads.get(thread)).copied().unwrap_or_default())
        };
        Duration::from_nanos(after.iter().map(waited).max().unwrap_or_default())
    }
}

/// Returns the nanoseconds for which the threads of a process, and of the programs that it runs, have waited for a processor.
fn waits(process: u32, with_programs: bool) -> HashMap<u32, u64> {
    let mut waits = HashMap::new();
    let mut processes = vec![process];
    while let Some(process) = processes.pop() {
        // The process may have ended.
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let number = |text: &str| text.parse::<u64>().ok();
            // Nanoseconds with a processor, nanoseconds waiting for one, time slices.
            let waited = read("schedstat").split_whitespace().nth(1).and_then(number);
            let id = thread.file_name().to_str().and_then(|name| name.parse().ok());
            waits.extend(id.zip(waited));
            if with_programs {
                processes.extend(read("children").split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
            }
        }
    }
    waits
}

/// Some minutes, with a reading every 50 ms.
const MAX_READINGS: usize = 10_000;
const MAX_OWN_READINGS: usize = 1_000;

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
        let [with, without] = [true, false].map(|with_programs| waits(std::process::id(), with_programs));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(with.contains_key(&child.id()) && with.contains_key(&std::process::id()), "{with:?}");
        assert!(!without.contains_key(&child.id()) && without.contains_key(&std::process::id()), "{without:?}");
    }

    #[test]
    fn the_thread_that_waited_longest_counts() {
        let start = Instant::now();
        let mut own = OwnWaits::default();
        assert_eq!(own.longest(start, start), Duration::ZERO);
        for (second, threads) in [(0, [(1, 0), (2, 7)]), (1, [(1, 5), (2, 9)]), (2, [(1, 5), (2, 20)])] {
            own.add(start + Duration::from_secs(second), threads.into());
        }
        let longest = |from, to| {
            let at = |milliseconds| start + Duration::from_millis(milliseconds);
            own.longest(at(from), at(to)).as_nanos()
        };
        // From the previous reading to the next one.
        assert_eq!(
            (longest(0, 900), longest(100, 1_100), longest(1_100, 1_900), longest(1_500, 9_000)),
            (5, 13, 11, 11)
        );
    }
}
