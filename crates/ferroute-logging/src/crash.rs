//! Reports of panics: location, thread and calls.
//!
//! The standard hook would block on a blocked standard error, and prints no calls unless `RUST_BACKTRACE` is set.

use std::{backtrace::Backtrace, fmt, fs, ops::Range, panic::PanicHookInfo, thread};

use ferroute_core::EscapedLines;
use ferroute_host::program::kill_programs;

use super::{EXIT_FLUSH, flush};

/// Logs a panic: first its location, because that requires little, then the backtrace.
pub(super) fn log_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
    let thread = thread::current();
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(thread = thread.name().unwrap_or_default(), location, "panic: {}", EscapedLines(message));
    if cfg!(panic = "abort") {
        kill_programs();
    }
    let backtrace = RelativeBacktrace::capture();
    tracing::error!(version = env!("CARGO_PKG_VERSION"), %backtrace, "backtrace of the panic");
    if cfg!(panic = "abort") {
        flush(EXIT_FLUSH);
    }
}

/// The calls that led to a panic, innermost first, each with an address relative to the start of the program, as
/// `addr2line` expects it.
struct RelativeBacktrace {
    /// The alternate form of the standard library's backtrace.
    text: String,
    /// The addresses of the program in this process.
    program: Range<usize>,
}

impl RelativeBacktrace {
    fn capture() -> Self {
        let program = fs::read_link("/proc/self/exe").unwrap_or_default();
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let program = addresses_of(&program.to_string_lossy(), &maps).unwrap_or_default();
        Self { text: format!("{:#}", Backtrace::force_capture()), program }
    }
}

impl fmt::Display for RelativeBacktrace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The calls before this one belong to the panic itself. It is missing if the program has no symbols.
        let start = self.text.rfind("rust_begin_unwind").or_else(|| self.text.rfind("begin_panic_handler"));
        let start = start.and_then(|at| self.text[..at].rfind('\n')).unwrap_or_default();
        for line in self.text[start..].trim_matches('\n').lines() {
            let frame = line.split_once(':').zip(line.split_once(" - "));
            let address = frame.and_then(|((_, rest), _)| rest.trim_start().strip_prefix("0x")?.split(' ').next());
            let address = address.and_then(|digits| usize::from_str_radix(digits, 16).ok());
            match (frame, address.filter(|address| self.program.contains(address))) {
                (Some(((number, _), (_, name))), Some(address)) => {
                    // The last byte of the call, because the address where it returns to may belong to the next line.
                    write!(out, "\n{number}: {:#x} {name}", (address - self.program.start).saturating_sub(1))?;
                }
                // Positions, and functions that were compiled into the call.
                _ if frame.is_none() => write!(out, "\n      {}", line.trim_start())?,
                _ => write!(out, "\n{line}")?,
            }
        }
        Ok(())
    }
}

/// Returns the addresses from the first to the last mapping of a file, see `proc_pid_maps(5)`.
fn addresses_of(file: &str, maps: &str) -> Option<Range<usize>> {
    let range = |line: &str| {
        let (start, end) = line.strip_suffix(file)?.split_once(' ')?.0.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let mut ranges = maps.lines().filter_map(range);
    let first = ranges.next()?;
    Some(first.start..ranges.next_back().map_or(first.end, |last| last.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 42                         /usr/bin/ferroute
2000-4000 r-xp 00001000 fe:00 42                         /usr/bin/ferroute
4000-5000 rw-p 00003000 fe:00 42                         /usr/bin/ferroute
5000-9000 rw-p 00000000 00:00 0                          [heap]
7000-8000 r-xp 00000000 fe:00 43                         /usr/lib/libc.so.6
";

    #[test]
    fn a_program_reaches_from_its_first_to_its_last_mapping() {
        assert_eq!(addresses_of("/usr/bin/ferroute", MAPS), Some(0x1000..0x5000));
        assert_eq!(addresses_of("/usr/bin/other", MAPS), None);
    }

    #[test]
    fn frames_start_at_the_panic_and_have_addresses_within_the_program() {
        let text = "   0:             0x2100 - std::backtrace::Backtrace::force_capture
   1:             0x2200 - __rustc[0123]::rust_begin_unwind
                               at /rustc/library/std/src/panicking.rs:689:5
   2:             0x2300 - core::panicking::panic_fmt
   3:             0x2400 - ferroute::sync
                           ferroute::inlined
   4:             0x7500 - clone
   5:                0x0 - <unknown>
";
        let backtrace = RelativeBacktrace { text: text.to_owned(), program: 0x1000..0x5000 };
        let expected = "
   1: 0x11ff __rustc[0123]::rust_begin_unwind
      at /rustc/library/std/src/panicking.rs:689:5
   2: 0x12ff core::panicking::panic_fmt
   3: 0x13ff ferroute::sync
      ferroute::inlined
   4:             0x7500 - clone
   5:                0x0 - <unknown>";
        assert_eq!(backtrace.to_string(), expected);
    }
}
