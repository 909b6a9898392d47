//! The socket, from both sides: one word is asked, the answer is a line that says how it went and then the data.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream},
    },
    time::{Duration, SystemTime},
};

use crate::recording::Bundle;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};

use super::Inbox;
use crate::{logging::chain, modes::REGISTRY};
use ferroute_config::settings::Settings;

/// What a bundle says about the proxy that it comes from.
#[derive(Clone, Debug)]
pub struct About {
    /// The mode whose rules are in force.
    pub mode: &'static str,
    /// The configuration in force, as YAML.
    pub configuration: String,
}

impl About {
    /// About a proxy with these settings.
    pub fn of(settings: &Settings) -> Self {
        let mode = REGISTRY.active(settings.resolved.mode).name().as_str();
        Self { mode, configuration: settings.config.to_yaml() }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No proxy listens here.
    #[error("no Ferroute runs in this network namespace, or it has no socket for questions")]
    NotThere(#[source] io::Error),
    /// The conversation broke off.
    #[error("the running Ferroute has broken off its answer")]
    BrokenOff(#[source] io::Error),
    /// It says why not.
    #[error("the running Ferroute says: {0}")]
    Refused(String),
}

/// Asks the proxy in this network namespace for its bundle.
pub fn ask() -> Result<impl Read, AskError> {
    let mut stream = StdStream::connect_addr(&name().map_err(AskError::NotThere)?).map_err(AskError::NotThere)?;
    stream.write_all(b"bundle\n").map_err(AskError::BrokenOff)?;
    let mut answer = BufReader::new(stream);
    let mut status = String::new();
    answer.read_line(&mut status).map_err(AskError::BrokenOff)?;
    match status.trim_end() {
        "ok" => Ok(answer),
        "" => Err(AskError::BrokenOff(io::ErrorKind::UnexpectedEof.into())),
        other => Err(AskError::Refused(other.to_owned())),
    }
}

/// Answers questions until the task is ended. Without the socket the proxy does its work as well.
pub async fn serve(inbox: Inbox, about: About) {
    let listener = match listen() {
        Ok(listener) => listener,
        Err(error) => {
            let why = match error.kind() {
                io::ErrorKind::AddrInUse => "another Ferroute runs in this network namespace".to_owned(),
                _ => chain(&error),
            };
            return tracing::info!("no socket for questions, so `ferroute bundle` gets no answer: {why}");
        }
    };
    loop {
        match listener.accept().await {
            // One at a time: an answer takes memory.
            Ok((stream, _)) => {
                let answered = tokio::time::timeout(LONGEST_ANSWER, answer(stream, &inbox, &about)).await;
                if let Ok(Err(error)) = answered {
                    tracing::debug!("cannot answer a question: {}", chain(&error));
                }
            }
            Err(error) => {
                tracing::debug!("cannot take a question: {}", chain(&error));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn listen() -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&name()?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn name() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

async fn answer(mut stream: UnixStream, inbox: &Inbox, about: &About) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    // A socket without a file has no permissions of its own.
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
        return stream.write_all(b"only root and the proxy's own user are answered\n").await;
    }
    let mut question = [0; 7];
    stream.read_exact(&mut question).await?;
    if &question != b"bundle\n" {
        return stream.write_all(b"the question is not known: is the program of the same version?\n").await;
    }
    let Ok(answer) = inbox.ask().await else {
        return stream.write_all(b"the sync loop has ended\n").await;
    };
    let About { mode, configuration } = about.clone();
    // Large clusters take a while, and the source must not wait for them.
    let text = tokio::task::spawn_blocking(move || {
        let mut text = b"ok\n".to_vec();
        let version = env!("CARGO_PKG_VERSION");
        let bundle =
            Bundle::new(answer.snapshot, version, SystemTime::now(), mode, configuration, answer.host_addresses);
        bundle.write(&mut text).map(|()| text)
    });
    stream.write_all(&text.await.map_err(io::Error::other)??).await
}

/// The name of the socket, without the zero byte that marks names of this kind.
const NAME: &[u8] = b"ferroute";

/// A questioner that takes longer to read its answer gets no more of it.
const LONGEST_ANSWER: Duration = Duration::from_secs(60);

/// Pause after a questioner could not be let in.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
