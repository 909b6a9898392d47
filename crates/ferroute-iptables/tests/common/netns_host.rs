//! A network namespace with a dataplane that uses the real iptables programs or netlink.

use std::{
    io::{self, BufRead, Write},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, ProxySettings};
use ferroute_iptables::{
    GenerationTracker, HostAccess, HostExec, IptablesDataplane, IptablesPrograms, RuleSet,
    exec::{
        Backend, CleanupError, CleanupScope, Exec, Exit, Invocation, ProgramError, RuleAccess, clean_up, search_path,
        snapshot_rules,
    },
    native::NativeRules,
};
use ferroute_testing::NetNs;

/// The way in which a dataplane reads and writes rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The iptables programs of a backend.
    Programs(Backend),
    /// Netlink.
    Netlink,
}

impl Way {
    /// The backend of the rules.
    pub(crate) fn backend(self) -> Backend {
        match self {
            Self::Programs(backend) => backend,
            Self::Netlink => Backend::NfTables,
        }
    }
}

/// A host in a separate network namespace.
pub(crate) struct NetnsHost {
    pub(crate) netns: NetNs,
    pub(crate) way: Way,
    pub(crate) clock: Clock,
    calls: Arc<Mutex<Vec<String>>>,
    pub(crate) generations: GenerationTracker,
}

impl NetnsHost {
    /// Creates a host without rules.
    pub(crate) fn new(way: Way) -> Self {
        let netns = NetNs::new();
        let generations = netns.run(|| GenerationTracker::open().unwrap());
        Self { netns, way, clock: Clock::default(), calls: Arc::default(), generations }
    }

    /// Creates a dataplane on this host, whose methods must be called within [`NetNs::run`].
    pub(crate) fn dataplane(&self, family: IpFamily, settings: &ProxySettings) -> IptablesDataplane {
        self.dataplane_with(family, settings, |_, _| {})
    }

    /// Like [`NetnsHost::dataplane`], with changed programs or a changed host, if any.
    pub(crate) fn dataplane_with(
        &self,
        family: IpFamily,
        settings: &ProxySettings,
        change: impl FnOnce(Option<&mut IptablesPrograms>, &mut HostAccess) + Send,
    ) -> IptablesDataplane {
        self.netns.run(|| {
            let mut programs = self.programs(family);
            let mut host = HostAccess::open().unwrap();
            (host.now, host.processor_time) = (self.clock.clone().reader(), self.clock.clone().processor_time());
            change(programs.as_mut(), &mut host);
            let access = access(family, programs, self.exec());
            IptablesDataplane::new(access, settings.clone(), host, self.generations.clone())
        })
    }

    /// Runs the host's programs and logs them for [`NetnsHost::calls`].
    pub(crate) fn exec(&self) -> Arc<dyn Exec> {
        Arc::new(LoggingExec { calls: self.calls.clone() })
    }

    /// The programs that write the rules.
    fn programs(&self, family: IpFamily) -> Option<IptablesPrograms> {
        match self.way {
            Way::Programs(backend) => {
                Some(IptablesPrograms::find_backend(family, backend, &HostExec, &search_path()).unwrap())
            }
            Way::Netlink => None,
        }
    }

    /// Removes all rules of all proxies and returns the errors.
    pub(crate) fn clean_up(&self, family: IpFamily) -> Vec<CleanupError> {
        self.netns.run(|| {
            let access = access(family, self.programs(family), Arc::new(HostExec));
            clean_up(&access, CleanupScope::Everything).errors
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
        format!("{base}-{}{suffix}", self.way.backend().infix())
    }

    /// Runs `iptables`.
    pub(crate) fn iptables(&self, family: IpFamily, arguments: &[&str]) {
        self.netns.command(&self.program(family, ""), arguments);
    }

    /// Runs `iptables-restore --noflush`.
    pub(crate) fn restore(&self, family: IpFamily, input: &str) {
        self.netns.feed(&self.program(family, "-restore"), &["--noflush"], input);
    }

    /// Returns the rules of all programs, as `iptables-save` prints them where it is installed.
    pub(crate) fn rules(&self, family: IpFamily) -> RuleSet {
        let program = self.program(family, "-save");
        if self.way == Way::Netlink && !search_path().iter().any(|directory| directory.join(&program).exists()) {
            let mut snapshot = self.netns.run(|| snapshot_rules(family, &HostExec, &[])).unwrap();
            return snapshot.backends.pop().map_or_else(|| RuleSet::new(family), |backend| backend.saved.rules);
        }
        RuleSet::parse_save(family, &self.netns.command(&program, &[])).unwrap()
    }
}

fn access(family: IpFamily, programs: Option<IptablesPrograms>, exec: Arc<dyn Exec>) -> RuleAccess {
    match programs {
        Some(programs) => RuleAccess::programs(programs, exec).with_repairs(NativeRules::open(family).unwrap()),
        None => RuleAccess::netlink(NativeRules::open(family).unwrap()),
    }
}

/// A clock that the test advances.
#[derive(Clone, Default)]
pub(crate) struct Clock {
    seconds: Arc<AtomicU64>,
    readings: Arc<AtomicU32>,
}

impl Clock {
    pub(crate) fn advance(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Returns a clock that advances by 50 ms between two readings, so that comparisons are 5 s apart.
    pub(crate) fn processor_time(self) -> Box<dyn Fn() -> Duration + Send> {
        Box::new(move || Duration::from_millis(50) * self.readings.fetch_add(1, Ordering::Relaxed))
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
/// Another process writes the file: a program that another test starts at the same time would inherit the open file,
/// and a file that is open for writing cannot be executed.
pub(crate) fn script(path: &Path, text: &str) {
    let mut install =
        Command::new("install").args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    install.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}

/// Defines a test per function and way.
macro_rules! with_all_ways {
    ($($name:ident),* $(,)?) => {
        mod nft {
            $(#[test]
            fn $name() {
                super::$name($crate::common::netns_host::Way::Programs(ferroute_iptables::exec::Backend::NfTables));
            })*
        }

        mod legacy {
            $(#[test]
            fn $name() {
                super::$name($crate::common::netns_host::Way::Programs(ferroute_iptables::exec::Backend::Legacy));
            })*
        }

        mod netlink {
            $(#[test]
            fn $name() {
                super::$name($crate::common::netns_host::Way::Netlink);
            })*
        }
    };
}
pub(crate) use with_all_ways;
