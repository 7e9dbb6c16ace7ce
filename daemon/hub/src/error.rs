//! Why a model cannot be had by its name.

use std::path::{Path, PathBuf};

/// What was tried and did not go; each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A variable of the environment.
    #[error("{name} must be {wanted}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What it has to be.
        wanted: &'static str,
    },
    /// Nobody said where the cache is.
    #[error(
        "there is no place for downloaded models, for neither HOME nor HF_HOME is set: set HF_HOME to a folder"
    )]
    NoCache,
    /// A file or folder of the cache.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The disk has no room.
    #[error(
        "{name} needs {} more in {}, where {} are free: make room, or set HF_HOME to a folder on a larger disk",
        size(*needed_bytes), cache.display(), size(*free_bytes)
    )]
    NoRoom {
        /// The model.
        name: String,
        /// The cache.
        cache: PathBuf,
        /// Bytes that are missing.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// Nothing may be asked.
    #[error(
        "HF_HUB_OFFLINE is set, and {name} is not in {}: {why}; unset it, or run `faser pull {name}` where there is a network and take the cache along", cache.display()
    )]
    Offline {
        /// The model.
        name: String,
        /// The cache.
        cache: PathBuf,
        /// What is missing.
        why: String,
    },
    /// The hub does not answer.
    #[error(
        "the hub {endpoint} cannot be reached for {name}: {why}; what was downloaded is kept, so try again, set HF_ENDPOINT to a mirror, or give a folder"
    )]
    Unreachable {
        /// The model.
        name: String,
        /// Its address.
        endpoint: String,
        /// What went wrong.
        why: String,
    },
    /// The hub has had enough.
    #[error(
        "the hub {endpoint} takes no more requests for now (429){}: try again then, or set HF_TOKEN, by which more are allowed",
        after_s.map_or_else(String::new, |seconds| format!(", for {seconds} s"))
    )]
    TooMany {
        /// Its address.
        endpoint: String,
        /// Seconds that it asks to wait for.
        after_s: Option<u64>,
    },
    /// Terms must be accepted.
    #[error(
        "{name} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account{}",
        if *has_token { " (the one that is set may not read it yet)" } else { "" }
    )]
    Gated {
        /// The model.
        name: String,
        /// Where its terms are.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// There is no such model, or it is nobody's business.
    #[error(
        "{endpoint} has no model {name}{}",
        if *has_token {
            " that the token in HF_TOKEN may read: check the name, and the token"
        } else {
            " that everybody may read: check the name, or set HF_TOKEN if it is private"
        }
    )]
    NoModel {
        /// The model.
        name: String,
        /// The hub's address.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// There is no such branch, tag or commit.
    #[error(
        "{name} has no revision `{revision}`: write a branch, a tag or a whole commit behind `@`, see {page}"
    )]
    NoRevision {
        /// The model.
        name: String,
        /// What was asked for.
        revision: String,
        /// Where they are listed.
        page: String,
    },
    /// The repository has no files that can be served.
    #[error("{name} {problem}")]
    Unusable {
        /// The model.
        name: String,
        /// What it has, and what to do.
        problem: String,
    },
    /// The hub refuses for another reason.
    #[error("{endpoint} refuses {name} with status {status}{}", said.as_ref().map_or_else(String::new, |said| format!(": {said}")))]
    Refused {
        /// The model.
        name: String,
        /// The hub's address.
        endpoint: String,
        /// Of HTTP.
        status: u16,
        /// What it said.
        said: Option<String>,
    },
    /// The hub says something that cannot be understood.
    #[error("{endpoint} gives no answer of a hub for {name}: {problem}; is HF_ENDPOINT right?")]
    NoHub {
        /// The model.
        name: String,
        /// The hub's address.
        endpoint: String,
        /// What was wrong.
        problem: String,
    },
    /// A file is not what the hub says it is.
    #[error(
        "`{file}` of {name} came with another checksum than the hub says ({wanted}), and was thrown away: try again; if it stays so, something between here and {endpoint} changes files"
    )]
    Checksum {
        /// The model.
        name: String,
        /// The file.
        file: String,
        /// The checksum that it should have.
        wanted: String,
        /// The hub's address.
        endpoint: String,
    },
    /// Another process holds a file, and brings nothing.
    #[error(
        "another process has been at `{file}` of {name} without bringing anything: end it, then try again (its lock is {})", lock.display()
    )]
    Held {
        /// The model.
        name: String,
        /// The file.
        file: String,
        /// The lock.
        lock: PathBuf,
    },
    /// Something else has failed, which is reported.
    #[error("the download was broken off")]
    Stopped,
}

impl HubError {
    pub(crate) fn file(what: &'static str, path: &Path, source: std::io::Error) -> HubError {
        HubError::File { what, path: path.to_owned(), source }
    }

    /// Whether what is in the cache may do in place of an answer.
    pub(crate) fn is_of_the_network(&self) -> bool {
        matches!(self, HubError::Unreachable { .. } | HubError::TooMany { .. })
    }
}

/// Bytes, as disks and the hub count them.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
