//! Memory of the process. Unrelated to netlink, but this is the only crate with `unsafe` code.

use std::{fs, io, ops::Range};

/// Reduces the memory that glibc's allocator retains, to be called before other threads are started: one arena for all
/// threads (`M_ARENA_MAX`), `mmap` for blocks of 64 KiB and more (`M_MMAP_THRESHOLD`), and trimming of the heap's free
/// end from 128 KiB (`M_TRIM_THRESHOLD`).
///
/// The proxy's threads pass allocations to each other and free them there, so with the default of several arenas per
/// processor each arena retains memory that others could use. Contention is rare because threads seldom allocate at the
/// same time. Has no effect with other C libraries, see `mallopt(3)`.
#[cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "a function of the C library; the block says why it is sound")
)]
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in SETTINGS {
        // SAFETY: `mallopt` takes two integers and changes only the allocator's settings, under its lock.
        let result = unsafe { libc::mallopt(setting, value) };
        debug_assert_eq!(result, 1, "bug: glibc rejects setting {setting} = {value}");
    }
}

/// Unmaps the pages of the program's code and its libraries, so that only those that run from now on count as resident.
///
/// Most code runs at start-up only (command line, configuration, first lists), and the kernel maps the neighbours of each
/// page that is executed. Called once the program has started, this reduces the resident set by several MiB. The pages stay
/// in the page cache; code that runs again is mapped again by a minor fault.
///
/// # Errors
///
/// If `/proc/self/maps` cannot be read or the kernel rejects the advice. The program is not affected.
#[expect(unsafe_code, reason = "a system call on raw addresses; the block says why it is sound")]
pub fn unmap_idle_code() -> io::Result<()> {
    for range in code_mappings(&fs::read_to_string("/proc/self/maps")?) {
        // SAFETY: the range is a private mapping of a file, readable and executable and not writable. Nothing writes to
        // its pages, which would be lost: code is position-independent, so the dynamic linker relocates none of it.
        // Accesses by any thread, this one included, fault the same contents in again.
        let result = unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_DONTNEED) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns the address ranges of code that is mapped from files, see `proc_pid_maps(5)`.
fn code_mappings(maps: &str) -> Vec<Range<usize>> {
    let range = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (range, permissions) = (fields.next()?, fields.next()?);
        let [_offset, _device, inode] = [fields.next()?, fields.next()?, fields.next()?];
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).ok());
        (permissions == "r-xp" && inode != "0").then_some(start?..end?)
    };
    maps.lines().filter_map(range).collect()
}

#[cfg(target_env = "gnu")]
const SETTINGS: [(libc::c_int, libc::c_int); 3] =
    [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 64 << 10), (libc::M_TRIM_THRESHOLD, 128 << 10)];

#[cfg(test)]
mod tests {
    #[test]
    fn glibc_accepts_all_settings() {
        super::tune_allocator();
        // Memory allocated before and after the call can be used and freed.
        let blocks: Vec<Vec<u8>> = (0..100).map(|i| vec![1; i * 4096]).collect();
        assert_eq!(blocks.iter().map(Vec::len).sum::<usize>(), 4096 * 4950);
    }

    #[test]
    fn only_code_from_files_is_selected() {
        let maps = "\
55d0-55d8 r--p 00000000 fe:00 42 /usr/bin/ferroute
55d8-55f0 r-xp 00008000 fe:00 42 /usr/bin/ferroute
55f0-55f8 rw-p 00020000 fe:00 42 /usr/bin/ferroute
7f00-7f10 r-xp 00000000 00:00 0 [vdso]
7f20-7f30 rwxp 00000000 fe:00 43 /usr/lib/patched.so
";
        let code = 0x55d8..0x55f0;
        assert_eq!(super::code_mappings(maps), [code]);
    }

    #[test]
    fn unmapped_code_runs_again() {
        super::unmap_idle_code().unwrap();
        assert_eq!(format!("{:?}", vec![1, 2]), "[1, 2]");
    }
}
