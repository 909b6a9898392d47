//! Detects starts and reloads of firewalld, which can remove rules of other programs.

use std::{io, time::Duration};

use tokio::sync::mpsc;

use crate::bus::{BUS, Connection, METHOD_RETURN, Message, SIGNAL};

/// Sends a message for each start and reload of firewalld until the receiver is dropped.
///
/// Most hosts have no firewalld and many containers no system bus, so a missing bus is not reported. The bus may start
/// after the proxy and may be restarted; connecting is retried at an interval.
pub async fn watch_firewalld(reloads: mpsc::Sender<()>) {
    while !reloads.is_closed() {
        match FirewalldWatch::open().await {
            Ok(mut watch) => loop {
                match watch.reloaded().await {
                    Ok(()) => {
                        tracing::info!("firewalld started or reloaded; checking all rules");
                        if reloads.send(()).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::debug!("lost the connection to the system bus: {error}");
                        break;
                    }
                }
            },
            Err(error) if error.is_no_bus() => tracing::trace!("{error}: {}", error.source),
            Err(error) => tracing::debug!("{error}: {}", error.source),
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

/// A connection to the system bus that receives firewalld's signals.
///
/// Like kube-proxy, it watches for a new owner of firewalld's name and for the signal `Reloaded`.
#[derive(Debug)]
struct FirewalldWatch {
    bus: Connection,
    /// The unique name of firewalld's connection, while firewalld is running.
    owner: Option<String>,
    /// The serial number of the call of `GetNameOwner`.
    owner_query: u32,
}

/// The system bus cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch firewalld on the message bus at {address}")]
struct FirewalldError {
    address: String,
    #[source]
    source: io::Error,
}

impl FirewalldError {
    /// Reports whether there is no bus at the address.
    fn is_no_bus(&self) -> bool {
        [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&self.source.kind())
    }
}

impl FirewalldWatch {
    /// Connects to the bus at `DBUS_SYSTEM_BUS_ADDRESS`, by default the system bus.
    async fn open() -> Result<Self, FirewalldError> {
        let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok().filter(|address| !address.is_empty());
        Self::connect(address.as_deref().unwrap_or(SYSTEM_BUS)).await
    }

    async fn connect(address: &str) -> Result<Self, FirewalldError> {
        let connect = async {
            let mut bus = Connection::open(address).await?;
            bus.call("AddMatch", Some(OWNER_CHANGED_RULE)).await?;
            let owner_query = bus.call("GetNameOwner", Some(FIREWALLD)).await?;
            // Added last, so that the owner is known before the first `Reloaded`.
            bus.call("AddMatch", Some(RELOADED_RULE)).await?;
            Ok(Self { bus, owner: None, owner_query })
        };
        connect.await.map_err(|source| FirewalldError { address: address.to_owned(), source })
    }

    /// Waits until firewalld has started or reloaded. This method is cancel safe.
    ///
    /// # Errors
    ///
    /// The connection to the bus is lost.
    async fn reloaded(&mut self) -> io::Result<()> {
        loop {
            let message = self.bus.receive().await?;
            if self.handle(&message) {
                return Ok(());
            }
        }
    }

    /// Updates the owner and reports whether firewalld has started or reloaded.
    fn handle(&mut self, message: &Message) -> bool {
        let Message { kind, sender, interface, member, reply_serial, arguments } = message;
        match (*kind, &**interface, &**member) {
            (METHOD_RETURN, ..) if sender == BUS && *reply_serial == self.owner_query => {
                self.owner = arguments.first().cloned();
                false
            }
            (SIGNAL, BUS, "NameOwnerChanged") if sender == BUS => match arguments.as_slice() {
                [name, _, owner] if name == FIREWALLD => {
                    self.owner = Some(owner.clone()).filter(|owner| !owner.is_empty());
                    self.owner.is_some()
                }
                _ => false,
            },
            // A match rule does not filter unicast signals, which every client may send.
            (SIGNAL, FIREWALLD, "Reloaded") => self.owner.as_ref() == Some(sender),
            _ => false,
        }
    }
}

/// firewalld's well-known name, and its interface.
const FIREWALLD: &str = "org.fedoraproject.FirewallD1";

const RELOADED_RULE: &str = "type='signal',sender='org.fedoraproject.FirewallD1',path='/org/fedoraproject/FirewallD1',\
                             interface='org.fedoraproject.FirewallD1',member='Reloaded'";
const OWNER_CHANGED_RULE: &str = "type='signal',sender='org.freedesktop.DBus',path='/org/freedesktop/DBus',\
                                  interface='org.freedesktop.DBus',member='NameOwnerChanged',\
                                  arg0='org.fedoraproject.FirewallD1'";

/// The specification's default address and its predecessor, usually a link to it.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket;unix:path=/var/run/dbus/system_bus_socket";

const RECONNECT_INTERVAL: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
