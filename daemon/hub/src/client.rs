//! What is asked of the hub over HTTP: which files a revision has, and the bytes of a file from a place on.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::checksum::Checksum;
use crate::model_name::{is_commit, is_plain_path};
use crate::{HubError, ModelName, Settings};

/// Redirects of one request: from a renamed repository, and to where large files are.
const MOST_REDIRECTS: usize = 5;
/// A listing is read no further: tens of thousands of files.
const MOST_LISTING_BYTES: u64 = 32 << 20;
/// Longest wait that the hub may ask for; what is longer is told to whoever asked.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Of what the hub says in a refusal.
const MOST_SAID: usize = 200;

/// A file of a revision.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    pub(crate) size_bytes: u64,
    pub(crate) checksum: Checksum,
}

/// A revision.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

/// Why a request did not bring what it was for.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It may pass, after this time if the hub has said one.
    Passing(HubError, Option<Duration>),
    /// It will not.
    Lasting(HubError),
}

/// The bytes of a file, from a place on.
pub(crate) struct Bytes {
    /// The place.
    pub(crate) from: u64,
    pub(crate) reader: Box<dyn Read>,
}

/// A client of the hub.
pub(crate) struct Client<'s> {
    agent: Agent,
    settings: &'s Settings,
}

/// What the hub says of a revision (`GET /api/models/NAME/revision/REVISION?blobs=true`).
#[derive(Deserialize)]
struct RevisionInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl<'s> Client<'s> {
    pub(crate) fn new(settings: &'s Settings) -> Client<'s> {
        let patience = Some(settings.patience);
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            // Followed here, for the token is for the hub alone.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("faser/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(patience)
            .timeout_connect(patience)
            .timeout_recv_response(patience)
            .timeout_per_read(patience)
            .timeout_per_write(patience);
        Client { agent: config.build().into(), settings }
    }

    /// The files of the revision that `name` has.
    pub(crate) fn listing(&self, name: &ModelName) -> Result<Listing, Trouble> {
        let Settings { endpoint, .. } = self.settings;
        let revision = encoded(name.revision(), b"");
        let url = format!("{endpoint}/api/models/{}/revision/{revision}?blobs=true", name.repo());
        let mut response = self.get(name, url, 0)?;
        if response.status() != StatusCode::OK {
            return Err(self.refused(name, &response));
        }
        let read = response.body_mut().with_config().limit(MOST_LISTING_BYTES).read_to_vec();
        let text = match read {
            Ok(text) => text,
            Err(ureq::Error::BodyExceedsLimit(_)) => {
                return Err(self.no_hub(name, "its list of files is too long"));
            }
            Err(error) => return Err(self.unreachable(name, &error)),
        };
        let info: RevisionInfo = serde_json::from_slice(&text)
            .map_err(|error| self.no_hub(name, &format!("its list of files is none ({error})")))?;
        if !is_commit(&info.sha) {
            return Err(self.no_hub(name, "its revision has no commit"));
        }
        // What would lead outside of the cache, or cannot be checked, cannot be asked for.
        let files = info.siblings.into_iter().filter(|file| is_plain_path(&file.rfilename));
        let files = files.filter_map(|file| {
            let large = file.lfs.and_then(|lfs| Some((Checksum::sha256(&lfs.sha256)?, lfs.size)));
            let small = || Some((Checksum::git(file.blob_id.as_deref()?)?, file.size?));
            let (checksum, size_bytes) = large.or_else(small)?;
            Some(RemoteFile { path: file.rfilename, size_bytes, checksum })
        });
        Ok(Listing { commit: info.sha.to_ascii_lowercase(), files: files.collect() })
    }

    /// The bytes of a file from `from` on, or from its beginning where the hub knows no ranges.
    pub(crate) fn bytes(
        &self,
        name: &ModelName,
        commit: &str,
        file: &RemoteFile,
        from: u64,
    ) -> Result<Bytes, Trouble> {
        let Settings { endpoint, .. } = self.settings;
        let url = format!("{endpoint}/{}/resolve/{commit}/{}", name.repo(), encoded(&file.path, b"/"));
        let response = self.get(name, url, from)?;
        let from = match response.status() {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT => {
                let range =
                    response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
                let begins = range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-'));
                if begins.and_then(|(begin, _)| begin.parse().ok()) != Some(from) {
                    return Err(self.no_hub(name, "it brings another part of a file than was asked for"));
                }
                from
            }
            _ => return Err(self.refused(name, &response)),
        };
        Ok(Bytes { from, reader: Box::new(response.into_body().into_reader()) })
    }

    fn get(&self, name: &ModelName, url: String, from: u64) -> Result<Response<Body>, Trouble> {
        let Settings { endpoint, token, .. } = self.settings;
        let mut url = url;
        for _ in 0..=MOST_REDIRECTS {
            let mut request = self.agent.get(&url);
            if let Some(token) = token.as_ref().filter(|_| origin(&url) == origin(endpoint)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let response = request.call().map_err(|error| self.unreachable(name, &error))?;
            if ![301, 302, 303, 307, 308].contains(&response.status().as_u16()) {
                return Ok(response);
            }
            let to =
                response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
            url = match to {
                _ if to.starts_with("https://") => to.to_owned(),
                // Never from an encrypted connection to one that is not.
                _ if to.starts_with("http://") && endpoint.starts_with("http://") => to.to_owned(),
                _ if to.starts_with('/') && !to.starts_with("//") => format!("{}{to}", origin(&url)),
                _ => return Err(self.no_hub(name, "it redirects to no address that can be followed")),
            };
        }
        Err(self.no_hub(name, "it redirects in circles"))
    }

    /// What a status means that is no success.
    fn refused(&self, name: &ModelName, response: &Response<Body>) -> Trouble {
        let Settings { endpoint, token, .. } = self.settings;
        let (endpoint, has_token) = (endpoint.clone(), token.is_some());
        let status = response.status().as_u16();
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (name_said, page) = (name.to_string(), format!("{endpoint}/{}", name.repo()));
        let error = match (status, text("x-error-code")) {
            (429, _) => {
                let after = retry_after(response.headers());
                let error = HubError::TooMany { endpoint, after_s: after.map(|after| after.as_secs()) };
                return match after {
                    Some(after) if after > LONGEST_WAIT => Trouble::Lasting(error),
                    after => Trouble::Passing(error, after),
                };
            }
            (408 | 500..600, _) => {
                let error = HubError::Unreachable {
                    name: name_said,
                    endpoint,
                    why: format!("it answers with status {status}"),
                };
                let after = retry_after(response.headers()).filter(|after| *after <= LONGEST_WAIT);
                return Trouble::Passing(error, after);
            }
            (_, Some("GatedRepo")) => HubError::Gated { name: name_said, page, has_token },
            (_, Some("RevisionNotFound")) => {
                let page = format!("{page}/refs");
                HubError::NoRevision { name: name_said, revision: name.revision().to_owned(), page }
            }
            // Whoever may not know whether there is such a model is told 401.
            (_, Some("RepoNotFound")) | (401 | 404, None) => {
                HubError::NoModel { name: name_said, endpoint, has_token }
            }
            _ => {
                let said = text("x-error-message").map(|said| said.chars().take(MOST_SAID).collect());
                HubError::Refused { name: name_said, endpoint, status, said }
            }
        };
        Trouble::Lasting(error)
    }

    fn unreachable(&self, name: &ModelName, error: &ureq::Error) -> Trouble {
        let why = match error {
            ureq::Error::Timeout(_) => self.silent(),
            _ => error.to_string(),
        };
        self.lost(name, why)
    }

    /// The connection is lost, for this reason.
    pub(crate) fn lost(&self, name: &ModelName, why: String) -> Trouble {
        let endpoint = self.settings.endpoint.clone();
        Trouble::Passing(HubError::Unreachable { name: name.to_string(), endpoint, why }, None)
    }

    /// A file broke off in its middle.
    pub(crate) fn broken(&self, name: &ModelName, file: &str, error: &std::io::Error) -> Trouble {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        match inner {
            Some(ureq::Error::Timeout(_)) => self.lost(name, self.silent()),
            _ => self.lost(name, format!("`{file}` was cut off ({error})")),
        }
    }

    /// What is said where it brings nothing.
    fn silent(&self) -> String {
        format!("it brought nothing for {} s (HF_HUB_DOWNLOAD_TIMEOUT)", self.settings.patience.as_secs())
    }

    fn no_hub(&self, name: &ModelName, problem: &str) -> Trouble {
        let endpoint = self.settings.endpoint.clone();
        Trouble::Lasting(HubError::NoHub { name: name.to_string(), endpoint, problem: problem.to_owned() })
    }
}

/// How long the hub asks to wait, if it says so in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Scheme, host and port of an address.
fn origin(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |at| at + 3);
    let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
    &url[..end]
}

/// A part of an address, with `%` in the place of what may not stand there; `also` is left as it is.
fn encoded(text: &str, also: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || also.contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_origins_and_no_signs_of_their_own() {
        assert_eq!(origin("https://hub.example:8443/a/b?c"), "https://hub.example:8443");
        assert_eq!(origin("http://127.0.0.1:80"), "http://127.0.0.1:80");
        assert_ne!(origin("https://hub.example.evil/x"), origin("https://hub.example/x"));
        assert_eq!(encoded("refs/pr/1", b""), "refs%2Fpr%2F1");
        assert_eq!(encoded("a b/ä?.gguf", b"/"), "a%20b/%C3%A4%3F.gguf");
    }
}
