//! GET /health, /ready, /version and /metrics: for load balancers and operators. None of them needs the models.

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use crate::app::{App, Served};
use crate::pairs::model_of;

/// The process is alive.
pub(super) async fn health() -> HttpResponse {
    HttpResponse::Ok().json(json!({"status": "ok"}))
}

/// Whether a request would be taken now, and by which replicas; 503 with the reason if not. One replica that serves is enough for a pair, and
/// each pair must have one, unless the query asks for one pair by `model`.
pub(super) async fn ready(app: web::Data<App>, request: HttpRequest) -> HttpResponse {
    let model = model_of(request.query_string());
    let readiness = app.readiness(model.as_deref());
    let mut body = json!({"status": readiness.as_ref().err().map_or("ready", String::as_str)});
    if let Some(pairs) = app.loaded().filter(|_| !app.draining()) {
        match pairs.named(model.as_deref()) {
            Ok(served) if model.is_some() || !pairs.several() => body["replicas"] = replicas(served),
            _ => {
                let pair = |served: &std::sync::Arc<Served>| json!({"pair": served.name, "replicas": replicas(served)});
                body["pairs"] = pairs.iter().map(pair).collect();
            }
        }
    }
    match readiness {
        Ok(()) => HttpResponse::Ok().json(body),
        Err(_) => HttpResponse::ServiceUnavailable().insert_header((header::RETRY_AFTER, "1")).json(body),
    }
}

/// What each replica is doing.
fn replicas(served: &Served) -> Value {
    let statuses = served.service.statuses().into_iter().enumerate();
    statuses.map(|(number, status)| json!({"replica": number, "status": status.to_string()})).collect()
}

/// Which faser this is, as vLLM tells its own.
pub(super) async fn version() -> HttpResponse {
    HttpResponse::Ok().json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Metrics in Prometheus' text format.
pub(super) async fn metrics(app: web::Data<App>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(app.render_metrics())
}
