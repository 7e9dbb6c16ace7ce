//! The name of a model: `hf://org/name`, with a revision and a GGUF file where they are wanted.
//!
//! ```text
//! hf://org/name                           the safetensors files of the branch `main`
//! hf://org/name@v1.0                      of a branch, a tag or a commit
//! hf://org/name:Q4_K_M                    the GGUF file whose name ends so, as llama.cpp has it
//! hf://org/name@v1.0/folder/file.gguf     this GGUF file, as `huggingface_hub` writes paths
//! ```

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// What a name begins with where it is told from a folder.
const SCHEME: &str = "hf://";
/// The branch that is meant where no revision is named.
const MAIN: &str = "main";
/// As the hub has it.
const MOST_REPO_BYTES: usize = 96;
const MOST_REVISION_BYTES: usize = 255;
const MOST_PATH_BYTES: usize = 1024;

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelName {
    repo: String,
    revision: Option<String>,
    choice: Choice,
}

/// What of a repository is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Config, tokenizer and safetensors files.
    Folder,
    /// The GGUF file at this path.
    Gguf(String),
    /// The GGUF file that is quantised so.
    Quantisation(String),
}

/// What is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no model's name, for {problem}: write hf://ORG/NAME, and behind it @REVISION, :Q4_K_M or /FILE.gguf where you want them"
)]
pub struct NameError {
    text: String,
    problem: String,
}

impl ModelName {
    /// Whether `text` says that it is a name, right or wrong.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Reads `org/name` and what may follow it, without `hf://`. Only what cannot be a path such as `./a` or `a/b/c` is taken.
    #[must_use]
    pub fn bare(text: &str) -> Option<ModelName> {
        let name: ModelName = format!("{SCHEME}{text}").parse().ok()?;
        (name.repo.contains('/') && !matches!(name.choice, Choice::Gguf(_))).then_some(name)
    }

    /// `org/name`.
    #[must_use]
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// A branch, a tag or a commit.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// What of it is wanted.
    #[must_use]
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Whether the revision is a commit, which never changes.
    pub(crate) fn is_pinned(&self) -> bool {
        is_commit(self.revision())
    }
}

/// The 40 hexadecimal digits of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether `path` stays within the folder that it starts from.
pub(crate) fn is_plain_path(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(['\\', '\0'])
            && !part.contains(char::is_control)
    };
    path.len() <= MOST_PATH_BYTES && path.split('/').all(plain)
}

fn has_gguf_ending(path: &str) -> bool {
    path.len() > 5 && path.get(path.len() - 5..).is_some_and(|end| end.eq_ignore_ascii_case(".gguf"))
}

/// As `huggingface_hub` checks names: letters, digits, `-`, `_` and `.`, neither `--` nor `..`, and neither `-` nor `.` at the ends.
fn is_repo(repo: &str) -> bool {
    let word = |part: &str| {
        let sign = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !part.is_empty()
            && part.bytes().all(sign)
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
    };
    repo.len() <= MOST_REPO_BYTES
        && !repo.contains("--")
        && !repo.contains("..")
        && repo.split('/').count() <= 2
        && repo.split('/').all(word)
}

fn is_revision(revision: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\\?#%~^:*[".contains(&byte);
    revision.len() <= MOST_REVISION_BYTES && is_plain_path(revision) && revision.bytes().all(plain)
}

/// A revision and the path behind it. Of the revisions that have slashes only the hub's own `refs/pr/N` and `refs/convert/NAME` can be told
/// from a path; others are written with `%2F`, as `huggingface_hub` wants them.
fn split_revision(text: &str) -> (String, Option<&str>) {
    let parts = if text.starts_with("refs/pr/") || text.starts_with("refs/convert/") { 3 } else { 1 };
    let end = text.match_indices('/').nth(parts - 1).map_or(text.len(), |(at, _)| at);
    (text[..end].replace("%2F", "/").replace("%2f", "/"), text.get(end + 1..))
}

impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<ModelName, NameError> {
        let refuse = |problem: &str| {
            Err(NameError { text: text.chars().take(200).collect(), problem: problem.to_owned() })
        };
        let Some(rest) = text.strip_prefix(SCHEME) else { return refuse("it does not begin with hf://") };
        for (kind, what) in [("datasets/", "a data set"), ("spaces/", "a space")] {
            if rest.starts_with(kind) {
                return refuse(&format!("it is that of {what}"));
            }
        }
        let (head, revision, mut path) = match rest.split_once('@') {
            Some((head, tail)) => {
                let (revision, path) = split_revision(tail);
                (head, Some(revision), path)
            }
            None => (rest, None, None),
        };
        let (mut repo, quantisation) = match head.split_once(':') {
            Some((repo, quantisation)) => (repo, Some(quantisation)),
            None => (head, None),
        };
        // Without a revision the path follows the name itself.
        if let (None, Some((second, _))) = (&revision, repo.match_indices('/').nth(1)) {
            (repo, path) = (&repo[..second], repo.get(second + 1..));
        }
        if !is_repo(repo) {
            return refuse(&format!("`{repo}` is not ORG/NAME in letters, digits, `-`, `_` and `.`"));
        }
        if revision.as_deref().is_some_and(|revision| !is_revision(revision)) {
            return refuse("what follows `@` is no branch, tag or commit");
        }
        let choice = match (quantisation, path) {
            (Some(_), Some(_)) => return refuse("it names a quantisation and a file: keep one of the two"),
            (Some(word), None)
                if word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)) =>
            {
                if word.is_empty() {
                    return refuse("nothing follows `:`");
                }
                Choice::Quantisation(word.to_owned())
            }
            (Some(_), None) => return refuse("what follows `:` is no quantisation such as Q4_K_M"),
            (None, Some(path)) if is_plain_path(path) && has_gguf_ending(path) => {
                Choice::Gguf(path.to_owned())
            }
            (None, Some(_)) => return refuse("what follows its name is no path of a .gguf file"),
            (None, None) => Choice::Folder,
        };
        Ok(ModelName { repo: repo.to_owned(), revision, choice })
    }
}

impl Display for ModelName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.repo)?;
        if let Choice::Quantisation(word) = &self.choice {
            write!(f, ":{word}")?;
        }
        if let Some(revision) = &self.revision {
            let own = revision.starts_with("refs/pr/") || revision.starts_with("refs/convert/");
            write!(f, "@{}", if own { revision.clone() } else { revision.replace('/', "%2F") })?;
        }
        match &self.choice {
            Choice::Gguf(path) => write!(f, "/{path}"),
            Choice::Folder | Choice::Quantisation(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_repository_revision_and_file() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let pinned = format!("hf://a/b@{commit}");
        for (text, repo, revision, choice) in [
            ("hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "main", Choice::Folder),
            ("hf://gpt2", "gpt2", "main", Choice::Folder),
            (&pinned, "a/b", commit, Choice::Folder),
            ("hf://a/b@refs/pr/7", "a/b", "refs/pr/7", Choice::Folder),
            ("hf://a/b@feature%2Fx", "a/b", "feature/x", Choice::Folder),
            ("hf://a/b:Q4_K_M", "a/b", "main", Choice::Quantisation("Q4_K_M".into())),
            ("hf://a/b:q8_0@v1", "a/b", "v1", Choice::Quantisation("q8_0".into())),
            ("hf://a/b/x.gguf", "a/b", "main", Choice::Gguf("x.gguf".into())),
            (
                "hf://a/b/Q4/x-00001-of-00002.GGUF",
                "a/b",
                "main",
                Choice::Gguf("Q4/x-00001-of-00002.GGUF".into()),
            ),
            ("hf://a/b@v1/Q4/x.gguf", "a/b", "v1", Choice::Gguf("Q4/x.gguf".into())),
            ("hf://a/b@refs/pr/7/x.gguf", "a/b", "refs/pr/7", Choice::Gguf("x.gguf".into())),
        ] {
            let name: ModelName = text.parse().unwrap();
            assert_eq!((name.repo(), name.revision(), name.choice()), (repo, revision, &choice), "{text}");
            assert_eq!(name.to_string().parse(), Ok(name.clone()), "{text}");
            assert_eq!(name.is_pinned(), text == pinned);
        }
    }

    #[test]
    fn what_could_be_a_path_or_leads_outside_is_no_name() {
        for text in [
            "hf://",
            "hf://a//b",
            "hf://../b",
            "hf://a/..",
            "hf://a/b@",
            "hf://a/b@..",
            "hf://a/b@x%2F..%2Fy",
            "hf://a/b@a b",
            "hf://a/b:",
            "hf://a/b:Q4/x",
            "hf://a/b:Q4@v1/x.gguf",
            "hf://a/b/x.bin",
            "hf://a/b/../../x.gguf",
            "hf://a/b/.gguf",
            "hf://a--b/c",
            "hf://-a/b",
            "hf://a/b.",
            "hf://datasets/a/b",
            "Qwen/Qwen3-8B",
        ] {
            let error = text.parse::<ModelName>().expect_err(text).to_string();
            assert!(error.contains("is no model's name, for ") && error.contains("hf://ORG/NAME"), "{error}");
        }
        for (text, is_bare) in [
            ("Qwen/Qwen3-8B", true),
            ("Qwen/Qwen3-8B@main", true),
            ("ggml-org/x-GGUF:Q8_0", true),
            ("model.gguf", false),
            ("models", false),
            ("./models", false),
            ("/models/x", false),
            ("a/b/c", false),
            ("a/b/x.gguf", false),
            ("~/x", false),
        ] {
            assert_eq!(ModelName::bare(text).is_some(), is_bare, "{text}");
        }
    }
}
