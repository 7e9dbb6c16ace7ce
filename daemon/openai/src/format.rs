//! What an output is to look like: OpenAI's `response_format`, and the names that vLLM has for the rest.

use faser_config::fields::{Fault, FieldError, Fields, each, required_as, wrong_type};
use faser_models::GrammarSource;
use serde_json::{Value, json};

use super::bounds::Shape;
use super::conversation::VERBOSITY;

/// What is said of texts in these languages, and an example.
const REGEX: (&str, &str) = ("", "[a-f]+");
const LARK: (&str, &str) = ("In Lark's form.", "start: \"a\"");

/// What an output is to look like.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// The field that asks for it.
    pub(super) field: String,
    /// What it asks for.
    pub(super) source: GrammarSource,
    /// It is one of OpenAI's, whose form is that of a text: calls are none. vLLM's are of the whole output.
    pub(super) of_text: bool,
}

/// Reads the fields that ask for a form; without one the output is plain text.
///
/// # Errors
/// One of them is wrong, or several ask for something.
pub(super) fn form(fields: &mut Fields<'_>, shape: Shape) -> Result<Option<Form>, FieldError> {
    let mut asked: Vec<Form> = Vec::new();
    let (field, source) = match shape {
        Shape::Response => (fields.path("text.format"), text_format(fields)?),
        _ => (fields.path("response_format"), response_format(fields)?),
    };
    asked.extend(source.map(|source| Form { field, source, of_text: true }));
    let mut add = |field: String, source: Option<GrammarSource>| {
        asked.extend(source.map(|source| Form { field, source, of_text: false }));
    };
    let (regex, lark) =
        (|text: &str| GrammarSource::Regex(text.into()), |text: &str| GrammarSource::Lark(text.into()));
    add(fields.path("guided_json"), json_of(fields, "guided_json")?);
    add(fields.path("guided_regex"), text_of(fields, "guided_regex", REGEX)?.map(regex));
    add(fields.path("guided_grammar"), text_of(fields, "guided_grammar", LARK)?.map(lark));
    add(fields.path("guided_choice"), choice(fields, "guided_choice")?);
    let about = "What the output is to look like, in vLLM's words; one of them.";
    fields.within(("structured_outputs", about), "StructuredOutputs", |inner| {
        add(inner.path("json"), json_of(inner, "json")?);
        add(inner.path("regex"), text_of(inner, "regex", REGEX)?.map(regex));
        add(inner.path("grammar"), text_of(inner, "grammar", LARK)?.map(lark));
        add(inner.path("choice"), choice(inner, "choice")?);
        let any = inner.flag("json_object")?.unwrap_or(false);
        add(inner.path("json_object"), any.then_some(GrammarSource::JsonObject));
        Ok(())
    })?;
    if let [Form { field: first, .. }, Form { field: second, .. }, ..] = asked.as_slice() {
        let problem = format!("and `{first}` both say what the output is to look like: give one of them");
        return Err(FieldError::new(second.clone(), Fault::Value, problem));
    }
    Ok(asked.pop())
}

/// `text` of a response: its form, with the schema beside the type.
fn text_format(fields: &mut Fields<'_>) -> Result<Option<GrammarSource>, FieldError> {
    let form = fields.within("text", "TextOptions", |text| {
        // Read where the template's variables are.
        text.value(VERBOSITY);
        text.within("format", "FlatFormat", |form| typed(form, true))
    })?;
    Ok(form.flatten().flatten())
}

fn response_format(fields: &mut Fields<'_>) -> Result<Option<GrammarSource>, FieldError> {
    Ok(fields.within("response_format", "ResponseFormat", |form| typed(form, false))?.flatten())
}

/// A form by its type; a schema stands beside that if it is `flat`, else in an object of its own.
fn typed(form: &mut Fields<'_>, flat: bool) -> Result<Option<GrammarSource>, FieldError> {
    let kind = form.word("type", &["text", "json_object", "json_schema"])?;
    form.tell("type", || json!({"example": "json_schema"}));
    Ok(match required_as(kind, form, "type", "is missing: `json_schema`, for instance")? {
        "text" => None,
        "json_object" => Some(GrammarSource::JsonObject),
        _ if flat => Some(schema(form, true)?),
        _ => match form.within("json_schema", "NamedSchema", |named| schema(named, false))? {
            None => {
                let problem = "is missing: give {\"name\": \"…\", \"schema\": {…}}";
                return Err(form.absent("json_schema", problem));
            }
            source => source,
        },
    })
}

/// A schema with its name, beside a type that may need none if it is `flat`.
fn schema(fields: &mut Fields<'_>, flat: bool) -> Result<GrammarSource, FieldError> {
    const MISSING: &str = "is missing: give a JSON schema";
    fields.text("name")?;
    fields.text("description")?;
    // Followed to the letter in either case.
    fields.flag("strict")?;
    match fields.value_of("schema", a_schema) {
        Some(value) => of_schema(&fields.path("schema"), value),
        None if flat => Err(fields.absent("schema", MISSING)),
        None => Err(fields.missing("schema", MISSING)),
    }
}

