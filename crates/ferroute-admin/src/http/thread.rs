use std::{
    fmt, io,
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

use super::{
    budget::{Budget, OpenSockets, PortPermit, TooManyPorts},
    server,
};
use crate::http::{Handler, Limits, ListenError, ListenScope, listen};

/// A thread that runs HTTP servers. Dropping it stops them.
pub struct HttpThread {
    handle: Handle,
    sockets: Arc<OpenSockets>,
    on_lost: OnLost,
    /// Dropping it stops the runtime.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A running server. Dropping it closes its port and connections, and returns when the port is free.
///
/// A [`Handler`] must not drop it: handlers run on the thread that closes the port.
#[derive(Debug)]
pub struct Server {
    task: AbortHandle,
    /// Disconnected when the task and all values that it owns have been dropped.
    closed: mpsc::Receiver<()>,
}

/// Called when a server panics, or the thread ends before it is dropped.
type OnLost = Arc<dyn Fn() + Send + Sync>;

/// Calls `on_lost` if it is dropped while the thread panics.
struct ReportPanic(OnLost);

impl Drop for ReportPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}

impl fmt::Debug for HttpThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpThread").finish_non_exhaustive()
    }
}

impl HttpThread {
    /// Starts a thread without any server. Its servers share the budget.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(budget: Budget) -> io::Result<Self> {
        Self::start_reporting(budget, || ())
    }

    /// Like [`HttpThread::start`]. `on_lost` is called if a server or the thread panics; a panic while a connection is served
    /// closes only that connection.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start_reporting(budget: Budget, on_lost: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        Self::with_sockets("http", OpenSockets::new(budget), Arc::new(on_lost))
    }

    /// Starts another thread of this name, whose servers share the budget of this one's. Its loss is reported in the same way.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start_beside(&self, name: &str) -> io::Result<Self> {
        Self::with_sockets(name, Arc::clone(&self.sockets), Arc::clone(&self.on_lost))
    }

    fn with_sockets(name: &str, sockets: Arc<OpenSockets>, on_lost: OnLost) -> io::Result<Self> {
        let report = ReportPanic(Arc::clone(&on_lost));
        let (stop, stopped) = oneshot::channel();
        let (ready, handle) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _report = report;
            // Built on this thread, because dropping it in the caller's runtime panics, if this thread cannot be
            // started. The caller waits for the message.
            match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let _ = ready.send(Ok(runtime.handle().clone()));
                    // Dropping the sender is the signal, so an error is a signal too.
                    let _ = runtime.block_on(stopped);
                }
                Err(error) => _ = ready.send(Err(error)),
            }
        })?;
        let handle = handle.recv().map_err(io::Error::other)??;
        Ok(Self { handle, sockets, on_lost, stop: Some(stop), thread: Some(thread) })
    }

    /// Reserves a port in the budget that is opened later.
    ///
    /// # Errors
    ///
    /// The budget does not permit another port.
    pub fn open_port(&self) -> Result<PortPermit, TooManyPorts> {
        self.sockets.open_port()
    }

    /// Reserves a port in the budget that is held, so that no other program can open it, but not served.
    ///
    /// # Errors
    ///
    /// Held ports already use half of the budget, or the budget does not permit another port.
    pub fn hold_port(&self) -> Result<PortPermit, TooManyPorts> {
        self.sockets.hold_port()
    }

    /// Serves on an open port, for example one from [`listen`](crate::http::listen()).
    pub fn serve(&self, listener: TcpListener, handler: Arc<dyn Handler>, limits: Limits) -> io::Result<Server> {
        let listener = {
            let _runtime = self.handle.enter();
            listener.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(listener)?
        };
        let sockets = Arc::clone(&self.sockets);
        Ok(self.spawn(async move {
            server::serve(listener, handler, limits, sockets).await;
        }))
    }

    /// Opens a port and serves on it. If the port cannot be opened, because the host does not have the address yet or
    /// another program has the port, calls `report` and retries after `pause`. kube-proxy's pause is 5 seconds.
    pub fn serve_when_free(
        &self,
        scope: ListenScope,
        port: u16,
        handler: Arc<dyn Handler>,
        limits: Limits,
        pause: Duration,
        report: impl Fn(&ListenError) + Send + 'static,
    ) -> Server {
        let sockets = Arc::clone(&self.sockets);
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
            server::serve(listener, handler, limits, sockets).await;
        })
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Server {
        let (guard, closed) = mpsc::channel();
        let report = ReportPanic(self.on_lost.clone());
        let task = self.handle.spawn(guarded(work, (guard, report)));
        Server { task: task.abort_handle(), closed }
    }
}

/// Returns a future that drops `work` before `guard`, also if it is never polled.
fn guarded<G: Send>(work: impl Future<Output = ()> + Send, guard: G) -> impl Future<Output = ()> + Send {
    // A block that was never polled drops its captured values in an order that depends on its code. The fields of a
    // tuple are dropped in order.
    let parts = (work, guard);
    async move {
        let parts = parts;
        parts.0.await;
    }
}

impl Drop for HttpThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // The timeout is for a handler that blocks the thread.
        let _ = self.closed.recv_timeout(CLOSE_TIMEOUT);
    }
}

const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
