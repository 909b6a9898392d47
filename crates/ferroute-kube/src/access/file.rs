//! Reading a kubeconfig: with a limit of its size, and with duplicate fields, which `kube-client` rejects.

use std::path::Path;

use ferroute_config::settings::read_text;
use kube_client::config::{Kubeconfig, KubeconfigError};
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

/// Reads a kubeconfig. As in client-go, the last of several fields with one name applies.
///
/// # Errors
///
/// The file cannot be read or is invalid.
pub(super) fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let text = read_text(path).map_err(|error| KubeconfigError::ReadConfig(error, path.to_owned()))?;
    let mut kubeconfig = Kubeconfig::from_yaml(&text).or_else(|error| match error {
        KubeconfigError::Parse(_) => with_duplicates(&text).ok_or(error),
        error => Err(error),
    })?;
    if let Some(directory) = path.parent() {
        resolve_paths(&mut kubeconfig, directory);
    }
    Ok(kubeconfig)
}

/// Returns `None` if something else is wrong, which the library's error describes.
fn with_duplicates(text: &str) -> Option<Kubeconfig> {
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let value: Value = serde_saphyr::from_str_with_options(text, options).ok()?;
    // JSON is YAML.
    Kubeconfig::from_yaml(&value.to_string()).ok()
}

/// Makes paths absolute that are relative to the kubeconfig's directory. `kube-client` does so only in files that it reads.
fn resolve_paths(kubeconfig: &mut Kubeconfig, directory: &Path) {
    let absolute = |file: &mut Option<String>| {
        if let Some(file) = file.as_mut().filter(|file| Path::new(file).is_relative()) {
            *file = directory.join(&*file).to_string_lossy().into_owned();
        }
    };
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        absolute(&mut cluster.certificate_authority);
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        [&mut user.client_certificate, &mut user.client_key, &mut user.token_file].into_iter().for_each(absolute);
        if let Some(exec) =
            user.exec.as_mut().filter(|exec| exec.command.as_ref().is_some_and(|name| name.contains('/')))
        {
            absolute(&mut exec.command);
        }
    }
}
