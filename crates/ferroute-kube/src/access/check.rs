//! The checks of client-go on a kubeconfig, whose errors would otherwise only show in responses of the server.

use std::collections::BTreeSet;

use kube_client::{
    Config,
    config::{AuthInfo, ExecConfig, Kubeconfig},
};

use crate::error::Cause;

/// Checks that names are unique.
///
/// # Errors
///
/// Two clusters, users or contexts have the same name.
pub(super) fn check_names(kubeconfig: &Kubeconfig) -> Result<(), Cause> {
    let clusters = kubeconfig.clusters.iter().map(|named| ("clusters", &named.name));
    let users = kubeconfig.auth_infos.iter().map(|named| ("users", &named.name));
    let contexts = kubeconfig.contexts.iter().map(|named| ("contexts", &named.name));
    let mut seen = BTreeSet::new();
    match clusters.chain(users).chain(contexts).find(|named| !seen.insert(*named)) {
        Some((list, name)) => Err(Cause::text(format!("the list of {list} contains the name {name:?} twice"))),
        None => Ok(()),
    }
}

/// Checks the selected cluster and user. `name` is that of the user.
///
/// # Errors
///
/// Values contradict each other, or a required one is missing.
pub(super) fn check(config: &Config, name: &str) -> Result<(), Cause> {
    if config.accept_invalid_certs && config.root_cert.is_some() {
        return Err(Cause::text("insecure-skip-tls-verify excludes a certificate authority".to_owned()));
    }
    let user = &config.auth_info;
    let problem = user_problem(user).or_else(|| exec_problem(user.exec.as_ref()?));
    match problem {
        Some(problem) => Err(Cause::text(format!("user {name:?} {problem}"))),
        None => Ok(()),
    }
}

fn user_problem(user: &AuthInfo) -> Option<&'static str> {
    let has_password = user.username.is_some() || user.password.is_some();
    if user.token.is_some() && has_password {
        return Some("has both a token and a user name or password");
    }
    if user.exec.is_some() && user.auth_provider.is_some() {
        return Some("has both exec and auth-provider");
    }
    let has_details = user.impersonate_uid.as_ref().is_some_and(|uid| !uid.is_empty())
        || user.impersonate_groups.as_ref().is_some_and(|groups| !groups.is_empty())
        || user.impersonate_user_extra.as_ref().is_some_and(|extra| !extra.is_empty());
    (has_details && user.impersonate.is_none()).then_some("has as-uid, as-groups or as-user-extra without as")
}

fn exec_problem(exec: &ExecConfig) -> Option<&'static str> {
    if exec.command.as_ref().is_none_or(String::is_empty) {
        return Some("has exec without a command");
    }
    match exec.api_version.as_deref() {
        Some("client.authentication.k8s.io/v1") if exec.interactive_mode.is_none() => {
            Some("has exec without interactiveMode, which client.authentication.k8s.io/v1 requires")
        }
        Some("client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1") => None,
        _ => Some("has exec whose apiVersion is not client.authentication.k8s.io/v1 or v1beta1"),
    }
}
