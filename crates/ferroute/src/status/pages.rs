//! Pages of text: what does not change while the proxy runs, and what changes with the time only.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use ferroute_config::KubeProxyConfiguration;
use ferroute_health::{Request, Response, rfc3339, text};
use hyper::StatusCode;
use serde::Serialize;

use super::zpage::{ZPage, heading};
use crate::{kernel_settings::HostSetup, version};

/// See the module's text.
pub(crate) struct Pages {
    pub(super) configz: String,
    pub(super) flagz: Flagz,
    /// What has become of the host's settings, a line for each.
    host: Vec<String>,
    started: (Instant, SystemTime),
}

impl Pages {
    /// Of a proxy that starts now with this configuration and these flags, by name.
    pub(crate) fn new<'a>(config: &KubeProxyConfiguration, flags: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let configz = config.to_configz();
        let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let started = (Instant::now(), whole_seconds(SystemTime::now()));
        Self { configz: configz.to_string(), flagz: Flagz { flags }, host: Vec::new(), started }
    }

    /// With what has become of the host's settings.
    pub(crate) fn with_host(self, setup: &HostSetup) -> Self {
        Self { host: setup.lines().collect(), ..self }
    }

    pub(super) fn statusz(&self) -> Statusz<'_> {
        let (instant, wall) = self.started;
        Statusz {
            start_time: rfc3339(Some(wall)),
            uptime_seconds: instant.elapsed().as_secs(),
            go_version: "",
            binary_version: version::GIT_VERSION.trim_start_matches('v'),
            emulation_version: EMULATED,
            paths: &PATHS,
            host: &self.host,
        }
    }
}

/// The fields of Kubernetes' `Statusz`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Statusz<'a> {
    /// In whole seconds, as Kubernetes tells moments.
    start_time: String,
    uptime_seconds: u64,
    /// Nothing here is made with Go. Programs that look for the field find it.
    go_version: &'static str,
    binary_version: &'static str,
    emulation_version: &'static str,
    paths: &'static [&'static str],
    /// For people only: the object has no such field.
    #[serde(skip)]
    host: &'a [String],
}

impl ZPage for Statusz<'_> {
    const KIND: &'static str = "Statusz";

    fn text(&self) -> String {
        let mut page = heading("statusz");
        let lines = [
            ("Started", self.start_time.clone()),
            ("Up", uptime(self.uptime_seconds)),
            ("Binary version", version::GIT_VERSION.to_owned()),
            ("Emulation version", self.emulation_version.to_owned()),
            ("Paths", self.paths.join(" ")),
        ];
        for (name, value) in lines {
            page.push_str(&format!("{name}: {value}\n"));
        }
        self.host.iter().for_each(|line| page.push_str(&format!("Host: {line}\n")));
        page
    }
}

/// The fields of Kubernetes' `Flagz`: what was typed, and defaults.
#[derive(Serialize)]
pub(super) struct Flagz {
    flags: BTreeMap<String, String>,
}

impl ZPage for Flagz {
    const KIND: &'static str = "Flagz";

    fn text(&self) -> String {
        self.flags.iter().fold(heading("flagz"), |page, (name, value)| page + &format!("{name}={value}\n"))
    }
}

/// The release whose kube-proxy this program behaves like.
const EMULATED: &str = "1.36";

/// The paths that tell something.
const PATHS: [&str; 8] =
    ["/changes", "/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/services", "/statusz"];

fn uptime(seconds: u64) -> String {
    format!("{} hr {:02} min {:02} sec", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// Go programs serve profiles of their memory and threads there.
pub(super) fn no_profiles() -> Response {
    text(
        StatusCode::NOT_FOUND,
        "no profiles: this program is not written in Go; use perf or heaptrack on the process\n",
    )
}

/// The process is there and answers, which is all that kube-proxy checks here.
pub(super) fn healthz(request: &Request) -> Response {
    let query = request.uri.query().unwrap_or_default();
    let is_verbose = form_urlencoded::parse(query.as_bytes()).any(|(key, _)| key == "verbose");
    let is_whole = request.uri.path() == "/healthz";
    text(StatusCode::OK, if is_verbose && is_whole { "[+]ping ok\nhealthz check passed\n" } else { "ok" })
}

#[cfg(test)]
mod tests {
    use ferroute_host::SysctlError;

    use super::*;
    use crate::kernel_settings::InForce;

    #[test]
    fn the_configuration_is_shown_under_its_group_as_a_file_has_it() {
        let pages = Pages::new(&KubeProxyConfiguration::default().defaulted(), std::iter::empty());
        let shown: serde_json::Value = serde_json::from_str(&pages.configz).unwrap();
        let config = &shown["kubeproxy.config.k8s.io"];
        assert_eq!(config["metricsBindAddress"], "127.0.0.1:10249");
        assert_eq!(config["iptables"]["syncPeriod"], "30s");
        let decoded = KubeProxyConfiguration::from_text(&config.to_string()).unwrap();
        assert_eq!(decoded.config, KubeProxyConfiguration::default().defaulted().platform_defaulted());
    }

    #[test]
    fn flags_are_listed_with_their_values() {
        let flags = [("proxy-mode", "nftables"), ("cleanup", "false")];
        let text = Pages::new(&KubeProxyConfiguration::default(), flags.into_iter()).flagz.text();
        assert!(text.starts_with("\nkube-proxy flagz\n"), "{text}");
        assert!(text.ends_with("\n\ncleanup=false\nproxy-mode=nftables\n"), "{text}");
    }

    #[test]
    fn the_status_tells_since_when_it_runs() {
        let in_force = InForce { name: "net/a", value: "1".to_owned(), from: Some("0".to_owned()) };
        let failed = SysctlError::Missing { name: "net/b".to_owned() };
        let setup = HostSetup { set: vec![in_force], failed: vec![failed] };
        let pages = Pages::new(&KubeProxyConfiguration::default(), std::iter::empty()).with_host(&setup);
        let page = pages.statusz().text();
        assert!(page.contains("\nHost: net/a = 1 (was 0)\nHost: sysctl net/b does not exist\n"), "{page}");
        assert!(page.contains("\nUp: 0 hr 00 min 0"), "{page}");
        assert!(page.contains("\nBinary version: v1.36.0+ferroute."), "{page}");
        assert_eq!(uptime(93_784), "26 hr 03 min 04 sec");
    }

    #[test]
    fn moments_are_told_in_whole_seconds() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_366_245_999);
        assert_eq!(rfc3339(Some(whole_seconds(time))), "2026-01-02T15:04:05Z");
    }
}
