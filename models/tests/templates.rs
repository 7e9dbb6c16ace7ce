//! Chat templates against what transformers makes of them: those in tests/templates, and those in the folder that FASER_TEMPLATES names.

use std::path::Path;

use faser_models::{ChatTemplate, Conversation, LastTurn};
use serde_json::{Map, Value, json};

/// What a template made of a conversation, beside what it should.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    equal: usize,
    /// Refused, as transformers refuses it.
    refused: usize,
    /// Rendered, where Python fails: over a loop through none, which has no turns here, or `tojson` of a generator, which is a list here.
    lenient: usize,
    differences: Vec<String>,
}

/// What Python says then.
const LENIENT: [&str; 2] =
    ["'NoneType' object is not iterable", "Object of type generator is not JSON serializable"];

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/templates"))
}

fn read(path: &Path) -> Map<String, Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

fn conversation(case: &Value) -> Conversation {
    Conversation {
        tools: case.get("tools").cloned(),
        variables: case.get("variables").and_then(Value::as_object).cloned().unwrap_or_default(),
        last_turn: match case.get("last_turn").and_then(Value::as_str) {
            Some("closed") => LastTurn::Closed,
            Some("continued") => LastTurn::Continued,
            _ => LastTurn::Opened,
        },
        ..Conversation::of(case["messages"].clone())
    }
}

/// What is different, if anything.
fn compare(rendered: Result<String, String>, wanted: &Value, outcome: &mut Outcome) -> Option<String> {
    match (rendered, wanted.as_str()) {
        (Ok(text), Some(wanted)) if text == wanted => outcome.equal += 1,
        (Err(said), None) if wanted["raised"].is_null() || said.ends_with(wanted["error"].as_str()?) => {
            outcome.refused += 1;
        }
        (Ok(_), None)
            if wanted["error"].as_str().is_some_and(|said| LENIENT.iter().any(|end| said.ends_with(end))) =>
        {
            outcome.lenient += 1;
        }
        (found, _) => return Some(format!("found  {found:?}\n  wanted {wanted}")),
    }
    None
}

/// Renders all conversations by the template of this path, which has its golden file beside it.
fn check(path: &Path, conversations: &Map<String, Value>) -> Outcome {
    let source = std::fs::read_to_string(path).expect("the template can be read");
    let golden = read(&path.with_extension("json"));
    assert_eq!(golden.len(), conversations.len(), "{}: make the golden files again", path.display());
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"});
    let tokens = tokens.as_object().cloned().unwrap_or_default();
    let template = ChatTemplate::of(path.to_owned(), &source, tokens).map_err(|err| err.to_string());
    let mut outcome = Outcome::default();
    for (name, case) in conversations {
        let rendered = template
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|template| template.render(&conversation(case)).map_err(|err| err.to_string()));
        let difference = compare(rendered, &golden[name], &mut outcome);
        outcome.differences.extend(difference.map(|text| format!("{name}:\n  {text}")));
    }
    outcome
}

/// All templates of a folder.
fn check_all(folder: &Path) {
    let conversations = read(&self::folder().join("conversations.json"));
    let files = std::fs::read_dir(folder).expect("the folder can be read");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    paths.sort();
    assert!(!paths.is_empty(), "{} has no templates", folder.display());
    let (mut all, mut faults) = (Outcome::default(), Vec::new());
    for path in &paths {
        let Outcome { equal, refused, lenient, differences } = check(path, &conversations);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let differ = differences.len();
        println!("{name:56} {equal:3} equal {refused:3} refused {lenient:3} lenient {differ:3} differ");
        all.equal += equal;
        all.refused += refused;
        all.lenient += lenient;
        faults.extend(differences.into_iter().map(|text| format!("{name}, {text}")));
    }
    let Outcome { equal, refused, lenient, .. } = all;
    let (count, differ) = (paths.len(), faults.len());
    println!(
        "{count} templates: {equal} equal, {refused} refused by both, {lenient} lenient, {differ} differ"
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn templates_render_as_in_transformers() {
    check_all(folder());
}

/// Published templates are other people's work, and not in this repository.
#[test]
fn published_templates_render_as_in_transformers() {
    match std::env::var_os("FASER_TEMPLATES") {
        Some(folder) => check_all(Path::new(&folder)),
        None => println!("FASER_TEMPLATES names no folder"),
    }
}
