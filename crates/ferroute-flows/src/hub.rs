//! The thread that receives events while readers exist.

mod readers;
mod refused;
mod worker;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

use tokio::sync::mpsc as chunks;

use self::{readers::Reader, worker::Worker};
use crate::{FlowRequest, Services, SharedFrontends};

/// Subscribes to the kernel's events while a reader exists, and sends each reader the flows that it requested.
///
/// Clones share one thread. It belongs to the network namespace of the thread that adds the first reader.
#[derive(Clone, Debug)]
pub struct Hub(Arc<HubThread>);

#[derive(Debug)]
struct HubThread {
    frontends: SharedFrontends,
    services: Services,
    limits: Limits,
    /// The queue of the thread, while it runs.
    queue: Mutex<Option<mpsc::Sender<Reader>>>,
    readers: AtomicUsize,
}

/// Limits of the memory of a [`Hub`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections that are followed at the same time.
    pub open: usize,
    /// Ended connections that are remembered.
    pub recent: usize,
    /// Combinations of client, service port and endpoint in the summary.
    pub edges: usize,
    /// Bytes of events that wait in the kernel.
    pub buffer: usize,
    /// Bytes of lines that wait for a slow reader; further lines are dropped and counted.
    pub lines: usize,
    /// Readers at the same time.
    pub readers: usize,
}

/// The place of a reader, which keeps the frontends up to date.
#[derive(Debug)]
pub struct Reservation(Arc<HubThread>);

/// Receives the lines of a reader, some at a time.
#[derive(Debug)]
pub struct FlowReceiver {
    chunks: chunks::Receiver<Result<Vec<u8>, String>>,
    /// Given up with the receiver.
    _reservation: Reservation,
}

/// Reason why a reader gets no flows.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// There are too many readers.
    #[error("there are {0} readers of flows already")]
    TooMany(usize),
    /// No thread can be started.
    #[error("cannot start a thread for flows")]
    Thread(#[source] std::io::Error),
}

impl Hub {
    /// Creates a hub that looks up Services in these frontends. Nothing is started until there is a reader.
    pub fn new(frontends: SharedFrontends, services: Services, limits: Limits) -> Self {
        let (queue, readers) = (Mutex::default(), AtomicUsize::new(0));
        Self(Arc::new(HubThread { frontends, services, limits, queue, readers }))
    }

    /// Returns the frontends.
    pub fn frontends(&self) -> &SharedFrontends {
        &self.0.frontends
    }

    /// Reports whether there are readers, which require up-to-date frontends.
    pub fn has_readers(&self) -> bool {
        self.0.readers.load(Relaxed) > 0
    }

    /// Takes the place of a reader.
    ///
    /// # Errors
    /// If there are too many.
    pub fn reserve(&self) -> Result<Reservation, SubscribeError> {
        let limit = self.0.limits.readers;
        let add = |readers| (readers < limit).then_some(readers + 1);
        match self.0.readers.fetch_update(Relaxed, Relaxed, add) {
            Ok(_) => Ok(Reservation(Arc::clone(&self.0))),
            Err(readers) => Err(SubscribeError::TooMany(readers)),
        }
    }

    /// Adds a reader.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn subscribe(&self, reservation: Reservation, request: FlowRequest) -> Result<FlowReceiver, SubscribeError> {
        let (sender, chunks) = chunks::channel(MAX_CHUNKS);
        let mut reader = Reader::new(request, sender);
        let mut queue = self.0.queue();
        if let Some(thread) = &*queue {
            match thread.send(reader) {
                Ok(()) => return Ok(FlowReceiver { chunks, _reservation: reservation }),
                // The thread panicked.
                Err(mpsc::SendError(returned)) => reader = returned,
            }
        }
        let (sender, readers) = mpsc::channel();
        let worker = Worker::new(Arc::clone(&self.0), readers);
        thread::Builder::new().name("flows".to_owned()).spawn(move || worker.run()).map_err(SubscribeError::Thread)?;
        // The thread waits for it.
        let _ = sender.send(reader);
        *queue = Some(sender);
        Ok(FlowReceiver { chunks, _reservation: reservation })
    }
}

impl HubThread {
    fn queue(&self) -> MutexGuard<'_, Option<mpsc::Sender<Reader>>> {
        // The queue is valid even if a thread panicked while it held the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Relaxed);
    }
}

impl FlowReceiver {
    /// Waits for the next lines; `None` after the last ones. Cancel-safe.
    ///
    /// # Errors
    /// Reason why there are no flows.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, String>> {
        self.chunks.recv().await
    }

    /// Like [`next`](Self::next), outside of an asynchronous runtime.
    ///
    /// # Errors
    /// Reason why there are no flows.
    pub fn blocking_next(&mut self) -> Option<Result<Vec<u8>, String>> {
        self.chunks.blocking_recv()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { open: 16 << 10, recent: 4 << 10, edges: 2 << 10, buffer: 8 << 20, lines: 1 << 20, readers: 8 }
    }
}

/// Maximum number of sent chunks of lines that a reader has not taken.
const MAX_CHUNKS: usize = 32;
