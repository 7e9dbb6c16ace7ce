//! GET /v1/models: what is served, and its name in requests.

use actix_web::{HttpResponse, web};
use serde_json::{Value, json};

use super::errors::ApiError;
use crate::app::{App, Served};

/// The list: each pair by its own name, then by its aliases.
pub(super) async fn list(app: web::Data<App>) -> Result<HttpResponse, ApiError> {
    let by_name = |served| Served::names(served).all().map(|name| described(served, name));
    let data: Vec<Value> = app.served()?.iter().flat_map(|served| by_name(served)).collect();
    Ok(HttpResponse::Ok().json(json!({"object": "list", "data": data})))
}

/// One by its name.
pub(super) async fn one(app: web::Data<App>, id: web::Path<String>) -> Result<HttpResponse, ApiError> {
    let pairs = app.served()?;
    let served = pairs.named(Some(&id))?;
    let name = served.names().find(&id).unwrap_or(&served.name);
    Ok(HttpResponse::Ok().json(described(served, name)))
}

/// As vLLM does it, `root` is what stands behind a name.
fn described(served: &Served, name: &str) -> Value {
    json!({
        "id": name, "object": "model", "created": served.created, "owned_by": "faser",
        "root": served.name, "parent": null, "max_model_len": served.max_context,
    })
}
