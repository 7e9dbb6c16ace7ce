//! The hub's cache on disk, as `huggingface_hub` lays it out, which uses the same files:
//!
//! ```text
//! models--ORG--NAME/refs/main                    the commit of a branch or tag
//!                   snapshots/COMMIT/config.json  a link to ../../blobs/CHECKSUM
//!                   blobs/CHECKSUM                a file's content
//!                   blobs/CHECKSUM.incomplete     what has come of it
//! .locks/models--ORG--NAME/CHECKSUM.lock          held while it comes
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::HubError;
use crate::checksum::Checksum;
use crate::model_name::is_commit;

/// Files of a snapshot, and folders deep, that are looked at.
const MOST_FILES: usize = 10_000;
const MOST_DEPTH: usize = 8;

/// The cache.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// A version of a model in the cache.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CachedModel {
    /// `org/name`.
    pub repo: String,
    /// Its commit.
    pub commit: String,
    /// The branches and tags that are this commit, as far as the cache knows.
    pub revisions: Vec<String>,
    /// Its folder.
    pub path: PathBuf,
    /// Files in it.
    pub files: usize,
    /// What they take; files that several versions have are counted in each.
    pub bytes: u64,
    /// Seconds since 1970 when a file of it came last.
    pub modified_s: u64,
    /// Of the model, in all versions: what has come of downloads that are not over.
    pub incomplete_bytes: u64,
}

