//! The rates of the last minutes and the traffic so far, for pages that are opened or loaded again. Pure.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    mem,
};

use ferroute_inspect::top::{EndpointTraffic, Row};
use serde::Serialize;

/// Samples of rates, oldest first, and the last traffic.
#[derive(Debug, Default, Serialize)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    traffic: Vec<EndpointTraffic>,
    /// The number of rates in all samples.
    #[serde(skip)]
    size: usize,
}

#[derive(Debug, Serialize)]
struct Sample {
    /// When it was taken, in RFC 3339.
    at: String,
    /// New connections per second by service port, without those that have no connections.
    rates: BTreeMap<String, f64>,
}

impl History {
    /// Adds a sample, and discards the oldest ones.
    pub(crate) fn add(&mut self, at: String, rows: &[Row]) {
        let rates: BTreeMap<String, f64> = rows.iter().map(|row| (row.service_port.clone(), row.per_second)).collect();
        self.size += rates.len();
        self.samples.push_back(Sample { at, rates });
        while self.samples.len() > MAX_SAMPLES || (self.size > MAX_RATES && self.samples.len() > 1) {
            self.size -= self.samples.pop_front().map_or(0, |sample| sample.rates.len());
        }
    }

    /// Sets the traffic, and returns the traffic of endpoints for which it has changed.
    pub(crate) fn set_traffic(&mut self, traffic: Vec<EndpointTraffic>) -> Vec<EndpointTraffic> {
        let before = mem::replace(&mut self.traffic, traffic);
        let key = |one: &EndpointTraffic| {
            let counts = (one.counts.bytes, one.counts.bytes_per_second.to_bits());
            (one.service_port.clone(), one.endpoint, one.ended, counts)
        };
        let before: HashSet<_> = before.iter().map(key).collect();
        self.traffic.iter().filter(|one| !before.contains(&key(one))).cloned().collect()
    }
}

/// Five minutes of samples, at the shortest interval.
const MAX_SAMPLES: usize = 300;

/// Limits the memory if thousands of service ports have traffic: about 10 MB.
const MAX_RATES: usize = 100_000;

#[cfg(test)]
mod tests {
    use ferroute_inspect::top::TrafficCounts;

    use super::*;

    fn row(service_port: &str) -> Row {
        Row { service_port: service_port.to_owned(), per_second: 2.0, endpoints: Vec::new(), ended: None }
    }

    #[test]
    fn only_traffic_that_has_changed_is_news() {
        let counts = |bytes| TrafficCounts { connections: 1, packets: 1, bytes, ..TrafficCounts::default() };
        let endpoint = |port, bytes| EndpointTraffic {
            service_port: "shop/web:http".to_owned(),
            endpoint: ([10, 244, 0, 2], port).into(),
            ended: false,
            counts: counts(bytes),
        };
        let mut history = History::default();
        let first = vec![endpoint(80, 100), endpoint(81, 100)];
        assert_eq!(history.set_traffic(first.clone()), first);
        assert_eq!(history.set_traffic(first), []);
        let next = endpoint(81, 150);
        let changed = history.set_traffic(vec![endpoint(80, 100), next.clone()]);
        assert_eq!(changed, std::slice::from_ref(&next));
        let ended = EndpointTraffic { ended: true, ..next };
        let changed = history.set_traffic(vec![endpoint(80, 100), ended.clone()]);
        assert_eq!(changed, [ended]);
    }

    #[test]
    fn history_is_bounded_by_time_and_size() {
        let mut history = History::default();
        for number in 0..=MAX_SAMPLES {
            history.add(number.to_string(), &[row("a")]);
        }
        assert_eq!((history.samples.len(), history.size), (MAX_SAMPLES, MAX_SAMPLES));
        assert_eq!(history.samples[0].at, "1");
        let many: Vec<Row> = (0..MAX_RATES).map(|number| row(&number.to_string())).collect();
        history.add("large".to_owned(), &many);
        assert_eq!((history.samples.len(), history.size), (1, MAX_RATES));
        history.add("larger".to_owned(), &[&many[..], &[row("one more")]].concat());
        assert_eq!((history.samples.len(), history.size), (1, MAX_RATES + 1), "the last sample is kept in any case");
    }
}
