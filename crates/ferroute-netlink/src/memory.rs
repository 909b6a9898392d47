//! How the C library's allocator keeps memory. That has nothing to do with netlink, but this is the one crate that calls
//! what Rust cannot check.

/// Lets the process keep little memory that it does not use: one pool for all threads, large blocks each for themselves,
/// and the pool's free end given back early. To be called before there are other threads.
///
/// A proxy's threads hand each other what they have allocated and free it there, so by default each thread's pool keeps
/// what others could use. They seldom allocate at the same time, so one pool makes nobody wait. Does nothing where the C
/// library is not glibc, whose allocator alone has these settings (`mallopt(3)`).
#[cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "a function of the C library; the block says why it is sound")
)]
pub fn keep_little_memory() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in SETTINGS {
        // SAFETY: `mallopt` takes two numbers and touches the allocator's own settings alone, under its lock.
        let taken = unsafe { libc::mallopt(setting, value) };
        debug_assert_eq!(taken, 1, "bug: glibc knows setting {setting} and takes {value}");
    }
}

#[cfg(target_env = "gnu")]
const SETTINGS: [(libc::c_int, libc::c_int); 3] =
    [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 64 << 10), (libc::M_TRIM_THRESHOLD, 128 << 10)];

#[cfg(test)]
mod tests {
    #[test]
    fn the_c_library_takes_all_settings() {
        super::keep_little_memory();
        // What was allocated before and what comes now can be used and freed.
        let blocks: Vec<Vec<u8>> = (0..100).map(|i| vec![1; i * 4096]).collect();
        assert_eq!(blocks.iter().map(Vec::len).sum::<usize>(), 4096 * 4950);
    }
}
