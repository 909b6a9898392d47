//! kube-proxy's historical userspace mode: a process accepts the connections of clients and relays them to endpoints.
//!
//! ```text
//!   client ──► 10.96.0.10:80 ──(redirected by a rule)──► listener of the service port ──► endpoint
//!                                                         │ accepts      │ connects
//!                                                         └── splice(2) ─┘
//! ```
//!
//! A client's connection is accepted before an endpoint is chosen. If that endpoint refuses or does not respond,
//! another one is tried, so a client never sees a refused connection while any endpoint is alive. In return, the
//! endpoint sees the node's address instead of the client's, and each byte passes through a process.
//!
//! [`Engine`] holds the listeners and is independent of Services and rules. It runs in a worker process
//! ([`run_worker`]), which outlives the proxy, so that connections survive as well. [`plan`] derives listeners and
//! iptables rules from Services, and [`UserspaceDataplane`] applies both.

mod balancer;
mod client;
mod datagram;
mod dataplane;
mod engine;
mod exchange;
mod listener;
mod own_sockets;
pub mod plan;
mod planned_relay;
mod ports;
mod protocol;
mod relay;
mod relay_ports;
mod retired;
mod shares;
mod stats;
mod tcp;
mod udp;
mod worker;

pub use client::{
    DRAIN_DEADLINE, RunningWorker, SHORT_SEARCH, WorkerClient, WorkerError, WorkerProgram, running_workers,
    running_workers_within,
};
pub use dataplane::{Relay, UserspaceDataplane};
pub use engine::{Engine, EngineListener, OpenError};
pub use listener::{Limits, ListenerSpec, ListenerStats, Listeners};
pub use planned_relay::{PlannedRelay, listener_line};
pub use ports::{NoFreePort, PortRange};
pub use protocol::OpenListener;
pub use stats::{ServicePortStats, StatsReader};
pub use worker::{WorkerSettings, run_worker};
