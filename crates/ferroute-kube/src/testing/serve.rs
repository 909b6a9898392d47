use std::{borrow::Cow, collections::BTreeMap, io, sync::Arc, time::Duration};

use ferroute_config::MediaType;
use ferroute_source::Resource;
use http_body_util::channel::Channel;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderValue},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};

use super::{
    Behaviour, Fault, ServedCluster, Streaming,
    behaviour::Signals,
    body::{Disconnected, Writer, write_endless, write_garbage},
    encode, exec,
    store::{self, Change},
    write,
};

pub(super) type FakeResponse = Response<Channel<Bytes, io::Error>>;

/// A parsed request for a collection.
struct CollectionRequest {
    resource: Resource,
    parameters: BTreeMap<String, String>,
    media_type: MediaType,
    behaviour: Behaviour,
    fault: Option<Fault>,
    /// Whether the response is compressed.
    gzip: bool,
}

impl CollectionRequest {
    fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.parameter(name).parse().ok()
    }

    /// Reports whether the selectors match an object.
    fn selects(&self, object: &Value) -> bool {
        let name = self.parameter("fieldSelector").strip_prefix("metadata.name=");
        name.is_none_or(|name| object["metadata"]["name"] == name)
            && store::matches_label_selector(object, self.parameter("labelSelector"))
    }

    /// Adds unknown fields if the behaviour requires it.
    fn decorated<'a>(&self, object: &'a Value) -> Cow<'a, Value> {
        if !self.behaviour.unknown_fields {
            return Cow::Borrowed(object);
        }
        let mut object = object.clone();
        object["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:items": {"k:{\"}\"}": []}}}]);
        object["items"] = json!([{"unknown": "}]"}]);
        if object["spec"].is_object() {
            object["spec"]["unknownField"] = json!({"items": [[null, {}], "\\\""]});
        }
        Cow::Owned(object)
    }

    fn event(&self, kind: &str, object: &Value) -> Vec<u8> {
        encode::event(self.media_type, self.resource, kind, object)
    }

    fn error(&self, code: u16) -> Vec<u8> {
        self.event("ERROR", &status_object(code))
    }

    fn status(&self, code: u16) -> FakeResponse {
        status(code, self.media_type, None)
    }

    /// Returns a writer and its body.
    fn writer(&self, shared: &ServedCluster) -> (Writer, Channel<Bytes, io::Error>) {
        let (writer, body) =
            Writer::new(&self.behaviour, self.fault.as_ref(), &shared.sent, shared.signals.subscribe());
        (writer.with_gzip(self.gzip), body)
    }

    fn respond(&self, content_type: &str, body: Channel<Bytes, io::Error>) -> FakeResponse {
        let mut response = respond_with(StatusCode::OK, content_type, body);
        if self.gzip {
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

pub(super) async fn respond(shared: Arc<ServedCluster>, request: Request<Incoming>) -> io::Result<FakeResponse> {
    let target = request.uri().to_string();
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (accept, authorization) = (header(header::ACCEPT), header(header::AUTHORIZATION));
    let encodings = header(header::ACCEPT_ENCODING).unwrap_or_default();
    let accepts_gzip = encodings.contains("gzip");
    let (fault, behaviour) = {
        let mut state = shared.state();
        state.requests.push(target);
        state.accept_headers.extend(accept.clone());
        state.authorization_headers.extend(authorization.clone());
        state.encodings.push(encodings);
        let fault = (!state.faults.is_empty()).then(|| state.faults.remove(0));
        (fault, state.behaviour.clone())
    };
    if behaviour.authorization.is_some() && authorization != behaviour.authorization {
        return Ok(status(401, MediaType::Json, None));
    }
    if behaviour.hung {
        return std::future::pending().await;
    }
    if behaviour.down {
        return Err(io::Error::other("down on demand"));
    }
    let Some(media_type) = negotiate(accept.as_deref(), &behaviour) else {
        return Ok(status(406, MediaType::Json, None));
    };
    if let Some((code, retry_after)) = behaviour.status {
        return Ok(status(code, media_type, retry_after));
    }
    match fault {
        Some(Fault::NoResponse) => return std::future::pending().await,
        Some(Fault::Status(code)) => return Ok(status(code, media_type, None)),
        Some(Fault::RetryAfter(seconds)) => return Ok(status(429, media_type, Some(seconds))),
        Some(Fault::Html) => return Ok(whole(StatusCode::OK, "text/html", "<html>Please log in</html>".into())),
        Some(Fault::Cut(_) | Fault::Stall(_) | Fault::Garbage { .. } | Fault::Endless(_)) | None => {}
    }
    if request.uri().path().ends_with("/exec") {
        return Ok(exec::respond(&shared, request));
    }
    let query = request.uri().query().unwrap_or_default();
    if let Some(response) = exec::read(&shared, request.uri().path(), query).filter(|_| request.method() == Method::GET)
    {
        return Ok(response);
    }
    if request.method() != Method::GET || request.uri().path().starts_with("/api/v1/nodes/") {
        return Ok(write::respond(&shared, request).await);
    }
    let resource = match request.uri().path() {
        "/api/v1/services" => Resource::Services,
        "/apis/discovery.k8s.io/v1/endpointslices" => Resource::EndpointSlices,
        "/api/v1/nodes" => Resource::Nodes,
        "/apis/networking.k8s.io/v1/servicecidrs" => match behaviour.service_cidrs {
            200 => Resource::ServiceCidrs,
            code => return Ok(status(code, media_type, None)),
        },
        _ => return Ok(status(404, media_type, None)),
    };
    let query = request.uri().query().unwrap_or_default();
    let parameters = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let gzip = behaviour.gzip && accepts_gzip;
    let request = CollectionRequest { resource, parameters, media_type, behaviour, fault, gzip };
    let is_watch = request.parameter("watch") == "true";
    let (writer, body) = request.writer(&shared);
    match request.fault {
        Some(Fault::Garbage { bytes, seed }) => {
            tokio::spawn(write_garbage(writer, bytes, seed));
            return Ok(request.respond(media_type.as_str(), body));
        }
        Some(Fault::Endless(bytes)) => {
            tokio::spawn(write_endless(writer, media_type, is_watch, bytes));
            return Ok(request.respond(media_type.as_str(), body));
        }
        _ => {}
    }
    Ok(if is_watch { begin_watch(shared, request) } else { list(&shared, &request) })
}

fn list(shared: &ServedCluster, request: &CollectionRequest) -> FakeResponse {
    let (items, version, token) = {
        let state = shared.state();
        let (now, compacted) = (state.store.version(), state.store.compacted());
        let lag = u64::try_from(request.behaviour.lag).unwrap_or(u64::MAX);
        let least = request.number("resourceVersion");
        let (version, offset) = match request.parameter("continue").split_once(':') {
            Some((version, offset)) => (version.parse().unwrap_or(0), offset.parse().unwrap_or(0)),
            None if least.is_some_and(|least| least > now) => return request.status(504),
            None => (least.map_or(now, |least| now.saturating_sub(lag).max(least).max(compacted)), 0_usize),
        };
        if version < compacted {
            return request.status(410);
        }
        let all = state.store.at(version, request.resource).into_values().filter(|object| request.selects(object));
        let mut items: Vec<Value> = all.skip(offset).collect();
        let limit = request.number("limit").filter(|_| request.behaviour.pages);
        let limit = limit.map_or(usize::MAX, |limit| limit as usize).min(request.behaviour.max_page);
        let token = (items.len() > limit && !request.parameter("limit").is_empty())
            .then(|| format!("{version}:{}", offset + limit))
            .inspect(|_| items.truncate(limit));
        (items, version, token)
    };
    let items: Vec<_> = items.iter().map(|object| request.decorated(object).into_owned()).collect();
    let metadata = json!({"resourceVersion": version.to_string(), "continue": token.unwrap_or_default()});
    let list = encode::list(request.media_type, request.resource, &metadata, &items);
    let (mut writer, body) = request.writer(shared);
    let open = shared.lists.begin();
    tokio::spawn(async move {
        let result = writer.write(&list).await;
        drop(open);
        result
    });
    request.respond(request.media_type.as_str(), body)
}

fn begin_watch(shared: Arc<ServedCluster>, request: CollectionRequest) -> FakeResponse {
    let signals = shared.signals.subscribe();
    let requests_list = request.parameter("sendInitialEvents") == "true";
    let (now, compacted) = {
        let state = shared.state();
        (state.store.version(), state.store.compacted())
    };
    let version = request.number("resourceVersion").filter(|version| *version > 0);
    let starts_with_all = match request.behaviour.streaming {
        Streaming::Rejected if requests_list => return request.status(422),
        Streaming::Yes if requests_list && version > Some(now) => return request.status(504),
        Streaming::Yes if requests_list => true,
        Streaming::Yes | Streaming::Rejected | Streaming::Ignored => version.is_none(),
    };
    let ends_list = starts_with_all && requests_list && request.behaviour.streaming == Streaming::Yes;
    let (mut writer, body) = request.writer(&shared);
    let response = request.respond(&format!("{};stream=watch", request.media_type.as_str()), body);
    if !starts_with_all && version.is_some_and(|version| version < compacted) {
        if !request.behaviour.expires_in_watch {
            return request.status(410);
        }
        let error = request.error(410);
        tokio::spawn(async move { writer.write(&error).await });
        return response;
    }
    let mut watch = Watch { shared, request, writer, version: version.unwrap_or(now) };
    tokio::spawn(async move {
        if starts_with_all {
            watch.write_all(ends_list).await?;
        }
        watch.run(signals).await
    });
    response
}

/// An open watch.
struct Watch {
    shared: Arc<ServedCluster>,
    request: CollectionRequest,
    writer: Writer,
    /// All changes up to this version have been sent.
    version: u64,
}

impl Watch {
    async fn write_all(&mut self, ends_list: bool) -> Result<(), Disconnected> {
        let _open = self.shared.lists.begin();
        let objects = {
            let state = self.shared.state();
            self.version = state.store.version();
            state.store.at(self.version, self.request.resource)
        };
        for object in objects.values().filter(|object| self.request.selects(object)) {
            let message = self.request.event("ADDED", &self.request.decorated(object));
            self.writer.write(&message).await?;
        }
        if ends_list { self.write_bookmark(true).await } else { Ok(()) }
    }

    async fn run(mut self, mut signals: watch::Receiver<Signals>) -> Result<(), Disconnected> {
        let mut seen = signals.borrow_and_update().clone();
        let end = sleep(Duration::from_secs(self.request.number("timeoutSeconds").unwrap_or(3600)));
        tokio::pin!(end);
        if self.request.behaviour.repeats {
            self.repeat(3, self.version).await?;
        }
        loop {
            if self.write_changes().await?.is_none() {
                return self.writer.write(&self.request.error(410)).await;
            }
            tokio::select! {
                changed = signals.changed() => changed.map_err(|_| Disconnected)?,
                () = &mut end => return Ok(()),
            }
            let now = signals.borrow_and_update().clone();
            if now.sent > seen.sent {
                let (kind, object) = &*now.message;
                self.writer.write(&self.request.event(kind, object)).await?;
            }
            if now.errors > seen.errors {
                return self.writer.write(&self.request.error(now.code)).await;
            }
            if now.cuts > seen.cuts {
                let message = self.request.event("MODIFIED", &json!({"metadata": {"name": "cut"}}));
                self.writer.write(&message[..message.len() / 2]).await?;
                self.writer.cut().await;
                return Err(Disconnected);
            }
            if now.stalls > seen.stalls {
                let message = self.request.event("MODIFIED", &json!({"metadata": {"name": "stalled"}}));
                self.writer.write(&message[..message.len() / 2]).await?;
                self.writer.stall().await;
                return Err(Disconnected);
            }
            if now.ends > seen.ends {
                return Ok(());
            }
            if now.bookmarks > seen.bookmarks && self.write_changes().await?.is_some() {
                self.write_bookmark(false).await?;
            }
            seen = now;
        }
    }

    /// Returns `None` if some changes are discarded.
    async fn write_changes(&mut self) -> Result<Option<()>, Disconnected> {
        let changes = {
            let state = self.shared.state();
            if self.version < state.store.compacted() {
                return Ok(None);
            }
            let changes = state.store.after(self.version, self.request.resource);
            self.version = state.store.version();
            changes
        };
        for change in changes {
            self.write_change(&change).await?;
            if self.request.behaviour.repeats {
                self.repeat(1, change.version).await?;
            }
        }
        Ok(Some(()))
    }

    async fn write_change(&mut self, change: &Change) -> Result<(), Disconnected> {
        let visible = |object: &Option<Arc<Value>>| object.clone().filter(|object| self.request.selects(object));
        let message = match (visible(&change.before), visible(&change.after)) {
            (None, None) => return Ok(()),
            (None, Some(object)) => self.request.event("ADDED", &self.request.decorated(&object)),
            (Some(_), Some(object)) => self.request.event("MODIFIED", &self.request.decorated(&object)),
            (Some(object), None) => {
                let mut object = Value::clone(&object);
                object["metadata"]["resourceVersion"] = change.version.to_string().into();
                self.request.event("DELETED", &self.request.decorated(&object))
            }
        };
        self.writer.write(&message).await
    }

    /// Sends some of the changes up to a version again, in any order.
    async fn repeat(&mut self, times: usize, version: u64) -> Result<(), Disconnected> {
        let old = self.shared.state().store.until(version, self.request.resource);
        for _ in 0..times {
            if let Some(change) = fastrand::choice(&old) {
                self.write_change(change).await?;
            }
        }
        Ok(())
    }

    async fn write_bookmark(&mut self, ends_list: bool) -> Result<(), Disconnected> {
        let mut metadata = json!({"resourceVersion": self.version.to_string(), "creationTimestamp": null});
        if ends_list {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let message = self.request.event("BOOKMARK", &json!({"metadata": metadata, "spec": {}}));
        self.writer.write(&message).await
    }
}

/// Returns the media type of the response; `None` if the request accepts none that is supported.
fn negotiate(accept: Option<&str>, behaviour: &Behaviour) -> Option<MediaType> {
    let mut accepted = accept.unwrap_or(MediaType::Json.as_str()).split(',').filter_map(MediaType::parse);
    accepted.find(|media_type| behaviour.protobuf || *media_type == MediaType::Json)
}

fn status_object(code: u16) -> Value {
    let message = format!("fake error {code}");
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})
}

pub(super) fn status(code: u16, media_type: MediaType, retry_after: Option<u64>) -> FakeResponse {
    let code_type = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = whole(code_type, media_type.as_str(), encode::status(media_type, &status_object(code)));
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

pub(super) fn whole(code: StatusCode, content_type: &str, bytes: Vec<u8>) -> FakeResponse {
    let (mut writer, body) =
        Writer::new(&Behaviour::default(), None, &Arc::default(), watch::channel(Signals::default()).1);
    tokio::spawn(async move { writer.write(&bytes).await });
    respond_with(code, content_type, body)
}

fn respond_with(code: StatusCode, content_type: &str, body: Channel<Bytes, io::Error>) -> FakeResponse {
    let response = Response::builder().status(code).header(header::CONTENT_TYPE, content_type);
    response.body(body).expect("media types are valid headers")
}
