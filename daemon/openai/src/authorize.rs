//! In front of every route but /health and /ready: the API key, and its number of requests in flight.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{ConnectionType, StatusCode, header};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, ResponseError, web};

use super::errors::ApiError;
use crate::access::{Permit, Refusal};
use crate::app::App;
use crate::caller::OfKey;

/// The middleware. What is refused here never has its body read.
///
/// # Errors
/// Those of the service behind it.
pub async fn authorize<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let permit = match permit(&request) {
        Ok(permit) => permit,
        Err(err) => {
            let response = err.error_response();
            return Ok(alone(request.into_response(response)));
        }
    };
    if let Some(permit) = &permit {
        request.extensions_mut().insert(OfKey { name: permit.name().to_owned(), owner: permit.owner() });
    }
    let guarded = request.app_data::<web::Data<App>>().is_some_and(|app| !app.access.keys().is_empty());
    let response = next.call(request).await?.map_into_boxed_body();
    Ok(match permit {
        None if guarded => alone(response),
        None => response,
        // A stream is in flight until its last byte.
        Some(permit) => {
            response.map_body(|_, body| BoxBody::new(Held { body: Box::pin(body), _permit: permit }))
        }
    })
}

/// The one response of its connection. The time for a head is that of the first one alone: who has no key gets no second.
fn alone(mut response: ServiceResponse<BoxBody>) -> ServiceResponse<BoxBody> {
    response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    response
}

fn permit(request: &ServiceRequest) -> Result<Option<Permit>, ApiError> {
    let Some(app) = request.app_data::<web::Data<App>>() else {
        return Err(ApiError::internal("the server is set up wrongly", "internal_error"));
    };
    // By the very path: another way of writing it needs a key.
    let open = match request.path() {
        "/health" | "/ready" => true,
        "/metrics" => app.limits.metrics_open,
        _ => false,
    };
    if open {
        return Ok(None);
    }
    let mut headers = request.headers().get_all(header::AUTHORIZATION);
    let (header, other) = (headers.next(), headers.next());
    let header = header.filter(|_| other.is_none()).map(header::HeaderValue::as_bytes);
    app.access.keys().admit(header).map_err(ApiError::from)
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        match refusal {
            Refusal::Missing => ApiError::unauthorized(
                "you gave no API key: send the header `Authorization: Bearer YOUR_KEY`",
                None,
                "Bearer realm=\"faser\"",
            ),
            Refusal::Wrong => ApiError::unauthorized(
                "this API key is not known here",
                Some("invalid_api_key"),
                "Bearer realm=\"faser\", error=\"invalid_token\"",
            ),
            Refusal::Busy(most) => ApiError::too_many(
                format!("this API key has {most} requests in flight, which is all it may have"),
                "too_many_concurrent_requests",
            ),
        }
    }
}

/// A body that gives its permit back when it is dropped.
struct Held<B> {
    body: Pin<Box<B>>,
    _permit: Permit,
}

impl<B: MessageBody> MessageBody for Held<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<web::Bytes, Self::Error>>> {
        self.body.as_mut().poll_next(cx)
    }
}

impl ApiError {
    /// 401, with what a client has to send.
    fn unauthorized(message: &str, code: Option<&'static str>, challenge: &'static str) -> ApiError {
        ApiError {
            code,
            challenge: Some(challenge),
            ..ApiError::refused(StatusCode::UNAUTHORIZED, "", message)
        }
    }
}
