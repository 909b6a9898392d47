use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::{TimeVal, TimeValLike},
};

/// The resource usage of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// User and system CPU time.
    pub cpu: Duration,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// Virtual memory, in bytes.
    pub virtual_bytes: u64,
    /// The number of open file descriptors.
    pub open_files: u64,
    /// The soft limit of open file descriptors; `None` if unlimited.
    pub max_files: Option<u64>,
    /// The number of threads.
    pub threads: u64,
    /// The start time.
    pub started: SystemTime,
}

/// The resource usage of a process cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A file below `/proc` cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A field of a file below `/proc` is missing or malformed.
    #[error("cannot parse {}: no valid field {field:?}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The field's name.
        field: &'static str,
    },
}

/// Returns the processor time of this process so far, with that of programs that it has run.
pub fn processor_time() -> Duration {
    let duration = |time: TimeVal| Duration::from_micros(time.num_microseconds().unsigned_abs());
    let of = |who| getrusage(who).map(|usage| duration(usage.user_time()) + duration(usage.system_time()));
    // It fails for invalid arguments only.
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].into_iter().filter_map(|who| of(who).ok()).sum()
}

impl ProcessUsage {
    /// Returns the usage of the calling process.
    pub fn current() -> Result<Self, ProcessError> {
        Self::read(Path::new("/proc"), "self")
    }

    fn read(proc: &Path, process: &str) -> Result<Self, ProcessError> {
        let process = proc.join(process);
        let (stat, status) = (ProcFile::read(process.join("stat"))?, ProcFile::read(process.join("status"))?);
        let (limits, system) = (ProcFile::read(process.join("limits"))?, ProcFile::read(proc.join("stat"))?);
        let descriptors = process.join("fd");
        let open_files = match fs::read_dir(&descriptors) {
            // Without the descriptor of the directory itself.
            Ok(entries) => (entries.count() as u64).saturating_sub(1),
            Err(source) => return Err(ProcessError::Read { path: descriptors, source }),
        };
        let boot_time = SystemTime::UNIX_EPOCH + Duration::from_secs(system.number("btime")?);
        Ok(Self {
            cpu: ticks(stat.stat_field(14, "utime")? + stat.stat_field(15, "stime")?),
            resident_bytes: status.number("VmRSS:")? * 1024,
            virtual_bytes: status.number("VmSize:")? * 1024,
            open_files,
            max_files: limits.number("Max open files").ok(),
            threads: status.number("Threads:")?,
            started: boot_time + ticks(stat.stat_field(22, "starttime")?),
        })
    }
}

struct ProcFile {
    path: PathBuf,
    text: String,
}

impl ProcFile {
    fn read(path: PathBuf) -> Result<Self, ProcessError> {
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self { path, text }),
            Err(source) => Err(ProcessError::Read { path, source }),
        }
    }

    /// Returns the number after a field's name at the start of a line.
    fn number(&self, field: &'static str) -> Result<u64, ProcessError> {
        let line = self.text.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.ok_or_else(|| self.missing(field))
    }

    /// Returns a field of `/proc/PID/stat`, numbered as in proc_pid_stat(5). The second field is the command name in
    /// parentheses, which may contain any character.
    fn stat_field(&self, number: usize, name: &'static str) -> Result<u64, ProcessError> {
        let after_name = self.text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
        let field = after_name.and_then(|mut fields| fields.nth(number - 3)?.parse().ok());
        field.ok_or_else(|| self.missing(name))
    }

    fn missing(&self, field: &'static str) -> ProcessError {
        ProcessError::Parse { path: self.path.clone(), field }
    }
}

/// Returns the CPU time that a process has used, in user and kernel mode, if it is running.
pub(crate) fn cpu_time(process: u32) -> Option<Duration> {
    let stat = ProcFile::read(PathBuf::from(format!("/proc/{process}/stat"))).ok()?;
    Some(ticks(stat.stat_field(14, "utime").ok()? + stat.stat_field(15, "stime").ok()?))
}

/// Converts clock ticks. `USER_HZ` is 100 on every architecture that Rust supports.
fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates `/proc` files of a process with a tricky command name.
    fn proc_files(status: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(proc.path().join(file), text).unwrap();
        fs::create_dir_all(proc.path().join("7/fd")).unwrap();
        write("7/stat", "7 (kube) 9 (x) R 1 7 7 0 -1 0 100 0 0 0 250 50 0 0 20 0 4 0 1234 9 9 9\n");
        write("7/status", status);
        write("7/limits", "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024    4096   files\n");
        write("stat", "cpu  1 2 3\nbtime 1767366000\n");
        ["0", "1", "2", "3"].iter().for_each(|file| write(&format!("7/fd/{file}"), ""));
        proc
    }

    #[test]
    fn usage_is_read_from_proc() {
        let proc = proc_files("Name:\tkube\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\nThreads:\t4\n");
        let usage = ProcessUsage {
            cpu: Duration::from_secs(3),
            resident_bytes: 524_288,
            virtual_bytes: 2_097_152,
            open_files: 3,
            max_files: Some(1024),
            threads: 4,
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_366_012_340),
        };
        assert_eq!(ProcessUsage::read(proc.path(), "7").unwrap(), usage);
    }

    #[test]
    fn errors_name_file_and_field() {
        let proc = proc_files("VmSize:\t2048 kB\nThreads:\t4\n");
        let error = ProcessUsage::read(proc.path(), "7").unwrap_err();
        assert!(
            matches!(&error, ProcessError::Parse { path, field: "VmRSS:" } if path.ends_with("7/status")),
            "{error:?}"
        );
        let error = ProcessUsage::read(proc.path(), "8").unwrap_err();
        assert!(matches!(&error, ProcessError::Read { path, .. } if path.ends_with("8/stat")), "{error:?}");
    }

    #[test]
    fn usage_of_this_process_is_plausible() {
        let usage = ProcessUsage::current().unwrap();
        assert!(usage.resident_bytes > 0 && usage.threads > 0 && usage.started < SystemTime::now(), "{usage:?}");
    }
}
