//! GET /v1/models: what is served, and its name in requests.

use actix_web::{HttpResponse, web};
use serde_json::{Value, json};

use super::errors::ApiError;
use crate::app::{App, Served};
use crate::fields::Fields;

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

/// Reads `model`, which may be left out.
///
/// # Errors
/// It names another model.
pub(super) fn check_name(fields: &mut Fields<'_>, served: &Served) -> Result<(), ApiError> {
    match fields.text("model")? {
        Some(name) if name != served.name => Err(ApiError::unknown_model(name, &served.name)),
        _ => Ok(()),
    }
}

fn described(served: &Served) -> Value {
    json!({
        "id": served.name, "object": "model", "created": served.created, "owned_by": "faser",
        "max_model_len": served.max_context,
    })
}
