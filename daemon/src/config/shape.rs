//! `model.shape`: models one does not have, by the keys of their config.json, so that `faser plan` can plan for them.

use std::path::Path;

use faser_models::ModelConfig;

use crate::fields::{Fault, FieldError, Fields};

/// The shape of a model, and what it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedShape {
    /// `_name_or_path`, or its place in the config.
    pub name: String,
    /// The shape.
    pub config: ModelConfig,
}

/// Reads the section: the target, and the draft if there is one.
pub(super) fn shapes(mut fields: Fields<'_>) -> Result<(NamedShape, Option<NamedShape>), FieldError> {
    let target = shape(&mut fields, "target")?;
    let draft = shape(&mut fields, "draft")?;
    let path = fields.path("target");
    fields.finish()?;
    let missing = || FieldError::new(path, Fault::Missing, "is missing: the keys of the model's config.json");
    Ok((target.ok_or_else(missing)?, draft))
}

fn shape(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<NamedShape>, FieldError> {
    let path = fields.path(name);
    let Some(keys) = fields.value(name) else { return Ok(None) };
    let config = ModelConfig::from_json(Path::new(&path), keys.clone());
    let config =
        config.map_err(|error| FieldError::new(path, Fault::Value, format!("cannot be used: {error}")))?;
    let called = keys.get("_name_or_path").and_then(|called| called.as_str()).unwrap_or(name);
    Ok(Some(NamedShape { name: called.to_owned(), config }))
}
