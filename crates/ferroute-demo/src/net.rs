//! The cluster's networks: network namespaces, bridges, veth pairs, addresses, routes, sysctls.
//!
//! ```text
//!   topology (pure: a list of steps) ──► apply ──► ip (iproute2), sysctls
//! ```
//!
//! All of them are in the demo's network namespaces, which are not connected to the host's network.

mod namespace;
mod program;
mod topology;

use std::{fs, io, path::PathBuf, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

pub(crate) use namespace::{Namespace, NamespaceError, use_resolver};
pub(crate) use program::{ProgramError, check_programs, search_path};
use topology::{Step, Sysctl};

use crate::{instance::Instance, plan::PlannedPod};

/// An error while creating or removing networks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetError {
    /// A network namespace could not be used.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A device, address or route could not be created.
    #[error("cannot set up a network")]
    Program(#[from] ProgramError),
    /// A sysctl could not be written.
    #[error("cannot write {value} to {} in the network namespace {namespace}", path.display())]
    Sysctl {
        /// The namespace.
        namespace: String,
        /// The file below `/proc/sys`.
        path: PathBuf,
        /// The value.
        value: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Processes did not end after SIGKILL.
    #[error("processes {pids:?} in the network namespace {namespace} cannot be killed")]
    Unkillable {
        /// The namespace.
        namespace: String,
        /// The processes.
        pids: Vec<i32>,
    },
}

/// Reports whether the kernel supports IPv6.
pub(crate) fn has_ipv6() -> bool {
    fs::exists("/proc/sys/net/ipv6").unwrap_or(false)
}

/// Creates the machines and the network between them.
pub(crate) fn add_machines(instance: &Instance, ipv6: bool) -> Result<(), NetError> {
    apply(&topology::machines(instance, ipv6))
}

/// Creates a pod's network, unless it uses the host network.
pub(crate) fn add_pod(instance: &Instance, pod: &PlannedPod) -> Result<(), NetError> {
    if pod.host_network { Ok(()) } else { apply(&topology::pod(instance, pod)) }
}

/// Removes a pod's network and kills all processes in it.
pub(crate) fn remove_pod(instance: &Instance, pod: &PlannedPod) -> Result<(), NetError> {
    if pod.host_network {
        return Ok(());
    }
    let namespace = pod_namespace(instance, pod);
    kill_processes(&namespace)?;
    // The kernel removes the device asynchronously, and the next pod may need its name.
    let node = instance.namespace(pod.node.name());
    program::ip_batch(&node, &[format!("link delete {}", topology::device(pod))])?;
    Ok(namespace.delete()?)
}

/// Returns the network namespace of a pod.
pub(crate) fn pod_namespace(instance: &Instance, pod: &PlannedPod) -> Namespace {
    let machine = if pod.host_network { pod.node.name().to_owned() } else { pod.short_name() };
    Namespace::named(instance.namespace(&machine))
}

/// Reports whether the instance has any network namespace.
pub(crate) fn any_exists(instance: &Instance) -> Result<bool, NetError> {
    Ok(!Namespace::list(&instance.prefix())?.is_empty())
}

/// Removes all namespaces of the instance and kills all processes in them. Continues after an error, and returns the first.
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

/// Kills all processes in a namespace: pods, proxies and commands of `demo exec`.
fn kill_processes(namespace: &Namespace) -> Result<(), NetError> {
    let mut pids = Vec::new();
    for _ in 0..KILL_ATTEMPTS {
        pids = namespace.processes()?;
        // `demo down` may run in the namespace itself.
        pids.retain(|pid| *pid != Pid::this());
        if pids.is_empty() {
            return Ok(());
        }
        for pid in &pids {
            // Fails if the process has already ended; remaining processes are reported below.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        std::thread::sleep(KILL_INTERVAL);
    }
    Err(NetError::Unkillable {
        namespace: namespace.name().to_owned(),
        pids: pids.into_iter().map(Pid::as_raw).collect(),
    })
}

/// The limit for processes to end: ten seconds.
const KILL_ATTEMPTS: u32 = 1000;
const KILL_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
