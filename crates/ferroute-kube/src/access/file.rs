//! A kubeconfig with duplicate fields, which `kube-client` rejects.

use std::{fs, path::Path};

use kube_client::config::{Kubeconfig, KubeconfigError};
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

/// Reads a kubeconfig. As in client-go, the last of several fields with one name applies.
///
/// # Errors
///
/// The file cannot be read or is invalid.
pub(super) fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    Kubeconfig::read_from(path).or_else(|error| match error {
        KubeconfigError::Parse(_) => read_with_duplicates(path).ok_or(error),
        error => Err(error),
    })
}

/// Returns `None` if something else is wrong, which the library's error describes.
fn read_with_duplicates(path: &Path) -> Option<Kubeconfig> {
    let text = fs::read_to_string(path).ok()?;
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let value: Value = serde_saphyr::from_str_with_options(&text, options).ok()?;
    // JSON is YAML. Only the library's types resolve paths, relative to the file that they read.
    let mut kubeconfig = Kubeconfig::from_yaml(&value.to_string()).ok()?;
    let directory = path.parent()?;
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
    Some(kubeconfig)
}
