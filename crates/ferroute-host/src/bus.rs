//! A minimal D-Bus client: calls methods of the bus without waiting for replies and receives messages.
//!
//! Implements the parts of the [D-Bus specification](https://dbus.freedesktop.org/doc/dbus-specification.html) that
//! [`crate::firewalld`] needs: Unix sockets, EXTERNAL authentication, string arguments. The general crates cost more than
//! this file saves: `rustbus` adds 9 crates and `zbus` 13, each more than 30 s of compile time.

use std::{io, time::Duration};

use nix::{sys::socket::UnixAddr, unistd::getuid};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use crate::connect_now;

/// A connection to a bus.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    serial: u32,
    /// Received bytes that have not been parsed.
    received: Vec<u8>,
}

/// A received message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: u8,
    /// Unique name of the sender (`:1.7`), or the name of the bus. It is set by the bus, so it cannot be forged.
    pub(crate) sender: String,
    pub(crate) interface: String,
    pub(crate) member: String,
    /// The serial number of the call that a reply belongs to; 0 for other messages.
    pub(crate) reply_serial: u32,
    /// The leading string arguments.
    pub(crate) arguments: Vec<String>,
}

impl Connection {
    /// Connects to the first reachable address of a list in the format of `DBUS_SYSTEM_BUS_ADDRESS`.
    pub(crate) async fn open(addresses: &str) -> io::Result<Self> {
        let mut last_error = invalid("the address list has no Unix socket");
        for address in addresses.split(';').filter_map(parse_address) {
            // A bus that accepts no connections must not block the tasks of this thread.
            match connect_now(&address?) {
                Ok(stream) => {
                    let authenticate = Self::authenticate(UnixStream::from_std(stream)?);
                    return timeout(HANDSHAKE_TIMEOUT, authenticate).await.map_err(io::Error::from)?;
                }
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    async fn authenticate(mut stream: UnixStream) -> io::Result<Self> {
        let user: String = getuid().to_string().bytes().map(|digit| format!("{digit:02x}")).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).await?;
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n") && reply.len() < MAX_AUTH_REPLY {
            reply.push(stream.read_u8().await?);
        }
        if !reply.starts_with(b"OK ") {
            let text = String::from_utf8_lossy(&reply);
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("authentication failed: {:?}", text.trim()),
            ));
        }
        stream.write_all(b"BEGIN\r\n").await?;
        let mut connection = Self { stream, serial: 0, received: Vec::new() };
        connection.call("Hello", None).await?;
        Ok(connection)
    }

    /// Calls a method of the bus and returns the call's serial number without waiting for the reply.
    pub(crate) async fn call(&mut self, member: &str, argument: Option<&str>) -> io::Result<u32> {
        let fields = [(PATH, BUS_PATH), (INTERFACE, BUS), (MEMBER, member), (DESTINATION, BUS)];
        let mut body = Vec::new();
        let signature = argument.map_or("", |argument| {
            put_string(&mut body, argument);
            "s"
        });
        self.send(METHOD_CALL, &fields, signature, &body).await
    }

    /// Sends a message and returns its serial number.
    async fn send(&mut self, kind: u8, fields: &[(u8, &str)], signature: &str, body: &[u8]) -> io::Result<u32> {
        self.serial += 1;
        self.stream.write_all(&encode(kind, self.serial, fields, signature, body)).await?;
        Ok(self.serial)
    }

    /// Receives the next message. This method is cancel safe.
    pub(crate) async fn receive(&mut self) -> io::Result<Message> {
        loop {
            if let Some(length) = message_length(&self.received)?
                && self.received.len() >= length
            {
                let message = Message::parse(&self.received[..length]).ok_or_else(|| invalid("malformed message"));
                self.received.drain(..length);
                return message;
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Returns `None` for transports other than Unix sockets.
fn parse_address(text: &str) -> Option<io::Result<UnixAddr>> {
    let pairs = text.trim().strip_prefix("unix:")?;
    pairs.split(',').find_map(|pair| match pair.split_once('=')? {
        ("path", path) => Some(UnixAddr::new(path).map_err(Into::into)),
        ("abstract", name) => Some(UnixAddr::new_abstract(name.as_bytes()).map_err(Into::into)),
        _ => None,
    })
}

fn encode(kind: u8, serial: u32, fields: &[(u8, &str)], signature: &str, body: &[u8]) -> Vec<u8> {
    let mut message = vec![b'l', kind, 0, PROTOCOL_VERSION];
    message.extend(length_of(body));
    message.extend(serial.to_le_bytes());
    message.extend([0; 4]);
    for (code, value) in fields {
        let value_type = if *code == PATH { b'o' } else { b's' };
        align(&mut message, 8);
        message.extend([*code, 1, value_type, 0]);
        put_string(&mut message, value);
    }
    if !signature.is_empty() {
        align(&mut message, 8);
        message.extend([SIGNATURE, 1, b'g', 0, length_of(signature.as_bytes())[0]]);
        message.extend(signature.bytes().chain([0]));
    }
    let fields_length = length_of(&message[HEADER_LENGTH..]);
    message[12..HEADER_LENGTH].copy_from_slice(&fields_length);
    align(&mut message, 8);
    message.extend(body);
    message
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    align(bytes, 4);
    bytes.extend(length_of(text.as_bytes()));
    bytes.extend(text.bytes().chain([0]));
}

fn align(bytes: &mut Vec<u8>, boundary: usize) {
    bytes.resize(bytes.len().next_multiple_of(boundary), 0);
}

fn length_of(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes()
}

/// Returns the length of the message at the start of `bytes`, or `None` if its header is incomplete.
fn message_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    if bytes.len() < HEADER_LENGTH {
        return Ok(None);
    }
    let lengths = Reader::new(bytes).and_then(|mut reader| {
        reader.at = 4;
        let body = reader.u32()? as usize;
        reader.at = 12;
        Some((body, reader.u32()? as usize))
    });
    match lengths {
        Some((body, fields)) if body.max(fields) <= MAX_LENGTH => {
            Ok(Some((HEADER_LENGTH + fields).next_multiple_of(8) + body))
        }
        _ => Err(invalid("malformed message header")),
    }
}

impl Message {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes)?;
        let mut message = Self { kind: *bytes.get(1)?, ..Self::default() };
        let mut signature = String::new();
        reader.at = 12;
        let end = HEADER_LENGTH + reader.u32()? as usize;
        while reader.at < end {
            reader.align(8);
            let code = reader.u8()?;
            match (code, &*reader.signature()?) {
                (REPLY_SERIAL, "u") => message.reply_serial = reader.u32()?,
                (INTERFACE, "s") => message.interface = reader.string()?,
                (MEMBER, "s") => message.member = reader.string()?,
                (SENDER, "s") => message.sender = reader.string()?,
                (SIGNATURE, "g") => signature = reader.signature()?,
                (_, "s" | "o") => _ = reader.string()?,
                (_, "u") => _ = reader.u32()?,
                _ => return None,
            }
        }
        reader.align(8);
        let strings = signature.bytes().take_while(|value_type| *value_type == b's');
        message.arguments = strings.map(|_| reader.string()).collect::<Option<_>>()?;
        Some(message)
    }
}

