//! Pages that tell of the program itself, in each form that Kubernetes 1.36 has for them: text for people, and objects of
//! the group `config.k8s.io` for programs.

use ferroute_health::{Request, Response, json, text};
use hyper::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::Serialize;

use super::accept::{Form, GROUP, Syntax, Version};

/// A page whose fields are those of an object of Kubernetes.
pub(super) trait ZPage: Serialize {
    /// The object's kind.
    const KIND: &'static str;

    /// The page for people.
    fn text(&self) -> String;

    /// The page in the form that is asked for, or what can be asked for.
    fn answer(&self, request: &Request) -> Response
    where
        Self: Sized,
    {
        match Form::asked(&request.headers, Self::KIND) {
            Some(Form::Text) => text(StatusCode::OK, self.text()),
            Some(Form::Object(syntax, version)) => object(self, syntax, version),
            None => not_acceptable(Self::KIND),
        }
    }
}

/// How the pages for people begin.
pub(super) fn heading(what: &str) -> String {
    format!(
        "\n{COMPONENT} {what}\nThis page is for people: its form may change, so programs should ask for the object.\n\n"
    )
}

/// The name under which programs look for it.
const COMPONENT: &str = "kube-proxy";

/// The page as an object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a, T> {
    kind: &'static str,
    api_version: String,
    metadata: Metadata,
    #[serde(flatten)]
    page: &'a T,
}

#[derive(Serialize)]
struct Metadata {
    name: &'static str,
}

fn object<T: ZPage>(page: &T, syntax: Syntax, version: Version) -> Response {
    let object = Object {
        kind: T::KIND,
        api_version: format!("{GROUP}/{}", version.as_str()),
        metadata: Metadata { name: COMPONENT },
        page,
    };
    let plain = "maps with text keys cannot fail to become text";
    let body = match syntax {
        Syntax::Json => serde_json::to_string(&object).expect(plain),
        Syntax::Yaml => serde_saphyr::to_string(&object).expect(plain),
    };
    let mut response = json(StatusCode::OK, body);
    // As Kubernetes names it: what is in the body, and not only how it is written.
    let kind = format!("application/{};g={GROUP};v={};as={}", syntax.subtype(), version.as_str(), T::KIND);
    let kind = HeaderValue::from_str(&kind).expect("the names of kinds are letters");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A `Status`, as programs of Kubernetes expect it with each error.
fn not_acceptable(kind: &str) -> Response {
    let forms = [Syntax::Json, Syntax::Yaml]
        .map(|syntax| format!("application/{};g={GROUP};v={};as={kind}", syntax.subtype(), Version::V1Beta1.as_str()));
    let status = serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": format!("this page is there as text/plain, {}", forms.join(", ")),
        "reason": "NotAcceptable",
        "code": StatusCode::NOT_ACCEPTABLE.as_u16(),
    });
    json(StatusCode::NOT_ACCEPTABLE, status.to_string())
}

#[cfg(test)]
mod tests {
    use ferroute_config::KubeProxyConfiguration;
    use hyper::{body::Body, header::ACCEPT};
    use serde_json::{Value, json};

    use super::*;
    use crate::status::pages::Pages;

    fn pages() -> Pages {
        let flags = [("cleanup", "false"), ("proxy-mode", "nftables")];
        Pages::new(&KubeProxyConfiguration::default(), flags.into_iter())
    }

    /// The answer's status, type and body.
    fn ask(page: &impl ZPage, accept: &'static str) -> (StatusCode, String, String) {
        let mut request = hyper::Request::new(()).into_parts().0;
        request.headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let response = page.answer(&request);
        let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let (head, body) = response.into_parts();
        (head.status, kind, whole(body))
    }

    /// A body that is there at once.
    fn whole(body: impl Body<Data = hyper::body::Bytes, Error = std::convert::Infallible> + Unpin) -> String {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut body = std::pin::pin!(body);
        let mut text = Vec::new();
        while let std::task::Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) {
            text.extend_from_slice(frame.data_ref().unwrap());
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn programs_get_the_flags_as_an_object() {
        let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        let (status, kind, body) = ask(&pages().flagz, accept);
        assert_eq!((status, &*kind), (StatusCode::OK, "application/json;g=config.k8s.io;v=v1beta1;as=Flagz"));
        let object = json!({
            "kind": "Flagz",
            "apiVersion": "config.k8s.io/v1beta1",
            "metadata": {"name": "kube-proxy"},
            "flags": {"cleanup": "false", "proxy-mode": "nftables"},
        });
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), object);
    }

    #[test]
    fn programs_get_the_status_as_an_object() {
        let pages = pages();
        let (status, _, body) = ask(&pages.statusz(), "application/json;v=v1alpha1;g=config.k8s.io;as=Statusz");
        let mut object: Value = serde_json::from_str(&body).unwrap();
        let fields = object.as_object_mut().unwrap();
        let [started, uptime] = ["startTime", "uptimeSeconds"].map(|field| fields.remove(field).unwrap());
        let started = started.as_str().unwrap();
        assert!(
            started.len() == "2026-01-02T15:04:05Z".len() && humantime::parse_rfc3339(started).is_ok(),
            "{started}"
        );
        assert!(uptime.is_u64(), "{uptime}");
        let rest = json!({
            "kind": "Statusz",
            "apiVersion": "config.k8s.io/v1alpha1",
            "metadata": {"name": "kube-proxy"},
            "goVersion": "",
            "binaryVersion": concat!("1.36.0+ferroute.", env!("CARGO_PKG_VERSION")),
            "emulationVersion": "1.36",
            "paths": [
                "/changes", "/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/services", "/statusz",
            ],
        });
        assert_eq!((status, object), (StatusCode::OK, rest));
    }

    #[test]
    fn yaml_tells_the_same_as_json() {
        let page = pages().flagz;
        let (_, _, json) = ask(&page, "application/json;v=v1beta1;g=config.k8s.io;as=Flagz");
        let (_, kind, yaml) = ask(&page, "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz");
        assert_eq!(kind, "application/yaml;g=config.k8s.io;v=v1beta1;as=Flagz");
        assert!(yaml.starts_with("kind: Flagz\napiVersion: config.k8s.io/v1beta1\n"), "{yaml}");
        let value: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(&json).unwrap());
    }

    #[test]
    fn people_get_text() {
        let (status, kind, body) = ask(&pages().flagz, "*/*");
        assert_eq!((status, &*kind), (StatusCode::OK, "text/plain; charset=utf-8"));
        assert!(body.starts_with("\nkube-proxy flagz\n"), "{body}");
    }

    #[test]
    fn what_there_is_not_is_told_with_what_there_is() {
        let (status, kind, body) = ask(&pages().flagz, "application/json");
        assert_eq!((status, &*kind), (StatusCode::NOT_ACCEPTABLE, "application/json"));
        let told: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&told["kind"], &told["reason"], &told["code"]),
            (&"Status".into(), &"NotAcceptable".into(), &406.into())
        );
        let message = told["message"].as_str().unwrap();
        assert!(message.contains("application/json;g=config.k8s.io;v=v1beta1;as=Flagz"), "{message}");
    }
}
