use std::{
    io::{BufRead, BufReader},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use ferroute_core::IpFamily;
use ferroute_flows::{FlowEvent, FlowReceiver, FlowRequest, Frontends, Hub, Limits, Services, SharedFrontends};
use ferroute_modes::REGISTRY;
use ferroute_proxy::control::request_flows;
use tokio::runtime::Runtime;

use crate::{about::Origin, desired::Desired};

/// Receives flows from the running proxy, or from the kernel.
pub struct FlowStream {
    source: Source,
    line: String,
    has_ended: bool,
}

enum Source {
    Proxy(BufReader<UnixStream>),
    Kernel { runtime: Runtime, flows: FlowReceiver, lines: std::io::Cursor<Vec<u8>> },
}

impl FlowStream {
    /// Requests flows: from the running proxy if the objects are the proxy's, otherwise from the kernel in the network
    /// namespace of the calling thread. Without any objects, these are all connections whose destination is translated.
    ///
    /// # Errors
    /// If the proxy provides none, or the kernel's events cannot be received.
    pub fn open(desired: &Desired, request: &FlowRequest) -> anyhow::Result<Self> {
        let is_of_proxy = desired.about.objects.as_ref().is_some_and(|fact| fact.from == Origin::Proxy);
        if is_of_proxy { Self::from_proxy(request) } else { Self::from_kernel(desired, request) }
    }

    /// Requests the flows of the proxy that runs in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the proxy provides none.
    pub fn from_proxy(request: &FlowRequest) -> anyhow::Result<Self> {
        Ok(Self::new(Source::Proxy(request_flows(request)?)))
    }

    /// Subscribes to the kernel's events in the network namespace of the calling thread. The Services are those of
    /// `desired`.
    ///
    /// # Errors
    /// If the events cannot be received.
    pub fn from_kernel(desired: &Desired, request: &FlowRequest) -> anyhow::Result<Self> {
        let traits = REGISTRY.active(desired.resolved.mode).traits();
        let mut frontends = Frontends::new(traits, desired.resolved.settings.clone());
        let host = &desired.host.addresses;
        IpFamily::BOTH.into_iter().for_each(|family| frontends.set(desired.table(family), host));
        let services = if desired.has_objects { Services::Known } else { Services::Unknown };
        let hub = Hub::new(SharedFrontends::new(frontends), services, Limits::default());
        let flows = hub.subscribe(hub.reserve()?, request.clone())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(Self::new(Source::Kernel { runtime, flows, lines: std::io::Cursor::default() }))
    }

    fn new(source: Source) -> Self {
        Self { source, line: String::new(), has_ended: false }
    }

    /// Waits for the next event, until a time if one is given. Returns `None` at this time, and after the last event.
    ///
    /// # Errors
    /// If there are no more events, although more were requested.
    pub fn next(&mut self, until: Option<Instant>) -> anyhow::Result<Option<FlowEvent>> {
        let remaining = until.map(|until| until.saturating_duration_since(Instant::now()));
        let Self { source, line, has_ended } = self;
        match source {
            Source::Proxy(reader) => {
                // A timeout of zero is an error.
                let timeout = remaining.map(|remaining| remaining.max(Duration::from_millis(1)));
                reader.get_ref().set_read_timeout(timeout)?;
                match reader.read_line(line) {
                    Ok(0) => {
                        *has_ended = true;
                        return Ok(None);
                    }
                    Ok(_) => {}
                    Err(error)
                        if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
                    {
                        return Ok(None);
                    }
                    Err(error) => return Err(error).context("cannot receive flows from the running proxy"),
                }
            }
            Source::Kernel { runtime, flows, lines } => {
                while lines.read_line(line)? == 0 {
                    let next = runtime.block_on(async {
                        match remaining {
                            Some(remaining) => tokio::time::timeout(remaining, flows.next()).await.ok(),
                            None => Some(flows.next().await),
                        }
                    });
                    match next {
                        Some(Some(Ok(chunk))) => *lines = std::io::Cursor::new(chunk),
                        Some(Some(Err(reason))) => bail!("{reason}"),
                        Some(None) => {
                            *has_ended = true;
                            return Ok(None);
                        }
                        None => return Ok(None),
                    }
                }
            }
        }
        let event =
            serde_json::from_str(line).context("cannot read flows of the running proxy: the versions may differ");
        line.clear();
        event.map(Some)
    }

    /// Returns an error if there are no more events.
    ///
    /// # Errors
    /// If the proxy has ended or restarted.
    pub fn ensure_open(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.has_ended, "the running proxy has closed the connection");
        Ok(())
    }

    /// Reports whether [`next`](Self::next) may have to wait.
    pub fn may_wait(&self) -> bool {
        match &self.source {
            Source::Proxy(reader) => reader.buffer().is_empty(),
            Source::Kernel { lines, .. } => lines.position() == lines.get_ref().len() as u64,
        }
    }
}
