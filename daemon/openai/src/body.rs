//! Request bodies: read up to a limit and within a time, then parsed as JSON that is neither deep nor made of crumbs.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, web};
use faser_config::ServerConfig;
use faser_config::fields::{Fields, shortened};
use futures_util::StreamExt;
use serde_json::Value;

use super::bounds::Bounds;
use super::errors::ApiError;

/// Lists and objects within each other: what a JSON schema may have, and some around it.
const MOST_DEPTH: usize = 96;
/// Lists and objects of a body. Each takes some hundred bytes once it is parsed, and two to write.
const MOST_CONTAINERS: usize = 32_768;
/// A body up to this size is read whatever else is being read.
const SMALL_BYTES: usize = 16 << 10;
/// Bytes of all larger bodies together, or eight of the largest.
const TOGETHER_BYTES: usize = 64 << 20;

/// Bytes of all bodies that are in memory now.
#[derive(Debug, Default)]
pub struct Bodies(AtomicUsize);

/// A body, and its share in the memory for all of them.
pub(crate) struct Body<'a> {
    bytes: web::BytesMut,
    bodies: &'a Bodies,
}

impl Body<'_> {
    fn push(&mut self, chunk: &[u8], limit_bytes: usize) -> Result<(), ApiError> {
        let length = self.bytes.len() + chunk.len();
        if length > limit_bytes {
            return Err(too_large(limit_bytes));
        }
        let together = self.bodies.0.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
        // Counted before it may be refused: `drop` takes back as many bytes as there are.
        self.bytes.extend_from_slice(chunk);
        if length > SMALL_BYTES && together > TOGETHER_BYTES.max(limit_bytes.saturating_mul(8)) {
            let message = "too many large bodies are being read at once: send it again in a moment";
            return Err(ApiError::too_many(message, "too_many_bodies"));
        }
        Ok(())
    }
}

impl Deref for Body<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body<'_> {
    fn drop(&mut self) {
        self.bodies.0.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Reads the body, whatever its content type says.
///
/// # Errors
/// It is larger than `server.max_body_bytes`, compressed, cut off, or takes longer than `server.body_timeout_s`.
pub(crate) async fn receive<'a>(
    request: &HttpRequest,
    payload: web::Payload,
    limits: &ServerConfig,
    bodies: &'a Bodies,
) -> Result<Body<'a>, ApiError> {
    let limit_bytes = limits.max_body_bytes;
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    if let Some(encoding) = header(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let message =
            format!("content-encoding {} is not taken: send the body as it is", shortened(encoding, 64));
        return Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message));
    }
    let announced = header(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit_bytes as u64) {
        return Err(too_large(limit_bytes));
    }
    let limit = limits.body_timeout;
    match tokio::time::timeout(limit, collect(payload, limit_bytes, bodies)).await {
        Ok(body) => body,
        Err(_) => {
            let message =
                format!("the body did not come within {} s (server.body_timeout_s)", limit.as_secs());
            Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

async fn collect(
    mut payload: web::Payload,
    limit_bytes: usize,
    bodies: &Bodies,
) -> Result<Body<'_>, ApiError> {
    let mut body = Body { bytes: web::BytesMut::new(), bodies };
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|err| {
            ApiError::bad_request(format!("the body could not be read: {err}"), None, "invalid_body")
        })?;
        body.push(&chunk, limit_bytes)?;
    }
    Ok(body)
}

/// Parses a body.
///
/// # Errors
/// It is empty, no JSON, nested too deeply, or has too many lists and objects.
fn parse(body: &[u8]) -> Result<Value, ApiError> {
    let invalid = |message: String| ApiError::bad_request(message, None, "invalid_json");
    if body.is_empty() {
        return Err(invalid("the body is empty: send a JSON object".to_owned()));
    }
    Containers::default()
        .check(body)
        .map_err(|problem| invalid(format!("the body is JSON that {problem}")))?;
    serde_json::from_slice(body).map_err(|err| invalid(format!("the body is not valid JSON: {err}")))
}

