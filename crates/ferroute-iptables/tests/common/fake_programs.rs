//! Fake iptables programs that work on rules in memory.

use std::{
    io::{self, BufRead, Write},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    IptablesPrograms, RuleSet, TableName,
    exec::{Exec, Exit, Invocation, Locking, ProgramError},
};

use super::fake_kernel::FakeKernel;

/// `iptables`, `iptables-save` and `iptables-restore`.
#[derive(Clone)]
pub(crate) struct FakePrograms {
    state: Arc<Mutex<State>>,
}

pub(crate) struct State {
    pub(crate) kernel: FakeKernel,
    /// The programs that were run, with their arguments.
    pub(crate) calls: Vec<String>,
    /// The status and standard error with which the next `iptables-restore` fails.
    pub(crate) restore_fails: Option<(i32, String)>,
    /// The table, status and standard error with which `iptables-save` fails.
    pub(crate) save_fails: Option<(TableName, i32, String)>,
    /// The number of bytes after which the output of `iptables-save` is truncated.
    pub(crate) save_bytes: usize,
    /// The status of `iptables -S`, if it fails.
    pub(crate) list_status: Option<i32>,
}

impl FakePrograms {
    pub(crate) fn new(family: IpFamily) -> Self {
        let state = State {
            kernel: FakeKernel::new(family),
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

    /// Returns the programs that were run since the last call.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }

    /// Returns the programs as of a release (`iptables v1.8.9 (nf_tables)`).
    pub(crate) fn with_release(&self, release: &str) -> IptablesPrograms {
        let release: ferroute_iptables::exec::Release = release.parse().unwrap();
        IptablesPrograms {
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

impl Exec for FakePrograms {
    fn feed(
        &self,
        call: Invocation<'_>,
        input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Exit, ProgramError> {
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
        call: Invocation<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, ProgramError> {
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
