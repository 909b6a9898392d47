use std::{io, ops::ControlFlow, os::fd::OwnedFd};

use libc::c_int;

use crate::{Batch, Error, Message, Messages, Protocol, Refusals, Request, Subscription, reply::Reply, sys};

/// A socket for requests and replies. For notifications see [`crate::Subscription`].
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    send_buffer_size: usize,
    buffer: Vec<u8>,
}

/// Whether a dump shows the state at a single moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a list that was interrupted may lack objects or hold some of them twice"]
pub enum Consistency {
    /// The dump is consistent.
    Consistent,
    /// `NLM_F_DUMP_INTR`: something changed during the dump.
    Interrupted,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        let failed = |source| Error::Open { protocol, source };
        let fd = sys::open(protocol.number()).map_err(failed)?;
        // Extended acks, without a copy of the refused message, which can be 64 KiB long. Supported since Linux 4.12.
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            sys::set_option(&fd, libc::SOL_NETLINK, option, 1).map_err(failed)?;
        }
        enlarge(&fd, RECEIVE_BUFFER, RECEIVE_BUFFER_SIZE).map_err(failed)?;
        let send_buffer_size = read_buffer_size(&fd, libc::SO_SNDBUF).map_err(failed)?;
        Ok(Self { fd, sequence: 0, send_buffer_size, buffer: vec![0; MAX_DATAGRAM] })
    }

    /// Turns the socket into one for messages that the kernel sends because of earlier requests.
    pub fn into_subscription(self) -> Subscription {
        Subscription::from_socket(self.fd)
    }

    /// Makes the kernel filter dumps by the header of the request, as far as it can (Linux 4.20 and newer). Older
    /// kernels ignore the header, so the caller must filter the objects as well.
    pub fn set_strict_dumps(&mut self) {
        // A kernel without the option returns an error, and then dumps everything.
        let _ = sys::set_option(&self.fd, libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1);
    }

    /// Sends a request and checks the kernel's ack.
    pub fn request_ack(&mut self, request: &mut Request) -> Result<(), Error> {
        self.request(request, |_| Ok(()))
    }

    /// Sends a request and calls `on_message` with each message of the reply.
    ///
    /// If `on_message` fails, it is not called again, and its error is returned after the rest of the reply has been
    /// read.
    pub fn request<E: From<Error>>(
        &mut self,
        request: &mut Request,
        mut on_message: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // Only dumps can be interrupted.
        self.exchange(request, libc::NLM_F_ACK as u16, |message| on_message(message).map(ControlFlow::Continue))
            .map(|_: Consistency| ())
    }

    /// Requests one object and returns the result of `parse`; `None` if the kernel acknowledged the request without
    /// returning an object. If the object does not exist, the kernel refuses the request: see [`Error::is_not_found`].
    pub fn get<T, E: From<Error>>(
        &mut self,
        request: &mut Request,
        mut parse: impl FnMut(Message<'_>) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let mut object = None;
        self.request(request, |message| {
            object = Some(parse(message)?);
            Ok::<(), E>(())
        })?;
        Ok(object)
    }

    /// Dumps a list and calls `on_message` with each object. The kernel sends up to 32 KiB at a time, so memory does
    /// not grow with the list.
    ///
    /// Other programs can change the list during the dump. If `on_message` fails, it is not called again, and its error
    /// is returned after the rest of the dump was read.
    pub fn dump<E: From<Error>>(
        &mut self,
        request: &mut Request,
        mut on_message: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Result<Consistency, E> {
        self.exchange(request, libc::NLM_F_DUMP as u16, |message| on_message(message).map(ControlFlow::Continue))
    }

    /// Dumps a list like [`Socket::dump`], but only up to the object for which `on_message` breaks. The socket is then
    /// closed, so that the kernel need not process the rest.
    pub fn dump_until<E: From<Error>>(
        mut self,
        request: &mut Request,
        on_message: impl FnMut(Message<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<Consistency, E> {
        self.exchange(request, libc::NLM_F_DUMP as u16, on_message)
    }

    /// Dumps a list and returns the results of `parse`. An interrupted dump is repeated a few times.
    pub fn collect<T, E: From<Error>>(
        &mut self,
        request: &mut Request,
        mut parse: impl FnMut(Message<'_>) -> Result<Option<T>, E>,
    ) -> Result<Vec<T>, E> {
        let mut objects = Vec::new();
        for _ in 0..MAX_DUMPS {
            let consistency = self.dump(request, |message| {
                objects.extend(parse(message)?);
                Ok::<(), E>(())
            })?;
            match consistency {
                Consistency::Consistent => return Ok(objects),
                Consistency::Interrupted => objects.clear(),
            }
        }
        Err(Error::Interrupted { kind: request.kind(), attempts: MAX_DUMPS }.into())
    }

    /// Sends all messages at once and returns the kernel's refusals.
    ///
    /// Whether the other messages take effect depends on the protocol: nf_tables has transactions, connection tracking
    /// has not. If no message has [`crate::flags::NLM_F_ACK`], the last one gets it; a batch without an ack is an
    /// error. In a transaction, set the flag on the last message before the end, because before Linux 6.10 the kernel
    /// does not acknowledge the end itself. An ack only confirms that the message is valid: the kernel also
    /// acknowledges, and then drops, a transaction without an end ([`crate::nfnetlink::NFNL_MSG_BATCH_END`]).
    pub fn send_batch(&mut self, batch: &mut Batch) -> Result<Refusals, Error> {
        if batch.is_empty() {
            return Ok(Refusals::default());
        }
        let (count, acks) = (batch.len(), batch.ensure_ack());
        let first = self.next_sequence(count);
        let bytes = batch.seal(first)?;
        send(&self.fd, &mut self.send_buffer_size, bytes)?;
        let (mut refusals, mut acks_received) = (Refusals::default(), 0);
        loop {
            let datagram = match self.receive() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => break,
                // Reported once; earlier replies can still be received.
                Err(Error::Overrun) => {
                    refusals.overrun = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for message in Messages::new(datagram) {
                let message = message?;
                let index = message.sequence.wrapping_sub(first) as usize;
                if index >= count {
                    continue;
                }
                match Reply::parse(message, index, message.kind)? {
                    Reply::Done => acks_received += 1,
                    Reply::Refused(refusal) => refusals.refusals.push(refusal),
                    Reply::Data(_) | Reply::Nothing => {}
                }
            }
        }
        // A refused transaction gets no acks.
        if refusals.is_empty() && acks_received < acks {
            return Err(Error::UnansweredBatch { messages: count });
        }
        Ok(refusals)
    }

    /// Sends a request and calls `on_message` with each message of the reply. If `on_message` breaks, the kernel may
    /// not have sent the rest of a dump, and then refuses another dump.
    fn exchange<E: From<Error>>(
        &mut self,
        request: &mut Request,
        reply_flags: u16,
        mut on_message: impl FnMut(Message<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<Consistency, E> {
        let (sequence, kind) = (self.next_sequence(1), request.kind());
        let bytes = request.seal(sequence, reply_flags).map_err(Error::from)?;
        send(&self.fd, &mut self.send_buffer_size, bytes)?;
        let (mut result, mut consistency) = (Ok(()), Consistency::Consistent);
        while let Some(datagram) = self.receive()? {
            for message in Messages::new(datagram) {
                let message = message.map_err(Error::from)?;
                // A reply to an earlier request whose exchange ended early.
                if message.sequence != sequence {
                    continue;
                }
                if message.flags & NLM_F_DUMP_INTR != 0 {
                    consistency = Consistency::Interrupted;
                }
                match Reply::parse(message, 0, kind).map_err(Error::from)? {
                    Reply::Data(message) => match result.and_then(|()| on_message(message)) {
                        Ok(ControlFlow::Break(())) => return Ok(consistency),
                        Ok(ControlFlow::Continue(())) => result = Ok(()),
                        Err(error) => result = Err(error),
                    },
                    Reply::Done => return result.map(|()| consistency),
                    Reply::Refused(refusal) => return result.and(Err(Error::from(refusal).into())),
                    Reply::Nothing => {}
                }
            }
        }
        result.and(Err(Error::Unanswered { kind }.into()))
    }

    /// Returns the first of `count` sequence numbers that were not used recently. 0 is reserved for notifications.
    fn next_sequence(&mut self, count: usize) -> u32 {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let first = self.sequence.checked_add(1).filter(|first| first.checked_add(count).is_some()).unwrap_or(1);
        self.sequence = first.saturating_add(count.saturating_sub(1));
        first
    }

    /// The next datagram of the kernel; `None` when there is no more.
    fn receive(&mut self) -> Result<Option<&[u8]>, Error> {
        receive(&self.fd, &mut self.buffer)
    }
}

/// The next datagram of the kernel; `None` when there is no more.
pub(crate) fn receive<'a>(fd: &OwnedFd, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, Error> {
    loop {
        let received = sys::receive(fd, buffer).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOBUFS) => Error::Overrun,
            _ => Error::Receive { source },
        })?;
        match received {
            None => return Ok(None),
            // Other processes can send to this port, too.
            Some(datagram) if !datagram.is_from_kernel => {}
            Some(datagram) if datagram.length > buffer.len() => {
                return Err(Error::Truncated { length: datagram.length, buffer: buffer.len() });
            }
            Some(datagram) => return Ok(Some(&buffer[..datagram.length])),
        }
    }
}

/// Sends messages. Enlarges the send buffer first if necessary: the kernel accepts datagrams up to its size minus 32
/// bytes.
fn send(fd: &OwnedFd, buffer_size: &mut usize, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::Send { bytes: bytes.len(), source };
    if bytes.len() + SEND_RESERVE > *buffer_size {
        enlarge(fd, SEND_BUFFER, bytes.len()).map_err(failed)?;
        *buffer_size = read_buffer_size(fd, libc::SO_SNDBUF).map_err(failed)?;
    }
    sys::send(fd, bytes).map_err(failed)
}

/// Sets the size of a receive buffer.
pub(crate) fn set_receive_buffer(fd: &OwnedFd, bytes: usize) -> io::Result<()> {
    enlarge(fd, RECEIVE_BUFFER, bytes)
}

/// Sets the size of a buffer. The kernel doubles it to account for its overhead.
fn enlarge(fd: &OwnedFd, buffer: Buffer, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    match sys::set_option(fd, libc::SOL_SOCKET, buffer.force, bytes) {
        // The `FORCE` options require CAP_NET_ADMIN in the initial user namespace; the others are limited by a sysctl.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            sys::set_option(fd, libc::SOL_SOCKET, buffer.limited, bytes)
        }
        result => result,
    }
}

fn read_buffer_size(fd: &OwnedFd, option: c_int) -> io::Result<usize> {
    sys::option(fd, libc::SOL_SOCKET, option).map(|size| usize::try_from(size).unwrap_or(0))
}

/// The socket options for the size of a buffer: unlimited for privileged processes, and limited.
#[derive(Clone, Copy)]
struct Buffer {
    force: c_int,
    limited: c_int,
}

const RECEIVE_BUFFER: Buffer = Buffer { force: libc::SO_RCVBUFFORCE, limited: libc::SO_RCVBUF };
const SEND_BUFFER: Buffer = Buffer { force: libc::SO_SNDBUFFORCE, limited: libc::SO_SNDBUF };
const NLM_F_DUMP_INTR: u16 = libc::NLM_F_DUMP_INTR as u16;
/// The size of the receive buffer for a datagram: the kernel's dumps use at most 32 KiB.
pub(crate) const MAX_DATAGRAM: usize = 64 << 10;
/// Size of the socket's receive buffer: a reply takes about 1 KiB, and a batch can have some thousands of errors. It is
/// a limit and does not allocate memory.
const RECEIVE_BUFFER_SIZE: usize = 8 << 20;
/// The bytes of a send buffer that the kernel reserves.
const SEND_RESERVE: usize = 32;
/// Maximum number of attempts to dump a list without interruption. A dump takes milliseconds, so more attempts would
/// hide a fault.
const MAX_DUMPS: usize = 5;

#[cfg(test)]
mod tests;
