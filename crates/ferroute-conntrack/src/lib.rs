//! Removes connection-tracking entries that point at endpoints that are gone.
