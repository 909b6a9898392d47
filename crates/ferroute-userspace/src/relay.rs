//! Relays the bytes of a connection between its two sockets, without copying them to user space.
//!
//! `splice(2)` moves pages from a socket into a pipe and from the pipe into the other socket. A direction takes a pipe from
//! the pool only while it has bytes to move, so that an idle connection costs two sockets and no pipe. A receiver that is
//! slower than the sender fills one pipe; then nothing more is read, and TCP slows the sender down.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
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

/// The number of bytes that were relayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// From the client to the endpoint.
    pub to_endpoint: u64,
    /// From the endpoint to the client.
    pub to_client: u64,
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
        // A list of pipes is valid whatever happened to another thread.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Relays both directions until both are closed. The end of one direction is passed on while the other continues.
///
/// # Errors
/// If one of the connections fails. Both are reset then, because the other side must not take the end for a complete
/// transfer.
pub(crate) async fn relay(client: &TcpStream, endpoint: &TcpStream, pipes: &PipePool) -> io::Result<Relayed> {
    let directions = tokio::try_join!(one_way(client, endpoint, pipes), one_way(endpoint, client, pipes));
    match directions {
        Ok((to_endpoint, to_client)) => Ok(Relayed { to_endpoint, to_client }),
        Err(error) => {
            for stream in [client, endpoint] {
                // A socket that is closed already needs no reset.
                let _ = stream.set_zero_linger();
            }
            Err(error)
        }
    }
}

/// Relays from `source` to `sink` until the end of `source`, which closes this direction of `sink`. Returns the number of
/// bytes.
async fn one_way(source: &TcpStream, sink: &TcpStream, pipes: &PipePool) -> io::Result<u64> {
    let mut total = 0;
    loop {
        source.readable().await?;
        let pipe = pipes.take()?;
        // If an error leaves bytes in the pipe, it is dropped and not returned to the pool.
        let is_end = move_available(source, sink, &pipe, &mut total).await?;
        pipes.put(pipe);
        if is_end {
            socket2::SockRef::from(sink).shutdown(std::net::Shutdown::Write)?;
            return Ok(total);
        }
    }
}

/// Relays what `source` has received. Returns true at its end, and false if more may arrive. The pipe is empty then.
async fn move_available(source: &TcpStream, sink: &TcpStream, pipe: &Pipe, total: &mut u64) -> io::Result<bool> {
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
                    *total += sent as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sink.writable().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // A fast connection yields to the others.
        tokio::task::consume_budget().await;
    }
}

/// The default capacity of a pipe, `pipe(7)`.
const CHUNK: usize = 64 * 1024;

const FLAGS: SpliceFFlags = SpliceFFlags::SPLICE_F_MOVE.union(SpliceFFlags::SPLICE_F_NONBLOCK);

/// Pipes that are kept. Pages of an empty pipe are freed by the kernel, so a pipe costs two descriptors and little memory.
const MAX_FREE_PIPES: usize = 64;

#[cfg(test)]
mod tests;
