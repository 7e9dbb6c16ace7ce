//! GET /health, /ready, /version and /metrics: for load balancers and operators. None of them needs the models.

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use serde_json::json;

use crate::app::App;

/// The process is alive.
pub(super) async fn health() -> HttpResponse {
    HttpResponse::Ok().json(json!({"status": "ok"}))
}

/// Whether a request would be taken now, and by which replicas; 503 with the reason if not. One replica that serves is enough.
pub(super) async fn ready(app: web::Data<App>) -> HttpResponse {
    let readiness = app.readiness();
    let mut body = json!({"status": readiness.as_ref().err().map_or("ready", String::as_str)});
    if let Some(replicas) = app.replicas() {
        let replica = |(number, status)| json!({"replica": number, "status": status});
        body["replicas"] = replicas.into_iter().enumerate().map(replica).collect();
    }
    match readiness {
        Ok(()) => HttpResponse::Ok().json(body),
        Err(_) => HttpResponse::ServiceUnavailable().insert_header((header::RETRY_AFTER, "1")).json(body),
    }
}

/// Which faser this is, as vLLM tells its own.
pub(super) async fn version() -> HttpResponse {
    HttpResponse::Ok().json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Metrics in Prometheus' text format.
pub(super) async fn metrics(app: web::Data<App>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(app.render_metrics())
}
