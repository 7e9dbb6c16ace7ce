//! Errors as clients of the OpenAI API know them: `{"error": {"message", "type", "param", "code"}}`.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use faser_actors::{RecordingError, SubmitError};
use faser_config::fields::{Fault, FieldError, shortened};
use faser_engine::Refusal;
use faser_models::ModelError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::grammars::FormatError;
use crate::text_sequence::SequenceError;

/// A refusal or failure of one request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) code: Option<&'static str>,
    pub(super) param: Option<String>,
    pub(super) message: String,
    pub(super) retry_after_s: Option<u32>,
    /// What a client has to send to be let in.
    pub(super) challenge: Option<&'static str>,
}

impl ApiError {
    /// 400: the request is wrong, in the field `param` if one can be named.
    pub fn bad_request(message: impl Into<String>, param: Option<&str>, code: &'static str) -> ApiError {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error",
            code: Some(code),
            param: param.map(str::to_owned),
            message: message.into(),
            retry_after_s: None,
            challenge: None,
        }
    }

    /// Another refusal of the request itself: 401, 404, 405, 409, 413.
    pub fn refused(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, ..ApiError::bad_request(message, None, code) }
    }

    /// 404 for a model that is not served.
    pub fn unknown_model<'n>(asked: &str, served: impl Iterator<Item = &'n str>) -> ApiError {
        let names = served.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message =
            format!("the model `{}` is not served here; this server has {names}", shortened(asked, 64));
        ApiError {
            param: Some("model".into()),
            ..ApiError::refused(StatusCode::NOT_FOUND, "model_not_found", message)
        }
    }

    /// The grammar that a field stands for is not taken, or not now.
    pub(super) fn of_grammar(err: &FormatError, field: &str) -> ApiError {
        let message = err.to_string();
        match err {
            FormatError::Grammar(_) | FormatError::TooSlow | FormatError::TooLarge => {
                ApiError::bad_request(message, Some(field), "invalid_grammar")
            }
            FormatError::Busy => ApiError::unavailable(message, "grammars_busy"),
            FormatError::Unavailable => ApiError::unavailable(message, "grammars_unavailable"),
        }
    }

    /// 503: try again in a moment.
    pub fn unavailable(message: impl Into<String>, code: &'static str) -> ApiError {
        ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "service_unavailable_error",
            retry_after_s: Some(1),
            ..ApiError::bad_request(message, None, code)
        }
    }

    /// 429: later, not now.
    pub fn too_many(message: impl Into<String>, code: &'static str) -> ApiError {
        ApiError {
            status: StatusCode::TOO_MANY_REQUESTS,
            kind: "rate_limit_error",
            ..ApiError::unavailable(message, code)
        }
    }

    /// 500: nothing the client did.
    pub fn internal(message: impl Into<String>, code: &'static str) -> ApiError {
        ApiError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "server_error",
            ..ApiError::bad_request(message, None, code)
        }
    }

    /// A line in the log. What a client has sent is not in it, but for the name of a field.
    pub(super) fn log(&self, route: &str) {
        let (status, code, param) = (self.status.as_u16(), self.code, self.param.as_deref());
        if self.retry_after_s.is_some() {
            // Clients come again as fast as they like.
            tracing::debug!(route, status, code, "request put off");
        } else if self.status.is_server_error() {
            tracing::warn!(route, status, code, why = self.message, "request failed");
        } else {
            tracing::info!(route, status, code, param, "request refused");
        }
    }

    /// The JSON body; also what a stream sends when it breaks after its first byte.
    pub(super) fn body(&self) -> Failure {
        let (message, param) = (self.message.clone(), self.param.clone());
        Failure { error: FailureDetails { message, r#type: self.kind, param, code: self.code } }
    }
}

/// A refusal or a failure.
#[derive(Serialize, ToSchema)]
pub(super) struct Failure {
    error: FailureDetails,
}

#[derive(Serialize, ToSchema)]
struct FailureDetails {
    message: String,
    r#type: &'static str,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        if let Some(seconds) = self.retry_after_s {
            response.insert_header((header::RETRY_AFTER, seconds.to_string()));
        }
        if let Some(challenge) = self.challenge {
            response.insert_header((header::WWW_AUTHENTICATE, challenge));
        }
        response.json(self.body())
    }
}

impl From<FieldError> for ApiError {
    fn from(err: FieldError) -> ApiError {
        let code = match err.fault {
            Fault::Unknown => "unknown_parameter",
            Fault::Missing => "missing_required_parameter",
            Fault::Type => "invalid_type",
            Fault::Value => "invalid_value",
            Fault::Unsupported => "unsupported_parameter",
        };
        let param = Some(err.path.as_str()).filter(|path| !path.is_empty());
        ApiError::bad_request(err.message.clone(), param, code)
    }
}

impl From<SubmitError> for ApiError {
    fn from(err: SubmitError) -> ApiError {
        let message = err.to_string();
        match err {
            SubmitError::Full { .. } => ApiError::too_many(message, "queue_full"),
            SubmitError::Refused(Refusal::Mode { .. }) => {
                ApiError::bad_request(message, Some("speculation.mode"), "unsupported_parameter")
            }
            SubmitError::Refused(Refusal::EmptyPrompt) => {
                ApiError::bad_request(message, Some("prompt"), "invalid_value")
            }
            SubmitError::Refused(_) => {
                ApiError::bad_request(message, Some("prompt"), "context_length_exceeded")
            }
            SubmitError::Invalid(_) => ApiError::bad_request(message, None, "invalid_value"),
            SubmitError::NotReady(_) => ApiError::unavailable(message, "not_ready"),
            SubmitError::Draining => ApiError::unavailable(message, "draining"),
            SubmitError::Stopped => ApiError::unavailable(message, "stopped"),
        }
    }
}

impl From<RecordingError> for ApiError {
    fn from(err: RecordingError) -> ApiError {
        let message = err.to_string();
        match err {
            RecordingError::Length => ApiError::bad_request(message, Some("seconds"), "invalid_value"),
            RecordingError::Busy(_) => ApiError::refused(StatusCode::CONFLICT, "recording", message),
            RecordingError::Stopped => ApiError::unavailable(message, "stopped"),
        }
    }
}

impl From<ModelError> for ApiError {
    fn from(err: ModelError) -> ApiError {
        let param = match err {
            ModelError::Tokenize(_) => "prompt",
            _ => "messages",
        };
        ApiError::bad_request(err.to_string(), Some(param), "invalid_value")
    }
}

impl From<SequenceError> for ApiError {
    fn from(err: SequenceError) -> ApiError {
        match err {
            SequenceError::Another => {
                ApiError::refused(StatusCode::CONFLICT, "resume_mismatch", err.to_string())
            }
            SequenceError::DeviceFailed => ApiError::internal(err.to_string(), "device_failed"),
            SequenceError::Grammar(_) => ApiError::bad_request(err.to_string(), None, "grammar_failed"),
            SequenceError::Cancelled => ApiError::internal(err.to_string(), "cancelled"),
            SequenceError::Ended => ApiError::unavailable(err.to_string(), "shutting_down"),
        }
    }
}

impl From<faser_config::ConfigError> for ApiError {
    fn from(err: faser_config::ConfigError) -> ApiError {
        ApiError::bad_request(err.to_string(), None, "invalid_config")
    }
}
