//! Refusals of the admin API, in the shape of the HTTP API's.

use actix_web::http::StatusCode;
use faser_openai::errors::ApiError;

use crate::reload::ReloadError;

/// 404 for a path.
pub(super) fn not_here(path: &str) -> ApiError {
    let path: String = path.chars().take(128).collect();
    let message = format!("there is nothing at {}; see /v1/status, /openapi.json", path.escape_debug());
    ApiError::refused(StatusCode::NOT_FOUND, "not_found", message)
}

/// 409: it cannot be done now, or not in this daemon.
pub(super) fn conflict(code: &'static str, message: impl Into<String>) -> ApiError {
    ApiError::refused(StatusCode::CONFLICT, code, message)
}

/// 403 for somebody who may only look.
pub(super) fn forbidden(message: impl Into<String>) -> ApiError {
    ApiError::refused(StatusCode::FORBIDDEN, "permission_denied", message)
}

impl From<ReloadError> for ApiError {
    fn from(err: ReloadError) -> ApiError {
        let message = err.to_string();
        match err {
            ReloadError::Config(err) => err.into(),
            ReloadError::Restart { .. } => conflict("needs_restart", message),
            ReloadError::Outdated(_) => {
                ApiError::refused(StatusCode::PRECONDITION_FAILED, "outdated", message)
            }
            ReloadError::Stopped => ApiError::unavailable(message, "stopped"),
        }
    }
}
