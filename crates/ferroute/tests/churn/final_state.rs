//! Conditions at the end of a run.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    driver::{Driver, Failure, RECOVERY},
    kernel,
    network::Network,
    process::{CONFIG, Proxy, Usage, get},
    source::Source,
};

impl Driver {
    /// Checks the state of kernel and process against a proxy that has just been started on a separate node with the
    /// same objects, and stops the proxy.
    pub(crate) fn check_final_state(&mut self) -> Result<String, Failure> {
        self.note("checking the final state");
        self.print_progress();
        self.settle_in_time()?;
        self.pause(Duration::from_millis(500))?;
        let counts = self.stop_clients()?;
        let network = Network::new();
        kernel::add_canaries(&network.node);
        if self.has_extra_addresses {
            network.set_extra_addresses(true);
        }
        let mut source = Source::manifests();
        source.publish_all(&self.files, &self.cluster);
        let arguments = source.arguments(&self.files);
        let log = self.files.path("fresh.log");
        let fresh = Proxy::start(&network.node, &self.files, CONFIG, &arguments, &log);
        let is_synced = |_: &Self| {
            get(&network.node, "127.0.0.1:10256".parse().unwrap(), "/healthz")
                .is_ok_and(|(_, body)| body.contains("\"IPv4\"") && body.contains("\"IPv6\""))
        };
        self.wait("the first sync of a fresh proxy", is_synced)?;
        let difference = |driver: &Self| {
            let [old, new] = [&driver.network.node, &network.node].map(|node| BTreeSet::from_iter(kernel::state(node)));
            let lines = |sign: char, lines: Vec<&String>| lines.iter().map(|line| format!("{sign} {line}\n")).collect();
            let [only_old, only_new]: [String; 2] =
                [lines('-', old.difference(&new).collect()), lines('+', new.difference(&old).collect())];
            format!("{only_old}{only_new}")
        };
        // Leftovers of another mode are removed after the first sync.
        let is_equal = |driver: &Self| difference(driver).is_empty();
        let start = std::time::Instant::now();
        while !is_equal(self) && start.elapsed() < Duration::from_secs(15) {
            self.pause(Duration::from_millis(200))?;
        }
        let difference = difference(self);
        if !difference.is_empty() {
            return Err(format!("rules differ from those of a fresh start (+):\n{difference}"));
        }
        let usage = self.check_usage(&fresh)?;
        self.note("stopping");
        self.print_progress();
        self.process().terminate()?;
        Ok(format!("{counts:?}, {usage:?}"))
    }

    /// Compares the resources of the proxy with those of a fresh one.
    fn check_usage(&mut self, fresh: &Proxy) -> Result<Usage, Failure> {
        let is_back = |old: Usage, new: Usage| {
            old.memory <= new.memory + new.memory / 2 + MEMORY_TOLERANCE
                && old.descriptors <= new.descriptors + DESCRIPTOR_TOLERANCE
                && old.threads <= new.threads + THREAD_TOLERANCE
                && old.children == 0
        };
        let start = std::time::Instant::now();
        loop {
            let (old, new) = (self.process().usage(), fresh.usage());
            if is_back(old, new) {
                return Ok(old);
            }
            // Idle threads of the runtime end after ten seconds.
            if start.elapsed() > RECOVERY {
                return Err(format!("resources of the proxy: {old:?}, of a fresh one: {new:?}"));
            }
            self.pause(Duration::from_millis(200))?;
        }
    }
}

/// KiB. Large tables leave some fragmentation behind.
const MEMORY_TOLERANCE: usize = 8 << 10;
/// Watches of the API server.
const DESCRIPTOR_TOLERANCE: usize = 8;
const THREAD_TOLERANCE: usize = 2;
