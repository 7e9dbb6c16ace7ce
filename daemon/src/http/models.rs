//! GET /v1/models: what is served, and its name in requests.

use actix_web::{HttpResponse, web};
use serde_json::{Value, json};

use super::errors::ApiError;
use crate::app::{App, Served};

/// The list: the pair by its own name, then by its aliases.
pub(super) async fn list(app: web::Data<App>) -> Result<HttpResponse, ApiError> {
    let served = app.served()?;
    let data: Vec<Value> = served.names().all().map(|name| described(served, name)).collect();
    Ok(HttpResponse::Ok().json(json!({"object": "list", "data": data})))
}

/// One by its name.
pub(super) async fn one(app: web::Data<App>, id: web::Path<String>) -> Result<HttpResponse, ApiError> {
    let served = app.served()?;
    let names = served.names();
    let name = names.find(&id).ok_or_else(|| ApiError::unknown_model(&id, names))?;
    Ok(HttpResponse::Ok().json(described(served, name)))
}

/// As vLLM does it, `root` is what stands behind a name.
fn described(served: &Served, name: &str) -> Value {
    json!({
        "id": name, "object": "model", "created": served.created, "owned_by": "faser",
        "root": served.name, "parent": null, "max_model_len": served.max_context,
    })
}