/// What `ask` makes of the body of a request, which has nothing else.
///
/// # Errors
/// It is no JSON, or the first field that is wrong.
pub fn read<T>(body: &[u8], bounds: &Bounds<'_>, ask: Ask<T>) -> Result<T, ApiError> {
    Fields::new("", &parse(body)?)?.to_end(|fields| ask(fields, bounds))
}

/// A reader of requests.
pub type Ask<T> = fn(&mut Fields<'_>, &Bounds<'_>) -> Result<T, ApiError>;

/// Lists and objects of JSON from one client, counted before anything is allocated for them.
#[derive(Default)]
pub(super) struct Containers(usize);

impl Containers {
    /// Counts brackets outside of strings.
    ///
    /// # Errors
    /// The JSON is nested too deeply, or all of it that was counted has too many lists and objects.
    pub(super) fn check(&mut self, json: &[u8]) -> Result<(), String> {
        let mut depth = 0_usize;
        let mut bytes = json.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => loop {
                    match bytes.next() {
                        None | Some(b'"') => break,
                        Some(b'\\') => drop(bytes.next()),
                        Some(_) => {}
                    }
                },
                b'[' | b'{' => {
                    depth += 1;
                    self.0 += 1;
                    if depth > MOST_DEPTH {
                        return Err(format!("is nested deeper than {MOST_DEPTH} levels"));
                    }
                    if self.0 > MOST_CONTAINERS {
                        return Err(format!("has more than {MOST_CONTAINERS} lists and objects"));
                    }
                }
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        Ok(())
    }
}

fn too_large(limit_bytes: usize) -> ApiError {
    let message = format!("the body is larger than {limit_bytes} bytes (server.max_body_bytes)");
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn depth_and_number_of_lists_are_bounded_and_strings_are_left_alone() {
        assert!(parse(nested(MOST_DEPTH).as_bytes()).is_ok());
        let deep = parse(nested(MOST_DEPTH + 1).as_bytes()).unwrap_err().to_string();
        assert!(deep.contains("nested deeper than 96"), "{deep}");
        let crumbs = |count: usize| format!("[{}{{}}]", "{},".repeat(count));
        assert!(parse(crumbs(MOST_CONTAINERS - 2).as_bytes()).is_ok());
        let many = parse(crumbs(MOST_CONTAINERS).as_bytes()).unwrap_err().to_string();
        assert!(many.contains("more than 32768"), "{many}");
        let mut several = Containers::default();
        let half = crumbs(MOST_CONTAINERS / 2);
        assert!(several.check(half.as_bytes()).is_ok());
        assert!(several.check(half.as_bytes()).unwrap_err().contains("more than 32768"));
        let text = serde_json::to_string(&format!("\\\" {} \\", "[".repeat(100_000))).unwrap();
        assert!(parse(text.as_bytes()).is_ok());
        for broken in ["\"[[[", "\"\\", "]]]]}}}}", "{\"a\": \"\\\"[\""] {
            assert!(parse(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn large_bodies_share_a_bounded_memory_and_give_it_back() {
        let bodies = Bodies::default();
        let chunk = vec![b'x'; 1 << 20];
        let mut held = Vec::new();
        let refused = loop {
            let mut body = Body { bytes: web::BytesMut::new(), bodies: &bodies };
            match body.push(&chunk, 4 << 20) {
                Ok(()) => held.push(body),
                Err(err) => break err,
            }
        };
        assert_eq!((held.len(), refused.status), (64, StatusCode::TOO_MANY_REQUESTS));
        let mut small = Body { bytes: web::BytesMut::new(), bodies: &bodies };
        assert!(small.push(&chunk[..SMALL_BYTES], 4 << 20).is_ok(), "small ones are always read");
        drop((held, small));
        assert_eq!(bodies.0.load(Ordering::Relaxed), 0);
    }
}
