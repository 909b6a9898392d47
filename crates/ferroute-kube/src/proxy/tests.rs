use super::*;

/// The proxy for `url` with these environment variables.
fn find(url: &str, kubeconfig: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Proxy>, ProxyError> {
    let environment = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Proxy::find(&url.parse().unwrap(), kubeconfig, environment)
}

fn proxy(url: &str, kubeconfig: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
    find(url, kubeconfig, variables).unwrap().map(|proxy| proxy.uri.to_string())
}

#[test]
fn environment_names_a_proxy_per_scheme_in_upper_or_lower_case() {
    let variables = [("HTTPS_PROXY", "http://secure:1"), ("HTTP_PROXY", ""), ("http_proxy", "plain:2")];
    assert_eq!(proxy("https://10.0.0.1:6443", None, &variables).as_deref(), Some("http://secure:1/"));
    assert_eq!(proxy("http://10.0.0.1:8001", None, &variables).as_deref(), Some("http://plain:2/"));
    assert_eq!(proxy("https://10.0.0.1:6443", None, &[]), None);
}

#[test]
fn no_proxy_is_matched_against_the_api_server() {
    let variables = [("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", ".cluster.local,10.0.0.0/8,192.0.2.2:443")];
    assert_eq!(proxy("https://10.0.0.1:6443", None, &variables), None);
    assert_eq!(proxy("https://api.cluster.local", None, &variables), None);
    assert_eq!(proxy("https://192.0.2.2", None, &variables), None);
    assert_eq!(proxy("https://192.0.2.1", None, &variables).as_deref(), Some("http://proxy:1/"));
    assert_eq!(proxy("https://192.0.2.1", None, &[("HTTPS_PROXY", "http://proxy:1"), ("no_proxy", "*")]), None);
}

#[test]
fn kubeconfig_takes_precedence_over_the_environment() {
    let variables = [("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", "*")];
    let proxy = proxy("https://10.0.0.1:6443", Some("socks5://other:1080"), &variables);
    assert_eq!(proxy.as_deref(), Some("socks5://other:1080/"));
}

#[test]
fn proxies_have_the_forms_of_go() {
    for (value, uri, scheme, credentials) in [
        ("proxy:3128", "http://proxy:3128/", Scheme::Http, None),
        ("proxy", "http://proxy:80/", Scheme::Http, None),
        ("HTTP://Proxy:3128/path?x", "http://Proxy:3128/", Scheme::Http, None),
        ("http://user:secret@proxy:3128", "http://proxy:3128/", Scheme::Http, Some(("user", "secret"))),
        ("user:p%40ss%3Aword@proxy:3128", "http://proxy:3128/", Scheme::Http, Some(("user", "p@ss:word"))),
        ("http://user:p@ss@proxy:3128", "http://proxy:3128/", Scheme::Http, Some(("user", "p@ss"))),
        ("http://DOMAIN%5Cuser:a:b@proxy:1", "http://proxy:1/", Scheme::Http, Some(("DOMAIN\\user", "a:b"))),
        ("http://user@proxy:1", "http://proxy:1/", Scheme::Http, Some(("user", ""))),
        ("https://user:x@proxy", "https://proxy:443/", Scheme::Http, Some(("user", "x"))),
        ("http://[fd00::1]:3128", "http://[fd00::1]:3128/", Scheme::Http, None),
        ("socks5h://user:x@proxy", "socks5://proxy:1080/", Scheme::Socks5, Some(("user", "x"))),
    ] {
        let proxy = find("https://10.0.0.1:6443", None, &[("HTTPS_PROXY", value)]).unwrap().unwrap();
        let expected = credentials.map(|(user, password)| (user.to_owned(), password.to_owned()));
        assert_eq!(
            (proxy.uri.to_string().as_str(), proxy.scheme, proxy.raw_auth()),
            (uri, scheme, expected),
            "{value}"
        );
    }
    let proxy = Proxy::parse("http://Aladdin:open%20sesame@proxy:1").unwrap();
    assert_eq!(proxy.basic_auth().unwrap(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
}

#[test]
fn unusable_proxies_of_the_environment_are_ignored_only_if_go_ignores_them() {
    for value in ["http://", "://", "http://proxy:port"] {
        assert_eq!(proxy("https://10.0.0.1:6443", None, &[("HTTPS_PROXY", value)]), None, "{value}");
        assert!(matches!(find("https://10.0.0.1:6443", Some(value), &[]), Err(ProxyError::Invalid)), "{value}");
    }
    let error = find("https://10.0.0.1:6443", None, &[("HTTPS_PROXY", "socks4://user:secret@proxy")]).unwrap_err();
    assert!(error.to_string().contains("socks4://proxy") && !error.to_string().contains("secret"), "{error}");
}
