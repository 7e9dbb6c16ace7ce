//! `model.draft`: the name or folder of a draft model, the same with keys of its own, or a list of all that proposes.

use faser_actors::Dtype;
use faser_engine::Tuning;
use serde_json::Value;

use crate::fields::{Fault, FieldError, Fields, wrong_type, wrong_value};

/// What a list may name beside a draft model: its word, which is also its key in `speculation`, and the switch.
const OTHERS: [(&str, Switch); 1] = [("lookup", |tuning| &mut tuning.mechanisms.lookup)];

/// What requests call past outputs (`speculation.mode`): a source that needs a size, which no word of a list says.
const PAST_OUTPUTS: &str = "suffix";

type Switch = fn(&mut Tuning) -> &mut bool;

/// A draft model's keys, and which other sources a list names.
#[derive(Debug, Default)]
pub(super) struct DraftKey<'v> {
    /// `demo`, `none`, or a folder.
    pub(super) name: Option<&'v str>,
    /// In what its weights are to be held.
    pub(super) dtype: Option<Dtype>,
    /// What a list names of [`OTHERS`]; none without a list.
    pub(super) others: Option<Vec<&'static str>>,
}

impl<'v> DraftKey<'v> {
    /// Reads `model.draft`, in any of its forms.
    pub(super) fn read(model: &mut Fields<'v>) -> Result<DraftKey<'v>, FieldError> {
        let path = model.path("draft");
        let Some(value) = model.value("draft") else { return Ok(DraftKey::default()) };
        let Value::Array(items) = value else { return DraftKey::one(&path, value) };
        let mut others = Vec::new();
        let mut draft: Option<DraftKey<'v>> = None;
        for (number, item) in items.iter().enumerate() {
            let path = format!("{path}[{number}]");
            let again = |what: &str| FieldError::new(&path, Fault::Value, format!("names {what}"));
            if let Some((word, _)) = OTHERS.iter().find(|(word, _)| item.as_str() == Some(word)) {
                if others.contains(word) {
                    return Err(again(&format!("`{word}` a second time: leave it out")));
                }
                others.push(word);
                continue;
            }
            if item.as_str() == Some(PAST_OUTPUTS) {
                let problem = "names past outputs, whose size switches them on: leave the word out, and give \
                               `speculation.suffix_memory` (of a folder of that name write `./suffix`)";
                return Err(FieldError::new(&path, Fault::Value, problem));
            }
            let one = DraftKey::one(&path, item)?;
            match (&draft, one.name) {
                (None, _) => draft = Some(one),
                (Some(DraftKey { name: Some("none"), .. }), _) | (_, Some("none")) => {
                    return Err(again("`none` beside a draft model: keep one of the two"));
                }
                (Some(_), _) => {
                    return Err(again("a second draft model, and a pair has one at most: keep one"));
                }
            }
        }
        if items.is_empty() {
            let wanted = "`none`, or a list that names something";
            return Err(wrong_value(&path, wanted, value));
        }
        let draft = draft.unwrap_or(DraftKey { name: Some("none"), ..DraftKey::default() });
        Ok(DraftKey { others: Some(others), ..draft })
    }

    /// A draft model, by its name or with keys of its own.
    fn one(path: &str, value: &'v Value) -> Result<DraftKey<'v>, FieldError> {
        let (name, dtype) = match value {
            Value::String(name) => (name.as_str(), None),
            Value::Object(_) => {
                let mut fields = Fields::new(path, value)?;
                let Some(name) = fields.text("path")? else {
                    return Err(fields.missing("path", "is missing: name the draft model's directory"));
                };
                let dtype = dtype(&mut fields, "dtype")?;
                fields.finish()?;
                (name, dtype)
            }
            other => {
                let wanted = format!(
                    "a folder, `demo`, `none`, an object such as {{path: FOLDER}}, or a list of these and {}",
                    words()
                );
                return Err(wrong_type(path, &wanted, other));
            }
        };
        Ok(DraftKey { name: Some(name), dtype, others: None })
    }
}

fn words() -> String {
    OTHERS.map(|(word, _)| format!("`{word}`")).join(", ")
}

/// Reads a type of a draft's weights; none of `auto`.
pub(super) fn dtype(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Dtype>, FieldError> {
    Ok(fields.word(name, &["auto", "bf16", "f32", "int8", "fp8", "int4"])?.and_then(|word| word.parse().ok()))
}

/// Switches the sources that a list names on and the others off; `speculation`, which is read already, must not say otherwise.
pub(super) fn switch(
    named: Option<&[&'static str]>,
    speculation: &Fields<'_>,
    tuning: &mut Tuning,
) -> Result<(), FieldError> {
    let Some(named) = named else { return Ok(()) };
    for (word, switch) in OTHERS {
        let is_named = named.contains(&word);
        let said = speculation.object_itself().get(word).and_then(Value::as_bool);
        if said.is_some_and(|said| said != is_named) {
            let does = if is_named { "names" } else { "does not name" };
            let problem = format!(
                "says otherwise than the list `model.draft`, which {does} `{word}`: keep one of the two"
            );
            return Err(speculation.wrong(word, problem));
        }
        *switch(tuning) = is_named;
    }
    Ok(())
}
