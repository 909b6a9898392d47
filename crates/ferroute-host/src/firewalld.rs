use std::io;

use crate::bus::{BUS, Bus, Signal, Value};

/// Hears when firewalld starts or reloads, which may take away rules of others.
///
/// It says so on the system's message bus, a signal each; kube-proxy listens to the same two.
#[derive(Debug)]
pub struct FirewalldWatch {
    bus: Bus,
}

/// The bus cannot be listened to.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen to firewalld on the message bus at {address}")]
pub struct FirewalldError {
    /// The bus.
    address: String,
    /// Why.
    #[source]
    source: io::Error,
}

impl FirewalldError {
    /// There is no bus there, as on most hosts without firewalld and in most containers.
    pub fn is_no_bus(&self) -> bool {
        [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&self.source.kind())
    }
}

impl FirewalldWatch {
    /// Listens on the system's bus: that of the environment variable `DBUS_SYSTEM_BUS_ADDRESS`, else the usual one.
    ///
    /// # Errors
    ///
    /// There is none, or it does not let us in.
    pub async fn open() -> Result<Self, FirewalldError> {
        let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok().filter(|address| !address.is_empty());
        Self::at(address.as_deref().unwrap_or(SYSTEM_BUS)).await
    }

    /// The same on the bus at this address.
    ///
    /// # Errors
    ///
    /// As above.
    pub async fn at(address: &str) -> Result<Self, FirewalldError> {
        let listen = async {
            let mut bus = Bus::connect(address).await?;
            for rule in [RELOADED, STARTED] {
                bus.call("AddMatch", &[Value::Text(rule)]).await?;
            }
            Ok(Self { bus })
        };
        listen.await.map_err(|source| FirewalldError { address: address.to_owned(), source })
    }

    /// Waits until firewalld has started or reloaded. May be cancelled and called again.
    ///
    /// # Errors
    ///
    /// The bus has gone. Nothing is heard any more: open another one, after a while.
    pub async fn reloaded(&mut self) -> io::Result<()> {
        loop {
            if has_reloaded(&self.bus.signal().await?) {
                return Ok(());
            }
        }
    }
}

fn has_reloaded(signal: &Signal) -> bool {
    let Signal { interface, member, texts } = signal;
    match (&**interface, &**member) {
        (FIREWALLD, "Reloaded") => true,
        // Name, former owner, new owner; it has started if there is one now.
        (BUS, "NameOwnerChanged") => {
            matches!(texts.as_slice(), [name, _, new] if name == FIREWALLD && !new.is_empty())
        }
        _ => false,
    }
}

const FIREWALLD: &str = "org.fedoraproject.FirewallD1";

/// Only from firewalld itself: anybody on the host may send signals.
const RELOADED: &str = "type='signal',sender='org.fedoraproject.FirewallD1',path='/org/fedoraproject/FirewallD1',\
                        interface='org.fedoraproject.FirewallD1',member='Reloaded'";
const STARTED: &str = "type='signal',sender='org.freedesktop.DBus',path='/org/freedesktop/DBus',\
                       interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='org.fedoraproject.FirewallD1'";

/// The specification's own default, and the place that the older one is a link to.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket;unix:path=/var/run/dbus/system_bus_socket";

#[cfg(test)]
mod tests;
