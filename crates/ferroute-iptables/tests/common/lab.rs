//! A network namespace with a dataplane that uses the real tools.

use std::{
    io::{self, BufRead, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ferroute_core::{IpFamily, ProxySettings};
use ferroute_iptables::{
    Generations, Host, HostPrograms, IptablesDataplane, RuleSet, Tools,
    runner::{Backend, Call, Exit, Programs, RunError, search_path},
};
use ferroute_testing::NetNs;

/// A host of its own.
pub(crate) struct Lab {
    pub(crate) host: NetNs,
    pub(crate) backend: Backend,
    pub(crate) clock: Clock,
    calls: Arc<Mutex<Vec<String>>>,
    generations: Generations,
}

impl Lab {
    /// A host without rules.
    pub(crate) fn new(backend: Backend) -> Self {
        let host = NetNs::new();
        let generations = host.run(|| Generations::of_kernel().unwrap());
        Self { host, backend, clock: Clock::default(), calls: Arc::default(), generations }
    }

    /// A dataplane on this host. What it does must happen within [`NetNs::run`].
    pub(crate) fn dataplane(&self, family: IpFamily, settings: &ProxySettings) -> IptablesDataplane {
        self.dataplane_with(family, settings, |_, _| {})
    }

    /// As [`Lab::dataplane`], after a change of its tools or host.
    pub(crate) fn dataplane_with(
        &self,
        family: IpFamily,
        settings: &ProxySettings,
        change: impl FnOnce(&mut Tools, &mut Host) + Send,
    ) -> IptablesDataplane {
        self.host.run(|| {
            let mut tools = Tools::find_backend(family, self.backend, &HostPrograms, &search_path()).unwrap();
            let mut host = Host::of_kernel().unwrap();
            host.now = self.clock.clone().reader();
            change(&mut tools, &mut host);
            let programs = Arc::new(Logged { calls: self.calls.clone() });
            IptablesDataplane::new(tools, settings.clone(), programs, host, self.generations.clone())
        })
    }

    /// The names of the programs that were run since the last call, with their arguments.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// A program's name: `iptables-nft-save`.
    pub(crate) fn program(&self, family: IpFamily, suffix: &str) -> String {
        let base = match family {
            IpFamily::V4 => "iptables",
            IpFamily::V6 => "ip6tables",
        };
        format!("{base}-{}{suffix}", self.backend.infix())
    }

    /// Runs `iptables`.
    pub(crate) fn iptables(&self, family: IpFamily, arguments: &[&str]) {
        self.host.command(&self.program(family, ""), arguments);
    }

    /// Feeds `iptables-restore --noflush`.
    pub(crate) fn restore(&self, family: IpFamily, input: &str) {
        self.host.feed(&self.program(family, "-restore"), &["--noflush"], input);
    }

    /// All rules, of whomever.
    pub(crate) fn rules(&self, family: IpFamily) -> RuleSet {
        let text = self.host.command(&self.program(family, "-save"), &[]);
        RuleSet::parse_save(family, &text).unwrap()
    }
}

/// A clock that only goes on when it is told to.
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

/// The host's programs, with a list of what was run.
struct Logged {
    calls: Arc<Mutex<Vec<String>>>,
}

impl Logged {
    fn log(&self, call: Call<'_>) {
        let program = call.program.file_name().unwrap().display();
        self.calls.lock().unwrap().push(format!("{program} {}", call.arguments.join(" ")));
    }
}

impl Programs for Logged {
    fn feed(&self, call: Call<'_>, input: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<Exit, RunError> {
        self.log(call);
        HostPrograms.feed(call, input)
    }

    fn read(
        &self,
        call: Call<'_>,
        output: &mut dyn FnMut(&mut dyn BufRead) -> io::Result<()>,
    ) -> Result<Exit, RunError> {
        self.log(call);
        HostPrograms.read(call, output)
    }
}

/// Makes a test of each function, one per backend.
macro_rules! with_both_backends {
    ($($name:ident),* $(,)?) => {
        mod nft {
            $(#[test]
            fn $name() {
                super::$name(ferroute_iptables::runner::Backend::NfTables);
            })*
        }

        mod legacy {
            $(#[test]
            fn $name() {
                super::$name(ferroute_iptables::runner::Backend::Legacy);
            })*
        }
    };
}
pub(crate) use with_both_backends;