impl Cache {
    /// The cache in this folder, whether it is there or not.
    #[must_use]
    pub fn new(folder: &Path) -> Cache {
        Cache { folder: folder.to_owned() }
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn model(&self, repo: &str) -> PathBuf {
        self.folder.join(directory_name(repo))
    }

    pub(crate) fn snapshot(&self, repo: &str, commit: &str) -> PathBuf {
        self.model(repo).join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, repo: &str, checksum: &Checksum) -> PathBuf {
        self.model(repo).join("blobs").join(checksum.digits())
    }

    pub(crate) fn lock(&self, repo: &str, checksum: &Checksum) -> PathBuf {
        self.folder.join(".locks").join(directory_name(repo)).join(format!("{}.lock", checksum.digits()))
    }

    /// The commit that a revision is, as far as the cache knows.
    pub(crate) fn commit(&self, repo: &str, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.model(repo).join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Keeps which commit a revision is.
    pub(crate) fn keep_commit(&self, repo: &str, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit(repo, revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.model(repo).join("refs").join(revision);
        make_parent(&path)?;
        // Whoever reads it sees the old one or the new one.
        let new = path.with_file_name(format!(".{}.{}", commit, std::process::id()));
        let written = fs::write(&new, commit).and_then(|()| fs::rename(&new, &path));
        written.map_err(|source| HubError::file("write", &path, source))
    }

    /// Makes `file` of a snapshot a link to its content.
    pub(crate) fn link(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
        checksum: &Checksum,
    ) -> Result<(), HubError> {
        let path = self.snapshot(repo, commit).join(file);
        let up = "../".repeat(file.split('/').count() + 1);
        let content = PathBuf::from(format!("{up}blobs/{}", checksum.digits()));
        if fs::read_link(&path).is_ok_and(|known| known == content) {
            return Ok(());
        }
        make_parent(&path)?;
        let new = path.with_file_name(format!(".{}.{}", checksum.digits(), std::process::id()));
        let linked = std::os::unix::fs::symlink(&content, &new).and_then(|()| fs::rename(&new, &path));
        linked.map_err(|source| HubError::file("link", &path, source))
    }

    /// The files of a snapshot whose content is there, by their paths in it; none if there is no such snapshot.
    pub(crate) fn files(&self, repo: &str, commit: &str) -> Vec<String> {
        let mut files = Vec::new();
        walk(&self.snapshot(repo, commit), "", MOST_DEPTH, &mut files);
        files
    }

    /// Every version of every model, by name.
    ///
    /// # Errors
    /// The folder is there and cannot be read.
    pub fn models(&self) -> Result<Vec<CachedModel>, HubError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(HubError::file("read", &self.folder, source)),
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let repos = names.filter_map(|name| repo_in(&name));
        let mut models: Vec<CachedModel> = repos.flat_map(|repo| self.versions(&repo)).collect();
        models.sort_by(|a, b| (&a.repo, &a.commit).cmp(&(&b.repo, &b.commit)));
        Ok(models)
    }

    fn versions(&self, repo: &str) -> Vec<CachedModel> {
        let mut revisions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut refs = Vec::new();
        walk(&self.model(repo).join("refs"), "", MOST_DEPTH, &mut refs);
        refs.sort();
        for revision in refs {
            if let Some(commit) = self.commit(repo, &revision) {
                revisions.entry(commit).or_default().push(revision);
            }
        }
        let blobs = fs::read_dir(self.model(repo).join("blobs")).into_iter().flatten().flatten();
        let incomplete =
            blobs.filter(|entry| entry.path().extension().is_some_and(|end| end == "incomplete"));
        let incomplete_bytes = incomplete.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
        let snapshots = fs::read_dir(self.model(repo).join("snapshots")).into_iter().flatten().flatten();
        let commits = snapshots.filter_map(|entry| entry.file_name().into_string().ok());
        let version = |commit: String| {
            let path = self.snapshot(repo, &commit);
            let files = self.files(repo, &commit);
            let facts: Vec<fs::Metadata> =
                files.iter().filter_map(|file| fs::metadata(path.join(file)).ok()).collect();
            let modified = facts.iter().filter_map(|facts| facts.modified().ok()).max();
            let modified = modified.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            CachedModel {
                repo: repo.to_owned(),
                revisions: revisions.get(&commit).cloned().unwrap_or_default(),
                files: files.len(),
                bytes: facts.iter().map(fs::Metadata::len).sum(),
                modified_s: modified.map_or(0, |since| since.as_secs()),
                incomplete_bytes,
                commit,
                path,
            }
        };
        commits.filter(|commit| is_commit(commit)).map(version).collect()
    }
}

/// What a model is called whose snapshot this folder is: the folder's own name is that of a commit.
#[must_use]
pub fn repo_of(snapshot: &Path) -> Option<String> {
    let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let snapshots = snapshot.parent()?;
    let is_snapshot = is_commit(&name(snapshot)?) && name(snapshots)? == "snapshots";
    is_snapshot.then(|| name(snapshots.parent()?))?.and_then(|directory| repo_in(&directory))
}

/// `org/name` of `models--org--name`.
fn repo_in(directory: &str) -> Option<String> {
    Some(directory.strip_prefix("models--")?.replace("--", "/"))
}

fn directory_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// Makes the folder that `path` lies in.
pub(crate) fn make_parent(path: &Path) -> Result<(), HubError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|source| HubError::file("make the folder", folder, source))
}

/// Adds the files in `folder` and below, also those that links lead to; names that begin with a dot are somebody's work in progress.
fn walk(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') || files.len() >= MOST_FILES {
            continue;
        }
        let (path, inner) = (entry.path(), format!("{prefix}{name}"));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth > 0 {
                walk(&path, &format!("{inner}/"), depth - 1, files);
            }
        } else if path.is_file() {
            files.push(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_called_as_its_model() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let of = |path: String| repo_of(Path::new(&path));
        assert_eq!(
            of(format!("/c/models--Qwen--Qwen3-8B/snapshots/{commit}")).as_deref(),
            Some("Qwen/Qwen3-8B")
        );
        assert_eq!(of(format!("/c/models--gpt2/snapshots/{commit}/")).as_deref(), Some("gpt2"));
        for other in ["/models/Qwen3-8B".to_owned(), format!("/c/x/snapshots/{commit}"), format!("/{commit}")]
        {
            assert_eq!(of(other.clone()), None, "{other}");
        }
    }
}
