//! Routes of the metrics address.
//!
//! ```text
//!   /metrics    metrics for Prometheus      /services         applied version of each Service
//!   /healthz    ok                          /changes          slowest changes of the last hour
//!   /proxyMode  name of the mode            /statusz, /flagz  the process and its flags
//!   /configz    active configuration        /debug/flags/v    changes the log level
//! ```

use std::{sync::Arc, time::Instant};

use hyper::{
    Method, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue},
};

use crate::{
    Pages,
    history::{History, QueryError, ServiceQuery, ServicesBody},
    http::{Handler, PutBody, Request, Response, accepts_gzip, gzip, json, json_chunks, not_found, text},
    metrics::{Metrics, Sampled},
};

/// Serves the metrics address: kube-proxy's paths and, if the history has them, `/services` and `/changes`. `S` reads values for `/metrics`.
#[derive(Debug)]
pub struct AdminHandler<S> {
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Applied versions and slow changes.
    pub history: Arc<History>,
    /// Status pages.
    pub pages: Pages,
    /// Name of the active mode.
    pub mode: &'static str,
    /// Reads the values that are sampled for each request of `/metrics`.
    pub sample: S,
    /// Changes the log level, if requests may do that.
    pub set_verbosity: Option<fn(u32)>,
}

impl<S: Fn() -> Sampled + Send + Sync + 'static> Handler for AdminHandler<S> {
    fn answer(&self, request: &Request) -> Response {
        match request.uri.path() {
            "/metrics" => self.metrics(request),
            // The process is running; kube-proxy checks nothing else for this path.
            "/healthz" if has_query_key(request, "verbose") => {
                text(StatusCode::OK, "[+]ping ok\nhealthz check passed\n")
            }
            "/healthz" | "/healthz/ping" => text(StatusCode::OK, "ok"),
            "/proxyMode" => text(StatusCode::OK, self.mode),
            "/configz" => self.pages.configz(),
            "/statusz" => self.pages.statusz(request),
            "/flagz" => self.pages.flagz(request),
            "/services" | "/changes" if !self.history.has_pages() => text(StatusCode::NOT_FOUND, NO_SERVICE_STATUS),
            "/services" => self.services(request).unwrap_or_else(|error| bad_request(&error)),
            "/changes" => self.changes(request).unwrap_or_else(|error| bad_request(&error)),
            path if path.starts_with("/debug/flags") => self.flags(request),
            path if path.starts_with("/debug/") => text(StatusCode::NOT_FOUND, NO_PROFILES),
            _ => not_found(),
        }
    }
}

impl<S: Fn() -> Sampled> AdminHandler<S> {
    fn services(&self, request: &Request) -> Result<Response, QueryError> {
        let query = ServiceQuery::parse(query(request))?;
        let after = query.after_service()?;
        Ok(json_chunks(ServicesBody::new(Arc::clone(&self.history), query, after)))
    }

    fn changes(&self, request: &Request) -> Result<Response, QueryError> {
        let query = ServiceQuery::parse(query(request))?;
        let page = self.history.slow_changes(Instant::now(), query.after_changes()?, query.limit.unwrap_or(usize::MAX));
        Ok(json(StatusCode::OK, page.to_json()))
    }

    /// Lists the flags that can be changed, or changes the log level, with kube-proxy's statuses.
    fn flags(&self, request: &Request) -> Response {
        let Some(set_verbosity) = self.set_verbosity else { return text(StatusCode::NOT_FOUND, NO_FLAGS) };
        if request.uri.path() != "/debug/flags/v" {
            return text(StatusCode::OK, "/debug/flags/v\n");
        }
        if request.method != Method::PUT {
            return text(StatusCode::NOT_ACCEPTABLE, "unsupported http method");
        }
        let body = request.extensions.get::<PutBody>().map_or(&[][..], |PutBody(body)| body);
        match std::str::from_utf8(body).ok().and_then(|level| level.parse::<u32>().ok()) {
            Some(level) => {
                set_verbosity(level);
                tracing::info!(level, "log level changed");
                text(StatusCode::OK, format!("successfully set klog.logging.verbosity to {level}"))
            }
            None => text(StatusCode::BAD_REQUEST, "the log level is not a number, such as 4\n"),
        }
    }

    /// Returns the metrics, compressed for clients that accept it, as in kube-proxy.
    fn metrics(&self, request: &Request) -> Response {
        let metrics = self.metrics.render(&(self.sample)());
        let compressed = accepts_gzip(&request.headers).then(|| gzip(metrics.as_ref()).ok()).flatten();
        let encoding = compressed.is_some().then_some(HeaderValue::from_static("gzip"));
        let mut response = match compressed {
            Some(compressed) => text(StatusCode::OK, compressed),
            None => text(StatusCode::OK, metrics),
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Metrics::CONTENT_TYPE));
        headers.extend(encoding.map(|encoding| (CONTENT_ENCODING, encoding)));
        response
    }
}

/// Answer to the paths of Go's profiler.
const NO_PROFILES: &str = "no profiles: this program is not written in Go; use perf or heaptrack on the process\n";

/// Answer to the paths that change the log level, without `--profiling`.
const NO_FLAGS: &str = "disabled: run the proxy with --profiling, or set logging.verbosity in the file of --config\n";

