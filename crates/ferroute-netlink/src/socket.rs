use std::{io, os::fd::OwnedFd};

use libc::c_int;

use crate::{Batch, Error, Message, Messages, Protocol, Refusals, Request, reply::Reply, sys};

/// A socket for requests and their answers. For news of what others do see [`crate::Subscription`].
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    send_room: usize,
    buffer: Vec<u8>,
}

/// Whether a list is one that was true at a single moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a list that was interrupted may lack objects or hold some of them twice"]
pub enum Consistency {
    /// It is.
    Consistent,
    /// Something was changed meanwhile.
    Interrupted,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        let failed = |source| Error::Open { protocol, source };
        let fd = sys::open(protocol.number()).map_err(failed)?;
        // The kernel's own words, and no copy of a refused message, which can be 64 KiB. Linux has both since 4.12.
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            sys::set_option(&fd, libc::SOL_NETLINK, option, 1).map_err(failed)?;
        }
        enlarge(&fd, RECEIVE_BUFFER, RECEIVE_ROOM).map_err(failed)?;
        let send_room = buffer_size(&fd, libc::SO_SNDBUF).map_err(failed)?;
        Ok(Self { fd, sequence: 0, send_room, buffer: vec![0; DATAGRAM_ROOM] })
    }

    /// Sends a request and waits until it is done.
    pub fn request_ack(&mut self, request: &mut Request) -> Result<(), Error> {
        self.request(request, |_| Ok(()))
    }

    /// Sends a request and hands what comes back to `on_message`, until it is done.
    ///
    /// After an error of `on_message` it is called no more, and the error is returned in the end.
    pub fn request<E: From<Error>>(
        &mut self,
        request: &mut Request,
        on_message: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // A single object is read at a single moment.
        self.exchange(request, libc::NLM_F_ACK as u16, on_message).map(|_: Consistency| ())
    }

    /// Asks for one object and returns what `parse` makes of it; `None` if it was not told, although the request was not
    /// refused. Of an object that is not there the kernel says so: see [`Error::is_not_found`].
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

    /// Asks for a list and hands each object to `on_message`, in at most 32 KiB steps of the kernel's: memory does not
    /// grow with the list.
    ///
    /// Objects may be deleted by another socket in the midst of it. After an error of `on_message` it is called no
    /// more, and the error is returned in the end.
    pub fn dump<E: From<Error>>(
        &mut self,
        request: &mut Request,
        on_message: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Result<Consistency, E> {
        self.exchange(request, libc::NLM_F_DUMP as u16, on_message)
    }

    /// Asks for a list and returns what `parse` makes of its objects. A list that changed while it was read is read
    /// again, a few times at most.
    pub fn collect<T, E: From<Error>>(
        &mut self,
        request: &mut Request,
        mut parse: impl FnMut(Message<'_>) -> Result<Option<T>, E>,
    ) -> Result<Vec<T>, E> {
        let mut objects = Vec::new();
        for _ in 0..DUMP_TRIES {
            let consistency = self.dump(request, |message| {
                objects.extend(parse(message)?);
                Ok::<(), E>(())
            })?;
            match consistency {
                Consistency::Consistent => return Ok(objects),
                Consistency::Interrupted => objects.clear(),
            }
        }
        Err(Error::Interrupted { kind: request.kind(), tries: DUMP_TRIES }.into())
    }

    /// Sends all messages at once, and returns those that the kernel refused.
    ///
    /// Whether the others were obeyed then depends on what they are: nf_tables has transactions, connection tracking
    /// has not. If no message has [`crate::flags::ACK`], the last one gets it; a batch that is not answered counts as
    /// failed. In a transaction set it on the last message before the end, for up to Linux 6.9 the end itself is not
    /// answered. Beware: such an answer says that the message is good; a transaction without an end
    /// ([`crate::nfnetlink::BATCH_END`]) is answered, too, and then forgotten.
    pub fn send_batch(&mut self, batch: &mut Batch) -> Result<Refusals, Error> {
        if batch.is_empty() {
            return Ok(Refusals::default());
        }
        let (count, acks) = (batch.len(), batch.want_answer());
        let first = self.next_sequence(count);
        let bytes = batch.seal(first)?;
        send(&self.fd, &mut self.send_room, bytes)?;
        let (mut refusals, mut answers) = (Refusals::default(), 0);
        loop {
            let datagram = match self.receive() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => break,
                // Reported once; the answers that came before are still to be had.
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
                    Reply::Done => answers += 1,
                    Reply::Refused(refusal) => refusals.refusals.push(refusal),
                    Reply::Data(_) | Reply::Nothing => {}
                }
            }
        }
        // A transaction that was refused has no answers but the refusals.
        if refusals.is_empty() && answers < acks {
            return Err(Error::UnansweredBatch { messages: count });
        }
        Ok(refusals)
    }

    fn exchange<E: From<Error>>(
        &mut self,
        request: &mut Request,
        answer: u16,
        mut on_message: impl FnMut(Message<'_>) -> Result<(), E>,
    ) -> Result<Consistency, E> {
        let (sequence, kind) = (self.next_sequence(1), request.kind());
        let bytes = request.seal(sequence, answer).map_err(Error::from)?;
        send(&self.fd, &mut self.send_room, bytes)?;
        let (mut result, mut consistency) = (Ok(()), Consistency::Consistent);
        while let Some(datagram) = self.receive()? {
            for message in Messages::new(datagram) {
                let message = message.map_err(Error::from)?;
                // What is left of an exchange that ended early.
                if message.sequence != sequence {
                    continue;
                }
                if message.flags & INTERRUPTED != 0 {
                    consistency = Consistency::Interrupted;
                }
                match Reply::parse(message, 0, kind).map_err(Error::from)? {
                    Reply::Data(message) => result = result.and_then(|()| on_message(message)),
                    Reply::Done => return result.map(|()| consistency),
                    Reply::Refused(refusal) => return result.and(Err(Error::from(refusal).into())),
                    Reply::Nothing => {}
                }
            }
        }
        result.and(Err(Error::Unanswered { kind }.into()))
    }

    /// The first of `count` numbers that no message of this socket had lately. 0 is left to news.
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
            // Other processes can send to our port, too.
            Some(datagram) if !datagram.is_from_kernel => {}
            Some(datagram) if datagram.length > buffer.len() => {
                return Err(Error::Truncated { length: datagram.length, room: buffer.len() });
            }
            Some(datagram) => return Ok(Some(&buffer[..datagram.length])),
        }
    }
}

