//! iptables rules without a kernel, for simulations of modes that write a [`ChainGroup`].

use ferroute_core::DataplaneError;
use ferroute_iptables::{
    exec::{GroupReport, RuleWriter},
    plan::ChainGroup,
};

/// In-memory iptables rules.
#[derive(Debug, Default)]
pub(super) struct MemoryRules {
    applied: ChainGroup,
    /// The input of `iptables-restore` since the last report.
    text: Vec<u8>,
}

impl MemoryRules {
    /// Takes the text written since the last call: the input of `iptables-restore`.
    pub(super) fn take_text(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.text)).into_owned()
    }
}

impl RuleWriter for MemoryRules {
    fn apply(&mut self, wanted: &ChainGroup, _: bool) -> Result<GroupReport, DataplaneError> {
        let written = wanted.write_difference(&self.applied, &mut self.text);
        let written = written.expect("writing to memory cannot fail");
        self.applied = wanted.clone();
        Ok(GroupReport { written, ..GroupReport::default() })
    }

    fn was_modified_externally(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }
}
