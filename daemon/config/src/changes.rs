//! What differs between two versions of a config file, key by key.

use serde_json::{Map, Value};

use super::raw::{Document, Step, steps};
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
    put(&mut root, &steps(key), value);
    document.with_root(root)
}

/// The value at `key`.
pub fn value<'d>(document: &'d Document, key: &str) -> Option<&'d Value> {
    steps(key).into_iter().try_fold(document.root(), |value, step| match step {
        Step::Key(name) => value.get(name),
        Step::Item(index) => value.get(index),
    })
}

fn put(inside: &mut Value, steps: &[Step<'_>], value: Option<&Value>) {
    let Some((step, rest)) = steps.split_first() else {
        *inside = value.cloned().unwrap_or(Value::Null);
        return;
    };
    match (*step, &mut *inside) {
        (Step::Key(_), Value::Null) => *inside = Value::Object(Map::new()),
        (Step::Item(_), Value::Null) => *inside = Value::Array(Vec::new()),
        _ => {}
    }
    match (*step, inside) {
        (Step::Key(name), Value::Object(map)) if value.is_some() => {
            put(map.entry(name).or_insert(Value::Null), rest, value);
        }
        (Step::Key(name), Value::Object(map)) if rest.is_empty() => {
            map.remove(name);
        }
        (Step::Key(name), Value::Object(map)) => {
            if let Some(section) = map.get_mut(name) {
                put(section, rest, None);
            }
        }
        (Step::Item(index), Value::Array(items)) => {
            if index == items.len() && value.is_some() {
                items.push(Value::Null);
            }
            if let Some(item) = items.get_mut(index) {
                put(item, rest, value);
            }
        }
        _ => {}
    }
}

/// Every value that is no mapping, by its path, those of pairs too; null is as good as absent.
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
        Value::Array(pairs) if path == "pairs" => {
            pairs.iter().enumerate().for_each(|(i, pair)| walk(&format!("pairs[{i}]"), pair, all));
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
        let plain = "kv: {block_size: 32}\n";
        assert!(keys(plain, "# a comment\nkv: {block_size: 32, memory: null}\nserver:\n").is_empty());
        let defaults =
            "kv: {block_size: 32}\nserver: {workers: 2, max_body_bytes: 4194304}\nlog: {level: warn}\n";
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
    fn keys_of_a_pair_are_named_with_its_place() {
        let pairs = |k: usize, more: &str| {
            format!(
                "speculation: {{k_max: {k}}}\npairs:\n- {{name: a, speculation: {{k_max: 2}}}}\n- {{name: b, model: {{draft: none}}}}\n{more}"
            )
        };
        let old = pairs(4, "");
        assert_eq!(keys(&old, &old.replace("k_max: 2", "k_max: 3")), ["pairs[0].speculation.k_max"]);
        assert_eq!(keys(&old, &pairs(5, "")), ["speculation.k_max"]);
        assert_eq!(keys(&old, &pairs(4, "- {name: c}\n")), ["pairs[2].name"]);
        // What a pair says as all do is no change.
        assert!(keys(&old, &old.replace("name: b,", "name: b, speculation: {k_max: 4},")).is_empty());
        let document = with(&parse(&old), "pairs[1].kv.memory", Some(&Value::from("1MiB")));
        assert_eq!(value(&document, "pairs[1].kv.memory"), Some(&Value::from("1MiB")));
        assert_eq!(with(&document, "pairs[7].kv.memory", None).root(), document.root());
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
