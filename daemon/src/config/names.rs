//! `model.name` and `model.aliases`: what clients may write as `model`.

use serde_json::Value;

use crate::fields::{Fault, FieldError, Fields, at_most, wrong_type, wrong_value};

/// Names beside the model's own.
const MOST_ALIASES: usize = 16;

/// Reads both.
pub(super) fn names(fields: &mut Fields<'_>) -> Result<(Option<String>, Vec<String>), FieldError> {
    let name = name(fields)?;
    Ok((name.map(str::to_owned), aliases(fields, name)?))
}

/// Reads `name`.
pub(super) fn name<'v>(fields: &mut Fields<'v>) -> Result<Option<&'v str>, FieldError> {
    fields.value("name").map(|value| valid(&fields.path("name"), value)).transpose()
}

fn valid<'v>(path: &str, value: &'v Value) -> Result<&'v str, FieldError> {
    const WANTED: &str = "1 to 128 letters, digits and signs without spaces";
    let name = value.as_str().ok_or_else(|| wrong_type(path, "a string", value))?;
    if name.is_empty() || name.len() > 128 || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong_value(path, WANTED, value));
    }
    Ok(name)
}

/// Further names; `name` is the one that the config gives, if it does.
fn aliases(fields: &mut Fields<'_>, name: Option<&str>) -> Result<Vec<String>, FieldError> {
    let path = fields.path("aliases");
    let list = fields.list("aliases")?.unwrap_or_default();
    at_most(&path, list.len(), MOST_ALIASES, "names")?;
    let mut aliases: Vec<String> = Vec::with_capacity(list.len());
    for (i, value) in list.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let alias = valid(&path, value)?;
        if name == Some(alias) || aliases.iter().any(|other| other == alias) {
            let problem = format!("is `{alias}`, which is a name of the model already: leave it out");
            return Err(FieldError::new(path, Fault::Value, problem));
        }
        aliases.push(alias.to_owned());
    }
    Ok(aliases)
}
