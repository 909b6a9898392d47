//! As much of D-Bus as it takes to hear a signal: its library for Rust brings some fifty crates, which is much for that.
//!
//! The format is that of the [D-Bus specification](https://dbus.freedesktop.org/doc/dbus-specification.html): a line
//! of text to say who we are, then messages of a header and a body. What is *not* here: types beyond texts and numbers,
//! passing files, and every way to reach a bus but a Unix socket.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream as StdStream},
    },
};

use nix::unistd::getuid;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// A connection to a bus.
#[derive(Debug)]
pub(crate) struct Bus {
    stream: UnixStream,
    serial: u32,
    /// What has come of the next message.
    partial: Vec<u8>,
}

/// A message that is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) kind: Kind,
    pub(crate) path: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) member: &'a str,
    /// `None`: to whoever listens.
    pub(crate) destination: Option<&'a str>,
    pub(crate) body: &'a [Value<'a>],
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Call = 1,
    Signal = 4,
}

/// A value in a body.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    /// Needed to take a name, which only those do who play firewalld.
    #[cfg(test)]
    Number(u32),
}

/// A signal that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signal {
    pub(crate) interface: String,
    pub(crate) member: String,
    /// The texts at the start of the body.
    pub(crate) texts: Vec<String>,
}

impl Bus {
    /// Connects to the first address that works of a list as in `DBUS_SYSTEM_BUS_ADDRESS`, and greets.
    pub(crate) async fn connect(addresses: &str) -> io::Result<Self> {
        let mut last = malformed("no address of a bus on a Unix socket");
        for address in addresses.split(';').filter_map(socket_address) {
            match StdStream::connect_addr(&address?) {
                Ok(stream) => {
                    stream.set_nonblocking(true)?;
                    return Self::greet(UnixStream::from_std(stream)?).await;
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn greet(mut stream: UnixStream) -> io::Result<Self> {
        // The other side sees who we are; the text only says which of its ways to find out we mean.
        let user: String = getuid().to_string().bytes().map(|digit| format!("{digit:02x}")).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n") && answer.len() < LONGEST_LINE {
            answer.push(stream.read_u8().await?);
        }
        if !answer.starts_with(b"OK ") {
            let text = String::from_utf8_lossy(&answer).trim().to_owned();
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the bus says {text:?}")));
        }
        stream.write_all(b"BEGIN\r\n").await?;
        let mut bus = Self { stream, serial: 0, partial: Vec::new() };
        bus.call("Hello", &[]).await?;
        Ok(bus)
    }

    /// Calls a method of the bus itself, without waiting for the answer: a refusal shows when the bus hangs up.
    pub(crate) async fn call(&mut self, member: &str, body: &[Value<'_>]) -> io::Result<()> {
        let (kind, path) = (Kind::Call, "/org/freedesktop/DBus");
        self.send(&Outgoing { kind, path, interface: BUS, member, destination: Some(BUS), body }).await
    }

    /// Sends a message.
    pub(crate) async fn send(&mut self, message: &Outgoing<'_>) -> io::Result<()> {
        self.serial += 1;
        self.stream.write_all(&message.bytes(self.serial)).await
    }

    /// Waits for the next signal. May be cancelled and called again.
    pub(crate) async fn signal(&mut self) -> io::Result<Signal> {
        loop {
            while let Some(length) = length(&self.partial)?
                && self.partial.len() >= length
            {
                let message: Vec<u8> = self.partial.drain(..length).collect();
                if let Some(signal) = parse(&message)? {
                    return Ok(signal);
                }
            }
            if self.stream.read_buf(&mut self.partial).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// `None` for ways to reach a bus that are not known.
fn socket_address(text: &str) -> Option<io::Result<SocketAddr>> {
    let keys = text.trim().strip_prefix("unix:")?;
    keys.split(',').find_map(|pair| match pair.split_once('=')? {
        ("path", path) => Some(SocketAddr::from_pathname(path)),
        ("abstract", name) => Some(SocketAddr::from_abstract_name(name)),
        _ => None,
    })
}

impl Outgoing<'_> {
    fn bytes(&self, serial: u32) -> Vec<u8> {
        let mut body = Writer(Vec::new());
        let mut signature = String::new();
        for value in self.body {
            match value {
                Value::Text(text) => {
                    signature.push('s');
                    body.text(text);
                }
                #[cfg(test)]
                Value::Number(number) => {
                    signature.push('u');
                    body.number(*number);
                }
            }
        }
        let mut fields = Writer(Vec::new());
        for (code, kind, text) in [
            (PATH, "o", Some(self.path)),
            (INTERFACE, "s", Some(self.interface)),
            (MEMBER, "s", Some(self.member)),
            (DESTINATION, "s", self.destination),
            (SIGNATURE, "g", Some(&*signature).filter(|signature| !signature.is_empty())),
        ] {
            let Some(text) = text else { continue };
            fields.pad(8);
            fields.0.push(code);
            fields.signature(kind);
            if kind == "g" { fields.signature(text) } else { fields.text(text) }
        }
        let mut message = Writer(vec![b'l', self.kind as u8, 0, VERSION]);
        message.number(size(&body.0));
        message.number(serial);
        message.number(size(&fields.0));
        message.0.extend(fields.0);
        message.pad(8);
        message.0.extend(body.0);
        message.0
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn pad(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: u32) {
        self.pad(4);
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(size(text.as_bytes()));
        self.0.extend(text.bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        // Only those from above, of a few characters each.
        self.0.push(size(text.as_bytes()).to_le_bytes()[0]);
        self.0.extend(text.bytes());
        self.0.push(0);
    }
}

fn size(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Bytes of the message that begins here, once that can be told.
fn length(bytes: &[u8]) -> io::Result<Option<usize>> {
    if bytes.len() < HEADER {
        return Ok(None);
    }
    let mut reader = Reader::of(bytes)?;
    reader.at = 4;
    let body = reader.number()? as usize;
    reader.at = 12;
    let fields = reader.number()? as usize;
    if body.max(fields) > LONGEST {
        return Err(malformed("a message is too long"));
    }
    Ok(Some((HEADER + fields).next_multiple_of(8) + body))
}

/// `None` for messages that are no signals.
fn parse(message: &[u8]) -> io::Result<Option<Signal>> {
    let mut reader = Reader::of(message)?;
    reader.at = 12;
    let end = HEADER + reader.number()? as usize;
    let (mut interface, mut member, mut signature) = (String::new(), String::new(), String::new());
    while reader.at < end {
        reader.pad(8);
        let code = reader.byte()?;
        let kind = reader.signature()?;
        let value = match &*kind {
            "s" | "o" => reader.text()?,
            "g" => reader.signature()?,
            "u" => {
                reader.number()?;
                continue;
            }
            _ => return Err(malformed("a header field is of an unknown type")),
        };
        match code {
            INTERFACE => interface = value,
            MEMBER => member = value,
            SIGNATURE => signature = value,
            _ => {}
        }
    }
    if message.get(1) != Some(&(Kind::Signal as u8)) {
        return Ok(None);
    }
    reader.pad(8);
    let texts = signature.bytes().take_while(|kind| *kind == b's').map(|_| reader.text()).collect::<io::Result<_>>()?;
    Ok(Some(Signal { interface, member, texts }))
}

/// Reads in the byte order of who has sent the message.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    is_little: bool,
}

impl<'a> Reader<'a> {
    fn of(bytes: &'a [u8]) -> io::Result<Self> {
        match bytes.first() {
            Some(order @ (b'l' | b'B')) => Ok(Self { bytes, at: 0, is_little: *order == b'l' }),
            _ => Err(malformed("a message does not tell its byte order")),
        }
    }

    fn pad(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let end = self.at.checked_add(count).ok_or_else(|| malformed("a length is too large"))?;
        let taken = self.bytes.get(self.at..end).ok_or_else(|| malformed("a message ends before its end"))?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u32> {
        self.pad(4);
        let bytes = self.take(4)?;
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        Ok(if self.is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    fn text(&mut self) -> io::Result<String> {
        let length = self.number()? as usize;
        self.string(length)
    }

    fn signature(&mut self) -> io::Result<String> {
        let length = self.byte()?;
        self.string(length.into())
    }

    fn string(&mut self, length: usize) -> io::Result<String> {
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        // The zero behind it.
        self.byte()?;
        Ok(text)
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Name and interface of the bus itself.
pub(crate) const BUS: &str = "org.freedesktop.DBus";

const VERSION: u8 = 1;
/// Bytes before the header's fields.
const HEADER: usize = 16;
/// Bytes of fields, or of a body. The bus allows more, but not for what is listened to.
const LONGEST: usize = 1 << 20;
/// Bytes of the answer to who we are.
const LONGEST_LINE: usize = 256;

// Codes of header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let body = [Value::Text("org.example"), Value::Text(""), Value::Text(":1.7"), Value::Number(3)];
        let (path, interface, member) = ("/org/example", "org.example.Thing", "Happened");
        let message = Outgoing { kind: Kind::Signal, path, interface, member, destination: None, body: &body }.bytes(1);
        assert_eq!(length(&message).unwrap(), Some(message.len()));
        let texts = ["org.example", "", ":1.7"].map(str::to_owned).to_vec();
        let expected = Signal { interface: interface.to_owned(), member: member.to_owned(), texts };
        assert_eq!(parse(&message).unwrap(), Some(expected));
        let call = Outgoing { kind: Kind::Call, path, interface, member, destination: Some(BUS), body: &[] }.bytes(2);
        assert_eq!(parse(&call).unwrap(), None);
    }

    #[test]
    fn no_message_makes_it_panic() {
        let body = [Value::Text("abc")];
        let (path, interface, member) = ("/a", "b.c", "D");
        let good = Outgoing { kind: Kind::Signal, path, interface, member, destination: None, body: &body }.bytes(1);
        for end in 0..good.len() {
            let _ = (length(&good[..end]), parse(&good[..end]));
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = (length(&bad), parse(&bad));
            }
        }
    }

    #[test]
    fn addresses_are_read_as_libraries_write_them() {
        let path = |text| socket_address(text).unwrap().unwrap().as_pathname().map(|path| path.display().to_string());
        assert_eq!(path("unix:path=/run/bus,guid=12").as_deref(), Some("/run/bus"));
        assert!(path("unix:abstract=/tmp/x").is_none());
        assert!(socket_address("tcp:host=localhost,port=1").is_none());
    }
}
