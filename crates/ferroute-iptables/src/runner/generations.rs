//! Who has changed rules: only we, or somebody else as well.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ferroute_host::{GenerationError, KernelGeneration, RuleGeneration};

/// Tells other programs' changes of nf_tables rules from our own, for all dataplanes of a network namespace together.
///
/// The kernel counts transactions of whomever. What remains of its count without our own transactions changes exactly
/// when somebody else commits one. `iptables-legacy` is not counted.
#[derive(Clone)]
pub struct Generations {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    /// `None` where the kernel does not count.
    kernel: Option<Box<dyn RuleGeneration>>,
    /// Transactions that were surely ours.
    own: u32,
}

impl Generations {
    /// Those of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel cannot be asked, though it has nf_tables.
    pub fn of_kernel() -> Result<Self, GenerationError> {
        let kernel = KernelGeneration::open()?.map(|kernel| Box::new(kernel) as Box<dyn RuleGeneration>);
        Ok(Self::new(kernel))
    }

    /// Those that `kernel` counts; `None` if there is no such count.
    pub fn new(kernel: Option<Box<dyn RuleGeneration>>) -> Self {
        Self { shared: Arc::new(Mutex::new(Shared { kernel, own: 0 })) }
    }

    /// A number that becomes another one when somebody else changes rules; `None` if that cannot be told.
    pub(super) fn foreign(&self) -> Option<u32> {
        let mut shared = self.lock();
        let own = shared.own;
        Some(shared.count()?.wrapping_sub(own))
    }

    /// Runs `write`, which returns how many transactions it has committed. Only if the kernel has counted just as many
    /// were they all ours; otherwise somebody else's may be among them, and the caller has to look again.
    ///
    /// The other dataplanes wait so long, or else they would take these transactions for somebody else's.
    pub(super) fn own<T, E>(&self, write: impl FnOnce() -> Result<(T, u32), E>) -> Result<T, E> {
        let mut shared = self.lock();
        let before = shared.count();
        let (value, committed) = write()?;
        if let (Some(before), Some(after)) = (before, shared.count())
            && after.wrapping_sub(before) == committed
        {
            shared.own = shared.own.wrapping_add(committed);
        }
        Ok(value)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic within `own` leaves both fields as they were, which only means one look too many.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn count(&mut self) -> Option<u32> {
        self.kernel.as_mut()?.current().inspect_err(|error| tracing::debug!(%error, "no generation")).ok()
    }
}

impl fmt::Debug for Generations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generations").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
