use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Returns the anonymous memory of a process in bytes: `RssAnon`, see `proc_pid_status(5)`.
///
/// Pages of files, such as the program's code, are not part of it: the kernel shares them and drops them when memory is scarce.
///
/// # Panics
/// If there is no such process.
pub fn anonymous_memory(process: u32) -> usize {
    read(process).unwrap_or_else(|| panic!("cannot read the memory of process {process}"))
}

fn read(process: u32) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"))?;
    Some(kibibytes.parse::<usize>().ok()? * 1024)
}

/// Samples the anonymous memory of a process every few milliseconds, because the kernel keeps only the peak that includes files.
#[derive(Debug)]
pub struct MemoryPeak {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl MemoryPeak {
    /// Starts sampling.
    pub fn watch(process: u32) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let is_ended = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            let mut peak = 0;
            while !is_ended.load(Ordering::Relaxed) {
                peak = peak.max(read(process).unwrap_or_default());
                thread::sleep(Duration::from_millis(3));
            }
            peak
        });
        Self { ended, thread }
    }

    /// Ends sampling and returns the peak in bytes.
    pub fn stop(self) -> usize {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
