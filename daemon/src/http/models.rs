//! GET /v1/models: what is served, and its name in requests.

use actix_web::{HttpResponse, web};
use serde_json::{Value, json};

use super::errors::ApiError;
use crate::app::{App, Served};

/// All of them.
pub(super) async fn list(app: web::Data<App>) -> Result<HttpResponse, ApiError> {
    let data: Vec<Value> = app.served()?.iter().map(|served| described(served)).collect();
    Ok(HttpResponse::Ok().json(json!({"object": "list", "data": data})))
}

/// One by its name.
pub(super) async fn one(app: web::Data<App>, id: web::Path<String>) -> Result<HttpResponse, ApiError> {
    Ok(HttpResponse::Ok().json(described(app.served()?.named(Some(&id))?)))
}

fn described(served: &Served) -> Value {
    json!({
        "id": served.name, "object": "model", "created": served.created, "owned_by": "faser",
        "max_model_len": served.max_context,
    })
}
