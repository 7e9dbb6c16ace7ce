//! From a request on the socket to a call, and whether whoever asks may make it.

use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use faser_openai::errors::ApiError;
use futures_util::StreamExt;
use serde_json::Value;

use super::admin_answers::answer;
use super::admin_api::{self, Call};
use super::look::Admin;
use super::peer::Peer;
use super::{admin_errors, audit, browser_rules};

/// Larger bodies are refused.
const MOST_BYTES: usize = 64 << 10;

/// What stands in a request.
pub(super) struct Asked<'r> {
    pub(super) method: &'r Method,
    pub(super) path: &'r str,
    pub(super) query: &'r str,
    /// `If-Match`.
    pub(super) tag: Option<&'r str>,
    pub(super) body: &'r [u8],
}

/// Every request comes here.
pub(super) async fn handle(
    admin: web::Data<Admin>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    browser_rules::check(&request)?;
    let nobody = Peer { uid: None, pid: None, may_change: false };
    let peer = request.conn_data::<Peer>().cloned().unwrap_or(nobody);
    let body = read(payload).await?;
    let asked = Asked {
        method: request.method(),
        path: request.path(),
        query: request.query_string(),
        tag: request.headers().get("if-match").and_then(|tag| tag.to_str().ok()),
        body: &body,
    };
    respond(&admin, &peer, &asked).await
}

/// Makes the call, if it is one and `peer` may.
pub(super) async fn respond(
    admin: &web::Data<Admin>,
    peer: &Peer,
    asked: &Asked<'_>,
) -> Result<HttpResponse, ApiError> {
    let Asked { method, path, query, .. } = *asked;
    let input = if *method == Method::GET {
        admin_api::query(query)?
    } else if query.is_empty() {
        json(asked.body)?
    } else {
        let message = "fields stand in a JSON body, not in the query";
        return Err(ApiError::bad_request(message, None, "invalid_value"));
    };
    let call = Call::read(method, path, &input)?;
    if !call.changes() {
        return answer(admin, call, peer, None).await;
    }
    let what = format!("{method} {path}");
    if !peer.may_change {
        let message = format!("{peer} may look, but change nothing: {}", admin.operators.advice());
        audit::refused(peer, &what, &"permission denied");
        return Err(admin_errors::forbidden(message));
    }
    let tag = asked.tag.filter(|tag| *tag != "*").map(str::to_owned);
    let made = match call {
        // Whoever asked may go: then there is nothing to wait for, and nothing to record.
        Call::Trace { .. } | Call::Drain { .. } => answer(admin, call, peer, None).await,
        // What was begun is brought to its end, also if nobody waits for it any more.
        call => {
            let (admin, peer) = (admin.clone(), peer.clone());
            let task = actix_web::rt::spawn(async move { answer(&admin, call, &peer, tag.as_deref()).await });
            task.await.unwrap_or_else(|err| Err(ApiError::internal(err.to_string(), "internal_error")))
        }
    };
    if let Err(err) = &made {
        audit::refused(peer, &what, err);
    }
    made
}

async fn read(mut payload: web::Payload) -> Result<web::BytesMut, ApiError> {
    let mut body = web::BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|err| {
            ApiError::bad_request(format!("the body could not be read: {err}"), None, "invalid_body")
        })?;
        if body.len() + chunk.len() > MOST_BYTES {
            let message = format!("the body is larger than {MOST_BYTES} bytes");
            return Err(ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The body as JSON; none is an object without fields.
fn json(body: &[u8]) -> Result<Value, ApiError> {
    if body.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_json::from_slice(body).map_err(|err| {
        ApiError::bad_request(format!("the body is not valid JSON: {err}"), None, "invalid_json")
    })
}
