//! Pages of text: what does not change while the proxy runs, and what changes with the time only.

use std::time::{Duration, Instant, SystemTime};

use ferroute_config::KubeProxyConfiguration;
use ferroute_health::{Request, Response, rfc3339, text};
use hyper::{
    StatusCode,
    header::{ACCEPT, HeaderValue},
};

use crate::{kernel_settings::HostSetup, version};

/// See the module's text.
pub(crate) struct Pages {
    pub(super) configz: String,
    pub(super) flagz: String,
    /// What has become of the host's settings, a line for each.
    host: Vec<String>,
    started: (Instant, SystemTime),
}

impl Pages {
    /// Of a proxy that starts now with this configuration and these flags, by name.
    pub(crate) fn new<'a>(config: &KubeProxyConfiguration, flags: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let configz = serde_json::json!({ "kubeproxy.config.k8s.io": config });
        let mut flagz = heading("flags");
        for (name, value) in flags {
            flagz.push_str(&format!("{name}={value}\n"));
        }
        let started = (Instant::now(), SystemTime::now());
        Self { configz: configz.to_string(), flagz, host: Vec::new(), started }
    }

    /// With what has become of the host's settings.
    pub(crate) fn with_host(self, setup: &HostSetup) -> Self {
        Self { host: setup.lines().collect(), ..self }
    }

    pub(super) fn statusz(&self) -> String {
        let (instant, wall) = self.started;
        let mut page = heading("statusz");
        let lines = [
            ("Started", rfc3339(Some(wall))),
            ("Up", uptime(instant.elapsed())),
            ("Binary version", version::GIT_VERSION.to_owned()),
            ("Paths", PATHS.join(" ")),
        ];
        for (name, value) in lines {
            page.push_str(&format!("{name}: {value}\n"));
        }
        self.host.iter().for_each(|line| page.push_str(&format!("Host: {line}\n")));
        page
    }
}

/// The paths that tell something.
const PATHS: [&str; 8] =
    ["/changes", "/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/services", "/statusz"];

fn heading(what: &str) -> String {
    format!("\nkube-proxy {what}\nThis page is for people: its form may change, so programs should not read it.\n\n")
}

fn uptime(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{} hr {:02} min {:02} sec", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// A page for people, unless plain text is not what is asked for: kube-proxy has other forms too.
pub(super) fn readable(request: &Request, page: impl FnOnce() -> String) -> Response {
    let accepts = |header: &HeaderValue| {
        let kinds = header.to_str().unwrap_or_default().split(',');
        let mut kinds = kinds.map(|kind| kind.split(';').next().unwrap_or_default().trim());
        kinds.any(|kind| matches!(kind, "" | "*/*" | "text/*" | "text/plain"))
    };
    match request.headers.get(ACCEPT) {
        Some(header) if !accepts(header) => text(StatusCode::NOT_ACCEPTABLE, "there is this page in text/plain only\n"),
        _ => text(StatusCode::OK, page()),
    }
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

    fn request(uri: &str, accept: Option<&'static str>) -> Request {
        let mut request = hyper::Request::new(()).into_parts().0;
        request.uri = uri.parse().unwrap();
        request.headers.extend(accept.map(|kinds| (ACCEPT, HeaderValue::from_static(kinds))));
        request
    }

    #[test]
    fn the_configuration_is_shown_under_its_group_as_a_file_has_it() {
        let pages = Pages::new(&KubeProxyConfiguration::default().defaulted(), std::iter::empty());
        let shown: serde_json::Value = serde_json::from_str(&pages.configz).unwrap();
        let config = &shown["kubeproxy.config.k8s.io"];
        assert_eq!(config["metricsBindAddress"], "127.0.0.1:10249");
        assert_eq!(config["iptables"]["syncPeriod"], "30s");
        let decoded = KubeProxyConfiguration::from_text(&config.to_string()).unwrap();
        assert_eq!(decoded.config, KubeProxyConfiguration::default().defaulted());
    }

    #[test]
    fn flags_are_listed_with_their_values() {
        let flags = [("cleanup", "false"), ("proxy-mode", "nftables")];
        let pages = Pages::new(&KubeProxyConfiguration::default(), flags.into_iter());
        assert!(pages.flagz.starts_with("\nkube-proxy flags\n"), "{}", pages.flagz);
        assert!(pages.flagz.ends_with("\n\ncleanup=false\nproxy-mode=nftables\n"), "{}", pages.flagz);
    }

    #[test]
    fn the_status_tells_since_when_it_runs() {
        let in_force = InForce { name: "net/a", value: "1".to_owned(), from: Some("0".to_owned()) };
        let failed = SysctlError::Missing { name: "net/b".to_owned() };
        let setup = HostSetup { set: vec![in_force], failed: vec![failed] };
        let pages = Pages::new(&KubeProxyConfiguration::default(), std::iter::empty()).with_host(&setup);
        let page = pages.statusz();
        assert!(page.contains("\nHost: net/a = 1 (was 0)\nHost: sysctl net/b does not exist\n"), "{page}");
        assert!(page.contains("\nUp: 0 hr 00 min 0"), "{page}");
        assert!(page.contains("\nBinary version: v1.36.0+ferroute."), "{page}");
        assert_eq!(uptime(Duration::from_secs(93_784)), "26 hr 03 min 04 sec");
    }

    #[test]
    fn pages_for_people_are_plain_text_or_nothing() {
        let status = |accept| readable(&request("/statusz", accept), String::new).status();
        for accept in [None, Some("*/*"), Some("text/plain;q=0.9, application/json"), Some("application/json, */*")] {
            assert_eq!(status(accept), StatusCode::OK, "{accept:?}");
        }
        assert_eq!(status(Some("application/json;v=v1beta1;g=config.k8s.io;as=Statusz")), StatusCode::NOT_ACCEPTABLE);
    }
}
