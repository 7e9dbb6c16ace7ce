//! The HTTP API: OpenAI's routes, and those that operators and load balancers ask.

pub mod access;
mod answer;
mod answer_usage;
pub mod app;
mod authorize;
pub mod body;
pub mod bounds;
mod caller;
mod calls;
mod chat;
mod chunks;
mod completions;
pub mod conversation;
mod debug;
mod encoding;
pub mod errors;
mod format;
mod generation;
pub mod grammars;
mod info;
mod logprob_shapes;
pub mod metrics_recorder;
pub mod names;
mod observe;
mod openapi;
pub mod pairs;
pub mod params;
mod prompt;
pub mod random;
mod request_trace;
mod responses;
pub mod resume;
mod slow;
mod speculation;
pub mod stop;
pub mod text_sequence;
mod tokenize;
mod tools;

pub use debug::{chrome_trace, no_replica};

use actix_web::http::{Method, StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, Resource, ResponseError, Route, guard, web};

use errors::ApiError;

use faser_config::fields::shortened;

/// Every route of the API. The caller adds `web::Data<App>`, and wraps `authorize` and then `observe` around it.
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(resource("/v1/completions", Method::POST, web::route().to(completions::completions)))
        .service(resource("/v1/chat/completions", Method::POST, web::route().to(chat::chat)))
        .service(resource("/v1/responses", Method::POST, web::route().to(responses::create)))
        .service(web::resource("/v1/responses/{id:.+}").route(web::to(responses::not_stored)))
        .service(resource("/v1/models", Method::GET, web::route().to(info::models)))
        .service(resource("/v1/models/{id:.*}", Method::GET, web::route().to(info::model)))
        .service(resource("/tokenize", Method::POST, web::route().to(tokenize::tokenize)))
        .service(resource("/detokenize", Method::POST, web::route().to(tokenize::detokenize)))
        .service(resource("/health", Method::GET, web::route().to(info::health)))
        .service(resource("/ready", Method::GET, web::route().to(info::ready)))
        .service(resource("/version", Method::GET, web::route().to(info::version)))
        .service(resource("/metrics", Method::GET, web::route().to(info::metrics)))
        .service(resource("/health_generate", Method::GET, web::route().to(info::health_generate)))
        .service(resource("/model_info", Method::GET, web::route().to(info::model_info)))
        .service(resource("/get_model_info", Method::GET, web::route().to(info::model_info)))
        .service(resource("/server_info", Method::GET, web::route().to(info::server_info)))
        .service(resource("/get_server_info", Method::GET, web::route().to(info::server_info)))
        .service(resource("/openapi.json", Method::GET, web::route().to(openapi::openapi)))
        .service(resource("/debug/trace", Method::GET, web::route().to(debug::trace)))
        .default_service(web::to(no_route));
}

pub use authorize::authorize;
pub use body::read;
pub use bounds::{Bounds, TemplateReads};
pub use chat::asked as chat_asked;
pub use completions::{Completion, Prompt, asked as completion_asked};
pub use observe::observe;
pub use responses::{Asked, asked as response_asked};
pub use tokenize::{Source, ids as ids_asked, source as tokens_asked};

/// A path with its one method, and HEAD where that is GET; others are answered with 405.
fn resource(path: &'static str, method: Method, route: Route) -> Resource {
    let allowed = if method == Method::GET { "GET, HEAD" } else { method.as_str() }.to_owned();
    let route = match method {
        Method::GET => route.guard(guard::Any(guard::Get()).or(guard::Head())),
        method => route.method(method),
    };
    let other = move |request: HttpRequest| {
        let path = shortened(request.path(), 128);
        let message =
            format!("{path} is not for {}; use {allowed}", shortened(request.method().as_str(), 32));
        let error = ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        let mut response = error.error_response();
        if let Ok(allowed) = header::HeaderValue::from_str(&allowed) {
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        async { response }
    };
    web::resource(path).route(route).default_service(web::to(other))
}

async fn no_route(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let path = shortened(request.path(), 128);
    let message = format!(
        "there is nothing at {path}; see /v1/models, /v1/completions, /v1/chat/completions, /v1/responses"
    );
    Err(ApiError::refused(StatusCode::NOT_FOUND, "not_found", message))
}
