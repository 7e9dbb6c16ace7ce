//! What differs between two versions of a config file, key by key.

use serde_json::{Map, Value};

use super::raw::Document;
use super::{Config, ConfigError};

/// Keys whose change changes the config, as `section.key`, sorted. A default that is now written down, or a comment, is no change.
///
/// # Errors
/// One of the two is no valid config.
pub fn changed(old: &Document, new: &Document) -> Result<Vec<String>, ConfigError> {
    let (before, after) = (Config::from_document(old)?, Config::from_document(new)?);
    if before == after {
        return Ok(Vec::new());
    }
    let (old_values, new_values) = (flat(old), flat(new));
    let mut keys: Vec<&String> = old_values.keys().chain(new_values.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| old_values.get(*key) != new_values.get(*key));
    // Alone in the old file it makes no difference: another way of writing the same.
    let matters = |key: &&String| {
        let one = with(old, key, new_values.get(*key));
        Config::from_document(&one).map_or(true, |config| config != before)
    };
    let mut found: Vec<String> = keys.iter().copied().filter(matters).cloned().collect();
    if found.is_empty() {
        found = keys.into_iter().cloned().collect();
    }
    Ok(found)
}

/// `document` with this value at `key`; `None` leaves the key out.
pub fn with(document: &Document, key: &str, value: Option<&Value>) -> Document {
    let mut root = document.root().clone();
    put(&mut root, key, value);
    document.with_root(root)
}

/// The value at `key`.
pub fn value<'d>(document: &'d Document, key: &str) -> Option<&'d Value> {
    key.split('.').try_fold(document.root(), |value, name| value.get(name))
}

fn put(inside: &mut Value, key: &str, value: Option<&Value>) {
    if inside.is_null() {
        *inside = Value::Object(Map::new());
    }
    let Value::Object(map) = inside else { return };
    match (key.split_once('.'), value) {
        (Some((section, rest)), Some(_)) => {
            put(map.entry(section).or_insert(Value::Null), rest, value);
        }
        (Some((section, rest)), None) => {
            if let Some(section) = map.get_mut(section) {
                put(section, rest, None);
            }
        }
        (None, Some(value)) => {
            map.insert(key.to_owned(), value.clone());
        }
        (None, None) => {
            map.remove(key);
        }
    }
}

/// Every value that is no mapping, by its path; null is as good as absent.
fn flat(document: &Document) -> Map<String, Value> {
    let mut all = Map::new();
    walk("", document.root(), &mut all);
    all
}

fn walk(path: &str, value: &Value, all: &mut Map<String, Value>) {
    match value {
        Value::Null => {}
        Value::Object(map) => {
            for (name, value) in map {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                walk(&inner, value, all);
            }
        }
        value => {
            all.insert(path.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Document {
        Document::parse(Path::new("x.yaml"), text.to_owned()).unwrap()
    }

    fn keys(old: &str, new: &str) -> Vec<String> {
        changed(&parse(old), &parse(new)).unwrap()
    }

    #[test]
    fn every_key_that_changes_something_is_named() {
        let old = "server: {workers: 2}\nscheduler: {max_running: 8}\n";
        let new = "server: {workers: 3}\nlog: {level: debug}\nspeculation: {slo: {ttft_ms: 100}}\n";
        let wanted = ["log.level", "scheduler.max_running", "server.workers", "speculation.slo.ttft_ms"];
        assert_eq!(keys(old, new), wanted);
        assert_eq!(keys("", "drain_timeout_s: 5"), ["drain_timeout_s"]);
    }

    #[test]
    fn another_way_of_writing_the_same_is_no_change() {
        let plain = "kv: {block_size: 8}\n";
        assert!(keys(plain, "# a comment\nkv: {block_size: 8, memory: null}\nserver:\n").is_empty());
        let defaults =
            "kv: {block_size: 8}\nserver: {workers: 2, max_body_bytes: 4194304}\nlog: {level: warn}\n";
        assert_eq!(keys(plain, defaults), ["log.level"]);
    }

    #[test]
    fn keys_that_only_go_together_are_named_together() {
        let synthetic = "model: {synthetic: {preset: tiny}}\nspeculation: {policy: 'fixed:2'}\n";
        let found = keys("", synthetic);
        assert_eq!(found, ["model.synthetic.preset", "speculation.policy"]);
        let plain = "model: {draft: none}\nspeculation: {policy: 'off'}\n";
        assert_eq!(keys("speculation: {policy: 'fixed:2'}", plain), ["model.draft", "speculation.policy"]);
    }

    #[test]
    fn a_version_that_is_no_config_is_an_error() {
        assert!(changed(&parse(""), &parse("server: {workers: many}")).is_err());
    }

    #[test]
    fn values_are_put_and_taken_out_at_any_depth() {
        let document = with(&parse(""), "speculation.slo.ttft_ms", Some(&Value::from(5)));
        assert_eq!(value(&document, "speculation.slo.ttft_ms"), Some(&Value::from(5)));
        let without = with(&document, "speculation.slo.ttft_ms", None);
        assert_eq!(value(&without, "speculation.slo.ttft_ms"), None);
        assert_eq!(with(&without, "absent.key", None).root(), without.root());
    }
}
