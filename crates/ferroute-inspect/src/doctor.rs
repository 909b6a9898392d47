//! Diagnoses Service problems on a host.
//!
//! ```text
//!   host, kernel, API server ──► Inputs ──► diagnose ──► Diagnosis ──► text or JSON
//!                     (read_inputs)         (checks)
//! ```
//!
//! Each check is a pure function of [`Inputs`]. Values that could not be read are part of the inputs, so a check that
//! depends on them reports the reason and never passes.

mod checks;
mod diagnosis;
mod host;
mod inputs;

pub use diagnosis::{Diagnosis, Finding, Severity, Unknown, diagnose, write_diagnosis_into};
pub use host::read_inputs;
pub(crate) use host::unrouted;
pub use inputs::{
    BackendRules, ClockOffset, ConntrackEvents, ConntrackUsage, EarlierEffect, EarlierRule, EndpointProbe,
    FamilyInputs, FirewallRefusal, FullAffinityList, Inputs, Listener, NodePort, ProbeResult, Process, Reading,
    Unrouted, UnroutedPod,
};
