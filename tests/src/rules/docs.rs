//! Documents name files that exist.

use std::path::Path;

/// Endings that make a name a path even without a folder.
const ROOT_FILES: &[&str] = &["README.md", "Cargo.toml", "clippy.toml", "rustfmt.toml", ".ci/run"];

/// Paths in backticks of the document at `path` (Markdown, its text in `document`) that do not exist under `root`, and a fault when it names none.
///
/// A span counts as a path when it is free of spaces and `::` and has a `/` in it, provided that it begins with a folder
/// of the root, ends in `/`, or has a file name with an extension. Paths are read from the root; HTTP routes begin with
/// `/` and are left alone, and so is what stands in fenced blocks.
pub fn faults(root: &Path, path: &str, document: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = 0;
    let mut fenced = false;
    for (number, line) in document.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for span in line.split('`').skip(1).step_by(2).filter(|span| looks_like_a_path(root, span)) {
            seen += 1;
            let file = span.split_once(':').map_or(span, |(file, _)| file);
            if !root.join(file).exists() {
                faults.push(format!("{path}:{}: `{span}` does not exist", number + 1));
            }
        }
    }
    if seen == 0 {
        faults.push(format!("{path}: it names no path at all"));
    }
    faults
}

fn looks_like_a_path(root: &Path, span: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
    if ROOT_FILES.contains(&span) {
        return true;
    }
    if span.starts_with('/') || span.contains("::") || span.contains("//") || !span.chars().all(plain) {
        return false;
    }
    let Some((folder, rest)) = span.split_once('/') else { return false };
    let file = rest.rsplit('/').next().unwrap_or_default();
    let has_extension =
        file.split_once('.').is_some_and(|(name, extension)| !name.is_empty() && !extension.is_empty());
    rest.is_empty() || file.is_empty() || has_extension || root.join(folder).is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::root;

    fn faults_of(document: &str) -> Vec<String> {
        faults(&root(), "d.md", document)
    }

    #[test]
    fn missing_files_and_folders_are_found_with_their_line() {
        for missing in [
            "engine/src/nowhere.rs",
            "nowhere/lib.rs",
            "kernels/nowhere",
            "nowhere/",
            "engine/src/nowhere/mod.rs:12",
        ] {
            let faults = faults_of(&format!("see `engine/src/lib.rs`\nand `{missing}`\n"));
            assert_eq!(faults.len(), 1, "{missing}: {faults:?}");
            assert!(faults[0].starts_with("d.md:2") && faults[0].contains(missing));
        }
        assert_eq!(faults_of("no path here"), ["d.md: it names no path at all"]);
    }

    #[test]
    fn existing_paths_and_other_spans_pass() {
        let document = "`engine/src/lib.rs` `engine/` `kernels/src` `Cargo.toml` `engine/src/lib.rs:3` `engine::sim` `/v1/models` \
                        `text/event-stream` `http://127.0.0.1:8000/v1` `a / b` `config.json` `k/v`\n```\nnowhere/lib.rs `nowhere/lib.rs`\n```\n";
        assert_eq!(faults_of(document), Vec::<String>::new());
    }
}
