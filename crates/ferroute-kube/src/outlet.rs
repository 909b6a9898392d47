use ferroute_source::Event;
use tokio::sync::mpsc;

/// Gathers events into batches.
#[derive(Debug)]
pub(crate) struct Outlet {
    sender: mpsc::Sender<Vec<Event>>,
    batch: Vec<Event>,
}

/// Nobody takes events any more.
#[derive(Debug)]
pub(crate) struct Stopped;

impl Outlet {
    pub(crate) fn new(sender: mpsc::Sender<Vec<Event>>) -> Self {
        Self { sender, batch: Vec::new() }
    }

    /// The batch, to add events to.
    pub(crate) fn batch(&mut self) -> &mut Vec<Event> {
        &mut self.batch
    }

    /// Sends the batch if it has become long. Objects of a list wait for one another only in memory, so it is short.
    pub(crate) async fn relieve(&mut self) -> Result<(), Stopped> {
        if self.batch.len() < LONG { Ok(()) } else { self.flush().await }
    }

    /// Sends the batch.
    pub(crate) async fn flush(&mut self) -> Result<(), Stopped> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.sender.send(std::mem::take(&mut self.batch)).await.map_err(|_| Stopped)
    }
}

/// Events in a batch. A queue of a few dozen batches of slices with a hundred endpoints each is some megabytes.
const LONG: usize = 16;
