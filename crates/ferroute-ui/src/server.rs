//! The HTTP server: routes, the state that requests share, and the stream of events.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use anyhow::Context;
use axum::{
    Router,
    extract::{Path, Request, State},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    middleware::{self, Next},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::{get, post},
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::json;
use tokio::sync::{Semaphore, broadcast};

use crate::{
    api::{self, Work},
    assets,
    compression::compressed,
    demo,
    flows::{self, Flows},
    history::History,
    security::{HEADERS, Token, is_own_host, url},
    source::Source,
    view::View,
    watch::{self, News},
};

/// The state that all requests share.
pub(crate) struct App {
    source: Source,
    view: RwLock<Arc<View>>,
    news: broadcast::Sender<News>,
    /// Last message with rates, for pages that are opened now.
    rates: Mutex<Option<News>>,
    history: Mutex<History>,
    /// Connections through Services.
    flows: Flows,
    /// The permission for the demo's actions.
    token: Option<Token>,
    /// Limit the requests of a kind at the same time.
    limits: [Semaphore; 3],
}

impl App {
    /// Loads the state of a source. Blocks.
    pub(crate) fn load(source: Source) -> anyhow::Result<Arc<Self>> {
        let token = source.demo().is_some().then(Token::random).transpose().context("cannot create a token")?;
        let view = View::new(source.load()?, None);
        let (news, _) = broadcast::channel(MAX_NEWS);
        Ok(Arc::new(Self {
            source,
            view: RwLock::new(Arc::new(view)),
            news,
            rates: Mutex::default(),
            history: Mutex::default(),
            flows: Flows::default(),
            token,
            limits: [MAX_WORK, MAX_WORK, 1].map(Semaphore::new),
        }))
    }

    /// Returns the limit of requests of a kind.
    pub(crate) fn limit(&self, kind: Work) -> &Semaphore {
        &self.limits[kind as usize]
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn flows(&self) -> &Flows {
        &self.flows
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Returns the current state.
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads the state again, and sends a message to all pages if it has changed. Blocks.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let desired = self.source.load()?;
        let old = self.view();
        // In the demo, a pod may have ended and started again in the meantime.
        if !old.is_same(&desired) || self.source.demo().is_some() {
            let view = View::new(desired, Some(&old));
            let revision = view.revision;
            *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
            self.send(News::new("revision", &json!({ "revision": revision })));
        }
        Ok(())
    }

    /// Reports whether a page is open.
    pub(crate) fn has_viewers(&self) -> bool {
        self.news.receiver_count() > 0
    }

    /// Sends news to all pages.
    pub(crate) fn send(&self, news: News) {
        if news.event.starts_with("rates") {
            *self.rates() = Some(news.clone());
        }
        // There may be no page.
        let _ = self.news.send(news);
    }

    /// Returns the rates of the last minutes. No operation under the lock can panic.
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No operation under the lock can panic.
    fn rates(&self) -> MutexGuard<'_, Option<News>> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves the page until the process ends. `announce` gets its URL once connections are accepted.
///
/// # Errors
/// If the state cannot be loaded, or the address cannot be used.
pub fn serve(source: Source, listen: SocketAddr, announce: impl FnOnce(&str)) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    listener.set_nonblocking(true)?;
    let app = App::load(source)?;
    watch::start(&app);
    flows::start(&app);
    let url = url(listener.local_addr()?, app.token());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        announce(&url);
        axum::serve(listener, router(app)).await.context("the server failed")
    })
}

/// Returns all routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/overview", get(api::overview))
        .route("/services", get(api::services))
        .route("/services/{namespace}/{name}", get(api::service))
        .route("/changes", get(api::changes))
        .route("/trace", get(api::trace))
        .route("/doctor", get(api::doctor))
        .route("/diff", get(api::diff))
        .route("/timeline", get(api::timeline))
        .route("/history", get(api::history))
        .route("/events", get(events))
        .route("/flows", get(flows::flows))
        .route("/flows/events", get(flows::events))
        .route("/demo/connect", post(demo::connect))
        .route("/demo/scale", post(demo::scale))
        .route("/demo/ready", post(demo::ready))
        .route("/demo/kill", post(demo::kill))
        .route("/demo/break", post(demo::break_rules));
    Router::new()
        .route("/", get(async || asset("index.html")))
        .route("/web/{name}", get(async |Path(name): Path<String>| asset(&name)))
        .nest("/api/v1", api)
        .fallback(async || StatusCode::NOT_FOUND)
        .layer(middleware::from_fn(compressed))
        .layer(middleware::from_fn(guard))
        .with_state(app)
}

/// Refuses requests of other sites, and adds the headers of all responses.
pub(crate) async fn guard(request: Request, next: Next) -> Response {
    let mut response = if is_own_host(request.headers()) {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, "open this page by its address or as localhost\n").into_response()
    };
    response.headers_mut().extend(HEADERS);
    response
}

/// Returns a file of the page.
pub(crate) fn asset(name: &str) -> Response {
    match assets::find(name) {
        Some((kind, content)) => ([(CONTENT_TYPE, HeaderValue::from_static(kind))], content).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Streams messages. A page that cannot keep up misses some; later ones replace them.
async fn events(State(app): State<Arc<App>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let receiver = app.news.subscribe();
    let first = [News::new("revision", &json!({ "revision": app.view().revision }))].into_iter();
    let first: Vec<News> = first.chain(app.rates().clone()).collect();
    let news = stream::unfold(receiver, async |mut receiver| {
        loop {
            match receiver.recv().await {
                Ok(news) => return Some((news, receiver)),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    });
    let event = |news: News| Ok(Event::default().event(news.event).data(&*news.data));
    Sse::new(stream::iter(first).chain(news).map(event)).keep_alive(KeepAlive::default())
}

/// The news that a slow page can be behind.
const MAX_NEWS: usize = 16;

/// The requests of a kind that are worked on at the same time; each may need a second and some memory.
const MAX_WORK: usize = 2;

/// Requests wait for the kernel most of the time, on other threads.
const WORKERS: usize = 2;
