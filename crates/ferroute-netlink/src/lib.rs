//! Netlink sockets, batches, acks and dumps, without knowing what the messages mean.
