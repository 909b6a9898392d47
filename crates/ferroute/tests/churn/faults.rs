//! Causes of each fault, and the conditions during and after it.

use std::{
    fs::{self, File},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ferroute_config::ModeName;

use crate::{
    driver::{Driver, Failure, RECOVERY},
    kernel::{self, NftSession},
    limits::{Limit, SocketFaults},
    objects,
    process::{Proxy, SECOND_CONFIG, get},
    schedule::{ApiFault, Fault, Step},
    source::Source,
};

impl Driver {
    /// Causes a fault, makes changes during the fault, ends it, and waits until the proxy has recovered.
    pub(crate) fn execute_fault(&mut self, fault: &Fault, during: &[Step]) -> Result<(), Failure> {
        match fault {
            // The proxy must do its work as usual.
            Fault::Commits => {
                let _commits = Commits::start(self);
                self.execute(during)?;
                return self.settle_in_time();
            }
            Fault::HostileUser => {
                let _process = kernel::hostile_process(&self.network.node);
                self.execute(during)?;
                return self.settle_in_time();
            }
            Fault::ClockStep { seconds } => {
                for offset in [*seconds, 0] {
                    self.files.set_clock(offset);
                    self.wait("the step of the clock", |driver| driver.proxy_clock_is_at(offset))?;
                    if offset != 0 {
                        self.execute(during)?;
                    }
                    self.settle_in_time()?;
                }
                return Ok(());
            }
            Fault::BlockedLog => {
                self.process().block_log(true);
                let executed = self.execute(during).and_then(|()| self.settle_in_time());
                self.process().block_log(false);
                return executed;
            }
            Fault::InvalidObjects => {
                self.source.set_invalid_objects(&self.files, true);
                self.execute(during)?;
                self.settle_in_time()?;
                self.source.set_invalid_objects(&self.files, false);
                return Ok(());
            }
            _ => {}
        }
        let start = self.read_clock();
        let disturbs_rules = matches!(fault, Fault::Interfere(_) | Fault::OwnTable | Fault::SecondProxy);
        let fixed_rules = matches!(fault, Fault::Interfere(_)).then(|| kernel::fixed_rules(&self.network.node));
        self.oracle.fault_starts(disturbs_rules);
        if matches!(fault, Fault::Kill | Fault::KillInFirstSync { .. }) {
            self.oracle.proxy_was_killed();
        }
        self.cause(fault, during)?;
        self.note("the fault has ended");
        // The proxy applies lists while it receives them, so that this change may be applied before the rest of its list.
        self.pass_barrier(if matches!(fault, Fault::Api(_)) { API_RECOVERY } else { RECOVERY })?;
        // The next change arrives after the list.
        self.settle(RECOVERY)?;
        if disturbs_rules {
            self.pause_until(start + REPAIR)?;
        }
        if let Some(before) = fixed_rules {
            self.wait("the rules are repaired", |driver| kernel::fixed_rules(&driver.network.node) == before)?;
        }
        self.oracle.faults_end();
        Ok(())
    }

    fn cause(&mut self, fault: &Fault, during: &[Step]) -> Result<(), Failure> {
        match fault {
            Fault::Kill => {
                self.process().kill();
                self.proxy = None;
                self.execute(during)?;
                self.start_proxy();
            }
            Fault::Terminate => {
                self.process().terminate()?;
                self.proxy = None;
                self.execute(during)?;
                self.start_proxy();
            }
            Fault::KillInFirstSync { after } => self.kill_in_first_sync(after, during)?,
            Fault::Freeze => {
                use nix::sys::signal::Signal;
                self.process().signal(Signal::SIGSTOP);
                let executed = self.execute(during);
                self.process().signal(Signal::SIGCONT);
                executed?;
            }
            Fault::SwitchMode(mode) => {
                let old = std::mem::replace(&mut self.mode, *mode);
                self.oracle.select_mode(*mode);
                self.files.configure(&self.schedule.options, *mode);
                self.execute(during)?;
                self.wait_for_mode(*mode, old)?;
            }
            Fault::Userspace { stops_worker } => self.use_userspace_mode(*stops_worker, during)?,
            Fault::SecondProxy => {
                let arguments = self.arguments();
                let log = self.files.path("second.log");
                // Killed, so that it may also end in the middle of a sync.
                let _second = Proxy::start(&self.network.node, &self.files, SECOND_CONFIG, &arguments, &log);
                self.execute(during)?;
                // Time for its first sync.
                self.pause(SECOND_PROXY)?;
            }
            Fault::Interfere(how) => {
                kernel::interfere(&self.network.node, self.mode.as_str(), *how);
                self.execute(during)?;
            }
            Fault::OwnTable => {
                let session = NftSession::owning_tables(&self.network.node);
                self.execute(during)?;
                drop(session);
            }
            Fault::HoldLock => {
                let lock = File::options().create(true).append(true).open("/run/xtables.lock").unwrap();
                lock.try_lock().unwrap();
                self.execute(during)?;
            }
            Fault::RestoreFails => self.with_file("fail", during)?,
            Fault::RestoreHangs => self.with_file("hang", during)?,
            Fault::HalfWritten { services } => {
                let name = if *services { "services" } else { "slices" };
                self.with_broken_manifests(during, |directory| {
                    let file = directory.join(format!("{name}.json"));
                    let text = fs::read(&file).unwrap();
                    fs::write(&file, &text[..text.len() * 2 / 3]).unwrap();
                })?;
            }
            Fault::DiskFull => self.with_broken_manifests(during, |directory| {
                let mut filler = File::create(directory.join("filler")).unwrap();
                // Writes until the file system is full.
                _ = std::io::copy(&mut std::io::repeat(0), &mut filler);
                let file = directory.join("services.json");
                let text = fs::read(&file).unwrap();
                fs::write(&file, [text, vec![b' '; 1 << 20]].concat()).expect_err("the file system is full");
            })?,
            Fault::Descriptors => {
                let limit = Limit::descriptors(self.process().id());
                self.execute(during)?;
                drop(limit);
            }
            Fault::Processes => {
                let limit = Limit::processes(self.process().id());
                self.execute(during)?;
                drop(limit);
            }
            Fault::Sockets { error, every } => {
                let faults = SocketFaults::start(self.process().id(), error, *every);
                self.execute(during)?;
                drop(faults);
            }
            Fault::Api(fault) => self.api_fault(fault, during)?,
            Fault::Commits
            | Fault::HostileUser
            | Fault::BlockedLog
            | Fault::ClockStep { .. }
            | Fault::InvalidObjects => {
                unreachable!("not a fault of the proxy")
            }
        }
        Ok(())
    }

    /// Reports whether the wall clock of the proxy is this many seconds after this process's.
    fn proxy_clock_is_at(&self, offset: i64) -> bool {
        let health = "127.0.0.1:10256".parse().expect("an address");
        let Ok((_, text)) = get(&self.network.node, health, "/healthz") else { return false };
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let shown = json["currentTime"].as_str().and_then(|time| humantime::parse_rfc3339(time).ok());
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64);
        shown.is_some_and(|shown| (seconds(shown) - seconds(SystemTime::now()) - offset).abs() < 60)
    }

    fn wait_for_mode(&mut self, mode: ModeName, old: ModeName) -> Result<(), Failure> {
        let metrics = "127.0.0.1:10249".parse().expect("an address");
        let is_active = |driver: &Self| {
            get(&driver.network.node, metrics, "/proxyMode").is_ok_and(|(_, name)| name.trim() == mode.as_str())
        };
        self.wait("the other mode", is_active)?;
        // Until then, they apply as well.
        self.wait("the rules of the old mode are removed", |driver| {
            !kernel::has_rules(&driver.network.node, old.as_str())
        })
    }

    /// Uses userspace mode for a while. Its connections do not show which rules apply, because the worker accepts them
    /// first. But a change must be applied in this mode, and the other mode must be unchanged afterwards.
    fn use_userspace_mode(&mut self, stops_worker: bool, during: &[Step]) -> Result<(), Failure> {
        let mode = self.mode;
        self.oracle.suspend();
        self.files.configure(&self.schedule.options, ModeName::USERSPACE);
        self.wait_for_mode(ModeName::USERSPACE, mode)?;
        if stops_worker {
            let stopped = self.process().stop_workers();
            self.note(format!("stopped {stopped} workers"));
        }
        self.execute(during)?;
        self.pass_barrier(RECOVERY)?;
        self.files.configure(&self.schedule.options, mode);
        self.wait_for_mode(mode, ModeName::USERSPACE)
    }

    fn kill_in_first_sync(&mut self, after: &[u64], during: &[Step]) -> Result<(), Failure> {
        let bulk = objects::bulk(self.setting.bulk);
        self.process().kill();
        self.proxy = None;
        self.source.set_bulk(&self.files, &bulk, true);
        for (number, time) in after.iter().enumerate() {
            self.start_proxy();
            self.pause(Duration::from_millis(*time))?;
            self.process().kill();
            self.proxy = None;
            if number == 0 {
                self.execute(during)?;
            }
        }
        self.start_proxy();
        self.settle(RECOVERY)?;
        self.source.set_bulk(&self.files, &bulk, false);
        Ok(())
    }

    fn with_file(&mut self, name: &str, during: &[Step]) -> Result<(), Failure> {
        let file = self.files.path(name);
        fs::write(&file, "").unwrap();
        let executed = self.execute(during);
        fs::remove_file(&file).unwrap();
        executed
    }

    /// Makes manifests invalid. Changes in the meantime are written afterwards.
    fn with_broken_manifests(&mut self, during: &[Step], break_: impl FnOnce(PathBuf)) -> Result<(), Failure> {
        break_(self.files.manifests());
        self.source.suspend(true);
        self.execute(during)?;
        // Fails if the directory has no such file.
        _ = fs::remove_file(self.files.manifests().join("filler"));
        self.source.suspend(false);
        self.source.publish_all(&self.files, &self.cluster);
        Ok(())
    }

    fn api_fault(&mut self, fault: &ApiFault, during: &[Step]) -> Result<(), Failure> {
        let start = |driver: &mut Self| match &mut driver.source {
            Source::Api(api) => api.start_fault(fault),
            Source::Manifests { .. } => unreachable!("the schedule has no such fault"),
        };
        if let Some(earlier) = start(self) {
            self.replace_objects(earlier);
            // The proxy detects it by the version of the next bookmark. Once the server has repeated the versions, it
            // cannot be detected.
            self.wait("objects are listed again", |driver| match &driver.source {
                Source::Api(api) => {
                    api.bookmark();
                    api.is_listed_again()
                }
                Source::Manifests { .. } => true,
            })?;
        }
        for step in during {
            self.execute(std::slice::from_ref(step))?;
            if *fault == ApiFault::CutWatches {
                start(self);
            }
        }
        if let Source::Api(api) = &mut self.source {
            api.end_fault(fault);
        }
        Ok(())
    }
}

/// Another program that changes its nftables table continuously.
struct Commits {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Commits {
    fn start(driver: &Driver) -> Self {
        let mut session = NftSession::start(&driver.network.node);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            session.execute("add table inet commits; add set inet commits numbers { type mark; }");
            while !stopped.load(Ordering::Relaxed) {
                session.execute("add element inet commits numbers { 1 }");
                thread::sleep(Duration::from_millis(10));
                session.execute("delete element inet commits numbers { 1 }");
                thread::sleep(Duration::from_millis(10));
            }
            session.finish("delete table inet commits");
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of the thread has been printed.
        _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Time in which the proxy repairs rules that another program has changed: comparisons are 5 s apart.
const REPAIR: Duration = Duration::from_secs(8);
/// Time for which two proxies run.
const SECOND_PROXY: Duration = Duration::from_secs(4);
/// The time in which the proxy recovers from a fault of the API server, with the delays of its retries.
const API_RECOVERY: Duration = Duration::from_secs(120);
