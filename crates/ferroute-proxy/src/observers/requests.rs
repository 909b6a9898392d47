//! Requests of other threads to an observer in the sync loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// A queue of requests, shared between threads. The observer takes them in [`Observer::on_tick`](crate::observers::Observer::on_tick),
/// and [closes](Requests::close) the queue when it is dropped.
#[derive(Debug)]
pub(crate) struct Requests<Q, A>(Arc<Mutex<Queue<Q, A>>>);

/// Requests, and the channels to which their responses are sent.
type Queue<Q, A> = Vec<(Q, oneshot::Sender<A>)>;

impl<Q, A> Requests<Q, A> {
    /// Adds a request. The response arrives within about a second; the sender is dropped if the sync loop has ended.
    pub(crate) fn send(&self, request: Q) -> oneshot::Receiver<A> {
        let (sender, response) = oneshot::channel();
        self.queue().push((request, sender));
        response
    }

    /// Responds to all requests.
    pub(crate) fn respond(&self, respond: impl Fn(Q) -> A) {
        for (request, sender) in std::mem::take(&mut *self.queue()) {
            // The receiver is dropped if the request has timed out.
            let _ = sender.send(respond(request));
        }
    }

    /// Drops all requests, because there will be no responses.
    pub(crate) fn close(&self) {
        self.queue().clear();
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Q, A>> {
        // The list is valid even if a thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q, A> Clone for Requests<Q, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Q, A> Default for Requests<Q, A> {
    fn default() -> Self {
        Self(Arc::default())
    }
}
