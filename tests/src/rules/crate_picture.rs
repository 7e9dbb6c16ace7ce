//! The crates as a picture (SVG), from `cargo metadata`: who uses whom, without what follows from others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value;

/// Of a box, and between boxes, in pixels.
const WIDTH: f64 = 236.0;
const HEIGHT: f64 = 46.0;
const GAP: f64 = 26.0;
const RISE: f64 = 92.0;

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Our crates and those of ours that each uses; crates that are tests alone are left out.
fn edges(metadata: &Value) -> Edges {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    let mut edges = Edges::new();
    for package in packages.iter().filter(|package| !is_of_tests(&name(package))) {
        let used = package["dependencies"].as_array().into_iter().flatten();
        let used = used.filter(|dependency| dependency["kind"].is_null()).map(name);
        edges.insert(name(package), used.filter(|used| ours.contains(used)).collect());
    }
    edges
}

fn is_of_tests(name: &str) -> bool {
    matches!(name, "faser-tests" | "faser-skipped" | "faser-fuzz-entries")
}

/// All that a crate uses, by any way.
fn reached(edges: &Edges, from: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for used in edges.get(from).into_iter().flatten() {
        all.insert(used.clone());
        all.extend(reached(edges, used));
    }
    all
}

/// How many crates stand below one, the longest way down.
fn level(edges: &Edges, name: &str) -> usize {
    edges[name].iter().map(|used| level(edges, used) + 1).max().unwrap_or(0)
}

/// The picture. `about` says in few words what a crate is for.
pub fn picture(metadata: &Value, about: impl Fn(&str) -> String) -> String {
    let edges = edges(metadata);
    let mut rows: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for name in edges.keys() {
        rows.entry(level(&edges, name)).or_default().push(name);
    }
    let widest = rows.values().map(Vec::len).max().unwrap_or(0) as f64;
    let (width, height) = (widest * (WIDTH + GAP) + GAP, rows.len() as f64 * RISE);
    let mut places: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (level, names) in rows.iter().rev() {
        let y = (rows.len() - 1 - level) as f64 * RISE + 10.0;
        let mut names = names.clone();
        // Each near the middle of those that use it.
        let middle = |name: &str| {
            let users: Vec<f64> = places
                .iter()
                .filter(|(user, _)| edges[**user].contains(name))
                .map(|(_, (x, _))| *x)
                .collect();
            users.iter().sum::<f64>() / users.len().max(1) as f64
        };
        names.sort_by(|a, b| middle(a).total_cmp(&middle(b)));
        let left = (width - names.len() as f64 * (WIDTH + GAP) + GAP) / 2.0;
        for (number, name) in names.into_iter().enumerate() {
            places.insert(name, (left + number as f64 * (WIDTH + GAP), y));
        }
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (name, used) in &edges {
        let (x, y) = places[name.as_str()];
        for to in used {
            let by_others = used.iter().any(|other| other != to && reached(&edges, other).contains(to));
            if by_others {
                continue;
            }
            let (to_x, to_y) = places[to.as_str()];
            let (x, to_x, y) = (x + WIDTH / 2.0, to_x + WIDTH / 2.0, y + HEIGHT);
            let bend = (y + to_y) / 2.0;
            // Writing to a string cannot fail.
            let _ = writeln!(
                svg,
                "<path d=\"M{x} {y} C{x} {bend} {to_x} {bend} {to_x} {to_y}\" fill=\"none\" stroke=\"#8a8a8a\"/>"
            );
        }
    }
    for (name, (x, y)) in &places {
        let (middle, line, below) = (x + WIDTH / 2.0, y + 19.0, y + 36.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\" fill=\"#eef3f8\" stroke=\"#4a6b8a\"/>\n\
             <text x=\"{middle}\" y=\"{line}\" text-anchor=\"middle\" font-size=\"14\" fill=\"#102030\">{name}</text>\n\
             <text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\" font-size=\"10\" fill=\"#405060\">{}</text>",
            about(name)
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_follows_from_others_has_no_line_of_its_own() {
        let package = |name: &str, used: &[&str]| {
            let used: Vec<Value> = used.iter().map(|name| json!({"name": name, "kind": null})).collect();
            json!({"name": name, "dependencies": used})
        };
        let metadata = json!({"packages": [
            package("a", &["b", "c", "serde"]), package("b", &["c"]), package("c", &[]), package("faser-tests", &["a"]),
        ]});
        let svg = picture(&metadata, |name| format!("about {name}"));
        assert_eq!(svg.matches("<path").count(), 2, "{svg}");
        assert!(svg.contains(">a<") && svg.contains("about c") && !svg.contains("tests"), "{svg}");
    }
}
