//! Who may reach the API: keys, certificates, and which addresses may be listened on without them. All of it can be read again.

mod api_keys;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use rustls::ServerConfig as TlsServer;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

pub use self::api_keys::{Keys, Permit, Refusal, Table};
use faser_config::{ConfigError, ServerConfig, TlsConfig};

/// A file of keys is small.
const MOST_BYTES: u64 = 4 << 20;
/// The service manager's credential that has the keys.
const CREDENTIAL: &str = "api-keys";

/// What a reload applies.
const LIVE: &[&str] = &[
    "server.api_keys_file",
    "server.max_concurrent_per_key",
    "server.allow_public_without_keys",
    "server.tls.cert",
    "server.tls.key",
];
const LIVE_WITHOUT_TLS: &[&str] = LIVE.split_at(3).0;

/// What decides about who is let in.
#[derive(Default)]
pub struct Access {
    keys: Keys,
    certificate: Option<Arc<Certificate>>,
    credentials: Option<PathBuf>,
    listening: OnceLock<SocketAddr>,
}

/// What was read, and is in order: nothing has changed yet.
pub struct Renewal<'a> {
    access: &'a Access,
    table: Table,
    source: Option<&'static str>,
    certificate: Option<Arc<CertifiedKey>>,
}

impl Access {
    /// Reads what `server` names, and the credentials in $CREDENTIALS_DIRECTORY.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub fn load(server: &ServerConfig) -> Result<Access, ConfigError> {
        Access::with(server, std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from))
    }

    fn with(server: &ServerConfig, credentials: Option<PathBuf>) -> Result<Access, ConfigError> {
        let certificate = server.tls.as_ref().map(read_certificate).transpose()?;
        let certificate = certificate.map(|key| Arc::new(Certificate::new(key)));
        let access = Access { certificate, credentials, ..Access::default() };
        access.read(server)?.apply();
        Ok(access)
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// How HTTPS is spoken; `None` is plain HTTP.
    ///
    /// # Errors
    /// There is no TLS to be had.
    pub fn tls(&self) -> Result<Option<TlsServer>, ConfigError> {
        self.certificate.as_ref().map(|certificate| server_config(Arc::clone(certificate))).transpose()
    }

    /// Keys of `server` that a reload applies.
    pub fn live(&self, server: &ServerConfig) -> &'static [&'static str] {
        // HTTP and HTTPS are other listeners.
        if self.certificate.is_some() && server.tls.is_some() { LIVE } else { LIVE_WITHOUT_TLS }
    }

    /// Notes the address that is listened on.
    ///
    /// # Errors
    /// Other machines can reach it, there are no keys, and nobody has said that this is meant.
    pub fn listen(&self, address: SocketAddr, server: &ServerConfig) -> Result<(), ConfigError> {
        may_listen(address, server, self.keys.is_empty())?;
        self.listening.get_or_init(|| address);
        Ok(())
    }

    /// Reads everything again, and changes nothing yet.
    ///
    /// # Errors
    /// As [`Access::load`], or the address must not be listened on without the keys that are gone.
    pub fn read(&self, server: &ServerConfig) -> Result<Renewal<'_>, ConfigError> {
        let (table, source) = self.table(server)?;
        if let Some(address) = self.listening.get() {
            may_listen(*address, server, table.is_empty())?;
        }
        if table.is_empty() && server.max_concurrent_per_key.is_some() {
            return Err(error(
                None,
                "`server.max_concurrent_per_key` is for API keys, and there are none: leave it out, or give `server.api_keys_file`",
            ));
        }
        let certificate = server.tls.as_ref().map(read_certificate).transpose()?;
        Ok(Renewal { access: self, table, source, certificate })
    }

    /// The keys, and the name of what they came from.
    fn table(&self, server: &ServerConfig) -> Result<(Table, Option<&'static str>), ConfigError> {
        let credential = self.credentials.as_ref().map(|folder| folder.join(CREDENTIAL));
        let (path, source) = match (&server.api_keys_file, credential.filter(|path| path.exists())) {
            (Some(path), _) => (path.clone(), "server.api_keys_file"),
            (None, Some(path)) => (path, "credential api-keys"),
            (None, None) => return Ok((Table::default(), None)),
        };
        let text = text(&path, true)?;
        let table = Table::parse(&text, server.max_concurrent_per_key);
        Ok((table.map_err(|problem| error(Some(&path), problem))?, Some(source)))
    }
}

