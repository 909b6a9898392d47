//! The API over standard input and output, for the page of a whole cluster: requests and parts of responses are lines of JSON.
//!
//! ```text
//!   {"id":1,"path":"/overview"}     ──►   {"id":1,"head":{"status":200,…}}   {"id":1,"data":"{…}"}   {"id":1,"end":true}
//!   {"id":2,"path":"/events"}       ──►   {"id":2,"head":{"status":200,…}}   {"id":2,"data":"event: …"}   …
//!   {"id":2,"cancel":true}          ──►
//! ```

use std::{
    collections::HashMap,
    io::{self, BufRead, Write},
    sync::Arc,
    thread,
};

use axum::{
    body::Body,
    http::{
        Request,
        header::{CONTENT_TYPE, HOST},
    },
};
use ferroute_kubectl::{PageHead, PageRequest, PageResponse};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tower::ServiceExt;

use crate::{
    flows,
    server::{App, router},
    source::Source,
    watch,
};

/// Answers requests until standard input ends.
///
/// # Errors
/// If the state cannot be loaded.
pub fn serve_stdio(source: Source) -> anyhow::Result<()> {
    let app = App::load(source)?;
    watch::start(&app);
    flows::start(&app);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (requests, received) = mpsc::channel(QUEUE);
    // It ends with the process at the latest.
    thread::Builder::new().name("page-requests".to_owned()).spawn(move || read(io::stdin().lock(), &requests))?;
    let (responses, mut lines) = mpsc::channel::<PageResponse>(QUEUE);
    let writer = thread::Builder::new().name("page-responses".to_owned()).spawn(move || {
        while let Some(response) = lines.blocking_recv() {
            if write(&mut io::stdout().lock(), &response).is_err() {
                break;
            }
        }
    })?;
    runtime.block_on(session(&app, received, responses));
    runtime.shutdown_background();
    // No output is left to write.
    drop(writer);
    Ok(())
}

fn read(input: impl BufRead, requests: &mpsc::Sender<PageRequest>) {
    for line in input.lines().map_while(Result::ok) {
        // A request of another version that cannot be read gets no answer.
        if let Ok(request) = serde_json::from_str(&line)
            && requests.blocking_send(request).is_err()
        {
            return;
        }
    }
}

fn write(out: &mut impl Write, response: &PageResponse) -> io::Result<()> {
    serde_json::to_writer(&mut *out, response)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Works on requests at the same time, until there are no more.
pub(crate) async fn session(
    app: &Arc<App>,
    mut requests: mpsc::Receiver<PageRequest>,
    responses: mpsc::Sender<PageResponse>,
) {
    let mut tasks = HashMap::new();
    while let Some(PageRequest { id, path, cancel }) = requests.recv().await {
        tasks.retain(|_, task: &mut tokio::task::AbortHandle| !task.is_finished());
        if cancel {
            if let Some(task) = tasks.remove(&id) {
                task.abort();
            }
        } else {
            let task = tokio::spawn(respond(Arc::clone(app), id, path, responses.clone()));
            tasks.insert(id, task.abort_handle());
        }
    }
    tasks.into_values().for_each(|task| task.abort());
}

async fn respond(app: Arc<App>, id: u64, path: String, responses: mpsc::Sender<PageResponse>) {
    let part = |part: PageResponse| {
        let responses = responses.clone();
        async move { responses.send(PageResponse { id, ..part }).await.is_ok() }
    };
    let head = |status, media_type: &str| Some(PageHead { status, media_type: media_type.to_owned() });
    let request = Request::get(format!("/api/v1{path}")).header(HOST, "localhost").body(Body::empty());
    let Ok(request) = request else {
        part(PageResponse { head: head(400, "text/plain"), end: true, ..PageResponse::default() }).await;
        return;
    };
    let Ok(response) = router(app).oneshot(request).await;
    let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let first = PageResponse { head: head(response.status().as_u16(), media_type), ..PageResponse::default() };
    if !part(first).await {
        return;
    }
    let mut body = response.into_body().into_data_stream();
    while let Some(Ok(bytes)) = body.next().await {
        // The API's text is whole in each part.
        let data = String::from_utf8_lossy(&bytes).into_owned();
        if !part(PageResponse { data, ..PageResponse::default() }).await {
            return;
        }
    }
    part(PageResponse { end: true, ..PageResponse::default() }).await;
}

/// Requests, and parts of responses, that wait.
const QUEUE: usize = 64;
