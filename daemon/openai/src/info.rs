//! What operators, load balancers and routers ask: how the server is and what it serves, in OpenAI's, vLLM's and SGLang's names. /health,
//! /ready, /version and /metrics need no models. Of several pairs, what routers ask speaks of the first, or of the one that the query names as
//! `model`.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use faser_actors::{Sampling, Submission, Update};
use faser_engine::{Handling, SpeculationMode};
use serde::Serialize;
use utoipa::ToSchema;

use super::errors::ApiError;
use crate::app::App;
use crate::pairs::{Served, model_of};

/// A server that takes longer for one token is of no use to a router.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// How it stands.
#[derive(Serialize, ToSchema)]
pub(super) struct Status {
    status: String,
}

/// Whether requests are taken, and by which replicas.
#[derive(Serialize, ToSchema)]
pub(super) struct Readiness {
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<Vec<ReplicaStatus>>,
    /// Those of several pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<Vec<PairStatus>>,
}

#[derive(Serialize, ToSchema)]
struct PairStatus {
    pair: String,
    replicas: Vec<ReplicaStatus>,
}

#[derive(Serialize, ToSchema)]
struct ReplicaStatus {
    replica: u32,
    status: String,
}

/// GET /version.
#[derive(Serialize, ToSchema)]
pub(super) struct Version {
    version: &'static str,
}

/// GET /v1/models.
#[derive(Serialize, ToSchema)]
pub(super) struct Models {
    object: &'static str,
    data: Vec<Model>,
}

/// A name by which a model can be asked for.
#[derive(Serialize, ToSchema)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The model's own name.
    root: String,
    parent: Option<String>,
    max_model_len: u64,
}

/// GET /model_info.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelInfo {
    served_model_name: String,
    is_generation: bool,
    max_context_length: u64,
}

/// GET /server_info.
#[derive(Serialize, ToSchema)]
pub(super) struct ServerInfo {
    served_model_name: String,
    version: &'static str,
    max_model_len: u64,
}

/// The process is alive.
pub(super) async fn health() -> HttpResponse {
    HttpResponse::Ok().json(Status { status: "ok".to_owned() })
}

/// Whether a request would be taken now, and by which replicas; 503 with the reason if not. One replica that serves is enough for a pair, and
/// each pair must have one, unless the query asks for one pair by `model`.
pub(super) async fn ready(app: web::Data<App>, request: HttpRequest) -> HttpResponse {
    let model = model_of(request.query_string());
    let readiness = app.readiness(model.as_deref());
    let status = readiness.as_ref().err().map_or("ready", String::as_str).to_owned();
    let mut body = Readiness { status, replicas: None, pairs: None };
    if let Some(pairs) = app.loaded().filter(|_| !app.draining()) {
        match pairs.named(model.as_deref()) {
            Ok(served) if model.is_some() || !pairs.several() => body.replicas = Some(replicas(served)),
            _ => {
                let pair = |served: &Arc<Served>| PairStatus {
                    pair: served.name.clone(),
                    replicas: replicas(served),
                };
                body.pairs = Some(pairs.iter().map(pair).collect());
            }
        }
    }
    match readiness {
        Ok(()) => HttpResponse::Ok().json(body),
        Err(_) => HttpResponse::ServiceUnavailable().insert_header((header::RETRY_AFTER, "1")).json(body),
    }
}

/// What each replica is doing.
fn replicas(served: &Served) -> Vec<ReplicaStatus> {
    (0..).zip(served.service.words()).map(|(replica, status)| ReplicaStatus { replica, status }).collect()
}

/// Which faser this is, as vLLM tells its own.
pub(super) async fn version() -> HttpResponse {
    HttpResponse::Ok().json(Version { version: env!("CARGO_PKG_VERSION") })
}

/// Metrics in Prometheus' text format.
pub(super) async fn metrics(app: web::Data<App>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(app.render_metrics())
}

/// GET /v1/models: each pair by its own name, then by its aliases.
pub(super) async fn models(app: web::Data<App>) -> Result<HttpResponse, ApiError> {
    let by_name = |served| Served::names(served).all().map(|name| described(served, name));
    let data = app.served()?.iter().flat_map(|served| by_name(served)).collect();
    Ok(HttpResponse::Ok().json(Models { object: "list", data }))
}

/// GET /v1/models/{id}.
pub(super) async fn model(app: web::Data<App>, id: web::Path<String>) -> Result<HttpResponse, ApiError> {
    let pairs = app.served()?;
    let served = pairs.named(Some(&id))?;
    let name = served.names().find(&id).unwrap_or(&served.name);
    Ok(HttpResponse::Ok().json(described(served, name)))
}

/// As vLLM does it, `root` is what stands behind a name.
fn described(served: &Served, name: &str) -> Model {
    Model {
        id: name.to_owned(),
        object: "model",
        created: served.created,
        owned_by: "faser",
        root: served.name.clone(),
        parent: None,
        max_model_len: served.max_context as u64,
    }
}

/// GET /model_info and /get_model_info.
pub(super) async fn model_info(app: web::Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let served = app.served()?.of_query(request.query_string())?;
    // No `model_path`: routers look for a tokenizer there.
    Ok(HttpResponse::Ok().json(ModelInfo {
        served_model_name: served.name.clone(),
        is_generation: true,
        max_context_length: served.max_context as u64,
    }))
}

/// GET /server_info and /get_server_info.
pub(super) async fn server_info(app: web::Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let served = app.served()?.of_query(request.query_string())?;
    Ok(HttpResponse::Ok().json(ServerInfo {
        served_model_name: served.name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        max_model_len: served.max_context as u64,
    }))
}

/// GET /health_generate: whether a token comes, by generating one.
pub(super) async fn health_generate(app: web::Data<App>, request: HttpRequest) -> HttpResponse {
    let query = request.query_string();
    let served = app.served().and_then(|pairs| pairs.of_query(query));
    let name = served.as_ref().ok().map(|served| served.name.as_str());
    let problem = match (app.readiness(name), &served) {
        (Err(reason), _) => reason,
        (Ok(()), Err(error)) => error.to_string(),
        (Ok(()), Ok(served)) => match tokio::time::timeout(ANSWERS_WITHIN, one_token(served)).await {
            Ok(Ok(())) => return health().await,
            Ok(Err(reason)) => reason,
            Err(_) => format!("no token within {} s", ANSWERS_WITHIN.as_secs()),
        },
    };
    HttpResponse::ServiceUnavailable().json(Status { status: problem })
}

async fn one_token(served: &Served) -> Result<(), String> {
    let submission = Submission {
        prompt: vec![0],
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_new_tokens: 1,
        handling: Handling { mode: SpeculationMode::Off, ..Handling::default() },
        ..Submission::default()
    };
    let mut tokens = served.service.submit(submission).await.map_err(|error| error.to_string())?;
    match tokens.next().await {
        Some(Update::Tokens(_)) => Ok(()),
        Some(Update::Finished { reason, .. }) => Err(format!("the token's sequence ended: {reason:?}")),
        None => Err("the token's sequence broke off".to_owned()),
    }
}
