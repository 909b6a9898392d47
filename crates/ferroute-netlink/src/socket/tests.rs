use super::*;
use crate::sys::tests::forge;

/// Returns the header of a request for a device that no host has.
fn no_device() -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
    header
}

fn refused() -> Request {
    Request::new(libc::RTM_GETLINK, 0, &no_device())
}

#[test]
fn replies_to_earlier_requests_are_ignored() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let leave = |socket: &Socket, mut old: Request| {
        let bytes = old.seal(socket.sequence.wrapping_sub(1_000), libc::NLM_F_ACK as u16).unwrap();
        sys::send(&socket.fd, bytes).unwrap();
    };
    // A request without effect except for its ack.
    leave(&socket, Request::new(libc::NLMSG_NOOP as u16, 0, &[]));
    assert!(socket.request_ack(&mut refused()).is_err());
    leave(&socket, refused());
    let mut batch = Batch::new();
    drop(batch.message(libc::RTM_GETLINK, 0, &no_device()));
    assert_eq!(socket.send_batch(&mut batch).unwrap().as_slice().len(), 1);
}

#[test]
fn replies_of_other_processes_are_ignored() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let mut forged = Request::new(libc::NLMSG_ERROR as u16, 0, &[0; 20]);
    forge(&socket.fd, forged.seal(socket.sequence + 1, 0).unwrap());
    assert!(socket.request_ack(&mut refused()).is_err());
}

#[test]
fn sequence_numbers_increase_wrap_around_and_are_never_zero() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    assert_eq!([1, 3, 1].map(|count| socket.next_sequence(count)), [1, 2, 5]);
    socket.sequence = u32::MAX - 3;
    assert_eq!([2, 1].map(|count| socket.next_sequence(count)), [u32::MAX - 2, 1]);
}
