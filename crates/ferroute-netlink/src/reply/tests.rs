use proptest::prelude::*;

use super::*;
use crate::{Messages, Request};

/// The payload of an `NLMSG_ERROR` message as Linux 6.18 lays it out, answering a message of 24 bytes.
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
fn an_error_carries_number_place_and_words_of_the_kernel() {
    let attributes = |writer: &mut crate::Writer<'_>| {
        writer.put_str(TEXT, "no such chain");
        writer.put_u32_ne(OFFSET, 92);
    };
    let want = Refusal {
        index: 3,
        kind: 0x0a0c,
        errno: libc::ENOENT,
        offset: Some(92),
        text: Some("no such chain".to_owned()),
    };
    let capped = error_payload(-libc::ENOENT, &[], attributes);
    assert_eq!(parse(libc::NLMSG_ERROR, CAPPED | HAS_ATTRIBUTES, &capped), Ok(Reply::Refused(want.clone())));
    let echoing = error_payload(-libc::ENOENT, &[0xff; 8], attributes);
    assert_eq!(parse(libc::NLMSG_ERROR, HAS_ATTRIBUTES, &echoing), Ok(Reply::Refused(want.clone())));
    assert_eq!(
        want.to_string(),
        "kernel refused netlink message 3 of kind 0x0a0c at byte 92: No such file or directory (os error 2): \
         no such chain"
    );
}

#[test]
fn error_zero_is_an_acknowledgement() {
    assert_eq!(parse(libc::NLMSG_ERROR, CAPPED, &error_payload(0, &[], |_| ())), Ok(Reply::Done));
}

#[test]
fn the_end_of_a_list_can_be_an_error_too() {
    assert_eq!(parse(libc::NLMSG_DONE, 0, &0_i32.to_ne_bytes()), Ok(Reply::Done));
    assert_eq!(parse(libc::NLMSG_DONE, 0, &[]), Ok(Reply::Done));
    let want = Refusal { index: 3, kind: 0x0a99, errno: libc::ENOMEM, offset: None, text: None };
    assert_eq!(parse(libc::NLMSG_DONE, 0, &(-libc::ENOMEM).to_ne_bytes()), Ok(Reply::Refused(want)));
}

#[test]
fn an_error_without_the_header_of_what_it_answers_is_malformed() {
    let want = Malformed::Header { kind: libc::NLMSG_ERROR as u16, got: 4, want: 20 };
    assert_eq!(parse(libc::NLMSG_ERROR, 0, &(-1_i32).to_ne_bytes()), Err(want));
}

#[test]
fn everything_else_is_data_but_noop_is_nothing() {
    assert!(matches!(parse(0x0a0c, 0, &[1]), Ok(Reply::Data(Message { payload: [1], .. }))));
    assert_eq!(parse(libc::NLMSG_NOOP, 0, &[]), Ok(Reply::Nothing));
}

proptest! {
    #[test]
    fn no_reply_makes_parsing_panic(
        kind in 0_i32..8,
        flags: u16,
        payload in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        _ = parse(kind, flags, &payload);
    }
}
