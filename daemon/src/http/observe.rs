//! Around every request: its id, a line in the log, a count in the metrics.

use std::time::Instant;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage};

use super::authorize::KeyName;
use crate::random;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The middleware. The client's `x-request-id` is echoed if it is short and printable, else replaced.
pub async fn observe<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, Error> {
    let started = Instant::now();
    let method = request.method().clone();
    let id = request.headers().get(REQUEST_ID).filter(|id| acceptable(id)).cloned();
    let id = id.or_else(|| HeaderValue::from_str(&random::id()).ok());
    let mut response = next.call(request).await?;
    // The pattern, not the path: clients must not be able to make up labels.
    let route = response.request().match_pattern().unwrap_or_else(|| "unknown".to_owned());
    let status = response.status();
    metrics::counter!("faser_http_requests", "route" => route.clone(), "code" => status.as_u16().to_string())
        .increment(1);
    let key = response.request().extensions().get::<KeyName>().map(|key| key.0.clone());
    tracing::debug!(
        %method,
        route,
        status = status.as_u16(),
        key,
        request_id = id.as_ref().and_then(|id| id.to_str().ok()),
        head_ms = started.elapsed().as_secs_f64() * 1e3,
        "request answered"
    );
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    Ok(response)
}

fn acceptable(id: &HeaderValue) -> bool {
    (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}
