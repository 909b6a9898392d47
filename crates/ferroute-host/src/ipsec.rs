//! Whether packets of the host are encrypted.

use std::io;

use ferroute_netlink::{Error, Message, Protocol, Request, Socket};

/// Reports whether the network namespace has policies or keys of IPsec. Without them, no packet is encrypted or decrypted.
///
/// # Errors
/// If the kernel refuses, as without the capability `CAP_NET_ADMIN`.
pub fn uses_ipsec() -> Result<bool, Error> {
    let mut socket = match Socket::open(Protocol::Ipsec) {
        Ok(socket) => socket,
        // A kernel without IPsec.
        Err(Error::Open { source, .. }) if is_unsupported(&source) => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut counts = |kind| -> Result<bool, Error> {
        // The header is a number of flags.
        let found = socket.get(&mut Request::new(kind, 0, &[0; 4]), has_any)?;
        found.ok_or(Error::Unanswered { kind })
    };
    Ok(counts(XFRM_MSG_GETSADINFO)? || counts(XFRM_MSG_GETSPDINFO)?)
}

fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| [libc::EPROTONOSUPPORT, libc::EAFNOSUPPORT].contains(&errno))
}

/// Reports whether any of the numbers of keys or policies is positive.
fn has_any(message: Message<'_>) -> Result<bool, Error> {
    let (_, attributes) = message.split_header::<4>()?;
    // `XFRMA_SAD_CNT`, a number, and `XFRMA_SPD_INFO`, one for each direction.
    Ok(attributes.first(XFRMA_COUNTS)?.is_none_or(|counts| counts.payload.iter().any(|byte| *byte != 0)))
}

// `include/uapi/linux/xfrm.h`.
const XFRM_MSG_GETSADINFO: u16 = 0x23;
const XFRM_MSG_GETSPDINFO: u16 = 0x25;
const XFRMA_COUNTS: u16 = 1;
