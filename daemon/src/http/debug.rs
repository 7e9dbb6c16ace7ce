//! GET /debug/trace: what the lanes do from now on, as Chrome trace JSON. For operators, and only if the config says so.

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use faser_bench::trace::write_chrome_trace;

use super::errors::ApiError;
use crate::app::App;
use crate::fields::{Fault, FieldError};

/// Seconds recorded if nobody says how many.
const DEFAULT_S: u64 = 5;

/// Records for `seconds`, then answers.
pub(super) async fn trace(app: web::Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    if !app.limits.debug {
        let message = "`/debug/trace` is switched off; set `server.debug: true` in the config to have it";
        return Err(ApiError::refused(StatusCode::NOT_FOUND, "debug_off", message));
    }
    let seconds = seconds(request.query_string())?;
    let served = app.served()?;
    let record = served.service.record(Duration::from_secs(seconds)).await?;
    // Much text, and others are waiting for this thread.
    let written = web::block(move || {
        let mut trace = Vec::new();
        write_chrome_trace(&record, record.from..record.until, &mut trace).map(|()| trace)
    });
    let failed = |why: String| ApiError::internal(format!("the trace cannot be written: {why}"), "trace");
    let trace = written.await.map_err(|err| failed(err.to_string()))?;
    let trace = trace.map_err(|err| failed(err.to_string()))?;
    Ok(HttpResponse::Ok().content_type("application/json").body(trace))
}

/// The one parameter there is. Its range is the service's affair.
fn seconds(query: &str) -> Result<u64, ApiError> {
    let mut seconds = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "seconds" {
            let name: String = name.chars().take(64).collect();
            let problem = "is unknown; known here: seconds";
            return Err(FieldError::new(name.escape_debug().to_string(), Fault::Unknown, problem).into());
        }
        let number = value.parse().ok().filter(|_| seconds.is_none());
        seconds = Some(number.ok_or_else(|| {
            let problem = "must be one whole number, as in /debug/trace?seconds=5";
            FieldError::new("seconds", Fault::Value, problem)
        })?);
    }
    Ok(seconds.unwrap_or(DEFAULT_S))
}
