//! Around every request: its id, its lines in the log, a count in the metrics.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Instant, SystemTime};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::InternalError;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpResponse, web};
use faser_telemetry::TraceParent;
use tracing::{Instrument, Span, field};

use super::app::App;
use super::caller::OfKey;
use super::errors::ApiError;
use crate::random;
use crate::request_trace::{self, RequestTrace};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Characters of a client's request id at most.
const MOST_CHARACTERS: usize = 128;

/// The middleware. The client's `x-request-id` is taken if it is short and plain, else one is made; the response has it, and so has
/// every line of the log about the request, until the last byte of its answer: it is the span `request`. So have the id of the trace that the
/// client's `traceparent` names, or of the one that is sent.
pub async fn observe<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let started = Instant::now();
    let method = request.method().clone();
    // The pattern, not the path: clients must not be able to make up labels.
    let route = request.match_pattern().unwrap_or_else(|| "unknown".to_owned());
    let id = request.headers().get(REQUEST_ID).and_then(acceptable).map_or_else(random::id, str::to_owned);
    // At the most important level: a line that is written must not lose it because spans are not.
    let span = tracing::error_span!("request", request_id = %id, trace_id = field::Empty);
    let parent = request_trace::parent(&request);
    let traces = request.app_data::<web::Data<App>>().and_then(|app| app.traces());
    let of_parent = parent.as_ref().map(TraceParent::trace_id);
    let trace = RequestTrace::begin(traces, &request, &route, &id, parent);
    if let Some(trace_id) = trace.as_ref().map(RequestTrace::trace_id).or(of_parent) {
        span.record("trace_id", trace_id);
    }
    let handled = request_trace::within(trace.clone(), next.call(request));
    let outcome = handled.instrument(span.clone()).await;
    let _entered = span.enter();
    let (status, error) = match &outcome {
        Ok(response) => (response.status(), response.response().error()),
        Err(error) => (error.as_response_error().status_code(), Some(error)),
    };
    metrics::counter!("faser_http_requests_total", "route" => route.clone(), "code" => status.as_u16().to_string())
        .increment(1);
    trace.iter().for_each(|trace| trace.answered(status));
    if let Some(error) = error.and_then(Error::as_error::<ApiError>) {
        error.log(&route);
    }
    let head_ms = started.elapsed().as_secs_f64() * 1e3;
    let key = outcome
        .as_ref()
        .ok()
        .and_then(|response| response.request().extensions().get::<OfKey>().map(|key| key.name.clone()));
    tracing::debug!(%method, route, key, status = status.as_u16(), head_ms, "request answered");
    let id = HeaderValue::from_str(&id).ok();
    match outcome {
        Ok(mut response) => {
            id.map(|id| response.headers_mut().insert(REQUEST_ID, id));
            Ok(response
                .map_body(|_, body| BoxBody::new(Observed::new(body.boxed(), started, span.clone(), trace))))
        }
        Err(error) => {
            let mut response: HttpResponse = error.error_response();
            id.map(|id| response.headers_mut().insert(REQUEST_ID, id));
            trace.iter().for_each(|trace| trace.ended(None, 0, true));
            Err(InternalError::from_response(error, response).into())
        }
    }
}

/// An id that a line of the log can hold as it is.
fn acceptable(id: &HeaderValue) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+=@".contains(c);
    id.to_str().ok().filter(|id| (1..=MOST_CHARACTERS).contains(&id.len()) && id.chars().all(plain))
}

/// The body of an answer, within the request's span.
struct Observed {
    body: BoxBody,
    started: Instant,
    span: Span,
    trace: Option<RequestTrace>,
    /// When the first of a stream was asked for.
    streamed: Option<SystemTime>,
    sent_bytes: u64,
    complete: bool,
}

impl Observed {
    fn new(body: BoxBody, started: Instant, span: Span, trace: Option<RequestTrace>) -> Observed {
        // What has no bytes is never asked for any.
        let complete = matches!(body.size(), BodySize::None | BodySize::Sized(0));
        Observed { body, started, span, trace, streamed: None, sent_bytes: 0, complete }
    }
}

impl MessageBody for Observed {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<web::Bytes, Self::Error>>> {
        let this = self.get_mut();
        let _entered = this.span.enter();
        if this.trace.is_some() && this.body.size() == BodySize::Stream {
            this.streamed.get_or_insert_with(SystemTime::now);
        }
        let next = ready!(this.body.as_pin_mut().poll_next(cx));
        match &next {
            Some(Ok(bytes)) => this.sent_bytes += bytes.len() as u64,
            Some(Err(_)) => {}
            None => this.complete = true,
        }
        if this.body.size() == BodySize::Sized(this.sent_bytes) {
            this.complete = true;
        }
        Poll::Ready(next)
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        let total_ms = self.started.elapsed().as_secs_f64() * 1e3;
        let (sent_bytes, complete) = (self.sent_bytes, self.complete);
        tracing::debug!(sent_bytes, complete, total_ms, "request ended");
        // What streams hold ends within the span as well.
        self.body = BoxBody::new(());
        if let Some(trace) = self.trace.take() {
            trace.ended(self.streamed, sent_bytes, complete);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_and_plain() {
        let taken = |id: &str| acceptable(&HeaderValue::from_str(id).unwrap()).is_some();
        for id in
            ["a", "0af7651916cd43dd-b7ad6b7169203331", "Root=1-67891233:abc/def+g@h_i.j", &"x".repeat(128)]
        {
            assert!(taken(id), "{id}");
        }
        for id in ["", " ", "a b", "a\"b", "{a}", "a\tb", "a,b", &"x".repeat(129)] {
            assert!(!taken(id), "{id}");
        }
        assert!(acceptable(&HeaderValue::from_bytes(b"\xc3\xa9").unwrap()).is_none());
    }
}
