//! What operators ask of a running daemon, by HTTP and JSON over a unix socket. `admin_api` is all of it: one enum, and its table of routes.
//!
//! ```text
//!   connection --peer: who is it?--> admin_request: admin_api::Call --may it?--> admin_answers --> config (reload), engines (dispatchers' mailboxes)
//! ```

mod admin_answers;
pub mod admin_api;
mod admin_errors;
mod admin_openapi;
mod admin_request;
pub mod audit;
pub(crate) mod browser_rules;
mod dashboard;
mod look;
mod measure;
pub mod peer;
pub mod snapshot;
pub mod socket;
pub mod timeline;
mod view_figures;

#[cfg(test)]
mod tests;

use actix_web::dev::ServerHandle;
use actix_web::rt::net::UnixStream;
use actix_web::{HttpServer, web};
use anyhow::Result;

pub use self::look::Admin;
use faser_terminal::SystemError;

use self::socket::Socket;

/// Connections at a time: operators, not clients.
const MOST_CONNECTIONS: usize = 64;
/// Connections get this long to take the last bytes.
const FLUSH_TIMEOUT_S: u64 = 1;

/// Answers on the socket from now on. The file of the socket goes with what this returns.
///
/// # Errors
/// The socket cannot be listened at.
pub fn serve(socket: &Socket, admin: web::Data<Admin>) -> Result<ServerHandle> {
    let failed = |source| SystemError::Call { what: "listen on the admin socket", source };
    let listener = socket.listener.try_clone().map_err(failed)?;
    let operators = admin.operators.clone();
    let sampled = admin.clone();
    let server = HttpServer::new(move || {
        actix_web::App::new().app_data(admin.clone()).default_service(web::to(admin_request::handle))
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
