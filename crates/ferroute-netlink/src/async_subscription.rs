use tokio::io::{Interest, unix::AsyncFd};

use crate::{Error, Message, Protocol, Subscription, Wake};

/// A [`Subscription`] whose reader sleeps until there is news.
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
        #[expect(unsafe_code, reason = "the runtime takes the file descriptor on trust")]
        // SAFETY: a subscription owns its file descriptor and neither closes nor replaces it while it lives.
        let registered = unsafe { AsyncFd::register_with_interest(subscription, Interest::READABLE) };
        let fd = registered.map_err(|error| Error::Open { protocol, source: error.into() })?;
        Ok(Self { fd })
    }

    /// Waits for news and hands it over; never returns [`Wake::Nothing`]. No news is lost when it is cancelled.
    pub async fn wait(&mut self, mut on_message: impl FnMut(Message<'_>)) -> Result<Wake, Error> {
        loop {
            let mut ready = self.fd.readable_mut().await.map_err(|source| Error::Receive { source })?;
            let wake = ready.get_inner_mut().drain(&mut on_message)?;
            // All was read, so only what comes from now on may wake.
            ready.clear_ready();
            if wake != Wake::Nothing {
                return Ok(wake);
            }
        }
    }
}
