//! Memory of processes.

use ferroute_testing::{MemoryPeak, anonymous_memory, wait};

#[test]
fn a_peak_is_found_after_memory_was_freed() {
    let (process, size) = (std::process::id(), 64 << 20);
    let before = anonymous_memory(process);
    let peak = MemoryPeak::watch(process);
    let block = vec![1_u8; size];
    wait("the block is in memory", || (anonymous_memory(process) >= before + size).then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(block.iter().map(|byte| usize::from(*byte)).sum::<usize>(), size);
    drop(block);
    assert!(anonymous_memory(process) < before + size / 2);
    assert!(peak.stop() >= before + size);
}
