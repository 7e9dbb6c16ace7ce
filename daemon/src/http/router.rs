//! What routers in front of several servers ask beside /health, /ready and /metrics: SGLang's names for who serves what, and whether it answers. Of
//! several pairs they speak of the first, or of the one that the query names as `model`.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use faser_actors::{Sampling, Submission, Update};
use faser_engine::{Handling, SpeculationMode};
use serde_json::json;

use super::errors::ApiError;
use crate::app::{App, Served};

/// A server that takes longer for one token is of no use to a router.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// GET /model_info and /get_model_info.
pub(super) async fn model_info(app: web::Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let served = app.served()?.of_query(request.query_string())?;
    // No `model_path`: routers look for a tokenizer there.
    Ok(HttpResponse::Ok().json(json!({
        "served_model_name": served.name, "is_generation": true, "max_context_length": served.max_context,
    })))
}

/// GET /server_info and /get_server_info.
pub(super) async fn server_info(app: web::Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let served = app.served()?.of_query(request.query_string())?;
    Ok(HttpResponse::Ok().json(json!({
        "served_model_name": served.name, "version": env!("CARGO_PKG_VERSION"), "max_model_len": served.max_context,
    })))
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
            Ok(Ok(())) => return HttpResponse::Ok().json(json!({"status": "ok"})),
            Ok(Err(reason)) => reason,
            Err(_) => format!("no token within {} s", ANSWERS_WITHIN.as_secs()),
        },
    };
    HttpResponse::ServiceUnavailable().json(json!({"status": problem}))
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
