//! A network namespace with a dataplane that runs the real iptables programs.

use std::{
    io::{self, BufRead, Write},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, ProxySettings};
use ferroute_host::KernelCounters;
use ferroute_iptables::{
    GenerationTracker, HostAccess, HostExec, IptablesDataplane, IptablesPrograms, RuleSet,
    exec::{
        Backend, CleanupError, CleanupScope, Exec, Exit, Invocation, ProgramError, clean_up, remove_counters,
        search_path,
    },
};
use ferroute_testing::NetNs;

/// A host in a network namespace of its own.
pub(crate) struct NetnsHost {
    pub(crate) netns: NetNs,
    pub(crate) backend: Backend,
    pub(crate) clock: Clock,
    calls: Arc<Mutex<Vec<String>>>,
    generations: GenerationTracker,
}

impl NetnsHost {
    /// Creates a host without rules.
    pub(crate) fn new(backend: Backend) -> Self {
        let netns = NetNs::new();
        let generations = netns.run(|| GenerationTracker::open().unwrap());
        Self { netns, backend, clock: Clock::default(), calls: Arc::default(), generations }
    }

    /// Creates a dataplane on this host, whose methods must be called within [`NetNs::run`].
    pub(crate) fn dataplane(&self, family: IpFamily, settings: &ProxySettings) -> IptablesDataplane {
        self.dataplane_with(family, settings, |_, _| {})
    }

    /// Like [`NetnsHost::dataplane`], with changed programs or host.
    pub(crate) fn dataplane_with(
        &self,
        family: IpFamily,
        settings: &ProxySettings,
        change: impl FnOnce(&mut IptablesPrograms, &mut HostAccess) + Send,
    ) -> IptablesDataplane {
        self.netns.run(|| {
            let mut programs = IptablesPrograms::find_backend(family, self.backend, &HostExec, &search_path()).unwrap();
            let mut host = HostAccess::open().unwrap();
            host.now = self.clock.clone().reader();
            change(&mut programs, &mut host);
            let exec = Arc::new(LoggingExec { calls: self.calls.clone() });
            IptablesDataplane::new(programs, settings.clone(), exec, host, self.generations.clone())
        })
    }

    /// Removes all rules of all proxies and returns the errors.
    pub(crate) fn clean_up(&self, family: IpFamily) -> Vec<CleanupError> {
        self.netns.run(|| {
            let programs = IptablesPrograms::find_backend(family, self.backend, &HostExec, &search_path()).unwrap();
            let errors = clean_up(&programs, Arc::new(HostExec), CleanupScope::Everything).errors;
            // The kernel refuses to delete counters that rules of the other family use.
            let _ = remove_counters(&mut KernelCounters::open().unwrap().unwrap());
            errors
        })
    }

    /// Returns the names and arguments of the programs that were run since the last call.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// Returns the name of a program: `iptables-nft-save`.
    pub(crate) fn program(&self, family: IpFamily, suffix: &str) -> String {
        let base = match family {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        format!("{base}-{}{suffix}", self.backend.infix())
    }

    /// Runs `iptables`.
    pub(crate) fn iptables(&self, family: IpFamily, arguments: &[&str]) {
        self.netns.command(&self.program(family, ""), arguments);
    }

    /// Runs `iptables-restore --noflush`.
    pub(crate) fn restore(&self, family: IpFamily, input: &str) {
        self.netns.feed(&self.program(family, "-restore"), &["--noflush"], input);
    }

    /// Returns the rules of all programs.
    pub(crate) fn rules(&self, family: IpFamily) -> RuleSet {
        let text = self.netns.command(&self.program(family, "-save"), &[]);
        RuleSet::parse_save(family, &text).unwrap()
    }
}

/// A clock that the test advances.
#[derive(Clone, Default)]
pub(crate) struct Clock {
    seconds: Arc<AtomicU64>,
}

impl Clock {
    pub(crate) fn advance(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    pub(crate) fn reader(self) -> Box<dyn Fn() -> Instant + Send> {
        let start = Instant::now();
        Box::new(move || start + Duration::from_secs(self.seconds.load(Ordering::Relaxed)))
    }
}

/// Runs the host's programs and logs them.
struct LoggingExec {
    calls: Arc<Mutex<Vec<String>>>,
}

impl LoggingExec {
    fn log(&self, call: Invocation<'_>) {
        let program = call.program.file_name().unwrap().display();
        self.calls.lock().unwrap().push(format!("{program} {}", call.arguments.join(" ")));
    }
}

impl Exec for LoggingExec {
    fn feed(
        &self,
        call: Invocation<'_>,
        input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Exit, ProgramError> {
        self.log(call);
        HostExec.feed(call, input)
    }

    fn read(
        &self,
        call: Invocation<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, ProgramError> {
        self.log(call);
        HostExec.read(call, output)
    }
}

/// Creates a shell script.
///
/// Another process writes the file: a program that another test starts meanwhile would inherit the open file, and a file
/// that is open for writing cannot be executed.
pub(crate) fn script(path: &Path, text: &str) {
    let mut install =
        Command::new("install").args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    install.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}

/// Defines a test per function and backend.
macro_rules! with_both_backends {
    ($($name:ident),* $(,)?) => {
        mod nft {
            $(#[test]
            fn $name() {
                super::$name(ferroute_iptables::exec::Backend::NfTables);
            })*
        }

        mod legacy {
            $(#[test]
            fn $name() {
                super::$name(ferroute_iptables::exec::Backend::Legacy);
            })*
        }
    };
}
pub(crate) use with_both_backends;
