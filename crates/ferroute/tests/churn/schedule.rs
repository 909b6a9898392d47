//! The schedule of a run: a pure function of the seed and of the capabilities of the run.
//!
//! A schedule is a series of rounds. In a round, objects change at a high rate, then a fault begins, objects change
//! during the fault, it ends, and the proxy must settle: from then on the results of connections are determined
//! exactly, until the next round. A run executes rounds until its time is over, so a longer run begins like a shorter
//! one.

use std::ops::Range;

use ferroute_config::ModeName;
use ferroute_core::{
    LocalTrafficDetector, NodePortAddresses, ProxySettings,
    testing::{Cluster, Edit, arbitrary},
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    network::PODS,
    objects::{Claim, Claimant, Steady, SteadyKind},
};

/// Capabilities of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The modes that this kernel supports.
    pub(crate) modes: Vec<ModeName>,
    /// Whether an API server is the source, or manifests.
    pub(crate) api: bool,
    /// The number of rounds.
    pub(crate) rounds: usize,
    /// The number of Services in a large table.
    pub(crate) bulk: usize,
}

/// A schedule with all other choices that depend on the seed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule {
    /// The objects at the start, apart from the steady Service and the barrier.
    pub(crate) initial: Cluster,
    pub(crate) steady: Steady,
    pub(crate) options: Options,
    pub(crate) rounds: Vec<Round>,
}

/// The configuration of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// The mode at the start.
    pub(crate) mode: ModeName,
    /// `minSyncPeriod` in milliseconds.
    pub(crate) min_sync_period: u64,
    /// Whether pods are recognised by the name of their interface, or by their address.
    pub(crate) detect_by_interface: bool,
    /// Whether node ports are served on only one network.
    pub(crate) restrict_node_ports: bool,
    pub(crate) iptables: Iptables,
}

/// Way in which iptables mode reads and writes rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Iptables {
    /// Rules of nf_tables, by netlink.
    Netlink,
    /// Rules of nf_tables, by programs.
    Programs,
    /// Rules of the legacy backend.
    Legacy,
}

impl Iptables {
    const ALL: [Self; 3] = [Self::Netlink, Self::Programs, Self::Legacy];
}

impl Options {
    /// Returns the settings that result from the configuration.
    pub(crate) fn settings(&self) -> ProxySettings {
        let networks = |texts: [&str; 2]| texts.map(|text| text.parse().expect("a network")).to_vec();
        ProxySettings {
            localhost_node_ports: false,
            node_port_addresses: if self.restrict_node_ports {
                NodePortAddresses::Within(networks(["192.168.0.0/16", "fd00:168::/64"]))
            } else {
                NodePortAddresses::All
            },
            detector: if self.detect_by_interface {
                LocalTrafficDetector::InterfaceNamePrefix("veth".to_owned())
            } else {
                LocalTrafficDetector::ClusterCidr(networks(["10.244.0.0/16", "fd00:244::/32"]))
            },
            ..ProxySettings::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) before: Vec<Step>,
    pub(crate) fault: Option<Fault>,
    /// Changes while the fault lasts.
    pub(crate) during: Vec<Step>,
}

/// A change of the desired state, after a pause.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// Milliseconds.
    pub(crate) pause: u64,
    pub(crate) change: Change,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Objects(Vec<Edit>),
    Steady(Steady),
    /// Additional claim of a Service.
    Claim(Claimant, Option<Claim>),
    /// Whether the node has its additional addresses.
    ExtraAddresses(bool),
}

