//! `server`: the HTTP side, who may use it, and its limits.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::sizes::{self, MIB, seconds};
use crate::fields::{FieldError, Fields};

/// The HTTP side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Threads that read requests and write responses.
    pub workers: usize,
    /// The file with the API keys; `None` takes the service manager's credential `api-keys`, if there is one.
    pub api_keys_file: Option<PathBuf>,
    /// Whether other machines may come without a key.
    pub allow_public_without_keys: bool,
    /// Whether /metrics answers without a key.
    pub metrics_open: bool,
    /// Requests that one key may have in flight.
    pub max_concurrent_per_key: Option<usize>,
    /// Certificate and key of HTTPS; `None` is plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Larger request bodies are refused.
    pub max_body_bytes: usize,
    /// Larger lists of prompts are refused.
    pub max_prompts_per_request: usize,
    /// Connections at once; more wait until one ends.
    pub max_connections: usize,
    /// How long the head of a request, and a TLS handshake, may take.
    pub header_timeout: Duration,
    /// How long the body of a request may take.
    pub body_timeout: Duration,
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
    /// How long an idle connection is kept.
    pub keep_alive: Duration,
    /// Whether /debug answers.
    pub debug: bool,
}

/// Files of PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate, and those between it and a root, if there are any.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

pub(super) fn server(mut fields: Fields<'_>, folder: &Path) -> Result<ServerConfig, FieldError> {
    let listen = fields.text("listen")?.unwrap_or("127.0.0.1:8000");
    let listen = listen.parse().map_err(|_| {
        fields.wrong_value("listen", "an address and a port, such as 127.0.0.1:8000", &listen.into())
    })?;
    let config = ServerConfig {
        listen,
        workers: fields.size("workers", 1..=256)?.unwrap_or(2),
        api_keys_file: file(&mut fields, "api_keys_file", folder)?,
        allow_public_without_keys: fields.flag("allow_public_without_keys")?.unwrap_or(false),
        metrics_open: fields.flag("metrics_open")?.unwrap_or(false),
        max_concurrent_per_key: fields.size("max_concurrent_per_key", 1..=65_536)?,
        tls: fields.object("tls")?.map(|fields| tls(fields, folder)).transpose()?,
        max_body_bytes: sizes::bytes(&mut fields, "max_body_bytes", 1 << 10, 1 << 30)?.unwrap_or(4 * MIB)
            as usize,
        max_prompts_per_request: fields.size("max_prompts_per_request", 1..=4096)?.unwrap_or(64),
        max_connections: fields.size("max_connections", 1..=1 << 20)?.unwrap_or(4096),
        header_timeout: seconds(&mut fields, "header_timeout_s", 1..=3600, 10)?,
        body_timeout: seconds(&mut fields, "body_timeout_s", 1..=3600, 30)?,
        write_timeout: seconds(&mut fields, "write_timeout_s", 1..=3600, 30)?,
        keep_alive: seconds(&mut fields, "keep_alive_s", 1..=3600, 75)?,
        debug: fields.flag("debug")?.unwrap_or(false),
    };
    fields.finish()?;
    Ok(config)
}

fn tls(mut fields: Fields<'_>, folder: &Path) -> Result<TlsConfig, FieldError> {
    let mut needed = |name: &'static str| {
        let found = file(&mut fields, name, folder)?;
        found.ok_or_else(|| fields.missing(name, "is missing: a file of PEM"))
    };
    let config = TlsConfig { cert: needed("cert")?, key: needed("key")? };
    fields.finish()?;
    Ok(config)
}

/// A file, by its name from the config's folder on.
fn file(fields: &mut Fields<'_>, name: &'static str, folder: &Path) -> Result<Option<PathBuf>, FieldError> {
    match fields.text(name)? {
        Some("") => Err(fields.wrong_value(name, "the name of a file", &"".into())),
        text => Ok(text.map(|text| folder.join(text))),
    }
}
