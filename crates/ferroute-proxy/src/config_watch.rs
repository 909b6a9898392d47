//! The configuration file while the proxy runs: a change takes effect, a fault does not.
//!
//! The proxy starts anew with the changed file, in the same process and with the rules left in force, so traffic goes on
//! and a supervisor notices nothing. kube-proxy ends itself here and leaves starting to others. A file that cannot be
//! used is told with its fault and otherwise passed over.

use std::{convert::Infallible, fs, io, os::unix::process::CommandExt, path::Path, process::Command, time::Duration};

use ferroute_config::{
    KubeProxyConfiguration,
    flags::{RunArgs, Typed},
    settings::{self, ConfigFile, Settings},
};

use crate::modes::REGISTRY;

/// Looks at the file again and again. Nothing is asked of the kernel for that: files of a `ConfigMap` are links to links,
/// and some file systems tell of no changes.
pub(crate) struct ConfigWatch<'a> {
    args: &'a Typed<RunArgs>,
    in_force: &'a KubeProxyConfiguration,
    file: Option<&'a ConfigFile>,
    /// What has been looked through already, and refused or found to say the same.
    judged: Option<String>,
    /// What was there at the last look, for the first time.
    found: Option<String>,
    is_unreadable: bool,
}

impl<'a> ConfigWatch<'a> {
    /// Watches the file that `settings` come from, if any.
    pub(crate) fn new(args: &'a Typed<RunArgs>, settings: &'a Settings) -> Self {
        let (in_force, file) = (&settings.config, settings.file.as_ref());
        Self { args, in_force, file, judged: None, found: None, is_unreadable: false }
    }

    /// Waits until the file holds another configuration, which can be used.
    pub(crate) async fn changed(mut self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            if self.look() {
                return;
            }
        }
    }

    fn look(&mut self) -> bool {
        let Some(file) = self.file else { return false };
        let text = match fs::read_to_string(&file.path) {
            Ok(text) => text,
            Err(error) => {
                if !self.is_unreadable {
                    tracing::warn!("cannot read {}, what it said stays in force: {error}", file.path.display());
                }
                self.is_unreadable = true;
                return false;
            }
        };
        self.is_unreadable = false;
        if text == *self.judged.as_ref().unwrap_or(&file.text) {
            self.found = None;
            return false;
        }
        if self.found.as_ref() != Some(&text) {
            // Perhaps it is only being written.
            self.found = Some(text);
            return false;
        }
        let is_other = self.is_other(&file.path, &text);
        self.judged = Some(text);
        is_other
    }

    fn is_other(&self, path: &Path, text: &str) -> bool {
        match settings::of_file(self.args, path, text, &REGISTRY.names()) {
            Ok(settings) if settings.config == *self.in_force => {
                tracing::info!("{} has changed and says the same", path.display());
                false
            }
            Ok(_) => {
                tracing::info!("{} has changed: starting anew with it", path.display());
                true
            }
            Err(error) => {
                tracing::warn!("{} has changed and is passed over: {error:#}", path.display());
                false
            }
        }
    }
}

/// Puts a new start of this program in this process' place, by the same command line.
///
/// # Errors
///
/// If the program is there no more; then everything is as before.
pub(crate) fn start_anew() -> io::Result<Infallible> {
    let mut line = std::env::args_os();
    let name = line.next().unwrap_or_default();
    let arguments: Vec<_> = line.collect();
    // By its name first, so that it goes on under that name and not as what a link leads to.
    let _ = Command::new(&name).args(&arguments).exec();
    Err(Command::new(std::env::current_exe()?).arg0(&name).args(&arguments).exec())
}

/// Between two looks at the file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tempfile::TempDir;

    use super::*;
    use ferroute_config::flags::KubeProxy;

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    /// Starts with the first text and tells for each of the others, `None` for no file, whether it takes effect.
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
        let mut watch = ConfigWatch::new(&args, &settings);
        let looks = texts[1..].iter().map(|text| {
            put(text);
            watch.look()
        });
        looks.collect()
    }

    #[test]
    fn another_configuration_takes_effect_when_it_has_stood_still() {
        assert_eq!(takes_effect(&[Some(""), Some(""), Some("mode: ipvs"), Some("mode: ipvs")]), [false, false, true]);
        let being_written = [Some("mode: ipvs"), Some(""), Some("mode: nft"), Some("mode: nftables")];
        assert_eq!(takes_effect(&being_written), [false, false, false]);
    }

    #[test]
    fn what_cannot_be_used_and_what_says_the_same_is_passed_over_and_the_next_change_is_not() {
        let (bad, same) = (Some("mode: nothing"), Some("# a word\nmode: ''"));
        let good = Some("mode: ipvs");
        assert_eq!(takes_effect(&[Some(""), bad, bad, bad, good, good]), [false, false, false, false, true]);
        assert_eq!(takes_effect(&[Some(""), same, same, good, good]), [false, false, false, true]);
        assert_eq!(takes_effect(&[Some(""), None, None, Some(""), Some(""), good, good])[4..], [false, true]);
    }
}
