//! Makes metrics and registers them. All names and labels are constants, so that a mistake shows in the first test.

use prometheus::{
    Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, core::Collector,
};

/// Registers metrics as they are made.
pub(crate) struct Maker<'a>(pub(crate) &'a Registry);

const VALID: &str = "bug: names and labels are constants, each registered once";

impl Maker<'_> {
    pub(crate) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help).expect(VALID))
    }

    pub(crate) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, help), labels).expect(VALID))
    }

    pub(crate) fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.register(Gauge::new(name, help).expect(VALID))
    }

    pub(crate) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.register(GaugeVec::new(Opts::new(name, help), labels).expect(VALID))
    }

    pub(crate) fn histograms(&self, name: &str, help: &str, buckets: Vec<f64>, labels: &[&str]) -> HistogramVec {
        self.register(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels).expect(VALID))
    }

    fn register<M: Collector + Clone + 'static>(&self, metric: M) -> M {
        self.0.register(Box::new(metric.clone())).expect(VALID);
        metric
    }
}

/// A count as the text shows it; beyond 2^53 the last digits are lost, which no count here comes to.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub(crate) fn number(count: usize) -> f64 {
    count as f64
}
