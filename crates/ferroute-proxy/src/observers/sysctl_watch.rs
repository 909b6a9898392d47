//! Sysctls that the mode or the configuration relies on, which are set again when another program changes them.
//!
//! Only sysctls that packets of Services, or their counts, depend on are watched: timeouts and sizes of the configuration
//! are set only at the start, as in kube-proxy.

use std::{collections::BTreeMap, time::Duration};

use ferroute_core::{Tracker, error_chain};
use ferroute_host::{Ensured, Sysctls};
use ferroute_modes::Sysctl;
use tokio::time::Instant;

use crate::observers::Observer;

/// Compares sysctls about once a second and restores their values.
#[derive(Debug)]
pub(crate) struct SysctlWatch {
    sysctls: Sysctls,
    wanted: Vec<Sysctl>,
    /// When a change or an error was last logged, by name.
    logged: BTreeMap<&'static str, Instant>,
}

impl SysctlWatch {
    /// Creates a watch of these sysctls.
    pub(crate) fn new(sysctls: Sysctls, wanted: Vec<Sysctl>) -> Self {
        Self { sysctls, wanted, logged: BTreeMap::new() }
    }

    fn check(&mut self) {
        for Sysctl { name, value } in &self.wanted {
            let message = match self.sysctls.ensure(name, value) {
                Ok(Ensured::Unchanged) => continue,
                Ok(Ensured::Changed { from }) => {
                    format!("{name} was changed to {from} by another program; set to {value}")
                }
                Err(error) => error_chain(&error),
            };
            // Programs that want another value change it again and again.
            let is_due = self.logged.get(name).is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL);
            if is_due {
                tracing::warn!(sysctl = name, "{message}");
                self.logged.insert(name, Instant::now());
            }
        }
    }
}

impl Observer for SysctlWatch {
    fn on_tick(&mut self, _desired: &Tracker) {
        self.check();
    }
}

/// Minimum time between two log lines for a sysctl.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_sysctls_are_set_again_and_missing_ones_are_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        for name in ["kept", "changed"] {
            std::fs::write(file(name), "1\n").unwrap();
        }
        let wanted = ["kept", "missing", "changed"].map(|name| Sysctl { name, value: "1" });
        let mut watch = SysctlWatch::new(Sysctls::with_root(directory.path()), wanted.into());
        watch.check();
        for value in ["0\n", "2\n"] {
            std::fs::write(file("changed"), value).unwrap();
            watch.check();
            assert_eq!(std::fs::read_to_string(file("changed")).unwrap().trim(), "1");
        }
        assert!(!file("missing").exists());
    }
}
