use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// What a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Time that it has run on a CPU, in user mode and in the kernel.
    pub cpu: Duration,
    /// Memory that is resident, in bytes.
    pub resident_bytes: u64,
    /// Address space, in bytes.
    pub virtual_bytes: u64,
    /// File descriptors that are open.
    pub open_files: u64,
    /// File descriptors that may be open; `None` for no limit.
    pub max_files: Option<u64>,
    /// Threads.
    pub threads: u64,
    /// When it was started.
    pub started: SystemTime,
}

/// What the process uses cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A file of the kernel cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What came in the way.
        #[source]
        source: io::Error,
    },
    /// A file of the kernel does not hold what it should.
    #[error("cannot understand {}: it does not tell {what}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
}

impl ProcessUsage {
    /// Of this process.
    pub fn of_self() -> Result<Self, ProcessError> {
        Self::read(Path::new("/proc"), "self")
    }

    fn read(proc: &Path, process: &str) -> Result<Self, ProcessError> {
        let of_process = |file: &str| proc.join(process).join(file);
        let text = |path: PathBuf| match fs::read_to_string(&path) {
            Ok(text) => Ok(File { path, text }),
            Err(source) => Err(ProcessError::Read { path, source }),
        };
        let (stat, status) = (text(of_process("stat"))?, text(of_process("status"))?);
        let (limits, system) = (text(of_process("limits"))?, text(proc.join("stat"))?);
        let descriptors = of_process("fd");
        let open_files = match fs::read_dir(&descriptors) {
            // The one that the directory is read by is not counted.
            Ok(entries) => (entries.count() as u64).saturating_sub(1),
            Err(source) => return Err(ProcessError::Read { path: descriptors, source }),
        };
        let booted = SystemTime::UNIX_EPOCH + Duration::from_secs(system.number("btime ", "the time of the start")?);
        Ok(Self {
            cpu: ticks(stat.field(14)? + stat.field(15)?),
            resident_bytes: status.number("VmRSS:", "resident memory")? * 1024,
            virtual_bytes: status.number("VmSize:", "the address space")? * 1024,
            open_files,
            max_files: limits.number("Max open files", "the limit of open files").ok(),
            threads: status.number("Threads:", "threads")?,
            started: booted + ticks(stat.field(22)?),
        })
    }
}

struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// The number that follows a name at the start of a line.
    fn number(&self, name: &str, what: &'static str) -> Result<u64, ProcessError> {
        let line = self.text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.ok_or_else(|| self.missing(what))
    }

    /// A field of `stat`, numbered as in proc_pid_stat(5). The second is a name in parentheses, which may hold anything.
    fn field(&self, number: usize) -> Result<u64, ProcessError> {
        let after_name = self.text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
        let field = after_name.and_then(|mut fields| fields.nth(number - 3)?.parse().ok());
        field.ok_or_else(|| self.missing("times"))
    }

    fn missing(&self, what: &'static str) -> ProcessError {
        ProcessError::Parse { path: self.path.clone(), what }
    }
}

/// Hundredths of a second: the kernel's unit for programs (`USER_HZ`) on every architecture that Rust is built for.
fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a process with a nasty name.
    fn files(status: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(proc.path().join(file), text).unwrap();
        fs::create_dir_all(proc.path().join("7/fd")).unwrap();
        put("7/stat", "7 (kube) 9 (x) R 1 7 7 0 -1 0 100 0 0 0 250 50 0 0 20 0 4 0 1234 9 9 9\n");
        put("7/status", status);
        put("7/limits", "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024    4096   files\n");
        put("stat", "cpu  1 2 3\nbtime 1767366000\n");
        ["0", "1", "2", "3"].iter().for_each(|file| put(&format!("7/fd/{file}"), ""));
        proc
    }

    #[test]
    fn the_kernels_files_are_understood() {
        let proc = files("Name:\tkube\nVmSize:\t    2048 kB\nVmRSS:\t     512 kB\nThreads:\t4\n");
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
    fn what_is_missing_is_named() {
        let proc = files("VmSize:\t2048 kB\nThreads:\t4\n");
        let error = ProcessUsage::read(proc.path(), "7").unwrap_err().to_string();
        assert!(error.ends_with("7/status: it does not tell resident memory"), "{error}");
        let error = ProcessUsage::read(proc.path(), "8").unwrap_err().to_string();
        assert!(error.starts_with("cannot read") && error.ends_with("8/stat"), "{error}");
    }

    #[test]
    fn this_process_is_alive() {
        let usage = ProcessUsage::of_self().unwrap();
        assert!(usage.resident_bytes > 0 && usage.threads > 0 && usage.started < SystemTime::now(), "{usage:?}");
    }
}
