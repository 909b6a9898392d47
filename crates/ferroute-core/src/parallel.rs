//! Work that is divided between several threads.

use std::{num::NonZeroUsize, panic::resume_unwind, thread};

/// Splits `items` into consecutive parts, one for each processor that the process may use, calls `work` for all of them at the same
/// time, and returns its results in the order of the parts. A part has at least `min` items, unless there are fewer, and there are at
/// most `max_parts` parts.
///
/// The calling thread works on the first part, and on parts for which no thread can be started. The other threads have its network
/// namespace.
pub fn map_parts<T: Sync, R: Send>(
    items: &[T],
    min: usize,
    max_parts: usize,
    work: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    if items.len() < 2 * min {
        return vec![work(items)];
    }
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let size = items.len().div_ceil(processors.min(max_parts)).max(min);
    let (own, others) = items.split_at(size.min(items.len()));
    let work = &work;
    thread::scope(|scope| {
        let start = |part| (part, thread::Builder::new().spawn_scoped(scope, move || work(part)));
        let running: Vec<_> = others.chunks(size).map(start).collect();
        let mut results = vec![work(own)];
        results.extend(running.into_iter().map(|(part, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => work(part),
        }));
        results
    })
}

/// Calls two functions at the same time, and returns their results. The calling thread calls the first one, and also the second if
/// no thread can be started.
pub(crate) fn join<A, B: Send>(first: impl FnOnce() -> A, second: impl Fn() -> B + Sync) -> (A, B) {
    thread::scope(|scope| {
        let running = thread::Builder::new().spawn_scoped(scope, &second);
        let first = first();
        let second = match running {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => second(),
        };
        (first, second)
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, thread};

    use super::{join, map_parts};

    #[test]
    fn functions_run_on_two_threads() {
        let ((first, number), (second, text)) = join(|| (thread::current().id(), 1), || (thread::current().id(), "2"));
        assert_eq!((first, number, text), (thread::current().id(), 1, "2"));
        assert_ne!(first, second);
    }

    #[test]
    fn parts_are_complete_and_in_order() {
        for len in 0..40 {
            let items: Vec<usize> = (0..len).collect();
            for (min, max_parts) in [(1, 1), (1, 3), (1, 100), (7, 2), (50, 4)] {
                let parts = map_parts(&items, min, max_parts, <[usize]>::to_vec);
                assert!(parts.len() <= max_parts, "{len} items in {} parts", parts.len());
                assert!(parts.len() == 1 || parts[0].len() >= min);
                assert_eq!(parts.concat(), items);
            }
        }
    }

    #[test]
    fn short_lists_need_no_thread() {
        let threads = map_parts(&[1, 2, 3], 2, 8, |_| thread::current().id());
        assert_eq!(threads, [thread::current().id()]);
        let threads: Vec<_> = map_parts(&[0; 64], 1, 8, |_| thread::current().id());
        assert_eq!(threads.iter().collect::<HashSet<_>>().len(), threads.len());
    }
}
