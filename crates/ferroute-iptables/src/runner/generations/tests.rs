use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

#[derive(Clone, Default)]
struct Count(Arc<AtomicU32>);

impl RuleGeneration for Count {
    fn current(&mut self) -> Result<u32, GenerationError> {
        Ok(self.0.load(Ordering::Relaxed))
    }
}

impl Count {
    fn commit(&self, transactions: u32) {
        self.0.fetch_add(transactions, Ordering::Relaxed);
    }
}

fn counted() -> (Count, Generations) {
    let count = Count::default();
    // Close to where the kernel's number begins anew.
    count.commit(u32::MAX - 2);
    (count.clone(), Generations::new(Some(Box::new(count))))
}

fn write(generations: &Generations, committed: u32, work: impl FnOnce()) {
    let written: Result<(), ()> = generations.own(|| {
        work();
        Ok(((), committed))
    });
    written.unwrap();
}

#[test]
fn our_own_transactions_are_nobody_elses() {
    let (count, generations) = counted();
    let seen = generations.foreign();
    let of_the_other_family = generations.clone();
    for _ in 0..4 {
        write(&generations, 2, || count.commit(2));
        write(&of_the_other_family, 1, || count.commit(1));
        assert_eq!(generations.foreign(), seen);
    }
}

#[test]
fn what_somebody_else_commits_is_seen_between_and_during_our_writes() {
    let (count, generations) = counted();
    let seen = generations.foreign();
    count.commit(1);
    assert_ne!(generations.foreign(), seen);

    let seen = generations.foreign();
    count.commit(1);
    write(&generations, 2, || count.commit(2));
    assert_ne!(generations.foreign(), seen, "before a write of ours");

    let seen = generations.foreign();
    write(&generations, 2, || count.commit(3));
    assert_ne!(generations.foreign(), seen, "during a write of ours");
}

#[test]
fn a_write_that_fails_may_have_committed_a_part_and_so_counts_as_foreign() {
    let (count, generations) = counted();
    let seen = generations.foreign();
    let failed: Result<(), &str> = generations.own(|| {
        count.commit(1);
        Err("the second table")
    });
    assert_eq!(failed, Err("the second table"));
    assert_ne!(generations.foreign(), seen);
}

#[test]
fn a_kernel_that_does_not_count_tells_nothing() {
    let generations = Generations::new(None);
    assert_eq!(generations.foreign(), None);
    write(&generations, 1, || {});
    assert_eq!(generations.foreign(), None);
}
