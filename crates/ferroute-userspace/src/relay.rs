//! Relays the bytes of a connection between its two sockets, without copying them to user space.
//!
//! `splice(2)` moves pages from a socket into a pipe and from the pipe into the other socket. A direction takes a pipe from
//! the pool only while it has bytes to move, so that an idle connection costs two sockets and no pipe. A receiver that is
//! slower than the sender fills one pipe; then nothing more is read, and TCP slows the sender down.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use nix::{
    fcntl::{OFlag, SpliceFFlags, splice},
    unistd::pipe2,
};
use tokio::{io::Interest, net::TcpStream};

/// Pipes that no connection uses at the moment. All of them are empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct PipePool {
    free: Arc<Mutex<Vec<Pipe>>>,
}

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// Counters of relayed bytes.
#[derive(Debug, Default)]
pub(crate) struct RelayedBytes {
    /// From the client to the endpoint.
    pub(crate) to_endpoint: AtomicU64,
    /// From the endpoint to the client.
    pub(crate) to_client: AtomicU64,
}

impl PipePool {
    fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.lock().pop() {
            return Ok(pipe);
        }
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Pipe { read, write })
    }

    /// Keeps an empty pipe for the next connection, or closes it.
    fn put(&self, pipe: Pipe) {
        let mut free = self.lock();
        if free.len() < MAX_FREE_PIPES {
            free.push(pipe);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Pipe>> {
        // A list of pipes is valid even after a panic of another thread.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Relays both directions until both are closed. The end of one direction is passed on while the other continues.
///
/// # Errors
/// If one of the connections fails. Both are then reset, so that the other side does not mistake the end for a complete
/// transfer.
pub(crate) async fn relay(
    client: &TcpStream,
    endpoint: &TcpStream,
    pipes: &PipePool,
    bytes: &RelayedBytes,
    timeout: Duration,
) -> io::Result<()> {
    let moved = AtomicU64::new(0);
    let both = async {
        tokio::try_join!(
            one_way(client, endpoint, pipes, [&bytes.to_endpoint, &moved]),
            one_way(endpoint, client, pipes, [&bytes.to_client, &moved])
        )
    };
    let directions = tokio::select! {
        biased;
        directions = both => directions,
        () = idle(&moved, timeout) => Err(io::ErrorKind::TimedOut.into()),
    };
    if directions.is_err() {
        for stream in [client, endpoint] {
            // A socket that is closed already needs no reset.
            let _ = stream.set_zero_linger();
        }
    }
    directions.map(|((), ())| ())
}

/// Waits until no data has moved for `timeout`, and at most twice as long.
async fn idle(moved: &AtomicU64, timeout: Duration) {
    loop {
        let before = moved.load(Relaxed);
        tokio::time::sleep(timeout).await;
        if moved.load(Relaxed) == before {
            return;
        }
    }
}

/// Relays from `source` to `sink` until the end of `source`, which closes this direction of `sink`.
async fn one_way(source: &TcpStream, sink: &TcpStream, pipes: &PipePool, bytes: [&AtomicU64; 2]) -> io::Result<()> {
    loop {
        source.readable().await?;
        let pipe = pipes.take()?;
        // If an error leaves bytes in the pipe, it is dropped and not returned to the pool.
        let is_end = move_available(source, sink, &pipe, bytes).await?;
        pipes.put(pipe);
        if is_end {
            socket2::SockRef::from(sink).shutdown(std::net::Shutdown::Write)?;
            return Ok(());
        }
    }
}

/// Relays the data that `source` has received. Returns true at its end, and false if more may arrive. The pipe is empty
/// afterwards.
async fn move_available(source: &TcpStream, sink: &TcpStream, pipe: &Pipe, bytes: [&AtomicU64; 2]) -> io::Result<bool> {
    loop {
        // The pipe is empty here, so only the socket can be the cause of an operation that would block.
        let received = source.try_io(Interest::READABLE, || Ok(splice(source, None, &pipe.write, None, CHUNK, FLAGS)?));
        let mut rest = match received {
            Ok(0) => return Ok(true),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        while rest > 0 {
            let sent = sink.try_io(Interest::WRITABLE, || Ok(splice(&pipe.read, None, sink, None, rest, FLAGS)?));
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    rest -= sent;
                    bytes.iter().for_each(|bytes| _ = bytes.fetch_add(sent as u64, Relaxed));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sink.writable().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // A fast connection yields to others.
        tokio::task::consume_budget().await;
    }
}

/// The default capacity of a pipe, `pipe(7)`.
const CHUNK: usize = 64 * 1024;

const FLAGS: SpliceFFlags = SpliceFFlags::SPLICE_F_MOVE.union(SpliceFFlags::SPLICE_F_NONBLOCK);

/// Maximum number of pipes that are kept. The kernel frees the pages of an empty pipe, so a pipe costs two descriptors
/// and little memory.
const MAX_FREE_PIPES: usize = 64;

#[cfg(test)]
mod tests;
