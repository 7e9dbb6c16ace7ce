//! OTLP's HTTP by `ureq`, which has TLS here already.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// A collector says little.
const MOST_ANSWER_BYTES: u64 = 1 << 20;

/// Asks, and blocks meanwhile: it is for a thread that does nothing else.
pub(crate) struct Client(Agent);

impl Client {
    /// One that waits no longer than this for an answer.
    pub(crate) fn new(timeout: Duration) -> Client {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("faser/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(timeout));
        Client(config.build().into())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(head, body.as_ref()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(MOST_ANSWER_BYTES).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}
