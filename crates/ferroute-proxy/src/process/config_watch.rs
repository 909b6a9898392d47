//! Watches the configuration file: a valid change restarts the program, an invalid one is logged and ignored.
//!
//! The program executes itself again in the same process and leaves its rules in the kernel, so the data path is not
//! interrupted and a supervisor does not notice. kube-proxy exits instead and leaves the restart to its supervisor.

use std::{convert::Infallible, fs, io, os::unix::process::CommandExt, path::Path, process::Command, time::Duration};

use ferroute_config::{
    KubeProxyConfiguration,
    flags::{RawArgs, RunArgs},
    settings::{self, ConfigFile, Settings},
};
use ferroute_modes::Registry;

/// Polls the configuration file. File notifications do not suffice: files of a `ConfigMap` are chains of symbolic links,
/// and some file systems do not send any.
pub(crate) struct ConfigWatch<'a> {
    registry: &'static Registry,
    args: &'a RawArgs<RunArgs>,
    active: &'a KubeProxyConfiguration,
    file: Option<&'a ConfigFile>,
    /// The last text that was checked and is invalid or equivalent to the active configuration.
    checked: Option<String>,
    /// A new text at the last poll, which may still be incomplete.
    candidate: Option<String>,
    is_unreadable: bool,
}

impl<'a> ConfigWatch<'a> {
    /// Watches the file that `settings` were read from, if any.
    pub(crate) fn new(registry: &'static Registry, args: &'a RawArgs<RunArgs>, settings: &'a Settings) -> Self {
        let (active, file) = (&settings.config, settings.file.as_ref());
        Self { registry, args, active, file, checked: None, candidate: None, is_unreadable: false }
    }

    /// Waits until the file contains another valid configuration.
    pub(crate) async fn changed(mut self) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if self.poll() {
                return;
            }
        }
    }

    /// Reports whether the file contains a different valid configuration, and has not changed since the last poll.
    fn poll(&mut self) -> bool {
        let Some(file) = self.file else { return false };
        let text = match read(&file.path) {
            Ok(text) => text,
            Err(error) => {
                if !self.is_unreadable {
                    tracing::warn!("cannot read {}; keeping the active configuration: {error}", file.path.display());
                }
                self.is_unreadable = true;
                return false;
            }
        };
        self.is_unreadable = false;
        if text == *self.checked.as_ref().unwrap_or(&file.text) {
            self.candidate = None;
            return false;
        }
        if self.candidate.as_ref() != Some(&text) {
            self.candidate = Some(text);
            return false;
        }
        let takes_effect = self.takes_effect(&file.path, &text);
        self.checked = Some(text);
        takes_effect
    }

    fn takes_effect(&self, path: &Path, text: &str) -> bool {
        let file = path.display();
        match settings::from_file(self.args, path, text, &self.registry.names()) {
            Ok(settings) if settings.config == *self.active => {
                tracing::info!("{file} changed; the configuration is the same");
                false
            }
            Ok(_) => {
                tracing::info!("{file} changed; restarting with the new configuration");
                true
            }
            Err(error) => {
                tracing::warn!("{file} changed; ignoring it because it is invalid: {error:#}");
                false
            }
        }
    }
}

/// Reads a regular file. The end of a FIFO or a terminal may never come.
fn read(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fs::read_to_string(path)
}

/// Executes this program again in place of this process, with the same command line.
///
/// # Errors
/// If the program cannot be executed, for example because its file was deleted. The process then continues unchanged.
pub(crate) fn re_exec() -> io::Result<Infallible> {
    let mut command_line = std::env::args_os();
    let name = command_line.next().unwrap_or_default();
    let arguments: Vec<_> = command_line.collect();
    // Try the original name first: the new process then has that name, not the one that a link points to.
    let _ = Command::new(&name).args(&arguments).exec();
    Err(Command::new(std::env::current_exe()?).arg0(&name).args(&arguments).exec())
}

const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ferroute_config::flags::KubeProxy;
    use tempfile::TempDir;

    use super::*;
    use ferroute_modes::REGISTRY;

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    #[test]
    fn file_that_may_block_is_not_read() {
        let directory = TempDir::new().expect("a directory");
        let fifo = directory.path().join("config.conf");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
        assert!(read(&fifo).is_err());
    }

    /// Starts with the first text. For each of the other texts, `None` for no file, returns whether it takes effect.
    fn takes_effect(texts: &[Option<&str>]) -> Vec<bool> {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("config.conf");
        let put = |text: &Option<&str>| match text {
            Some(text) => fs::write(&path, format!("{HEAD}{text}")).expect("a file"),
            None => drop(fs::remove_file(&path)),
        };
        put(&texts[0]);
        let line = ["kube-proxy".to_owned(), format!("--config={}", path.display())];
        let args = KubeProxy::parse_from(line).run;
        let settings = settings::load_proxy(&args, &REGISTRY.names()).expect("settings");
        let mut watch = ConfigWatch::new(&REGISTRY, &args, &settings);
        let polls = texts[1..].iter().map(|text| {
            put(text);
            watch.poll()
        });
        polls.collect()
    }

    #[test]
    fn changed_configuration_takes_effect_when_file_is_complete() {
        assert_eq!(takes_effect(&[Some(""), Some(""), Some("mode: ipvs"), Some("mode: ipvs")]), [false, false, true]);
        let incomplete = [Some("mode: ipvs"), Some(""), Some("mode: nft"), Some("mode: nftables")];
        assert_eq!(takes_effect(&incomplete), [false, false, false]);
    }

    #[test]
    fn invalid_and_equivalent_configurations_are_ignored() {
        let (invalid, same) = (Some("mode: nothing"), Some("# a comment\nmode: ''"));
        let valid = Some("mode: ipvs");
        assert_eq!(
            takes_effect(&[Some(""), invalid, invalid, invalid, valid, valid]),
            [false, false, false, false, true]
        );
        assert_eq!(takes_effect(&[Some(""), same, same, valid, valid]), [false, false, false, true]);
        assert_eq!(takes_effect(&[Some(""), None, None, Some(""), Some(""), valid, valid])[4..], [false, true]);
    }
}
