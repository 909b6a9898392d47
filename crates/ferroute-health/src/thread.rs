use std::{
    io,
    net::TcpListener,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::oneshot,
    task::AbortHandle,
    time::sleep,
};

use crate::{Handler, Limits, ListenError, ListenScope, http, listen};

/// One thread that serves HTTP for everybody in the process who has something to tell. Dropping it ends all its servers.
#[derive(Debug)]
pub struct HttpThread {
    handle: Handle,
    /// The runtime ends when this is gone.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A running server. Dropping it closes its port and its connections, and returns when the port is free again.
///
/// Not to be dropped by a [`Handler`]: that runs on the thread that has to do the closing.
#[derive(Debug)]
pub struct Server {
    task: AbortHandle,
    /// Hangs up when the task and all that it holds is gone.
    closed: mpsc::Receiver<()>,
}

impl HttpThread {
    /// Starts the thread, with nothing to serve yet.
    pub fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("http".to_owned()).spawn(move || {
            // An error says that the sender is gone, which is the signal as well.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Serves on a port that is open, such as one from [`listen`](crate::listen()).
    pub fn serve(&self, listener: TcpListener, handler: Arc<dyn Handler>, limits: Limits) -> io::Result<Server> {
        let listener = {
            let _runtime = self.handle.enter();
            listener.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(listener)?
        };
        Ok(self.spawn(async move {
            http::serve(listener, handler, limits).await;
        }))
    }

    /// Opens the port and serves on it; as long as the port cannot be opened, because the address is not there yet or
    /// the port is taken, tells `report` and tries again after `pause`. kube-proxy pauses for 5 seconds.
    pub fn serve_when_free(
        &self,
        scope: ListenScope,
        port: u16,
        handler: Arc<dyn Handler>,
        limits: Limits,
        pause: Duration,
        report: impl Fn(&ListenError) + Send + 'static,
    ) -> Server {
        self.spawn(async move {
            let listener = loop {
                let error = match listen(scope, port) {
                    Ok(listener) => match tokio::net::TcpListener::from_std(listener) {
                        Ok(listener) => break listener,
                        Err(source) => ListenError { address: scope.with_port(port), source },
                    },
                    Err(error) => error,
                };
                report(&error);
                sleep(pause).await;
            };
            http::serve(listener, handler, limits).await;
        })
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Server {
        let (hold, closed) = mpsc::channel();
        let task = self.handle.spawn(async move {
            // Dropped after the work, in the reverse order of declaration.
            let _hold = hold;
            work.await;
        });
        Server { task: task.abort_handle(), closed }
    }
}

impl Drop for HttpThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic there has been told by the panic hook already.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // Either it hangs up, or something keeps the thread busy, which is no reason to hang here too.
        let _ = self.closed.recv_timeout(CLOSE_TIMEOUT);
    }
}

const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
