use std::{io, time::Duration};

use http_body_util::channel::{Channel, Sender};
use hyper::body::{Bytes, Frame};

use super::Behaviour;

/// The body of an answer, written piece by piece.
#[derive(Debug)]
pub(super) struct Writer {
    /// `None` when the connection has broken.
    sender: Option<Sender<Bytes, io::Error>>,
    piece: usize,
    pause: Duration,
    /// Bytes until the connection breaks.
    left: Option<usize>,
}

/// The connection has broken, or nobody reads any more.
#[derive(Debug)]
pub(super) struct Over;

impl Writer {
    /// A writer, and what it writes. With `cut`, the connection breaks after this many bytes.
    pub(super) fn new(behaviour: &Behaviour, cut: Option<usize>) -> (Self, Channel<Bytes, io::Error>) {
        let (sender, body) = Channel::new(1);
        (Self { sender: Some(sender), piece: behaviour.piece.max(1), pause: behaviour.pause, left: cut }, body)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Over> {
        for piece in bytes.chunks(self.piece) {
            let length = self.left.map_or(piece.len(), |left| left.min(piece.len()));
            self.send(&piece[..length]).await?;
            if let Some(left) = &mut self.left {
                *left -= length;
                if *left == 0 {
                    self.cut().await;
                    return Err(Over);
                }
            }
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
        }
        Ok(())
    }

    async fn send(&mut self, piece: &[u8]) -> Result<(), Over> {
        let sender = self.sender.as_mut().ok_or(Over)?;
        sender.send(Frame::data(Bytes::copy_from_slice(piece))).await.map_err(|_| Over)
    }

    /// Breaks the connection, after what has been written so far is on its way.
    pub(super) async fn cut(&mut self) {
        let Some(mut sender) = self.sender.take() else { return };
        // An empty frame fits in when the one before has been taken.
        if sender.send(Frame::data(Bytes::new())).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sender.abort(io::Error::other("cut on demand"));
    }
}
