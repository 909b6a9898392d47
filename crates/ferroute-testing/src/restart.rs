use std::io;

/// Calls this until no signal interrupts it. The kernel does not restart a call on a socket with a time limit after the
/// process was stopped or frozen, even if it handles no signal (`signal(7)`).
///
/// # Errors
///
/// Those of the call.
pub fn restart<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
