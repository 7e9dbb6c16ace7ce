//! Lists and objects of JSON as templates see them: written as Python writes them, wherever they become text.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr};
use serde_json::Value as Json;

use super::text;

/// A list or map of minijinja's, but for how it is written.
#[derive(Debug)]
struct Pythonic(DynObject);

impl Object for Pythonic {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.0.repr()
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.enumerator_len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(&Value::from(self.0.clone()), f)
    }
}

/// The value that a template is given for JSON.
pub(in crate::text) fn value(json: &Json) -> Value {
    match json {
        Json::Array(items) => pythonic(items.iter().map(value).collect()),
        Json::Object(map) => pythonic(map.iter().map(|(name, json)| (name.as_str(), value(json))).collect()),
        plain => Value::from_serialize(plain),
    }
}

fn pythonic(value: Value) -> Value {
    match value.as_object() {
        Some(object) => Value::from_object(Pythonic(object.clone())),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    use super::*;

    #[test]
    fn json_is_lists_and_maps_that_are_written_in_pythons_way() {
        let json = serde_json::json!({"list": [1, {"b": null, "a": "x"}, [true, 1e16]], "empty": {}});
        for (source, wanted) in [
            ("{{ v.list ~ '' }}", "[1, {'b': None, 'a': 'x'}, [True, 1e+16]]"),
            ("{{ v.list[-1][0] }} {{ v['list'][1:] | length }}", "True 2"),
            ("{{ v.list[1] == {'a': 'x', 'b': none} }} {{ v.list[2] == [true, 1e16] }}", "True True"),
            ("{{ 'a' in v.list[1] }} {{ 1 in v.list }} {{ v.empty is mapping }}", "True True True"),
            (
                "{{ v.list is sequence }} {{ 'x' if v.empty else 'y' }} {{ v.none is defined }}",
                "True y False",
            ),
            ("{% for k, w in v.list[1] | items %}{{ k }}{{ w }}{% endfor %}", "bNoneax"),
            (
                "{{ v.list[1] | dictsort }}{{ v | list }}",
                "[[\"a\", \"x\"], [\"b\", None]][\"list\", \"empty\"]",
            ),
        ] {
            let mut environment = Environment::new();
            environment.add_template("t", source).unwrap();
            let template = environment.get_template("t").unwrap();
            let rendered = template.render(minijinja::context! { v => value(&json) }).unwrap();
            assert_eq!(rendered, wanted, "{source}");
        }
    }
}
