//! Tools that work on rules in memory.

use std::{
    io::{self, BufRead, Write},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    RuleSet, TableName, Tools,
    runner::{Call, Exit, Locking, Programs, RunError},
};

use super::kernel::Kernel;

/// `iptables`, `iptables-save` and `iptables-restore`.
#[derive(Clone)]
pub(crate) struct FakeTools {
    state: Arc<Mutex<State>>,
}

pub(crate) struct State {
    pub(crate) kernel: Kernel,
    /// What was run, with its arguments.
    pub(crate) calls: Vec<String>,
    /// How the next `iptables-restore` ends instead of well: status and complaint.
    pub(crate) restore_fails: Option<(i32, String)>,
    /// How `iptables-save` ends instead of well for a table: status and complaint.
    pub(crate) save_fails: Option<(TableName, i32, String)>,
    /// What `iptables-save` prints of its text, at most.
    pub(crate) save_bytes: usize,
    /// How `iptables -S` ends instead of well.
    pub(crate) list_status: Option<i32>,
}

impl FakeTools {
    pub(crate) fn new(family: IpFamily) -> Self {
        let state = State {
            kernel: Kernel::new(family),
            calls: Vec::new(),
            restore_fails: None,
            save_fails: None,
            save_bytes: usize::MAX,
            list_status: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What was run since the last call.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }

    /// Where they are, as `release` (`iptables v1.8.9 (nf_tables)`) has them.
    pub(crate) fn tools(&self, release: &str) -> Tools {
        let release: ferroute_iptables::runner::Release = release.parse().unwrap();
        Tools {
            family: self.state().kernel.rules.family,
            iptables: "/sbin/iptables".into(),
            save: "/sbin/iptables-save".into(),
            restore: "/sbin/iptables-restore".into(),
            release,
            locking: Locking::Restore(release.wait_arguments()),
        }
    }

    fn exit(code: i32, stderr: &str) -> Exit {
        let status = ExitStatus::from_raw(code << 8);
        Exit { status, stderr: stderr.to_owned(), took: Duration::from_millis(7) }
    }
}

impl Programs for FakeTools {
    fn feed(&self, call: Call<'_>, input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<Exit, RunError> {
        let mut state = self.state();
        state.calls.push(call.to_string());
        let mut text = Vec::new();
        input(&mut text).unwrap();
        if let Some((code, stderr)) = state.restore_fails.take() {
            return Ok(Self::exit(code, &stderr));
        }
        state.kernel.restore(&text);
        Ok(Self::exit(0, ""))
    }

    fn read(
        &self,
        call: Call<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, RunError> {
        let mut state = self.state();
        state.calls.push(call.to_string());
        let table = TableName::from_word(call.arguments[1]).unwrap();
        if call.arguments.get(2) == Some(&"-S") {
            let there = state.kernel.rules.chain(table, call.arguments[3].parse().unwrap()).is_some();
            return Ok(Self::exit(state.list_status.unwrap_or(i32::from(!there)), ""));
        }
        if let Some((_, code, stderr)) = state.save_fails.as_ref().filter(|(failing, ..)| *failing == table) {
            return Ok(Self::exit(*code, stderr));
        }
        let mut only = RuleSet::new(state.kernel.rules.family);
        *only.table_mut(table) = state.kernel.rules.table_mut(table).clone();
        let text = only.to_string();
        output(&mut &text.as_bytes()[..text.len().min(state.save_bytes)]).unwrap();
        Ok(Self::exit(0, ""))
    }
}
