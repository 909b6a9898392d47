//! The cluster's networks in the kernel: network namespaces, bridges, wires, addresses, routes, sysctls.
//!
//! ```text
//!   topology (pure: what to do) ──► apply ──► ip (iproute2), sysctls
//! ```
//!
//! Everything is inside namespaces of the demo's own. The machine's own network is neither changed nor joined.

mod namespace;
mod program;
mod topology;

use std::{fs, io, path::PathBuf, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

pub(crate) use namespace::{Namespace, NamespaceError};
pub(crate) use program::{ProgramError, check_programs, search_path};
use topology::{Step, Sysctl};

use crate::{instance::Instance, plan::PlannedPod};

/// The cluster's networks could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetError {
    /// A namespace would not do.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A device, address or route would not do.
    #[error("cannot set up a network")]
    Program(#[from] ProgramError),
    /// A sysctl could not be written.
    #[error("cannot write {value} to {} in the network namespace {namespace}", path.display())]
    Sysctl {
        /// The namespace.
        namespace: String,
        /// The file below `/proc/sys`.
        path: PathBuf,
        /// What should be in it.
        value: &'static str,
        /// Why it could not be.
        #[source]
        source: io::Error,
    },
    /// Processes do not go although they were killed.
    #[error("processes {pids:?} in the network namespace {namespace} cannot be killed")]
    Unkillable {
        /// The namespace.
        namespace: String,
        /// The processes.
        pids: Vec<i32>,
    },
}

/// Whether the kernel has IPv6 at all.
pub(crate) fn has_ipv6() -> bool {
    fs::exists("/proc/sys/net/ipv6").unwrap_or(false)
}

/// Makes the machines and what joins them.
pub(crate) fn add_machines(instance: &Instance, ipv6: bool) -> Result<(), NetError> {
    apply(&topology::machines(instance, ipv6))
}

/// Makes a pod's network; one on the host network needs none.
pub(crate) fn add_pod(instance: &Instance, pod: &PlannedPod) -> Result<(), NetError> {
    if pod.host_network { Ok(()) } else { apply(&topology::pod(instance, pod)) }
}

/// Removes a pod's network, with every process that is still in it.
pub(crate) fn remove_pod(instance: &Instance, pod: &PlannedPod) -> Result<(), NetError> {
    if pod.host_network {
        return Ok(());
    }
    let namespace = pod_namespace(instance, pod);
    kill_processes(&namespace)?;
    // By itself the device goes some time after the namespace, and the next pod may want its name at once.
    let node = instance.namespace(pod.node.name());
    program::ip_batch(&node, &[format!("link delete {}", topology::device(pod))])?;
    Ok(namespace.delete()?)
}

/// Where a pod's processes run.
pub(crate) fn pod_namespace(instance: &Instance, pod: &PlannedPod) -> Namespace {
    let machine = if pod.host_network { pod.node.name().to_owned() } else { pod.short_name() };
    Namespace::named(instance.namespace(&machine))
}

/// Whether the instance has a namespace.
pub(crate) fn is_any(instance: &Instance) -> Result<bool, NetError> {
    Ok(!Namespace::list(&instance.prefix())?.is_empty())
}

/// Removes every namespace of the instance, with every process in them. Goes on after an error, and returns the first.
pub(crate) fn remove_all(instance: &Instance) -> Result<(), NetError> {
    let namespaces = Namespace::list(&instance.prefix())?;
    let killed: Vec<Result<(), NetError>> = namespaces.iter().map(kill_processes).collect();
    let deleted: Vec<Result<(), NetError>> =
        namespaces.iter().map(|namespace| namespace.delete().map_err(NetError::from)).collect();
    killed.into_iter().chain(deleted).collect()
}

fn apply(steps: &[Step]) -> Result<(), NetError> {
    for step in steps {
        match step {
            Step::Namespace(name) => Namespace::named(name).create()?,
            Step::Sysctls { namespace, values } => {
                Namespace::named(namespace).run_as_machine(namespace, || write_sysctls(namespace, values))??;
            }
            Step::Links { namespace, lines } => program::ip_batch(namespace, lines)?,
        }
    }
    Ok(())
}

fn write_sysctls(namespace: &str, values: &[Sysctl]) -> Result<(), NetError> {
    for Sysctl { path, value, optional } in values {
        let path = PathBuf::from("/proc/sys").join(path);
        match fs::write(&path, value) {
            Err(error) if *optional && error.kind() == io::ErrorKind::NotFound => {}
            written => {
                written.map_err(|source| NetError::Sysctl { namespace: namespace.into(), path, value, source })?;
            }
        }
    }
    Ok(())
}

/// Kills what runs in a namespace of ours: pods, proxies, and what was started there by `demo exec`.
fn kill_processes(namespace: &Namespace) -> Result<(), NetError> {
    let mut pids = Vec::new();
    for _ in 0..KILL_ATTEMPTS {
        pids = namespace.processes()?;
        // `demo down` may itself have been called from in there.
        pids.retain(|pid| *pid != Pid::this());
        if pids.is_empty() {
            return Ok(());
        }
        for pid in &pids {
            // One that is gone already is as it should be; one that stays is told below.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        std::thread::sleep(KILL_PAUSE);
    }
    Err(NetError::Unkillable {
        namespace: namespace.name().to_owned(),
        pids: pids.into_iter().map(Pid::as_raw).collect(),
    })
}

/// A process that was killed needs a moment to go: ten seconds at most.
const KILL_ATTEMPTS: u32 = 1000;
const KILL_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
