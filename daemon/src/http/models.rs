//! GET /v1/models: what is served, and its name in requests.

use actix_web::{HttpResponse, web};
use serde_json::{Value, json};

use super::errors::ApiError;
use crate::app::{App, Served};

/// The list, of one.
pub(super) async fn list(app: web::Data<App>) -> Result<HttpResponse, ApiError> {
    let served = app.served()?;
    Ok(HttpResponse::Ok().json(json!({"object": "list", "data": [described(served)]})))
}

/// One by its name.
pub(super) async fn one(app: web::Data<App>, id: web::Path<String>) -> Result<HttpResponse, ApiError> {
    let served = app.served()?;
    if *id != served.name {
        return Err(ApiError::unknown_model(&id, &served.name));
    }
    Ok(HttpResponse::Ok().json(described(served)))
}

fn described(served: &Served) -> Value {
    json!({
        "id": served.name, "object": "model", "created": served.created, "owned_by": "faser",
        "max_model_len": served.max_context,
    })
}
