use std::{
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// A process that is killed when this value is dropped, so that a failed test leaves none behind.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls until `poll` returns a value. The time limit of a minute is generous, because tests run on busy machines.
///
/// # Panics
/// With `condition`, when the time limit is reached.
#[track_caller]
pub fn wait<T>(condition: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "timeout: {condition}");
        thread::sleep(Duration::from_millis(20));
    }
}
