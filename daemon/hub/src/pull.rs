//! A model by its name: asks the hub what it is, brings what of it is not there, and says where it is.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::cache::Cache;
use crate::client::{Client, Listing, RemoteFile};
use crate::download::{Download, free_bytes, is_whole, patiently};
use crate::error::{HubError, size};
use crate::wanted::{Extent, shards, wanted};
use crate::{ModelName, Settings};

/// Files that come at once, as in `huggingface_hub`.
const AT_ONCE: usize = 8;
/// An index is read whole; those of the largest models have some megabytes.
const MOST_INDEX_BYTES: u64 = 100_000_000;
/// How often is told how far it is.
const TELL_INTERVAL: Duration = Duration::from_millis(100);

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Downloaded {
    /// Bytes that are there, of what was missing when it began.
    pub done_bytes: u64,
    /// Bytes that were missing.
    pub total_bytes: u64,
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Its folder, or its GGUF file.
    pub path: PathBuf,
    /// Its commit.
    pub commit: String,
    /// Why it may be an older one than the hub has.
    pub note: Option<String>,
}

/// Brings what `name` needs into the cache, unless it is there. Without a network what is in the cache does. `watch` is told every tenth of a
/// second how far it is.
///
/// # Errors
/// See [`HubError`]. What has come by then stays, and the next call goes on from there.
pub fn pull(
    settings: &Settings,
    name: &ModelName,
    extent: Extent,
    watch: &mut dyn FnMut(Downloaded),
) -> Result<Pulled, HubError> {
    let cache = Cache::new(&settings.cache);
    if settings.offline || name.is_pinned() {
        match in_cache(&cache, name, extent) {
            Ok(pulled) => return Ok(pulled),
            Err(why) if settings.offline => {
                return Err(HubError::Offline { name: name.to_string(), cache: settings.cache.clone(), why });
            }
            Err(_) => {}
        }
    }
    let client = Client::new(settings);
    match patiently(&AtomicBool::new(false), || client.listing(name)) {
        Ok(listing) => bring(settings, &cache, &client, (name, extent), &listing, watch),
        Err(error) if error.is_of_the_network() => match in_cache(&cache, name, extent) {
            Ok(pulled) => {
                let note = format!("{error}; {} of the cache is used, which may be older", pulled.commit);
                Ok(Pulled { note: Some(note), ..pulled })
            }
            Err(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// The model as it is in the cache, or what is missing.
fn in_cache(cache: &Cache, name: &ModelName, extent: Extent) -> Result<Pulled, String> {
    let commit = cache.commit(name.repo(), name.revision());
    let commit = commit.ok_or_else(|| format!("revision `{}` was never downloaded", name.revision()))?;
    let files = cache.files(name.repo(), &commit);
    if files.is_empty() {
        return Err(format!("commit {commit} was never downloaded"));
    }
    let folder = cache.snapshot(name.repo(), &commit);
    let wanted = wanted(name, extent, &files)
        .map_err(|error| format!("of commit {commit} a part is there: {error}"))?;
    if let Some(index) = wanted.index {
        let text =
            std::fs::read(folder.join(index)).map_err(|error| format!("{index} cannot be read: {error}"))?;
        shards(name, &text, &files)
            .map_err(|error| format!("of commit {commit} a part is there: {error}"))?;
    }
    Ok(Pulled { path: wanted.gguf.map_or(folder.clone(), |file| folder.join(file)), commit, note: None })
}

fn bring(
    settings: &Settings,
    cache: &Cache,
    client: &Client<'_>,
    (name, extent): (&ModelName, Extent),
    listing: &Listing,
    watch: &mut dyn FnMut(Downloaded),
) -> Result<Pulled, HubError> {
    let Listing { commit, files } = listing;
    let names: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    let by_name: HashMap<&str, &RemoteFile> = files.iter().map(|file| (file.path.as_str(), file)).collect();
    let remote = |paths: &[String]| -> Vec<&RemoteFile> {
        paths.iter().filter_map(|path| by_name.get(path.as_str()).copied()).collect()
    };
    let wanted = wanted(name, extent, &names)?;
    let folder = cache.snapshot(name.repo(), commit);
    let whole = Whole { settings, cache, client, name, commit };
    let mut all = remote(&wanted.files);
    if let Some(index) = wanted.index {
        if by_name.get(index).is_some_and(|file| file.size_bytes > MOST_INDEX_BYTES) {
            let problem =
                format!("has an {index} of more than {}: take another revision", size(MOST_INDEX_BYTES));
            return Err(HubError::Unusable { name: name.to_string(), problem });
        }
        // It says which of the large files are wanted.
        whole.bring(&remote(&[index.to_owned()]), &mut |_| {})?;
        let path = folder.join(index);
        let text = std::fs::read(&path).map_err(|source| HubError::file("read", &path, source))?;
        all.extend(remote(&shards(name, &text, &names)?));
    }
    whole.bring(&all, watch)?;
    cache.keep_commit(name.repo(), name.revision(), commit)?;
    Ok(Pulled {
        path: wanted.gguf.map_or(folder.clone(), |file| folder.join(file)),
        commit: commit.clone(),
        note: None,
    })
}

/// What every file of one pull has in common.
struct Whole<'w> {
    settings: &'w Settings,
    cache: &'w Cache,
    client: &'w Client<'w>,
    name: &'w ModelName,
    commit: &'w str,
}

impl Whole<'_> {
    /// Brings these files, several at once, and links them.
    fn bring(&self, files: &[&RemoteFile], watch: &mut dyn FnMut(Downloaded)) -> Result<(), HubError> {
        let Whole { settings, cache, client, name, commit } = *self;
        let mut seen = HashSet::new();
        let blob = |file: &RemoteFile| cache.blob(name.repo(), &file.checksum);
        let mut missing: Vec<&RemoteFile> = files
            .iter()
            .copied()
            .filter(|file| !is_whole(&blob(file), file) && seen.insert(&file.checksum))
            .collect();
        self.check_room(&missing)?;
        // The largest begin first, so that none of them is left alone at the end.
        missing.sort_by_key(|file| file.size_bytes);
        let total_bytes = missing.iter().map(|file| file.size_bytes).sum();
        if total_bytes > 0 {
            tracing::info!(model = %name, commit, files = missing.len(), size = size(total_bytes), "downloading");
        }
        let (done_bytes, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
        let download =
            Download { client, settings, cache, name, commit, done_bytes: &done_bytes, stopped: &stopped };
        let workers = missing.len().min(AT_ONCE);
        let queue = Mutex::new(missing);
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let work = || {
            while let Some(file) = next() {
                download.bring(file).inspect_err(|_| stopped.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        let mut tell = || watch(Downloaded { done_bytes: done_bytes.load(Ordering::Relaxed), total_bytes });
        thread::scope(|scope| {
            let (send, ended) = mpsc::channel();
            for _ in 0..workers {
                let send = send.clone();
                scope.spawn(move || send.send(work()));
            }
            drop(send);
            let mut result = Ok(());
            loop {
                match ended.recv_timeout(TELL_INTERVAL) {
                    // The first failure is the reason of all others.
                    Ok(Err(error)) if result.is_ok() || matches!(result, Err(HubError::Stopped)) => {
                        result = Err(error);
                    }
                    Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break result,
                }
                if workers > 0 {
                    tell();
                }
            }
        })?;
        files.iter().try_for_each(|file| cache.link(name.repo(), commit, &file.path, &file.checksum))
    }

    /// Looks whether the disk has room, before anything large comes.
    fn check_room(&self, missing: &[&RemoteFile]) -> Result<(), HubError> {
        let there = |file: &RemoteFile| {
            let incomplete = self.cache.blob(self.name.repo(), &file.checksum).with_extension("incomplete");
            std::fs::metadata(incomplete).map_or(0, |facts| facts.len())
        };
        let needed = missing.iter().map(|file| file.size_bytes.saturating_sub(there(file)));
        let needed_bytes = needed.fold(0_u64, u64::saturating_add);
        match free_bytes(self.cache.folder()) {
            Some(free_bytes) if free_bytes < needed_bytes => Err(HubError::NoRoom {
                name: self.name.to_string(),
                cache: self.cache.folder().to_owned(),
                needed_bytes,
                free_bytes,
            }),
            _ => Ok(()),
        }
    }
}