/// Reads values in the byte order of the message; returns `None` at its end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    is_little_endian: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let order = bytes.first().filter(|order| [b'l', b'B'].contains(order))?;
        Some(Self { bytes, at: 0, is_little_endian: *order == b'l' })
    }

    fn align(&mut self, boundary: usize) {
        self.at = self.at.next_multiple_of(boundary);
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        self.align(4);
        let bytes = self.take(4)?.try_into().ok()?;
        Some(if self.is_little_endian { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    fn string(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        self.text(length)
    }

    fn signature(&mut self) -> Option<String> {
        let length = self.u8()?.into();
        self.text(length)
    }

    fn text(&mut self, length: usize) -> Option<String> {
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        // The terminating zero byte.
        self.u8().map(|_| text)
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// The name and interface of the bus itself.
pub(crate) const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

// Message types.
const METHOD_CALL: u8 = 1;
pub(crate) const METHOD_RETURN: u8 = 2;
pub(crate) const SIGNAL: u8 = 4;

// Codes of header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SENDER: u8 = 7;
const SIGNATURE: u8 = 8;

const PROTOCOL_VERSION: u8 = 1;
/// Length of the fixed part of the header in bytes: all parts before the header fields.
const HEADER_LENGTH: usize = 16;
/// The longest accepted header field array or body, in bytes; less than the protocol allows.
const MAX_LENGTH: usize = 1 << 20;
/// The longest accepted reply to the authentication request, in bytes.
const MAX_AUTH_REPLY: usize = 256;
/// The time for authentication, after which the bus counts as unavailable.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Requests a well-known name, as a service does at its start, and returns the call's serial number.
    pub(crate) async fn request_name(connection: &mut Connection, name: &str) -> u32 {
        let mut body = Vec::new();
        put_string(&mut body, name);
        align(&mut body, 4);
        body.extend([0; 4]);
        let fields = [(PATH, BUS_PATH), (INTERFACE, BUS), (MEMBER, "RequestName"), (DESTINATION, BUS)];
        connection.send(METHOD_CALL, &fields, "su", &body).await.unwrap()
    }

    /// Sends a signal without arguments, to all receivers or to one.
    pub(crate) async fn send_signal(connection: &mut Connection, name: &str, member: &str, destination: Option<&str>) {
        let path = format!("/{}", name.replace('.', "/"));
        let mut fields = vec![(PATH, &*path), (INTERFACE, name), (MEMBER, member)];
        fields.extend(destination.map(|destination| (DESTINATION, destination)));
        connection.send(SIGNAL, &fields, "", &[]).await.unwrap();
    }

    fn encoded() -> Vec<u8> {
        let mut body = Vec::new();
        ["org.example", "", ":1.7"].iter().for_each(|text| put_string(&mut body, text));
        align(&mut body, 4);
        body.extend([3, 0, 0, 0]);
        let fields = [(PATH, "/org/example"), (INTERFACE, "org.example.Thing"), (MEMBER, "Changed"), (SENDER, ":1.5")];
        encode(SIGNAL, 1, &fields, "sssu", &body)
    }

    #[test]
    fn encoded_message_is_parsed_again() {
        let message = encoded();
        assert_eq!(message_length(&message).unwrap(), Some(message.len()));
        let expected = Message {
            kind: SIGNAL,
            sender: ":1.5".to_owned(),
            interface: "org.example.Thing".to_owned(),
            member: "Changed".to_owned(),
            reply_serial: 0,
            arguments: ["org.example", "", ":1.7"].map(str::to_owned).to_vec(),
        };
        assert_eq!(Message::parse(&message), Some(expected));
    }

    #[test]
    fn malformed_messages_do_not_panic() {
        let message = encoded();
        for end in 0..message.len() {
            let _ = (message_length(&message[..end]), Message::parse(&message[..end]));
        }
        for at in 0..message.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut malformed = message.clone();
                malformed[at] = value;
                let _ = (message_length(&malformed), Message::parse(&malformed));
            }
        }
    }

    #[test]
    fn unix_socket_addresses_are_parsed() {
        let path = |text| parse_address(text).unwrap().unwrap().path().map(|path| path.display().to_string());
        assert_eq!(path("unix:path=/run/bus,guid=12").as_deref(), Some("/run/bus"));
        assert!(path("unix:abstract=/tmp/x").is_none());
        assert!(parse_address("tcp:host=localhost,port=1").is_none());
    }
}
