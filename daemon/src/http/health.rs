//! GET /health, /ready and /metrics: for load balancers and operators. None of them needs the models.

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use serde_json::json;

use crate::app::App;

/// The process is alive.
pub(super) async fn health() -> HttpResponse {
    HttpResponse::Ok().json(json!({"status": "ok"}))
}

/// Whether a request would be taken now; 503 with the reason if not.
pub(super) async fn ready(app: web::Data<App>) -> HttpResponse {
    match app.readiness() {
        Ok(()) => HttpResponse::Ok().json(json!({"status": "ready"})),
        Err(reason) => HttpResponse::ServiceUnavailable()
            .insert_header((header::RETRY_AFTER, "1"))
            .json(json!({"status": reason})),
    }
}

/// Metrics in Prometheus' text format.
pub(super) async fn metrics(app: web::Data<App>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(app.render_metrics())
}
