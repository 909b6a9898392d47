//! The tables of the legacy iptables backend, which are read by socket options and not by netlink.

use std::{io, os::fd::OwnedFd};

use libc::c_int;

use crate::sys;

/// What the kernel reports about a table of the legacy backend (`struct ipt_getinfo`) without copying its rules. It
/// changes with the number and size of the rules of any chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape([u32; SHAPE]);

impl TableShape {
    /// Reads the shape of an IPv4 or IPv6 table in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel has no such table, or the process lacks `CAP_NET_ADMIN`.
    pub fn read(is_ipv6: bool, table: &str) -> io::Result<Self> {
        let (domain, level) = if is_ipv6 { (libc::AF_INET6, libc::SOL_IPV6) } else { (libc::AF_INET, libc::SOL_IP) };
        let name = table.as_bytes();
        let mut info = [0; NAME + SHAPE * 4];
        // The last byte of the name stays zero.
        if name.len() >= NAME {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        info[..name.len()].copy_from_slice(name);
        let socket: OwnedFd = sys::open_datagram(domain)?;
        let length = sys::read_option(&socket, level, GET_INFO, &mut info)?;
        if length != info.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut shape = [0; SHAPE];
        let (words, _) = info[NAME..].as_chunks();
        shape.iter_mut().zip(words).for_each(|(number, bytes)| *number = u32::from_ne_bytes(*bytes));
        Ok(Self(shape))
    }
}

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: c_int = 64;
/// `XT_TABLE_MAXNAMELEN`.
const NAME: usize = 32;
/// The numbers of `struct ipt_getinfo`: valid hooks, entry and underflow of five hooks, number of entries, size.
const SHAPE: usize = 13;
