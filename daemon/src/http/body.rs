//! Request bodies: read up to a limit, parsed as JSON.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, web};
use futures_util::StreamExt;
use serde_json::Value;

use super::errors::ApiError;

/// Reads the body as JSON, whatever its content type says.
///
/// # Errors
/// It is larger than `limit_bytes`, compressed, cut off, or no JSON.
pub(super) async fn json(
    request: &HttpRequest,
    mut payload: web::Payload,
    limit_bytes: usize,
) -> Result<Value, ApiError> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    if let Some(encoding) = header(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let message =
            format!("content-encoding {} is not taken: send the body as it is", encoding.escape_debug());
        return Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message));
    }
    let announced = header(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit_bytes as u64) {
        return Err(too_large(limit_bytes));
    }
    let mut body = web::BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|err| {
            ApiError::bad_request(format!("the body could not be read: {err}"), None, "invalid_body")
        })?;
        if body.len() + chunk.len() > limit_bytes {
            return Err(too_large(limit_bytes));
        }
        body.extend_from_slice(&chunk);
    }
    if body.is_empty() {
        return Err(ApiError::bad_request("the body is empty: send a JSON object", None, "invalid_json"));
    }
    serde_json::from_slice(&body).map_err(|err| {
        ApiError::bad_request(format!("the body is not valid JSON: {err}"), None, "invalid_json")
    })
}

fn too_large(limit_bytes: usize) -> ApiError {
    let message = format!("the body is larger than {limit_bytes} bytes (server.max_body_bytes)");
    ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}
