use super::*;
use crate::http::testing::{body, request};

fn pages() -> Pages {
    let flags = [("proxy-mode", "nftables"), ("cleanup", "false")];
    Pages::new(&KubeProxyConfiguration::default(), flags.into_iter()).with_host(vec!["net/a = 1 (was 0)".to_owned()])
}

/// Returns status, media type and body of `/statusz` or `/flagz`.
fn get(path: &str, accept: &'static str) -> (u16, String, String) {
    let mut request = request(path);
    request.headers.insert(ACCEPT, HeaderValue::from_static(accept));
    let response = if path == "/flagz" { pages().flagz(&request) } else { pages().statusz(&request) };
    let media_type = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
    (response.status().as_u16(), media_type, body(response))
}

fn form(accept: &[&'static str]) -> Option<Form> {
    let mut headers = HeaderMap::new();
    for value in accept {
        headers.append(ACCEPT, HeaderValue::from_static(value));
    }
    Form::negotiate(&headers, "Statusz")
}

#[test]
fn text_is_the_default_form() {
    assert_eq!(form(&[]), Some(Form::Text));
    let browser = "text/html,*/*;q=0.8";
    for accept in ["", "*/*", "text/*", "text/plain", browser, "text/plain;charset=utf-8", "application/json, */*"] {
        assert_eq!(form(&[accept]), Some(Form::Text), "{accept:?}");
    }
    assert_eq!(form(&["application/json", "text/plain"]), Some(Form::Text));
}

#[test]
fn objects_are_selected_by_kind_group_and_version() {
    let object = |yaml, version| Some(Form::Object { yaml, version });
    for (accept, expected) in [
        ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", object(false, "v1beta1")),
        ("application/json; as=Statusz; v=v1alpha1; g=\"config.k8s.io\"", object(false, "v1alpha1")),
        ("application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz", object(true, "v1beta1")),
        (
            "application/json;v=v2;g=config.k8s.io;as=Statusz,application/json;v=v1beta1;g=config.k8s.io;as=Statusz,*/*",
            object(false, "v1beta1"),
        ),
        ("application/json;v=v2;g=config.k8s.io;as=Statusz,*/*", Some(Form::Text)),
    ] {
        assert_eq!(form(&[accept]), expected, "{accept}");
    }
}

#[test]
fn other_media_types_are_not_acceptable() {
    for accept in [
        "application/json",
        "application/json;v=v1beta1;g=config.k8s.io",
        "application/json;v=v1beta1;as=Statusz",
        "application/json;v=v1;g=config.k8s.io;as=Statusz",
        "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
        "text/plain;v=v1beta1;g=config.k8s.io;as=Statusz",
        "application/cbor;v=v1beta1;g=config.k8s.io;as=Statusz",
        "application/vnd.kubernetes.protobuf;v=v1beta1;g=config.k8s.io;as=Statusz",
        "application/xml",
        "invalid",
    ] {
        assert_eq!(form(&[accept]), None, "{accept:?}");
    }
    let (code, media_type, body) = get("/flagz", "application/json");
    assert_eq!((code, &*media_type), (406, "application/json"));
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&status["kind"], &status["reason"], &status["code"]),
        (&json!("Status"), &json!("NotAcceptable"), &json!(406))
    );
    assert!(body.contains("application/json;g=config.k8s.io;v=v1beta1;as=Flagz"), "{body}");
}

#[test]
fn statusz_text_lists_versions_uptime_and_host_settings() {
    let (code, media_type, body) = get("/statusz", "*/*");
    assert_eq!((code, &*media_type), (200, "text/plain; charset=utf-8"));
    for start in [
        "\nkube-proxy statusz\n",
        "Up: 0 hr 00 min 0",
        "Binary version: v1.36.0+ferroute.",
        "Host: net/a = 1 (was 0)\n",
    ] {
        assert!(body.contains(start), "{start:?}\n{body}");
    }
}

#[test]
fn statusz_object_has_the_fields_of_kubernetes() {
    let (_, _, body) = get("/statusz", "application/json;v=v1alpha1;g=config.k8s.io;as=Statusz");
    let object: Value = serde_json::from_str(&body).unwrap();
    let started = object["startTime"].as_str().unwrap();
    assert!(started.len() == "2026-01-02T15:04:05Z".len() && rfc3339::parse(started).is_some(), "{started}");
    let expected = json!({
        "kind": "Statusz",
        "apiVersion": "config.k8s.io/v1alpha1",
        "metadata": {"name": "kube-proxy"},
        "startTime": started,
        "uptimeSeconds": object["uptimeSeconds"].as_u64().unwrap(),
        "goVersion": "",
        "binaryVersion": concat!("1.36.0+ferroute.", env!("CARGO_PKG_VERSION")),
        "emulationVersion": "1.36",
        "paths": ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/statusz"],
    });
    assert_eq!(object, expected);
}

#[test]
fn flagz_lists_flags_as_text_json_and_yaml() {
    let (_, _, text) = get("/flagz", "text/plain");
    assert!(
        text.starts_with("\nkube-proxy flagz\n")
            && text.contains("/configz has the configuration in effect")
            && text.ends_with("\n\ncleanup=false\nproxy-mode=nftables\n"),
        "{text}"
    );
    let expected = json!({
        "kind": "Flagz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kube-proxy"},
        "flags": {"cleanup": "false", "proxy-mode": "nftables"},
    });
    let (code, media_type, json) = get("/flagz", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz");
    assert_eq!((code, &*media_type), (200, "application/json;g=config.k8s.io;v=v1beta1;as=Flagz"));
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), expected);
    let (_, media_type, yaml) = get("/flagz", "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz");
    assert_eq!(media_type, "application/yaml;g=config.k8s.io;v=v1beta1;as=Flagz");
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), expected);
}

#[test]
fn configz_shows_the_configuration_under_its_group() {
    let config = KubeProxyConfiguration::default().defaulted();
    let response = Pages::new(&config, std::iter::empty()).configz();
    let shown: Value = serde_json::from_str(&body(response)).unwrap();
    let shown = &shown["kubeproxy.config.k8s.io"];
    assert_eq!(shown["metricsBindAddress"], "127.0.0.1:10249");
    assert_eq!(shown["iptables"]["syncPeriod"], "30s");
    let decoded = KubeProxyConfiguration::from_text(&shown.to_string()).unwrap();
    assert_eq!(decoded.config, config.platform_defaulted());
}
