//! Access to the virtual servers of the kernel.

pub(crate) mod message;

use std::{net::Ipv4Addr, time::Duration};

use ferroute_core::Protocol;
use ferroute_netlink::{Batch, Error, Message, Refusals, Request, Socket};

use self::message::{
    CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, GENL_ID_CTRL, IPVS_CMD_DEL_DEST, IPVS_CMD_DEL_SERVICE,
    IPVS_CMD_GET_CONFIG, IPVS_CMD_GET_DEST, IPVS_CMD_GET_SERVICE, IPVS_CMD_NEW_DEST, IPVS_CMD_NEW_SERVICE,
    IPVS_CMD_SET_CONFIG, IPVS_CMD_SET_DEST, IPVS_CMD_SET_SERVICE, IPVS_GENL_NAME, TIMEOUT_TCP, TIMEOUT_TCP_FIN,
    TIMEOUT_UDP, genl_header, parse_family, parse_real_server, parse_server, parse_timeouts, write_real_server,
    write_server, write_service,
};
use crate::{
    kernel::{KernelRealServer, Operation},
    plan::{ServerConfig, ServerKey, ServerSettings},
};

/// A failure to read or delete virtual servers.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The netlink socket or the generic netlink family cannot be opened.
    #[error("cannot open a netlink socket for virtual servers")]
    Open(#[source] Error),
    /// Virtual servers cannot be listed.
    #[error("cannot list virtual servers")]
    List(#[source] Error),
    /// The connections of a virtual server cannot be counted.
    #[error("cannot count the connections of virtual server {server}")]
    Count {
        /// The virtual server.
        server: ServerKey,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The real servers of a virtual server cannot be listed.
    #[error("cannot list the real servers of virtual server {server}")]
    RealServers {
        /// The virtual server.
        server: ServerKey,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The timeouts of connections cannot be read or set.
    #[error("cannot read or set the timeouts of ipvs connections")]
    Timeouts(#[source] Error),
    /// A virtual server with the scheduler cannot be added.
    #[error("cannot use ipvs scheduler {scheduler:?}")]
    Scheduler {
        /// The scheduler.
        scheduler: String,
        /// The cause.
        #[source]
        source: Error,
    },
    /// A virtual server cannot be deleted.
    #[error("cannot delete virtual server {server}")]
    Delete {
        /// The virtual server.
        server: ServerKey,
        /// The cause.
        #[source]
        source: Error,
    },
}

/// Access to the virtual servers of a network namespace.
#[derive(Debug)]
pub struct VirtualServers {
    socket: Socket,
    /// The id of the generic netlink family `IPVS` in this kernel.
    family: u16,
}

impl VirtualServers {
    /// Opens a netlink socket in the calling thread's network namespace. Returns `None` if the kernel does not support
    /// ipvs. Loads the kernel module if necessary.
    pub fn open() -> Result<Option<Self>, ServerError> {
        let mut socket = Socket::open(ferroute_netlink::Protocol::Generic).map_err(ServerError::Open)?;
        match socket.get(&mut family_request(), parse_family) {
            Ok(family) => Ok(family.map(|family| Self { socket, family })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(ServerError::Open(error)),
        }
    }

    /// Returns the virtual servers with an address. kube-proxy does not create virtual servers by firewall mark
    /// (`ipvsadm -f`).
    pub fn list(&mut self) -> Result<Vec<(ServerKey, ServerConfig)>, ServerError> {
        let mut request = Request::new(self.family, 0, &genl_header(IPVS_CMD_GET_SERVICE));
        self.socket.collect(&mut request, parse_server).map_err(ServerError::List)
    }

    /// Returns the real servers of a virtual server.
    pub fn real_servers(&mut self, server: ServerKey) -> Result<Vec<KernelRealServer>, ServerError> {
        let mut request = Request::new(self.family, 0, &genl_header(IPVS_CMD_GET_DEST));
        write_server(&mut request.attributes(), server);
        let parse = |message: Message<'_>| parse_real_server(message, server.address.is_ipv4());
        self.socket.collect(&mut request, parse).map_err(|source| ServerError::RealServers { server, source })
    }

    /// Sets the timeouts of connections. They apply to the whole network namespace.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), ServerError> {
        let mut request = Request::new(self.family, 0, &genl_header(IPVS_CMD_SET_CONFIG));
        let mut attributes = request.attributes();
        for (kind, timeout) in [TIMEOUT_TCP, TIMEOUT_TCP_FIN, TIMEOUT_UDP].into_iter().zip(timeouts.seconds()) {
            if let Some(timeout) = timeout {
                attributes.put_u32_ne(kind, timeout);
            }
        }
        drop(attributes);
        self.socket.request_ack(&mut request).map_err(ServerError::Timeouts)
    }

    /// Reports whether the kernel has these timeouts.
    pub fn has_timeouts(&mut self, timeouts: Timeouts) -> Result<bool, ServerError> {
        let mut request = Request::new(self.family, 0, &genl_header(IPVS_CMD_GET_CONFIG));
        let actual = self.socket.get(&mut request, parse_timeouts).map_err(ServerError::Timeouts)?;
        let differs = |(wanted, actual): (Option<u32>, u32)| wanted.is_some_and(|wanted| wanted != actual);
        Ok(!actual.is_some_and(|actual| timeouts.seconds().into_iter().zip(actual).any(differs)))
    }

    /// Checks that the kernel has a scheduler, which loads its module if necessary. Unless a virtual server uses it,
    /// one is added temporarily at an address that is reserved for documentation, as in kube-proxy.
    pub fn check_scheduler(&mut self, scheduler: &str) -> Result<(), ServerError> {
        if self.list()?.iter().any(|(_, config)| *config.scheduler == *scheduler) {
            return Ok(());
        }
        let server = ServerKey { address: Ipv4Addr::new(198, 51, 100, 0).into(), port: 20000, protocol: Protocol::Tcp };
        let mut request = Request::new(self.family, 0, &genl_header(IPVS_CMD_NEW_SERVICE));
        let settings = ServerSettings { scheduler: None, flags: 0, timeout: 0 };
        write_service(&mut request.attributes(), server, settings, scheduler);
        match self.socket.request_ack(&mut request) {
            Ok(()) => self.delete(server),
            Err(error) if error.is_exists() => Ok(()),
            Err(source) => Err(ServerError::Scheduler { scheduler: scheduler.to_owned(), source }),
        }
    }

    /// Appends the message that makes a change to a virtual server or real server; other changes are ignored.
    pub(crate) fn encode(&self, batch: &mut Batch, operation: Operation, scheduler: &str) {
        let command = match operation {
            Operation::AddServer(..) => IPVS_CMD_NEW_SERVICE,
            Operation::EditServer(..) => IPVS_CMD_SET_SERVICE,
            Operation::DeleteServer(_) => IPVS_CMD_DEL_SERVICE,
            Operation::AddRealServer(..) => IPVS_CMD_NEW_DEST,
            Operation::SetWeight(..) => IPVS_CMD_SET_DEST,
            Operation::DeleteRealServer(..) => IPVS_CMD_DEL_DEST,
            Operation::AddEntry(..) | Operation::DeleteEntry(..) | Operation::Bind(_) | Operation::Unbind(_) => return,
        };
        let mut message = batch.message(self.family, 0, &genl_header(command));
        match operation {
            Operation::AddServer(key, settings) | Operation::EditServer(key, settings) => {
                write_service(&mut message, key, settings, settings.scheduler(scheduler));
            }
            Operation::AddRealServer(key, real, weight) | Operation::SetWeight(key, real, weight) => {
                write_real_server(&mut message, key, real, Some(weight.into()));
            }
            Operation::DeleteRealServer(key, real) => write_real_server(&mut message, key, real, None),
            _ => {
                if let Some(key) = operation.server() {
                    write_server(&mut message, key);
                }
            }
        }
    }

    /// Sends encoded changes.
    pub(crate) fn send(&mut self, batch: &mut Batch) -> Result<Refusals, Error> {
        self.socket.send_batch(batch)
    }

    /// Returns the number of connections to the real servers of a virtual server, see [`KernelRealServer::connections`].
    pub fn connections(&mut self, server: ServerKey) -> Result<u64, ServerError> {
        Ok(self.real_servers(server)?.iter().map(|real| real.connections).sum())
    }

    /// Deletes a virtual server with its real servers.
    pub fn delete(&mut self, server: ServerKey) -> Result<(), ServerError> {
        self.socket
            .request_ack(&mut deletion(self.family, server))
            .map_err(|source| ServerError::Delete { server, source })
    }
}

fn family_request() -> Request {
    let mut request = Request::new(GENL_ID_CTRL, 0, &genl_header(CTRL_CMD_GETFAMILY));
    request.attributes().put_str(CTRL_ATTR_FAMILY_NAME, IPVS_GENL_NAME);
    request
}

fn deletion(family: u16, server: ServerKey) -> Request {
    let mut request = Request::new(family, 0, &genl_header(IPVS_CMD_DEL_SERVICE));
    write_server(&mut request.attributes(), server);
    request
}

/// Timeouts of connections; `None` keeps the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of established TCP connections.
    pub tcp: Option<Duration>,
    /// Timeout of TCP connections after a FIN packet.
    pub tcp_fin: Option<Duration>,
    /// Timeout of UDP flows.
    pub udp: Option<Duration>,
}

impl Timeouts {
    /// Reports whether no timeout is set.
    pub fn is_empty(self) -> bool {
        self.seconds() == [None; 3]
    }

    /// Returns the timeouts in the kernel's unit and order. It keeps those of zero seconds, too.
    fn seconds(self) -> [Option<u32>; 3] {
        [self.tcp, self.tcp_fin, self.udp].map(|timeout| {
            let seconds = timeout?.as_secs().try_into().unwrap_or(u32::MAX);
            (seconds > 0).then_some(seconds)
        })
    }
}
