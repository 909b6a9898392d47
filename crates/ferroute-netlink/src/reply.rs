use crate::{
    Attributes, Malformed, Message, Refusal,
    read::read_u16,
    write::{ALIGNMENT, MESSAGE_HEADER, TYPE_OFFSET},
};

/// The meaning of a message of the kernel in an exchange.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    /// A part of the reply.
    Data(Message<'a>),
    /// Success; the end of the reply.
    Done,
    /// An error; the end of the reply.
    Refused(Refusal),
    /// A message without meaning.
    Nothing,
}

impl<'a> Reply<'a> {
    /// Parses a reply to the message with this index and type.
    pub(crate) fn parse(message: Message<'a>, index: usize, request: u16) -> Result<Self, Malformed> {
        match i32::from(message.kind) {
            libc::NLMSG_NOOP => Ok(Self::Nothing),
            // The payload is an error number and, if the flag is set, extended ack attributes.
            libc::NLMSG_DONE => {
                let Some(number) = message.payload.first_chunk() else { return Ok(Self::Done) };
                let attributes = message.payload.get(size_of::<i32>()..).unwrap_or_default();
                outcome(&message, *number, attributes, index, request)
            }
            // The payload is an error number, the header of the request, its payload unless `NLM_F_CAPPED` is set, and
            // extended ack attributes.
            libc::NLMSG_ERROR => {
                let (header, _) = message.split_header::<{ size_of::<i32>() + MESSAGE_HEADER }>()?;
                let (number, original) = header.split_first_chunk().expect("the header is longer than a number");
                let answered = read_u16(original, TYPE_OFFSET).unwrap_or(request);
                let echoed = if message.flags & NLM_F_CAPPED == 0 { original_length(original) } else { MESSAGE_HEADER };
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
    let mut refusal = Refusal { index, kind, errno: number.saturating_neg(), offset: None, message: None };
    if message.flags & NLM_F_ACK_TLVS != 0 {
        for attribute in Attributes::new(attributes) {
            let attribute = attribute?;
            match attribute.kind {
                NLMSGERR_ATTR_MSG => refusal.message = Some(attribute.escaped_text().into_owned()),
                NLMSGERR_ATTR_OFFS => refusal.offset = Some(attribute.u32_ne()?),
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

const NLM_F_CAPPED: u16 = libc::NLM_F_CAPPED as u16;
const NLM_F_ACK_TLVS: u16 = libc::NLM_F_ACK_TLVS as u16;
/// `enum nlmsgerr_attrs` of `include/uapi/linux/netlink.h`.
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

#[cfg(test)]
mod tests;
