//! Where Services and endpoints come from: manifests on disk.
