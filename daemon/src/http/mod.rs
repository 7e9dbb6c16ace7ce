//! The HTTP API: OpenAI's routes, and those that operators and load balancers ask.

mod answer;
mod authorize;
mod body;
mod bounds;
mod calls;
mod chat;
mod chunks;
mod completions;
mod debug;
mod effort;
mod elsewhere;
mod encoding;
pub mod errors;
mod format;
mod generation;
mod health;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod observe;
mod openapi;
pub mod params;
mod prediction;
mod prompt_tokens;
mod responses;
mod router;
mod slow;
mod speculation;
mod tokenize;
mod tools;
mod vocabulary;

#[cfg(test)]
mod tests;

pub(crate) use debug::{chrome_trace, no_replica};

use actix_web::http::{Method, StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, Resource, ResponseError, Route, web};

use errors::ApiError;

use crate::fields::shortened;

/// Every route of the API. The caller adds `web::Data<App>`, and wraps `authorize` and then `observe` around it.
pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(resource("/v1/completions", Method::POST, web::route().to(completions::completions)))
        .service(resource("/v1/chat/completions", Method::POST, web::route().to(chat::chat)))
        .service(resource("/v1/responses", Method::POST, web::route().to(responses::create)))
        .service(web::resource("/v1/responses/{id:.+}").route(web::to(responses::not_stored)))
        .service(resource("/v1/models", Method::GET, web::route().to(models::list)))
        .service(resource("/v1/models/{id:.*}", Method::GET, web::route().to(models::one)))
        .service(resource("/tokenize", Method::POST, web::route().to(tokenize::tokenize)))
        .service(resource("/detokenize", Method::POST, web::route().to(tokenize::detokenize)))
        .service(resource("/health", Method::GET, web::route().to(health::health)))
        .service(resource("/ready", Method::GET, web::route().to(health::ready)))
        .service(resource("/version", Method::GET, web::route().to(health::version)))
        .service(resource("/metrics", Method::GET, web::route().to(health::metrics)))
        .service(resource("/health_generate", Method::GET, web::route().to(router::health_generate)))
        .service(resource("/model_info", Method::GET, web::route().to(router::model_info)))
        .service(resource("/get_model_info", Method::GET, web::route().to(router::model_info)))
        .service(resource("/server_info", Method::GET, web::route().to(router::server_info)))
        .service(resource("/get_server_info", Method::GET, web::route().to(router::server_info)))
        .service(resource("/openapi.json", Method::GET, web::route().to(openapi::openapi)))
        .service(resource("/debug/trace", Method::GET, web::route().to(debug::trace)))
        .default_service(web::to(no_route));
}

pub use authorize::authorize;
pub use body::Bodies;
pub use bounds::{Bounds, TemplateReads};
pub use chat::read as read_chat;
pub use completions::{Completion, Prompt, read as read_completion};
pub use observe::observe;
pub use responses::{Asked, read as read_response};
pub use tokenize::{Source, read as read_tokenize, read_ids as read_detokenize};
pub use tools::ReadCalls;

/// A path with its one method; others are answered with 405.
fn resource(path: &'static str, method: Method, route: Route) -> Resource {
    let allowed = method.clone();
    let other = move |request: HttpRequest| {
        let path = shortened(request.path(), 128);
        let message =
            format!("{path} is not for {}; use {allowed}", shortened(request.method().as_str(), 32));
        let error = ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        let mut response = error.error_response();
        if let Ok(allowed) = header::HeaderValue::from_str(allowed.as_str()) {
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        async { response }
    };
    web::resource(path).route(route.method(method)).default_service(web::to(other))
}

async fn no_route(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let path = shortened(request.path(), 128);
    let message = format!(
        "there is nothing at {path}; see /v1/models, /v1/completions, /v1/chat/completions, /v1/responses"
    );
    Err(ApiError::refused(StatusCode::NOT_FOUND, "not_found", message))
}
