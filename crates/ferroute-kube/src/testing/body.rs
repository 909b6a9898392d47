//! Bodies of responses, with faults.

use std::{
    io::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ferroute_config::MediaType;
use flate2::{Compression, write::GzEncoder};
use http_body_util::channel::{Channel, Sender};
use hyper::body::{Bytes, Frame};
use tokio::sync::watch;

use super::{Behaviour, Fault, Signals, encode};

/// A writer of a response body, in chunks.
#[derive(Debug)]
pub(super) struct Writer {
    /// The sender; `None` after the connection has been broken.
    sender: Option<Sender<Bytes, io::Error>>,
    chunk: usize,
    pause: Duration,
    /// Whether each write is a gzip member.
    gzip: bool,
    /// Number of bytes until the body ends in an incorrect way.
    limit: Option<(usize, Interruption)>,
    /// Counts the bytes of all bodies of the server.
    sent: Arc<AtomicU64>,
    signals: watch::Receiver<Signals>,
}

/// Premature end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruption {
    /// The connection breaks.
    Cut,
    /// No data follows, and the connection stays open.
    Stall,
}

/// The connection is broken.
#[derive(Debug)]
pub(super) struct Disconnected;

impl Writer {
    /// Returns a writer and its body, which a fault may interrupt. `sent` counts its bytes.
    pub(super) fn new(
        behaviour: &Behaviour,
        fault: Option<&Fault>,
        sent: &Arc<AtomicU64>,
        signals: watch::Receiver<Signals>,
    ) -> (Self, Channel<Bytes, io::Error>) {
        let (sender, body) = Channel::new(1);
        let limit = match fault {
            Some(Fault::Cut(bytes)) => Some((*bytes, Interruption::Cut)),
            Some(Fault::Stall(bytes)) => Some((*bytes, Interruption::Stall)),
            _ => None,
        };
        let (chunk, pause, sent) = (behaviour.chunk.max(1), behaviour.pause, Arc::clone(sent));
        (Self { sender: Some(sender), chunk, pause, gzip: false, limit, sent, signals }, body)
    }

    /// Compresses each write, if `gzip` is set.
    pub(super) fn with_gzip(self, gzip: bool) -> Self {
        Self { gzip, ..self }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Disconnected> {
        let member = self.gzip.then(|| member(bytes));
        let bytes = member.as_deref().unwrap_or(bytes);
        for chunk in bytes.chunks(self.chunk) {
            let length = self.limit.map_or(chunk.len(), |(left, _)| left.min(chunk.len()));
            self.send(&chunk[..length]).await?;
            if let Some((left, interruption)) = &mut self.limit {
                *left -= length;
                if *left == 0 {
                    match interruption {
                        Interruption::Cut => self.cut().await,
                        Interruption::Stall => self.stall().await,
                    }
                    return Err(Disconnected);
                }
            }
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
        }
        Ok(())
    }

    async fn send(&mut self, chunk: &[u8]) -> Result<(), Disconnected> {
        let sender = self.sender.as_mut().ok_or(Disconnected)?;
        sender.send(Frame::data(Bytes::copy_from_slice(chunk))).await.map_err(|_| Disconnected)?;
        self.sent.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Sends nothing more until the client closes the connection or all connections are cut.
    pub(super) async fn stall(&mut self) {
        let cuts = self.signals.borrow().cuts;
        // hyper polls the body while it waits, so an empty frame arrives without a byte on the wire.
        while self.send(&[]).await.is_ok() {
            if self.signals.borrow().cuts > cuts {
                return self.cut().await;
            }
            tokio::time::sleep(STALL_CHECK).await;
        }
    }

    /// Breaks the connection after the chunks so far have been sent.
    pub(super) async fn cut(&mut self) {
        let Some(mut sender) = self.sender.take() else { return };
        // An empty frame can be sent once the previous one has been sent.
        if sender.send(Frame::data(Bytes::new())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sender.abort(io::Error::other("cut on demand"));
    }
}

/// Returns a gzip member with this content, compressed as by the API server.
fn member(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).and_then(|()| encoder.finish()).expect("memory accepts everything")
}

/// Sends bytes that are neither JSON nor protobuf, the same ones for each seed.
pub(super) async fn write_garbage(mut writer: Writer, bytes: usize, seed: u64) -> Result<(), Disconnected> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut block = vec![0; BLOCK];
    let mut left = bytes;
    while left > 0 {
        random.fill(&mut block);
        let length = left.min(BLOCK);
        writer.write(&block[..length]).await?;
        left -= length;
    }
    Ok(())
}

/// Sends an object that begins properly and continues for this many bytes without an end.
pub(super) async fn write_endless(
    mut writer: Writer,
    media_type: MediaType,
    is_watch: bool,
    bytes: usize,
) -> Result<(), Disconnected> {
    writer.write(&encode::beginning(media_type, is_watch, bytes)).await?;
    let block = vec![b'a'; BLOCK];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(BLOCK);
        writer.write(&block[..length]).await?;
        left -= length;
    }
    Ok(())
}

/// Number of bytes that are sent at once if their contents are not meaningful.
const BLOCK: usize = 64 << 10;

/// Interval at which a stalled body checks whether its client has disconnected.
const STALL_CHECK: Duration = Duration::from_millis(50);