impl Renewal<'_> {
    /// From now on this counts. Returns what has changed.
    pub fn apply(self) -> Vec<&'static str> {
        let mut changed = Vec::new();
        if self.access.keys.replace(self.table) {
            changed.push(self.source.unwrap_or("server.api_keys_file"));
        }
        if let (Some(now), Some(next)) = (&self.access.certificate, self.certificate)
            && now.replace(next)
        {
            changed.push("server.tls.cert");
        }
        changed
    }
}

/// The certificate that is shown to new connections.
struct Certificate(RwLock<Arc<CertifiedKey>>);

impl Certificate {
    fn new(key: Arc<CertifiedKey>) -> Certificate {
        Certificate(RwLock::new(key))
    }

    /// Puts another one in its place. Says whether it is another one.
    fn replace(&self, key: Arc<CertifiedKey>) -> bool {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let changed = now.cert != key.cert;
        *now = key;
        changed
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").finish_non_exhaustive()
    }
}

/// Reads certificate and key, and looks whether they belong together.
///
/// # Errors
/// A file cannot be read, is no PEM of its kind, or is for another key.
fn read_certificate(files: &TlsConfig) -> Result<Arc<CertifiedKey>, ConfigError> {
    let wrong =
        |path, what: &str, why: &dyn fmt::Display| error(Some(path), format!("is no {what} in PEM: {why}"));
    let certificate = text(&files.cert, false)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|err| wrong(&files.cert, "certificate", &err))?;
    if chain.is_empty() {
        return Err(wrong(&files.cert, "certificate", &"there is none in it"));
    }
    let key = PrivateKeyDer::from_pem_slice(text(&files.key, true)?.as_bytes())
        .map_err(|err| wrong(&files.key, "private key", &err))?;
    let both = CertifiedKey::from_der(chain, key, &default_provider()).map_err(|err| {
        error(Some(&files.key), format!("does not go with {}: {err}", files.cert.display()))
    })?;
    Ok(Arc::new(both))
}

/// TLS 1.2 and 1.3 with this certificate; no client certificates, no early data.
///
/// # Errors
/// The provider of cryptography offers none of them.
fn server_config(certificate: Arc<Certificate>) -> Result<TlsServer, ConfigError> {
    let builder = TlsServer::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|err| error(None, format!("TLS cannot be had: {err}")))?;
    Ok(builder.with_no_client_auth().with_cert_resolver(certificate))
}

/// Beyond this machine only with keys, or because somebody has said so.
fn may_listen(address: SocketAddr, server: &ServerConfig, without_keys: bool) -> Result<(), ConfigError> {
    if !without_keys || server.allow_public_without_keys || is_loopback(address.ip()) {
        return Ok(());
    }
    Err(error(
        None,
        format!(
            "other machines can reach {address}, and there are no API keys: give keys by `server.api_keys_file` (a file with one a line) \
             or by the systemd credential `{CREDENTIAL}`, or write `server.allow_public_without_keys: true` if something else \
             decides who may come"
        ),
    ))
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The text of a small file; a secret one should be for few eyes.
fn text(path: &Path, secret: bool) -> Result<String, ConfigError> {
    let unreadable = |err: std::io::Error| error(Some(path), format!("cannot be read: {err}"));
    let about = std::fs::metadata(path).map_err(unreadable)?;
    // To read a pipe would be to wait for who writes into it.
    if !about.is_file() {
        return Err(error(Some(path), "is no regular file".to_owned()));
    }
    if about.len() > MOST_BYTES {
        return Err(error(Some(path), format!("is larger than {MOST_BYTES} bytes")));
    }
    if secret && about.permissions().mode() & 0o007 != 0 {
        tracing::warn!(path = %path.display(), "every user of this machine can read or change this file: chmod 640");
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn error(path: Option<&Path>, message: impl Into<String>) -> ConfigError {
    ConfigError { place: path.map(|path| path.display().to_string()), message: message.into() }
}

#[cfg(test)]
mod tests;
