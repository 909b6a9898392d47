//! Memory settings of the process. They are unrelated to netlink, but this is the only crate with `unsafe` code.

/// Reduces the memory that glibc's allocator retains, to be called before other threads are started: one arena for all
/// threads (`M_ARENA_MAX`), `mmap` for blocks of 64 KiB and more (`M_MMAP_THRESHOLD`), and trimming of the heap's free
/// end from 128 KiB (`M_TRIM_THRESHOLD`).
///
/// The proxy's threads pass allocations to other threads, which free them, so with the default of several arenas per
/// processor each arena retains memory that others could use. Contention is rare because threads seldom allocate at the
/// same time. The function has no effect with other C libraries, see `mallopt(3)`.
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
}