/// A fault. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The proxy is killed, and started again after the changes.
    Kill,
    /// The proxy is stopped by SIGTERM, which must succeed, and started again after the changes.
    Terminate,
    /// The proxy is killed while it syncs a large table for the first time, several times in a row.
    KillInFirstSync { after: Vec<u64> },
    /// The proxy is stopped by SIGSTOP.
    Freeze,
    /// The configuration selects another mode.
    SwitchMode(ModeName),
    /// Another program changes the proxy's rules.
    Interfere(Interference),
    /// Another program holds the xtables lock.
    HoldLock,
    /// `iptables-restore` fails.
    RestoreFails,
    /// `iptables-restore` does not return.
    RestoreHangs,
    /// Another process owns the table of nftables mode, so that the kernel refuses transactions (EPERM).
    OwnTable,
    /// Another program commits nftables transactions at a high rate.
    Commits,
    /// The configuration selects userspace mode for a while; its worker may also be stopped by SIGSTOP.
    Userspace { stops_worker: bool },
    /// Another proxy with the same objects runs on the node.
    SecondProxy,
    /// The wall clock of the proxy steps, and back.
    ClockStep { seconds: i64 },
    /// No process reads the standard error of the proxy.
    BlockedLog,
    /// A process of another user binds names of the proxy's sockets and accepts no connection.
    HostileUser,
    /// A manifest is half-written.
    HalfWritten { services: bool },
    /// A manifest contains objects that are invalid.
    InvalidObjects,
    /// The file system of the manifests is full.
    DiskFull,
    /// The proxy cannot open more files.
    Descriptors,
    /// The proxy cannot start processes or threads.
    Processes,
    /// One in `every` sends to and receptions from sockets, including netlink sockets, fails with this error.
    Sockets { error: &'static str, every: u32 },
    /// The API server misbehaves.
    Api(ApiFault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interference {
    /// Removes all rules of all programs.
    FlushAll,
    /// Removes the proxy's tables or chains.
    FlushOwn,
    /// Removes one in three rules or elements.
    Thin { offset: usize },
    /// Replaces rules or elements, so that their number stays.
    Replace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiFault {
    /// All connections break, and new ones are refused.
    Down,
    /// Connections of watches break, at any byte.
    CutWatches,
    /// Watches end with an error status.
    WatchErrors(u16),
    /// The next requests fail.
    Statuses(Vec<u16>),
    /// The next requests are answered with status 429 and `retry-after`.
    TooManyRequests { seconds: u64 },
    /// The next requests are answered with garbage: an HTML page, then arbitrary bytes.
    Garbage { seed: u64 },
    /// The next requests are not answered.
    NoResponse,
    /// No request is answered, although connections are accepted.
    Hung,
    /// Watches and the next lists stop in the middle, with their connections open.
    Stall { bytes: usize },
    /// The next responses contain an object of a gigabyte.
    Endless,
    /// The history is lost while watches are interrupted: 410.
    Compacted,
    /// Data arrives in small pieces.
    Slow,
    /// Watches repeat old changes.
    Repeats,
    /// The server returns to an earlier state, as after restoring a backup.
    BackInTime,
}

impl Schedule {
    /// Generates the schedule of a seed.
    pub(crate) fn new(seed: u64, setting: &Setting) -> Self {
        let mut generator = Generator::new(seed, setting);
        let mode = *generator.random.choice(&setting.modes).expect("a mode is available");
        generator.mode = mode;
        generator.iptables = *generator.random.choice(&Iptables::ALL).expect("not empty");
        let options = Options {
            mode,
            min_sync_period: generator.random.choice([0, 100, 1_000]).expect("not empty"),
            detect_by_interface: generator.random.bool(),
            restrict_node_ports: generator.random.bool(),
            iptables: generator.iptables,
        };
        let initial = generator.value(&arbitrary::cluster());
        let steady = generator.steady();
        let rounds = (0..setting.rounds).map(|number| generator.round(number)).collect();
        Self { initial, steady, options, rounds }
    }
}

struct Generator<'a> {
    random: fastrand::Rng,
    /// For generators of objects.
    runner: TestRunner,
    setting: &'a Setting,
    mode: ModeName,
    iptables: Iptables,
    generation: usize,
    has_extra_addresses: bool,
}

impl<'a> Generator<'a> {
    fn new(seed: u64, setting: &'a Setting) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: [u8; 32] = std::array::from_fn(|_| random.u8(..));
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let runner = TestRunner::new_with_rng(Config::default(), rng);
        Self {
            random,
            runner,
            setting,
            mode: setting.modes[0],
            iptables: Iptables::Netlink,
            generation: 0,
            has_extra_addresses: false,
        }
    }

    fn value<T: std::fmt::Debug>(&mut self, strategy: &impl Strategy<Value = T>) -> T {
        strategy.new_tree(&mut self.runner).expect("no value is rejected").current()
    }

    fn round(&mut self, number: usize) -> Round {
        let before = self.steps(3..9);
        // The process must run for long in a part of the run, so that leaks become visible: no restarts in the last
        // third.
        let may_restart = number < self.setting.rounds * 2 / 3;
        let fault = self.fault(number, may_restart);
        Round { before, fault, during: self.steps(2..6) }
    }

    fn steps(&mut self, number: Range<usize>) -> Vec<Step> {
        (0..self.random.usize(number)).map(|_| self.step()).collect()
    }

    fn step(&mut self) -> Step {
        let change = match self.random.u8(0..10) {
            0..6 => Change::Objects(self.value(&arbitrary::edits(1..3))),
            6 => {
                let claimant = *self.random.choice(&Claimant::ALL).expect("not empty");
                let claim = Claim { created: self.random.u8(1..4), load_balancer: self.random.bool() };
                Change::Claim(claimant, (self.random.u8(0..4) > 0).then_some(claim))
            }
            7..9 => Change::Steady(self.steady()),
            _ => {
                self.has_extra_addresses ^= true;
                Change::ExtraAddresses(self.has_extra_addresses)
            }
        };
        Step { pause: self.random.u64(0..250), change }
    }

    fn steady(&mut self) -> Steady {
        self.generation += 1;
        let kind = match self.random.u8(0..4) {
            0 => SteadyKind::ClusterIp,
            1 => SteadyKind::NodePort { number: self.random.u16(30_910..30_920) },
            _ => SteadyKind::LoadBalancer { local: self.random.bool(), affinity: self.random.u8(0..4) == 0 },
        };
        let mut pods: Vec<usize> = (2..PODS).filter(|_| self.random.bool()).collect();
        // One remote endpoint is always present.
        pods.push(1);
        let parts = self.random.usize(1..4);
        Steady { generation: self.generation, kind, pods, parts, duplicates: self.random.bool() }
    }

    /// Returns the fault of a round. The first rounds are without a fault, and the next ones have the most important
    /// kinds in an order that depends on the seed; later ones are random.
    fn fault(&mut self, number: usize, may_restart: bool) -> Option<Fault> {
        if number == 0 || self.random.u8(0..10) == 0 {
            return None;
        }
        let kind = self.random.u32(..);
        let common = [Self::kill, Self::terminate, Self::kill_in_first_sync, Self::switch_mode, Self::interfere];
        let common = &common[if may_restart { 0 } else { 3 }..];
        let faults: &[fn(&mut Self) -> Fault] = if self.setting.api {
            &[Self::api_fault, Self::api_fault, Self::kernel_fault, Self::resource_fault]
        } else {
            &[Self::file_fault, Self::kernel_fault, Self::resource_fault]
        };
        let all: Vec<_> = common.iter().chain(faults).collect();
        Some(all[kind as usize % all.len()](self))
    }

    fn kill(&mut self) -> Fault {
        Fault::Kill
    }

    fn terminate(&mut self) -> Fault {
        Fault::Terminate
    }

    fn kill_in_first_sync(&mut self) -> Fault {
        Fault::KillInFirstSync { after: (0..self.random.usize(1..4)).map(|_| self.random.u64(20..1_500)).collect() }
    }

    fn switch_mode(&mut self) -> Fault {
        let others: Vec<_> = self.setting.modes.iter().filter(|mode| **mode != self.mode).copied().collect();
        match self.random.choice(others) {
            Some(mode) => {
                self.mode = mode;
                Fault::SwitchMode(mode)
            }
            None => self.interfere(),
        }
    }

    fn interfere(&mut self) -> Fault {
        Fault::Interfere(match self.random.u8(0..4) {
            0 => Interference::FlushAll,
            1 => Interference::FlushOwn,
            2 => Interference::Replace,
            _ => Interference::Thin { offset: self.random.usize(0..3) },
        })
    }

    fn kernel_fault(&mut self) -> Fault {
        if self.mode == ModeName::IPTABLES && self.iptables == Iptables::Netlink {
            Fault::Commits
        } else if self.mode == ModeName::IPTABLES {
            match self.random.u8(0..4) {
                0 => Fault::RestoreFails,
                1 => Fault::RestoreHangs,
                2 => Fault::HoldLock,
                _ => Fault::Commits,
            }
        } else if self.random.bool() {
            Fault::OwnTable
        } else {
            Fault::Commits
        }
    }

    fn resource_fault(&mut self) -> Fault {
        match self.random.u8(0..9) {
            0 => Fault::Descriptors,
            1 => Fault::Processes,
            2 => Fault::HostileUser,
            3 => {
                let error = self.random.choice(["ENOBUFS", "ENOMEM", "EBUSY", "EINTR"]).expect("not empty");
                Fault::Sockets { error, every: self.random.u32(2..6) }
            }
            4 => Fault::Userspace { stops_worker: self.random.bool() },
            5 => Fault::SecondProxy,
            6 => Fault::BlockedLog,
            7 => Fault::ClockStep { seconds: *self.random.choice(&STEPS).expect("not empty") },
            _ => Fault::Freeze,
        }
    }

    fn file_fault(&mut self) -> Fault {
        match self.random.u8(0..3) {
            0 => Fault::HalfWritten { services: self.random.bool() },
            1 => Fault::InvalidObjects,
            _ => Fault::DiskFull,
        }
    }

    fn api_fault(&mut self) -> Fault {
        Fault::Api(match self.random.u8(0..14) {
            0 => ApiFault::Down,
            1 => ApiFault::CutWatches,
            2 => ApiFault::WatchErrors(*self.random.choice(&[410, 429, 500]).expect("not empty")),
            3 => {
                let number = self.random.usize(1..6);
                ApiFault::Statuses(
                    (0..number).map(|_| [401, 403, 404, 409, 429, 500, 503][self.random.usize(..7)]).collect(),
                )
            }
            4 => ApiFault::TooManyRequests { seconds: self.random.u64(1..4) },
            5 => ApiFault::Garbage { seed: self.random.u64(..) },
            6 => ApiFault::NoResponse,
            7 => ApiFault::Compacted,
            8 => ApiFault::Slow,
            9 => ApiFault::Repeats,
            10 => ApiFault::Hung,
            11 => ApiFault::Stall { bytes: self.random.usize(0..2_000) },
            12 => ApiFault::Endless,
            _ => ApiFault::BackInTime,
        })
    }
}

/// Steps of the clock in seconds: an hour, and more than a year.
const STEPS: [i64; 4] = [-40_000_000, -3_600, 3_600, 40_000_000];

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(api: bool) -> Setting {
        Setting { modes: vec![ModeName::IPTABLES, ModeName::NFTABLES], api, rounds: 40, bulk: 100 }
    }

    #[test]
    fn seeds_determine_schedules() {
        let one = Schedule::new(7, &setting(false));
        assert_eq!(one, Schedule::new(7, &setting(false)));
        assert_ne!(one, Schedule::new(8, &setting(false)));
    }

    #[test]
    fn all_kinds_of_faults_occur_and_no_restart_in_the_last_third() {
        let mut names = std::collections::BTreeSet::new();
        for (seed, api) in (0..30).flat_map(|seed| [(seed, false), (seed, true)]) {
            for (number, round) in Schedule::new(seed, &setting(api)).rounds.into_iter().enumerate() {
                let Some(fault) = round.fault else { continue };
                let restarts = matches!(fault, Fault::Kill | Fault::Terminate | Fault::KillInFirstSync { .. });
                assert!(!restarts || number < 26, "{number}: {fault:?}");
                let name = format!("{fault:?}");
                let name = name.strip_prefix("Api(").or(name.strip_prefix("Interfere(")).unwrap_or(&name).to_owned();
                names.insert(name.split([' ', '(', ')']).next().unwrap().to_owned());
            }
        }
        assert_eq!(names.len(), 21 + 4 + 14, "{names:?}");
    }
}
