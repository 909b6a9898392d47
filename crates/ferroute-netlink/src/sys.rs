//! Safe wrappers of the system calls: each function is sound for all arguments.

#![expect(unsafe_code, reason = "system calls take raw pointers; each block states why it is sound")]

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use libc::{c_int, c_void, sock_filter, sock_fprog, sockaddr_nl, socklen_t};

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    /// Length in bytes, which may exceed the buffer.
    pub(crate) length: usize,
    /// Whether the kernel sent it, and not another process.
    pub(crate) is_from_kernel: bool,
}

/// Opens a socket with a port that the kernel chooses.
pub(crate) fn open(protocol: c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes no pointers.
    let fd = checked(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
    // SAFETY: the descriptor is open and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut address = no_address();
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    // SAFETY: the pointer is to a live `sockaddr_nl`, and the length is its size.
    checked(unsafe { libc::bind(fd, (&raw const address).cast(), size_of::<sockaddr_nl>() as socklen_t) })?;
    Ok(socket)
}

/// Opens a UDP socket of an address family.
pub(crate) fn open_datagram(domain: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = checked(unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an integer option.
pub(crate) fn set_option(socket: &impl AsFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let size = size_of::<c_int>() as socklen_t;
    // SAFETY: the pointer is to a live integer, and the length is its size.
    checked(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size) })?;
    Ok(())
}

/// Returns an integer option.
pub(crate) fn option(socket: &impl AsFd, level: c_int, option: c_int) -> io::Result<c_int> {
    let fd = socket.as_fd().as_raw_fd();
    let mut value: c_int = 0;
    let mut size = size_of::<c_int>() as socklen_t;
    // SAFETY: both pointers are to live values, and `size` limits what the kernel writes.
    checked(unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &raw mut size) })?;
    Ok(value)
}

/// Reads an option that the kernel finds by the contents of the buffer. Returns the length of the result.
pub(crate) fn read_option(socket: &impl AsFd, level: c_int, option: c_int, buffer: &mut [u8]) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let mut size = socklen_t::try_from(buffer.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the buffer is a live slice with exclusive access, and `size` limits what the kernel writes.
    checked(unsafe { libc::getsockopt(fd, level, option, buffer.as_mut_ptr().cast(), &raw mut size) })?;
    Ok(usize::try_from(size).unwrap_or(usize::MAX))
}

/// Sends a datagram to the kernel, which processes it before the call returns.
pub(crate) fn send(socket: &impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length are those of a live slice. Without an address the destination is the kernel.
    retried(|| unsafe { libc::send(fd, bytes.as_ptr().cast::<c_void>(), bytes.len(), 0) })?;
    Ok(())
}

/// Receives the next datagram, if there is one.
pub(crate) fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Datagram>> {
    let fd = socket.as_fd().as_raw_fd();
    let mut sender = no_address();
    let received = retried(|| {
        let mut size = size_of::<sockaddr_nl>() as socklen_t;
        let (start, length) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
        // SAFETY: the buffer is a live slice with exclusive access, and so is `sender`, whose size is `size`. With
        // `MSG_TRUNC` the call returns the datagram's length but writes at most `length` bytes.
        unsafe { libc::recvfrom(fd, start, length, libc::MSG_TRUNC, ptr::from_mut(&mut sender).cast(), &raw mut size) }
    });
    match received {
        Ok(length) => Ok(Some(Datagram { length, is_from_kernel: sender.nl_pid == 0 })),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adds a filter of system calls to the calling thread.
pub(crate) fn filter_calls(program: &[sock_filter]) -> io::Result<()> {
    let len = program.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the pointer is to a live `sock_fprog`, and that has pointer and length of a live slice. The kernel only
    // reads both, and checks the program before it uses a copy of it.
    checked(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })?;
    Ok(())
}

fn no_address() -> sockaddr_nl {
    // SAFETY: the struct consists of integers, for which zero bytes are a value.
    unsafe { mem::zeroed() }
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Repeats a call that was interrupted by a signal.
fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(length) => return Ok(length),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn port(socket: &OwnedFd) -> u32 {
        let mut address = no_address();
        let mut size = size_of::<sockaddr_nl>() as socklen_t;
        // SAFETY: both pointers are to live values, and `size` is the size of the first.
        checked(unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut size) }).unwrap();
        address.nl_pid
    }

    /// Returns a message without effect that requests an ack, which has 36 bytes. It has a body, because emulators of other
    /// architectures do not translate headers alone.
    fn noop() -> [u8; 20] {
        let mut message = [0; 20];
        message[..4].copy_from_slice(&20_u32.to_ne_bytes());
        message[4..6].copy_from_slice(&(libc::NLMSG_NOOP as u16).to_ne_bytes());
        message[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
        message
    }

    /// Sends bytes to a socket as another process could.
    pub(crate) fn forge(to: &OwnedFd, bytes: &[u8]) {
        let from = open(libc::NETLINK_ROUTE).unwrap();
        let mut address = no_address();
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_pid = port(to);
        let size = size_of::<sockaddr_nl>() as socklen_t;
        // SAFETY: the pointer is to a live address of this size.
        checked(unsafe { libc::connect(from.as_raw_fd(), (&raw const address).cast(), size) }).unwrap();
        send(&from, bytes).unwrap();
    }

    #[test]
    fn datagrams_of_other_processes_are_distinguished_from_the_kernels() {
        let here = open(libc::NETLINK_ROUTE).unwrap();
        forge(&here, b"forged");
        let mut buffer = [0; 64];
        let datagram = receive(&here, &mut buffer).unwrap().unwrap();
        assert_eq!((datagram.length, datagram.is_from_kernel, &buffer[..6]), (6, false, &b"forged"[..]));

        send(&here, &noop()).unwrap();
        let datagram = receive(&here, &mut buffer).unwrap().unwrap();
        assert_eq!((datagram.length, datagram.is_from_kernel), (36, true));
        assert!(receive(&here, &mut buffer).unwrap().is_none());
    }

    #[test]
    fn truncated_datagram_reports_its_full_length() {
        let socket = open(libc::NETLINK_ROUTE).unwrap();
        send(&socket, &noop()).unwrap();
        assert_eq!(receive(&socket, &mut [0; 8]).unwrap().unwrap().length, 36);
    }
}