/// Sends, with a buffer that is large enough: the kernel takes a datagram only if it is no longer than the socket's send
/// buffer without 32 bytes.
fn send(fd: &OwnedFd, room: &mut usize, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::Send { bytes: bytes.len(), source };
    if bytes.len() + SEND_RESERVE > *room {
        enlarge(fd, SEND_BUFFER, bytes.len()).map_err(failed)?;
        *room = buffer_size(fd, libc::SO_SNDBUF).map_err(failed)?;
    }
    sys::send(fd, bytes).map_err(failed)
}

/// Asks for a buffer of twice as many bytes, for the kernel doubles the number to allow for its own overhead.
fn enlarge(fd: &OwnedFd, buffer: Buffer, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    match sys::set_option(fd, libc::SOL_SOCKET, buffer.any_size, bytes) {
        // That needs rights on the whole host; up to a limit of the host anybody may.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            sys::set_option(fd, libc::SOL_SOCKET, buffer.limited, bytes)
        }
        result => result,
    }
}

fn buffer_size(fd: &OwnedFd, option: c_int) -> io::Result<usize> {
    sys::option(fd, libc::SOL_SOCKET, option).map(|size| usize::try_from(size).unwrap_or(0))
}

/// The options that set the size of a buffer: one for the privileged and one with a limit.
#[derive(Clone, Copy)]
struct Buffer {
    any_size: c_int,
    limited: c_int,
}

const RECEIVE_BUFFER: Buffer = Buffer { any_size: libc::SO_RCVBUFFORCE, limited: libc::SO_RCVBUF };
const SEND_BUFFER: Buffer = Buffer { any_size: libc::SO_SNDBUFFORCE, limited: libc::SO_SNDBUF };
const INTERRUPTED: u16 = libc::NLM_F_DUMP_INTR as u16;
/// Room for the longest datagram: the kernel makes those of a list no longer than 32 KiB.
pub(crate) const DATAGRAM_ROOM: usize = 64 << 10;
/// Room for answers that wait: an answer takes about 1 KiB, and a batch can have some thousands of errors. It is a limit
/// and costs nothing while it is not used.
const RECEIVE_ROOM: usize = 8 << 20;
/// What the kernel wants to have left in a send buffer.
const SEND_RESERVE: usize = 32;
/// How often a list is read until it holds still. Lists take milliseconds, so more would hide a fault.
const DUMP_TRIES: usize = 5;

#[cfg(test)]
mod tests;
