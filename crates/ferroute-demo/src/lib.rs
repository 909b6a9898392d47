//! A small cluster of network namespaces on one machine.
