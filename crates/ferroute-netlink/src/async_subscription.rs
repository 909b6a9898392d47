use tokio::io::{Interest, unix::AsyncFd};

use crate::{Drained, Error, Message, Protocol, Subscription};

/// A [`Subscription`] for an asynchronous reader.
#[derive(Debug)]
pub struct AsyncSubscription {
    fd: AsyncFd<Subscription>,
}

impl AsyncSubscription {
    /// See [`Subscription::open`].
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has I/O enabled.
    pub fn open(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let subscription = Subscription::open(protocol, groups)?;
        #[expect(unsafe_code, reason = "the runtime requires a stable file descriptor")]
        // SAFETY: a subscription owns its file descriptor and neither closes nor replaces it while it lives.
        let registered = unsafe { AsyncFd::register_with_interest(subscription, Interest::READABLE) };
        let fd = registered.map_err(|error| Error::Open { protocol, source: error.into() })?;
        Ok(Self { fd })
    }

    /// Waits for notifications and calls `on_message` with each; never returns [`Drained::Nothing`]. Cancel-safe: no
    /// notification is lost.
    pub async fn wait(&mut self, mut on_message: impl FnMut(Message<'_>)) -> Result<Drained, Error> {
        loop {
            let mut ready = self.fd.readable_mut().await.map_err(|source| Error::Receive { source })?;
            let wake = ready.get_inner_mut().drain(&mut on_message)?;
            // The socket is drained, so the next notification makes it readable again.
            ready.clear_ready();
            if wake != Drained::Nothing {
                return Ok(wake);
            }
        }
    }
}