/// Answer to the pages of Services if they are not served.
const NO_SERVICE_STATUS: &str = "disabled: run the proxy with --enable-service-status\n";

fn query(request: &Request) -> &str {
    request.uri.query().unwrap_or_default()
}

fn has_query_key(request: &Request, name: &str) -> bool {
    form_urlencoded::parse(query(request).as_bytes()).any(|(key, _)| key == name)
}

fn bad_request(error: &QueryError) -> Response {
    text(StatusCode::BAD_REQUEST, format!("{error}\n"))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ferroute_config::KubeProxyConfiguration;

    use super::*;
    use crate::http::testing::{body, bytes, request};

    /// Returns status and body.
    fn get(uri: &str) -> (u16, String) {
        get_from(&Arc::new(History::new(SystemTime::now(), true)), uri)
    }

    fn get_from(history: &Arc<History>, uri: &str) -> (u16, String) {
        let response = handler(history).answer(&request(uri));
        (response.status().as_u16(), body(response))
    }

    fn handler(history: &Arc<History>) -> AdminHandler<impl Fn() -> Sampled + Send + Sync + use<>> {
        AdminHandler {
            metrics: Arc::new(Metrics::new(&[])),
            history: Arc::clone(history),
            pages: Pages::new(&KubeProxyConfiguration::default(), std::iter::empty()),
            mode: "nftables",
            sample: || Sampled { tasks: Some(7), ..Sampled::default() },
            set_verbosity: None,
        }
    }

    #[test]
    fn paths_are_served() {
        assert_eq!(get("/proxyMode"), (200, "nftables".to_owned()));
        assert_eq!(get("/healthz"), (200, "ok".to_owned()));
        assert_eq!(get("/healthz/ping?verbose"), (200, "ok".to_owned()));
        assert_eq!(get("/healthz?verbose"), (200, "[+]ping ok\nhealthz check passed\n".to_owned()));
        assert_eq!(get("/services?namespace=shop&name=web"), (200, "{\"services\":[]}".to_owned()));
        assert_eq!(get("/changes"), (200, "{\"changes\":[]}".to_owned()));
        assert!(get("/metrics").1.contains("go_goroutines 7\n"));
        assert!(get("/configz").1.starts_with('{') && get("/flagz").0 == 200 && get("/statusz").0 == 200);
        let paths = ["/debug/pprof/heap", "/debug/flags", "/debug/flags/v"];
        assert_eq!(
            paths.map(get),
            [(404, NO_PROFILES.to_owned()), (404, NO_FLAGS.to_owned()), (404, NO_FLAGS.to_owned())]
        );
        assert_eq!([get("/services/").0, get("/metrics/").0, get("/").0], [404; 3]);
    }

    #[test]
    fn put_changes_the_log_level_where_profiling_is_enabled() {
        use std::sync::atomic::{AtomicU32, Ordering};

        static LEVEL: AtomicU32 = AtomicU32::new(0);
        let handler = AdminHandler {
            set_verbosity: Some(|level| LEVEL.store(level, Ordering::Relaxed)),
            ..handler(&Arc::new(History::new(SystemTime::now(), false)))
        };
        let status = |method: Method, path: &str, sent: &str| {
            let mut request = request(path);
            request.method = method;
            request.extensions.insert(PutBody(sent.as_bytes().to_vec()));
            let response = handler.answer(&request);
            (response.status().as_u16(), body(response))
        };
        let set = (200, "successfully set klog.logging.verbosity to 4".to_owned());
        assert_eq!(status(Method::PUT, "/debug/flags/v", "4"), set);
        assert_eq!(LEVEL.load(Ordering::Relaxed), 4);
        let invalid = ["", "x", "-1", "4294967296"].map(|sent| status(Method::PUT, "/debug/flags/v", sent).0);
        assert_eq!((invalid, LEVEL.load(Ordering::Relaxed)), ([400; 4], 4));
        assert_eq!(status(Method::GET, "/debug/flags/v", "").0, 406);
        assert_eq!(status(Method::GET, "/debug/flags", ""), (200, "/debug/flags/v\n".to_owned()));
    }

    #[test]
    fn metrics_are_compressed_for_clients_that_accept_it() {
        use std::io::Read;

        use hyper::header::{ACCEPT_ENCODING, CONTENT_LENGTH};

        let mut request = request("/metrics");
        request.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let response = handler(&Arc::new(History::new(SystemTime::now(), true))).answer(&request);
        assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
        assert_eq!(response.headers()[CONTENT_TYPE], Metrics::CONTENT_TYPE);
        assert!(!response.headers().contains_key(CONTENT_LENGTH), "the server sets it");
        let mut metrics = String::new();
        flate2::read::GzDecoder::new(&*bytes(response)).read_to_string(&mut metrics).unwrap();
        assert!(metrics.contains("go_goroutines 7\n"));
    }

    #[test]
    fn pages_of_services_are_off_by_default() {
        let history = Arc::new(History::new(SystemTime::now(), false));
        for path in ["/services", "/changes"] {
            assert_eq!(get_from(&history, path), (404, NO_SERVICE_STATUS.to_owned()));
        }
        assert_eq!(get_from(&history, "/healthz").0, 200);
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        assert_eq!(get("/services?limit=x"), (400, "invalid limit \"x\": not a number\n".to_owned()));
        assert_eq!(get("/changes?continue=x").0, 400);
    }
}
