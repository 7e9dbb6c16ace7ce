//! The certificate of HTTPS, and a newer one in its place while connections go on.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::{error, text};
use crate::config::{ConfigError, TlsConfig};

/// The certificate that is shown to new connections.
pub(super) struct Certificate(RwLock<Arc<CertifiedKey>>);

impl Certificate {
    pub(super) fn new(key: Arc<CertifiedKey>) -> Certificate {
        Certificate(RwLock::new(key))
    }

    /// Puts another one in its place. Says whether it is another one.
    pub(super) fn replace(&self, key: Arc<CertifiedKey>) -> bool {
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
pub(super) fn read(files: &TlsConfig) -> Result<Arc<CertifiedKey>, ConfigError> {
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
pub(super) fn server_config(certificate: Arc<Certificate>) -> Result<ServerConfig, ConfigError> {
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|err| error(None, format!("TLS cannot be had: {err}")))?;
    Ok(builder.with_no_client_auth().with_cert_resolver(certificate))
}
