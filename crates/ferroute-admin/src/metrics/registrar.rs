//! Registration of metrics, and histogram buckets.

use std::time::SystemTime;

use prometheus::{
    Counter, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, core::Collector,
};

/// Label of all metrics that are counted per IP family.
pub(super) const FAMILY: &[&str] = &["ip_family"];

/// Creates metrics and registers them.
pub(super) struct Registrar<'a>(pub(super) &'a Registry);

const VALID: &str = "bug: names and labels are valid constants, each registered once";

impl Registrar<'_> {
    pub(super) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help).expect(VALID))
    }

    pub(super) fn float_counter(&self, name: &str, help: &str) -> Counter {
        self.register(Counter::new(name, help).expect(VALID))
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, help), labels).expect(VALID))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(Gauge::new(name, help).expect(VALID))
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.register(GaugeVec::new(Opts::new(name, help), labels).expect(VALID))
    }

    pub(super) fn histograms(&self, name: &str, help: &str, buckets: Vec<f64>, labels: &[&str]) -> HistogramVec {
        self.register(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels).expect(VALID))
    }

    fn register<M: Collector + Clone + 'static>(&self, metric: M) -> M {
        self.0.register(Box::new(metric.clone())).expect(VALID);
        metric
    }
}

/// Converts a count to a sample. No count here reaches 2^53, where precision is lost.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub(super) fn number(count: usize) -> f64 {
    count as f64
}

/// Converts a time to Unix time. Times before 1970, of a clock that is not set, are 0.
pub(super) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// kube-proxy's histogram buckets, as upper bounds in seconds.
pub(super) mod buckets {
    /// Buckets for the duration of a sync: 1 ms, doubled 14 times, up to 16 s.
    pub(in super::super) fn sync() -> Vec<f64> {
        (0..15).map(|power| f64::from(1_u32 << power) / 1000.0).collect()
    }

    /// Buckets for the time from a change in the cluster to the applied rule: fine up to a minute, coarse up to five.
    pub(in super::super) fn programming() -> Vec<f64> {
        let seconds = (1..60).chain((60..=115).step_by(5)).chain((120..=300).step_by(30)).map(f64::from);
        [0.25, 0.5].into_iter().chain(seconds).collect()
    }

    /// Buckets for requests to the API server.
    pub(in super::super) fn requests() -> Vec<f64> {
        vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0]
    }
}

#[cfg(test)]
mod tests {
    use super::buckets;

    #[test]
    fn buckets_are_those_of_kube_proxy() {
        let sync = buckets::sync();
        assert_eq!((sync.len(), sync[0], sync[14]), (15, 0.001, 16.384));
        let programming = buckets::programming();
        assert_eq!(programming.len(), 2 + 59 + 12 + 7);
        assert_eq!(programming[..4], [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(programming[60..63], [59.0, 60.0, 65.0]);
        assert_eq!(programming[72..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
        assert!(programming.is_sorted_by(|a, b| a < b));
    }
}