fn a_schema() -> Value {
    json!({"type": "object", "example": {"type": "integer"}})
}

/// A text of a language, with what is said of that, and an example.
fn text_of<'a>(
    fields: &mut Fields<'a>,
    name: &'static str,
    (about, example): (&'static str, &str),
) -> Result<Option<&'a str>, FieldError> {
    let text = fields.text((name, about))?;
    fields.tell(name, || json!({"example": example}));
    Ok(text)
}

/// A schema, or its text.
fn json_of(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<GrammarSource>, FieldError> {
    let path = fields.path(name);
    match fields.value_of((name, "A JSON schema, or its text."), a_schema) {
        None => Ok(None),
        Some(Value::String(text)) => {
            let value: Value = serde_json::from_str(text).map_err(|error| {
                FieldError::new(path.clone(), Fault::Value, format!("is no JSON: {error}"))
            })?;
            of_schema(&path, &value).map(Some)
        }
        Some(value) => of_schema(&path, value).map(Some),
    }
}

fn of_schema(path: &str, value: &Value) -> Result<GrammarSource, FieldError> {
    match value {
        Value::Object(_) => Ok(GrammarSource::JsonSchema(value.clone())),
        Value::Bool(true) => Ok(GrammarSource::JsonSchema(json!({}))),
        other => Err(wrong_type(path, "a JSON schema", other)),
    }
}

fn choice(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<GrammarSource>, FieldError> {
    let path = fields.path(name);
    let Some(list) = fields.list_of(name, || json!({"type": "string"}))? else { return Ok(None) };
    let choices = each(&path, list, |path, value| {
        let text = value.as_str().ok_or_else(|| wrong_type(&path, "a string", value))?;
        Ok(text.to_owned())
    })?;
    Ok(Some(GrammarSource::Choice(choices)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<Option<GrammarSource>, FieldError> {
        let mut fields = Fields::new("", body)?;
        let read = form(&mut fields, Shape::Chat)?;
        fields.finish()?;
        if let Some(Form { field, of_text, .. }) = &read {
            assert!(body.pointer(&format!("/{}", field.replace('.', "/"))).is_some(), "{field}");
            assert_eq!(*of_text, field == "response_format");
        }
        Ok(read.map(|form| form.source))
    }

    #[test]
    fn every_name_of_a_form_is_read() {
        let schema = json!({"type": "integer"});
        let by_schema = Some(GrammarSource::JsonSchema(schema.clone()));
        let named = json!({"name": "n", "strict": true, "description": "d", "schema": schema});
        let (regex, lark) = (GrammarSource::Regex("a+".into()), GrammarSource::Lark("start: \"a\"".into()));
        let choice = GrammarSource::Choice(vec!["a".into(), "b".into()]);
        for (body, wanted) in [
            (json!({}), None),
            (json!({"response_format": {"type": "text"}}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(GrammarSource::JsonObject)),
            (json!({"response_format": {"type": "json_schema", "json_schema": named}}), by_schema.clone()),
            (json!({"guided_json": schema}), by_schema.clone()),
            (json!({"guided_json": schema.to_string()}), by_schema.clone()),
            (json!({"structured_outputs": {"json": schema}}), by_schema),
            (json!({"structured_outputs": {"json_object": true}}), Some(GrammarSource::JsonObject)),
            (json!({"guided_regex": "a+"}), Some(regex.clone())),
            (json!({"structured_outputs": {"regex": "a+"}}), Some(regex)),
            (json!({"guided_grammar": "start: \"a\""}), Some(lark.clone())),
            (json!({"structured_outputs": {"grammar": "start: \"a\""}}), Some(lark)),
            (json!({"guided_choice": ["a", "b"]}), Some(choice.clone())),
            (json!({"structured_outputs": {"choice": ["a", "b"]}}), Some(choice)),
        ] {
            assert_eq!(read(&body), Ok(wanted), "{body}");
        }
    }

    #[test]
    fn what_is_no_form_is_refused_by_name() {
        for (body, path) in [
            (json!({"response_format": {}}), "response_format.type"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_json": 3}), "guided_json"),
            (json!({"guided_choice": [1]}), "guided_choice[0]"),
            (json!({"structured_outputs": {"xml": 1}}), "structured_outputs.xml"),
            (json!({"guided_regex": "a", "response_format": {"type": "json_object"}}), "guided_regex"),
        ] {
            let refused = read(&body).expect_err("this has to be refused");
            assert_eq!(refused.path, path, "{body}: {refused}");
        }
    }
}
