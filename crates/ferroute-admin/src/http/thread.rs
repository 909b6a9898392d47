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

use super::{
    budget::{Budget, OpenSockets, PortPermit, TooManyPorts},
    server,
};
use crate::http::{Handler, Limits, ListenError, ListenScope, listen};

/// A thread that runs HTTP servers. Dropping it stops them.
#[derive(Debug)]
pub struct HttpThread {
    handle: Handle,
    sockets: Arc<OpenSockets>,
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
    /// Disconnected when the task and everything it owns has been dropped.
    closed: mpsc::Receiver<()>,
}

impl HttpThread {
    /// Starts a thread without any server. Its servers share the budget.
    pub fn start(budget: Budget) -> io::Result<Self> {
        Self::with_sockets("http", OpenSockets::new(budget))
    }

    /// Starts another thread of this name, whose servers share the budget of this one's.
    pub fn start_beside(&self, name: &str) -> io::Result<Self> {
        Self::with_sockets(name, Arc::clone(&self.sockets))
    }

    fn with_sockets(name: &str, sockets: Arc<OpenSockets>) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Dropping the sender is the signal, so an error is one too.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { handle, sockets, stop: Some(stop), thread: Some(thread) })
    }

    /// Takes a place in the budget for a port that is opened later.
    ///
    /// # Errors
    ///
    /// The budget has no place for another port.
    pub fn open_port(&self) -> Result<PortPermit, TooManyPorts> {
        self.sockets.open_port()
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

    /// Opens a port and serves on it. While the port cannot be opened, because the host does not have the address yet or
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
        let task = self.handle.spawn(async move {
            // Dropped after `work`: locals drop in reverse order of declaration.
            let _guard = guard;
            work.await;
        });
        Server { task: task.abort_handle(), closed }
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
