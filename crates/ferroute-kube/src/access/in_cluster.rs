//! The service account of this pod.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use kube_client::{Config, config::AuthInfo};

use super::{Parsed, certificates};
use crate::error::Cause;

/// Returns the configuration from the variables of the environment and from the files in `directory`.
///
/// As in client-go, only the token is needed: without `ca.crt`, the authorities of the system apply, with a warning.
///
/// # Errors
///
/// A variable is missing, or they are not an address.
pub(super) fn load(variable: impl Fn(&str) -> Option<String>, directory: &Path) -> Result<Parsed, Cause> {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    let missing = || Cause::text(format!("{HOST} and {PORT} must be set"));
    let (host, port) = variable(HOST).zip(variable(PORT)).ok_or_else(missing)?;
    let invalid = |what: &str| Cause::text(format!("{HOST}={host:?} and {PORT}={port:?} are not an address: {what}"));
    let number: u16 = port.parse().map_err(|_| invalid("invalid port"))?;
    let host = match host.parse() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.clone(),
    };
    let port = if number == 443 { String::new() } else { format!(":{number}") };
    let url: http::Uri = format!("https://{host}{port}").parse().map_err(|_| invalid("invalid host"))?;
    let authority = directory.join("ca.crt");
    let mut parsed = Parsed::of(Config::new(url));
    match fs::read(&authority).map_err(|error| error.to_string()).and_then(|text| certificates(&text)) {
        Ok(found) => {
            parsed.config.root_cert = Some(found);
            // The library reads it again.
            parsed.config.root_cert_file = Some(authority);
        }
        Err(error) => {
            parsed.warning = Some(format!(
                "using the certificate authorities of the system, because {} cannot be used: {error}",
                authority.display()
            ));
        }
    }
    // Only commands of users need it, which have a kubeconfig.
    if let Ok(namespace) = fs::read_to_string(directory.join("namespace")) {
        namespace.trim().clone_into(&mut parsed.config.default_namespace);
    }
    let token_file = directory.join("token").to_str().map(str::to_owned);
    parsed.config.auth_info = AuthInfo { token_file, ..AuthInfo::default() };
    Ok(parsed)
}

/// Returns the directory of the files.
pub(super) fn directory() -> PathBuf {
    "/var/run/secrets/kubernetes.io/serviceaccount".into()
}

const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";
