//! A small HTTP/1.1 server on a separate thread.

mod budget;
mod compression;
mod listen;
mod response;
mod server;
#[cfg(test)]
pub(crate) mod testing;
mod thread;

pub use budget::{Budget, PortPermit, TooManyPorts};
pub use compression::{accepts_gzip, gzip};
pub use listen::{ListenError, ListenScope, listen};
pub use response::{Body, Request, Response, json, not_found, text};
pub(crate) use response::{PutBody, json_chunks};
pub use server::{Handler, Limits};
pub use thread::{HttpThread, Server};
