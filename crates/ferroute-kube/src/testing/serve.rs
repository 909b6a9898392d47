use std::{borrow::Cow, collections::BTreeMap, io, sync::Arc, time::Duration};

use ferroute_config::MediaType;
use ferroute_source::Resource;
use http_body_util::channel::Channel;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};

use super::{
    Behaviour, Fault, Shared, Streaming,
    behaviour::Signals,
    body::{Over, Writer},
    encode,
    store::{self, Change},
    write,
};

pub(super) type Answer = Response<Channel<Bytes, io::Error>>;

/// A request, taken apart.
struct Asked {
    resource: Resource,
    parameters: BTreeMap<String, String>,
    media_type: MediaType,
    behaviour: Behaviour,
    fault: Option<Fault>,
}

impl Asked {
    fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.parameter(name).parse().ok()
    }

    /// Whether the selectors let an object through.
    fn sees(&self, object: &Value) -> bool {
        let name = self.parameter("fieldSelector").strip_prefix("metadata.name=");
        name.is_none_or(|name| object["metadata"]["name"] == name)
            && (self.parameter("labelSelector").is_empty() || store::is_ours(object))
    }

    /// The object as it is sent.
    fn dressed<'a>(&self, object: &'a Value) -> Cow<'a, Value> {
        if !self.behaviour.unknown_fields {
            return Cow::Borrowed(object);
        }
        let mut object = object.clone();
        object["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:items": {"k:{\"}\"}": []}}}]);
        object["items"] = json!([{"unknown": "}]"}]);
        if object["spec"].is_object() {
            object["spec"]["unheardOf"] = json!({"items": [[null, {}], "\\\""]});
        }
        Cow::Owned(object)
    }

    fn event(&self, kind: &str, object: &Value) -> Vec<u8> {
        encode::event(self.media_type, self.resource, kind, object)
    }

    fn error(&self, code: u16) -> Vec<u8> {
        self.event("ERROR", &status_object(code))
    }

    fn status(&self, code: u16) -> Answer {
        status(code, self.media_type, None)
    }

    fn cut(&self) -> Option<usize> {
        match self.fault {
            Some(Fault::Cut(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

pub(super) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<Answer> {
    let target = request.uri().to_string();
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (fault, behaviour) = {
        let mut state = shared.state();
        state.requests.push(target);
        state.accepted.extend(accept.clone());
        let fault = (!state.faults.is_empty()).then(|| state.faults.remove(0));
        (fault, state.behaviour.clone())
    };
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if behaviour.authorization.as_deref().is_some_and(|authorization| shown != Some(authorization)) {
        return Ok(status(401, MediaType::Json, None));
    }
    if behaviour.away {
        return Err(io::Error::other("away on demand"));
    }
    let Some(media_type) = acceptable(accept.as_deref(), &behaviour) else {
        return Ok(status(406, MediaType::Json, None));
    };
    match fault {
        Some(Fault::Silence) => return std::future::pending().await,
        Some(Fault::Status(code)) => return Ok(status(code, media_type, None)),
        Some(Fault::Wait(seconds)) => return Ok(status(429, media_type, Some(seconds))),
        Some(Fault::Html) => return Ok(whole(StatusCode::OK, "text/html", "<html>log in, please</html>".into())),
        Some(Fault::Cut(_)) | None => {}
    }
    if request.method() != Method::GET || request.uri().path().starts_with("/api/v1/nodes/") {
        return Ok(write::answer(&shared, request).await);
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
    let asked = Asked { resource, parameters, media_type, behaviour, fault };
    Ok(if asked.parameter("watch") == "true" { begin_watch(shared, asked) } else { list(&shared, &asked) })
}

fn list(shared: &Shared, asked: &Asked) -> Answer {
    let (items, version, token) = {
        let state = shared.state();
        let (now, forgotten) = (state.store.version(), state.store.forgotten());
        let lag = u64::try_from(asked.behaviour.lag).unwrap_or(u64::MAX);
        let least = asked.number("resourceVersion");
        let (version, offset) = match asked.parameter("continue").split_once(':') {
            Some((version, offset)) => (version.parse().unwrap_or(0), offset.parse().unwrap_or(0)),
            None if least.is_some_and(|least| least > now) => return asked.status(504),
            None => (least.map_or(now, |least| now.saturating_sub(lag).max(least).max(forgotten)), 0_usize),
        };
        if version < forgotten {
            return asked.status(410);
        }
        let all = state.store.at(version, asked.resource).into_values().filter(|object| asked.sees(object));
        let mut items: Vec<Value> = all.skip(offset).collect();
        let limit = asked.number("limit").filter(|_| asked.behaviour.pages);
        let limit = limit.map_or(usize::MAX, |limit| limit as usize).min(asked.behaviour.most_in_page);
        let token = (items.len() > limit && !asked.parameter("limit").is_empty())
            .then(|| format!("{version}:{}", offset + limit))
            .inspect(|_| items.truncate(limit));
        (items, version, token)
    };
    let items: Vec<_> = items.iter().map(|object| asked.dressed(object).into_owned()).collect();
    let metadata = json!({"resourceVersion": version.to_string(), "continue": token.unwrap_or_default()});
    let list = encode::list(asked.media_type, asked.resource, &metadata, &items);
    let (mut writer, body) = Writer::new(&asked.behaviour, asked.cut());
    tokio::spawn(async move { writer.write(&list).await });
    answer_of(StatusCode::OK, asked.media_type.as_str(), body)
}

fn begin_watch(shared: Arc<Shared>, asked: Asked) -> Answer {
    let signals = shared.signals.subscribe();
    let asks_for_list = asked.parameter("sendInitialEvents") == "true";
    let (now, forgotten) = {
        let state = shared.state();
        (state.store.version(), state.store.forgotten())
    };
    let version = asked.number("resourceVersion").filter(|version| *version > 0);
    let starts_with_all = match asked.behaviour.streaming {
        Streaming::Refused if asks_for_list => return asked.status(422),
        Streaming::Yes if asks_for_list && version > Some(now) => return asked.status(504),
        Streaming::Yes if asks_for_list => true,
        Streaming::Yes | Streaming::Refused | Streaming::Ignored => version.is_none(),
    };
    let ends_list = starts_with_all && asks_for_list && asked.behaviour.streaming == Streaming::Yes;
    let (mut writer, body) = Writer::new(&asked.behaviour, asked.cut());
    let answer = answer_of(StatusCode::OK, &format!("{};stream=watch", asked.media_type.as_str()), body);
    if !starts_with_all && version.is_some_and(|version| version < forgotten) {
        if !asked.behaviour.expires_in_watch {
            return asked.status(410);
        }
        let error = asked.error(410);
        tokio::spawn(async move { writer.write(&error).await });
        return answer;
    }
    let mut watch = Watch { shared, asked, writer, version: version.unwrap_or(now) };
    tokio::spawn(async move {
        if starts_with_all {
            watch.write_all(ends_list).await?;
        }
        watch.go_on(signals).await
    });
    answer
}

/// A watch that goes on.
struct Watch {
    shared: Arc<Shared>,
    asked: Asked,
    writer: Writer,
    /// Everything up to here has been sent.
    version: u64,
}

impl Watch {
    async fn write_all(&mut self, ends_list: bool) -> Result<(), Over> {
        let objects = {
            let state = self.shared.state();
            self.version = state.store.version();
            state.store.at(self.version, self.asked.resource)
        };
        for object in objects.values().filter(|object| self.asked.sees(object)) {
            let message = self.asked.event("ADDED", &self.asked.dressed(object));
            self.writer.write(&message).await?;
        }
        if ends_list { self.write_bookmark(true).await } else { Ok(()) }
    }

    async fn go_on(mut self, mut signals: watch::Receiver<Signals>) -> Result<(), Over> {
        let mut seen = signals.borrow_and_update().clone();
        let end = sleep(Duration::from_secs(self.asked.number("timeoutSeconds").unwrap_or(3600)));
        tokio::pin!(end);
        if self.asked.behaviour.repeats {
            self.repeat(3, self.version).await?;
        }
        loop {
            if self.write_changes().await?.is_none() {
                return self.writer.write(&self.asked.error(410)).await;
            }
            tokio::select! {
                changed = signals.changed() => changed.map_err(|_| Over)?,
                () = &mut end => return Ok(()),
            }
            let now = signals.borrow_and_update().clone();
            if now.sent > seen.sent {
                let (kind, object) = &*now.message;
                self.writer.write(&self.asked.event(kind, object)).await?;
            }
            if now.errors > seen.errors {
                return self.writer.write(&self.asked.error(now.code)).await;
            }
            if now.cuts > seen.cuts {
                let message = self.asked.event("MODIFIED", &json!({"metadata": {"name": "cut"}}));
                self.writer.write(&message[..message.len() / 2]).await?;
                self.writer.cut().await;
                return Err(Over);
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

    /// `None` where some are forgotten.
    async fn write_changes(&mut self) -> Result<Option<()>, Over> {
        let changes = {
            let state = self.shared.state();
            if self.version < state.store.forgotten() {
                return Ok(None);
            }
            let changes = state.store.after(self.version, self.asked.resource);
            self.version = state.store.version();
            changes
        };
        for change in changes {
            self.write_change(&change).await?;
            if self.asked.behaviour.repeats {
                self.repeat(1, change.version).await?;
            }
        }
        Ok(Some(()))
    }

    async fn write_change(&mut self, change: &Change) -> Result<(), Over> {
        let visible = |object: &Option<Arc<Value>>| object.clone().filter(|object| self.asked.sees(object));
        let message = match (visible(&change.before), visible(&change.after)) {
            (None, None) => return Ok(()),
            (None, Some(object)) => self.asked.event("ADDED", &self.asked.dressed(&object)),
            (Some(_), Some(object)) => self.asked.event("MODIFIED", &self.asked.dressed(&object)),
            (Some(object), None) => {
                let mut object = Value::clone(&object);
                object["metadata"]["resourceVersion"] = change.version.to_string().into();
                self.asked.event("DELETED", &self.asked.dressed(&object))
            }
        };
        self.writer.write(&message).await
    }

    /// Sends some of the old news up to a version again, in any order.
    async fn repeat(&mut self, times: usize, version: u64) -> Result<(), Over> {
        let old = self.shared.state().store.until(version, self.asked.resource);
        for _ in 0..times {
            if let Some(change) = fastrand::choice(&old) {
                self.write_change(change).await?;
            }
        }
        Ok(())
    }

    async fn write_bookmark(&mut self, ends_list: bool) -> Result<(), Over> {
        let mut metadata = json!({"resourceVersion": self.version.to_string(), "creationTimestamp": null});
        if ends_list {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let message = self.asked.event("BOOKMARK", &json!({"metadata": metadata, "spec": {}}));
        self.writer.write(&message).await
    }
}

/// The form in which to answer; `None` where the request takes none that the double has.
fn acceptable(accept: Option<&str>, behaviour: &Behaviour) -> Option<MediaType> {
    let mut accepted = accept.unwrap_or(MediaType::Json.as_str()).split(',').filter_map(MediaType::of);
    accepted.find(|media_type| behaviour.protobuf || *media_type == MediaType::Json)
}

fn status_object(code: u16) -> Value {
    let message = format!("the double says {code}");
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})
}

pub(super) fn status(code: u16, media_type: MediaType, retry_after: Option<u64>) -> Answer {
    let code_type = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = whole(code_type, media_type.as_str(), encode::status(media_type, &status_object(code)));
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}

pub(super) fn whole(code: StatusCode, content_type: &str, bytes: Vec<u8>) -> Answer {
    let (mut writer, body) = Writer::new(&Behaviour::default(), None);
    tokio::spawn(async move { writer.write(&bytes).await });
    answer_of(code, content_type, body)
}

fn answer_of(code: StatusCode, content_type: &str, body: Channel<Bytes, io::Error>) -> Answer {
    let answer = Response::builder().status(code).header(header::CONTENT_TYPE, content_type);
    answer.body(body).expect("media types make good headers")
}
