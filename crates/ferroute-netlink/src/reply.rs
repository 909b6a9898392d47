use crate::{
    Attributes, Malformed, Message, Refusal,
    read::read_u16,
    write::{ALIGNMENT, KIND_AT, MESSAGE_HEADER},
};

/// What a message from the kernel means for the exchange that it belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    /// Part of the answer.
    Data(Message<'a>),
    /// The request is done; nothing follows.
    Done,
    /// The request was refused; nothing follows.
    Refused(Refusal),
    /// No news.
    Nothing,
}

impl<'a> Reply<'a> {
    /// `index` is the position of the message that is answered, `request` its kind.
    pub(crate) fn parse(message: Message<'a>, index: usize, request: u16) -> Result<Self, Malformed> {
        match i32::from(message.kind) {
            libc::NLMSG_NOOP => Ok(Self::Nothing),
            // The payload is an error number and then, where the flag says so, what the kernel adds in attributes.
            libc::NLMSG_DONE => {
                let Some(number) = message.payload.first_chunk() else { return Ok(Self::Done) };
                let attributes = message.payload.get(size_of::<i32>()..).unwrap_or_default();
                outcome(&message, *number, attributes, index, request)
            }
            // The payload is an error number, the header of the message that is answered, and its content unless the
            // kernel left that out; then the attributes.
            libc::NLMSG_ERROR => {
                let (header, _) = message.split_header::<{ size_of::<i32>() + MESSAGE_HEADER }>()?;
                let (number, original) = header.split_first_chunk().expect("the header is longer than a number");
                let answered = read_u16(original, KIND_AT).unwrap_or(request);
                let echoed = if message.flags & CAPPED == 0 { original_length(original) } else { MESSAGE_HEADER };
                let attributes = message.payload.get(size_of::<i32>() + echoed..).unwrap_or_default();
                outcome(&message, *number, attributes, index, answered)
            }
            _ => Ok(Self::Data(message)),
        }
    }
}

fn outcome<'a>(
    message: &Message<'_>,
    number: [u8; 4],
    attributes: &[u8],
    index: usize,
    kind: u16,
) -> Result<Reply<'a>, Malformed> {
    let number = i32::from_ne_bytes(number);
    if number >= 0 {
        return Ok(Reply::Done);
    }
    let mut refusal = Refusal { index, kind, errno: number.saturating_neg(), offset: None, text: None };
    if message.flags & HAS_ATTRIBUTES != 0 {
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                TEXT => refusal.text = Some(attribute.str()?.to_owned()),
                OFFSET => refusal.offset = Some(attribute.u32_ne()?),
                _ => {}
            }
        }
    }
    Ok(Reply::Refused(refusal))
}

fn original_length(header: &[u8]) -> usize {
    let length = header.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length) as usize);
    length.max(MESSAGE_HEADER).next_multiple_of(ALIGNMENT)
}

const CAPPED: u16 = libc::NLM_F_CAPPED as u16;
const HAS_ATTRIBUTES: u16 = libc::NLM_F_ACK_TLVS as u16;
/// `NLMSGERR_ATTR_MSG` and `NLMSGERR_ATTR_OFFS` of `include/uapi/linux/netlink.h`.
const TEXT: u16 = 1;
const OFFSET: u16 = 2;

#[cfg(test)]
mod tests;
