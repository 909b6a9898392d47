//! Walks one packet through typed rules and tells what happens to it and why.
