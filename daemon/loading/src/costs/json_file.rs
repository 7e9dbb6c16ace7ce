//! A cached file: JSON with its format and its key in clear, believed only when both fit, and written whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use faser_openai::random;
use serde_json::{Value, json};

use super::key::Fnv;

/// A file of ours is far smaller.
pub(super) const MOST_BYTES: u64 = 4 << 20;
/// Files of one kind that are cached in one folder; the oldest make way.
pub(super) const MOST_FILES: usize = 64;

/// Why a file is not believed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("it is larger than any such file")]
    TooLarge,
    #[error("it is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error("it is of format {found}, not {wanted}")]
    Format { found: Value, wanted: u64 },
    #[error("it is of something else: its key differs in `{field}`")]
    Key { field: String },
    #[error("its table {table} is implausible: {problem}")]
    Implausible { table: usize, problem: &'static str },
    #[error("what it says of `{source_name}` was never counted")]
    Learned { source_name: &'static str },
    #[error("it has {found} tables, the device has {wanted} partitions")]
    Partitions { found: usize, wanted: usize },
    #[error("it has {found} tables, not 1 to {most}")]
    Tables { found: usize, most: usize },
    #[error("it was measured without a draft model")]
    NoDraft,
}

/// The file of one key in a folder; its name begins with `prefix`.
pub(super) fn path_of(folder: &Path, prefix: &str, key: &Value) -> PathBuf {
    let mut hash = Fnv::default();
    hash.update(key.to_string().as_bytes());
    folder.join(format!("{prefix}{}.json", hash.hex()))
}

/// What a file of one key holds, if it is there.
///
/// # Errors
/// The file is there, but must not be used.
pub(super) fn read_json(path: &Path, format: u64, key: &Value) -> Result<Option<Value>, Unusable> {
    let Some(value) = read_of_any(path, format)? else { return Ok(None) };
    match difference("key", key, &value["key"]) {
        Some(field) => Err(Unusable::Key { field }),
        None => Ok(Some(value)),
    }
}

/// What a file holds, whatever its key, if it is there.
///
/// # Errors
/// The file is there, but must not be used.
pub(super) fn read_of_any(path: &Path, format: u64) -> Result<Option<Value>, Unusable> {
    let mut bytes = Vec::new();
    let file = match File::open(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Unusable::TooLarge);
    }
    let value: Value = serde_json::from_slice(&bytes)?;
    if value["format"] != format {
        return Err(Unusable::Format { found: value["format"].clone(), wanted: format });
    }
    Ok(Some(value))
}

/// Keeps `content`, an object, with format and key: whoever reads at any time sees the whole file or the one before.
///
/// # Errors
/// The folder or the file cannot be written; nothing is left behind then.
pub(super) fn write_json(
    path: &Path,
    prefix: &str,
    format: u64,
    key: &Value,
    mut content: Value,
) -> io::Result<()> {
    content["format"] = json!(format);
    content["key"] = key.clone();
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder)?;
    let unfinished = path.with_extension(format!("{:016x}.tmp", random::number()));
    let written = File::create_new(&unfinished).and_then(|mut file| {
        file.write_all(format!("{content:#}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    });
    if written.is_err() {
        // The error that matters is the one before.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    make_room(folder, prefix, path);
    Ok(())
}

/// The first field in which `found` is not as `wanted`, which has the name `name`.
fn difference(name: &str, wanted: &Value, found: &Value) -> Option<String> {
    let (Value::Object(fields), Value::Object(others)) = (wanted, found) else {
        return (wanted != found).then(|| name.to_owned());
    };
    fields.keys().chain(others.keys()).find_map(|field| {
        difference(&format!("{name}.{field}"), &wanted[field.as_str()], &found[field.as_str()])
    })
}

/// Removes the oldest of our files of one kind in `folder` above [`MOST_FILES`], those left unfinished by a crash among them, but
/// never `newest`. What cannot be removed stays: another process may have been faster, and the files are small.
fn make_room(folder: &Path, prefix: &str, newest: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(prefix) && (name.ends_with(".json") || name.ends_with(".tmp")) && path != newest
    };
    let paths = entries.flatten().map(|entry| entry.path()).filter(is_ours);
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).unwrap_or(UNIX_EPOCH);
    let mut ours: Vec<(SystemTime, PathBuf)> = paths.map(|path| (modified(&path), path)).collect();
    ours.sort_unstable();
    let excess = (ours.len() + 1).saturating_sub(MOST_FILES);
    for (_, path) in ours.iter().take(excess) {
        let _ = fs::remove_file(path);
    }
}
