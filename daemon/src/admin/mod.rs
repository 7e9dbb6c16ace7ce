//! What operators ask of a running daemon, by HTTP and JSON over a unix socket. `api` is all of it: one enum, and its table of routes.
//!
//! ```text
//!   connection --peer: who is it?--> handle: api::Call --may it?--> answers --> config (reload), engines (dispatchers' mailboxes)
//! ```

mod answers;
pub mod api;
pub mod audit;
pub(crate) mod browser;
mod dashboard;
mod errors;
mod events;
mod figures;
mod handle;
mod look;
mod measure;
mod openapi;
pub mod peer;
pub mod snapshot;
pub mod socket;
pub mod timeline;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actix_web::dev::ServerHandle;
use actix_web::rt::net::UnixStream;
use actix_web::{HttpServer, web};
use faser_engine::LoadView;
use tokio::sync::Mutex as AsyncMutex;

use self::peer::Operators;
use self::socket::Socket;
use crate::app::App;
use crate::error::DaemonError;
use crate::reload::Reload;

/// Connections at a time: operators, not clients.
const MOST_CONNECTIONS: usize = 64;
/// Connections get this long to take the last bytes.
const FLUSH_TIMEOUT_S: u64 = 1;

/// What the calls work on.
pub struct Admin {
    app: web::Data<App>,
    reload: Arc<AsyncMutex<Reload>>,
    operators: Operators,
    /// When each was taken, and the views of the replicas of each pair: the oldest first.
    samples: Mutex<VecDeque<(Instant, Vec<Vec<LoadView>>)>>,
    started: Instant,
    /// Held while costs are measured.
    measuring: Arc<AsyncMutex<()>>,
}

impl Admin {
    /// Of a daemon that begins to load now.
    pub fn new(app: web::Data<App>, reload: Arc<AsyncMutex<Reload>>, operators: Operators) -> Admin {
        Admin {
            app,
            reload,
            operators,
            samples: Mutex::default(),
            started: Instant::now(),
            measuring: Arc::default(),
        }
    }
}

/// Answers on the socket from now on. The file of the socket goes with what this returns.
///
/// # Errors
/// The socket cannot be listened at.
pub fn serve(socket: &Socket, admin: web::Data<Admin>) -> Result<ServerHandle, DaemonError> {
    let failed = |source| DaemonError::System { what: "listen on the admin socket", source };
    let listener = socket.listener.try_clone().map_err(failed)?;
    let operators = admin.operators.clone();
    let sampled = admin.clone();
    let server = HttpServer::new(move || {
        actix_web::App::new().app_data(admin.clone()).default_service(web::to(handle::handle))
    })
    .on_connect(move |connection, data| {
        if let Some(stream) = connection.downcast_ref::<UnixStream>() {
            data.insert(operators.peer(stream));
        }
    })
    .workers(1)
    .max_connections(MOST_CONNECTIONS)
    // Whoever closes its side has its call cancelled, and its events.
    .h1_allow_half_closed(false)
    .shutdown_timeout(FLUSH_TIMEOUT_S)
    .disable_signals()
    .listen_uds(listener)
    .map_err(failed)?
    .run();
    let handle = server.handle();
    actix_web::rt::spawn(async move {
        if let Err(err) = server.await {
            tracing::error!(%err, "the admin socket ended");
        }
    });
    actix_web::rt::spawn(async move {
        loop {
            sampled.sample();
            actix_web::rt::time::sleep(look::SAMPLE_EVERY).await;
        }
    });
    tracing::info!(path = %socket.path.display(), "admin socket");
    Ok(handle)
}

/// How long a dispatcher may take to answer, before it is shown as one that does not.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
