use proptest::prelude::*;

use super::*;
use crate::{Messages, Request};

/// Returns the payload of an `NLMSG_ERROR` message as Linux 6.18 encodes it, in reply to a message of 24 bytes.
fn error_payload(errno: i32, echoed: &[u8], attributes: impl FnOnce(&mut crate::Writer<'_>)) -> Vec<u8> {
    let mut payload = errno.to_ne_bytes().to_vec();
    payload.extend_from_slice(&24_u32.to_ne_bytes());
    payload.extend_from_slice(&0x0a0c_u16.to_ne_bytes());
    payload.extend_from_slice(&[0; 10]);
    payload.extend_from_slice(echoed);
    let mut request = Request::new(0, 0, &[]);
    attributes(&mut request.attributes());
    let bytes = request.seal(0, 0).unwrap();
    payload.extend_from_slice(Messages::new(bytes).next().unwrap().unwrap().payload);
    payload
}

fn parse(kind: i32, flags: u16, payload: &[u8]) -> Result<Reply<'_>, Malformed> {
    Reply::parse(Message { kind: kind as u16, flags, sequence: 1, payload }, 3, 0x0a99)
}

#[test]
fn error_contains_errno_offset_and_message_of_the_kernel() {
    let attributes = |writer: &mut crate::Writer<'_>| {
        writer.put_str(NLMSGERR_ATTR_MSG, "no such chain");
        writer.put_u32_ne(NLMSGERR_ATTR_OFFS, 92);
    };
    let want = Refusal {
        index: 3,
        kind: 0x0a0c,
        errno: libc::ENOENT,
        offset: Some(92),
        message: Some("no such chain".to_owned()),
    };
    let capped = error_payload(-libc::ENOENT, &[], attributes);
    assert_eq!(parse(libc::NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, &capped), Ok(Reply::Refused(want.clone())));
    let uncapped = error_payload(-libc::ENOENT, &[0xff; 8], attributes);
    assert_eq!(parse(libc::NLMSG_ERROR, NLM_F_ACK_TLVS, &uncapped), Ok(Reply::Refused(want.clone())));
    assert_eq!(
        want.to_string(),
        "kernel refused netlink message 3 of type 0x0a0c at byte 92: No such file or directory (os error 2): \
         no such chain"
    );
}

#[test]
fn error_zero_is_an_ack() {
    assert_eq!(parse(libc::NLMSG_ERROR, NLM_F_CAPPED, &error_payload(0, &[], |_| ())), Ok(Reply::Done));
}

#[test]
fn end_of_a_dump_can_be_an_error() {
    assert_eq!(parse(libc::NLMSG_DONE, 0, &0_i32.to_ne_bytes()), Ok(Reply::Done));
    assert_eq!(parse(libc::NLMSG_DONE, 0, &[]), Ok(Reply::Done));
    let want = Refusal { index: 3, kind: 0x0a99, errno: libc::ENOMEM, offset: None, message: None };
    assert_eq!(parse(libc::NLMSG_DONE, 0, &(-libc::ENOMEM).to_ne_bytes()), Ok(Reply::Refused(want)));
}

#[test]
fn error_without_the_header_of_its_request_is_malformed() {
    let want = Malformed::Header { kind: libc::NLMSG_ERROR as u16, got: 4, want: 20 };
    assert_eq!(parse(libc::NLMSG_ERROR, 0, &(-1_i32).to_ne_bytes()), Err(want));
}

#[test]
fn other_messages_are_data_except_noop() {
    assert!(matches!(parse(0x0a0c, 0, &[1]), Ok(Reply::Data(Message { payload: [1], .. }))));
    assert_eq!(parse(libc::NLMSG_NOOP, 0, &[]), Ok(Reply::Nothing));
}

proptest! {
    #[test]
    fn parsing_never_panics(
        kind in 0_i32..8,
        flags: u16,
        payload in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        _ = parse(kind, flags, &payload);
    }
}
