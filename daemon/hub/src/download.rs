//! One file into the cache: from where an earlier attempt ended, by one process at a time, checked before it has its name.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cache::{Cache, make_parent};
use crate::checksum::Check;
use crate::client::{Client, RemoteFile, Trouble};
use crate::error::HubError;
use crate::{ModelName, Settings};

/// Attempts that bring nothing, one after the other, before it is given up.
const MOST_ATTEMPTS: u32 = 5;
/// The first wait between two of them; each is twice the one before.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// How often whoever waits looks whether the download is over.
const GLANCE: Duration = Duration::from_millis(50);
/// Another process that holds a file may be quiet for so many times [`Settings::patience`]: it may wait for the hub itself.
const PATIENCE_FOR_OTHERS: u32 = 12;
const BUFFER_BYTES: usize = 256 << 10;

/// A download of several files: what they have in common.
pub(crate) struct Download<'d> {
    pub(crate) client: &'d Client<'d>,
    pub(crate) settings: &'d Settings,
    pub(crate) cache: &'d Cache,
    pub(crate) name: &'d ModelName,
    pub(crate) commit: &'d str,
    /// Bytes that are there.
    pub(crate) done_bytes: &'d AtomicU64,
    /// Whether it is over because something else has failed.
    pub(crate) stopped: &'d AtomicBool,
}

/// Asks again until there is an answer, or it is clear that there will be none.
pub(crate) fn patiently<T>(
    stopped: &AtomicBool,
    mut ask: impl FnMut() -> Result<T, Trouble>,
) -> Result<T, HubError> {
    let mut attempts = Attempts::default();
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(trouble) => attempts.after(trouble, stopped)?,
        }
    }
}

/// Attempts that have brought nothing.
#[derive(Default)]
struct Attempts(u32);

impl Attempts {
    /// Waits before the next one, if there is to be one.
    fn after(&mut self, trouble: Trouble, stopped: &AtomicBool) -> Result<(), HubError> {
        let (error, wait) = match trouble {
            Trouble::Lasting(error) => return Err(error),
            Trouble::Passing(error, wait) => (error, wait),
        };
        self.0 += 1;
        if self.0 >= MOST_ATTEMPTS {
            return Err(error);
        }
        let wait = wait.unwrap_or_default().max(FIRST_WAIT * 2_u32.pow(self.0 - 1));
        tracing::debug!(%error, ?wait, "asking the hub again");
        let until = Instant::now() + wait;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            check(stopped)?;
            std::thread::sleep(left.min(GLANCE));
        }
        Ok(())
    }
}

/// A file that grows.
struct Growing<'f> {
    path: PathBuf,
    file: File,
    check: Check,
    bytes: u64,
    remote: &'f RemoteFile,
}

impl Download<'_> {
    /// Brings a file into the cache.
    ///
    /// # Errors
    /// The hub, the disk, or another process that holds the file.
    pub(crate) fn bring(&self, remote: &RemoteFile) -> Result<(), HubError> {
        let blob = self.cache.blob(self.name.repo(), &remote.checksum);
        make_parent(&blob)?;
        let incomplete = blob.with_extension("incomplete");
        let _lock = self.lock(remote, &incomplete)?;
        if is_whole(&blob, remote) {
            self.done_bytes.fetch_add(remote.size_bytes, Ordering::Relaxed);
            return Ok(());
        }
        let mut growing = self.begin(incomplete, remote)?;
        let mut was_resumed = growing.bytes > 0;
        loop {
            was_resumed &= self.grow(&mut growing)?;
            if growing.check.is(&remote.checksum) {
                break;
            }
            remove(&growing.path)?;
            self.done_bytes.fetch_sub(growing.bytes, Ordering::Relaxed);
            if !was_resumed {
                return Err(HubError::Checksum {
                    name: self.name.to_string(),
                    file: remote.path.clone(),
                    wanted: remote.checksum.digits().to_owned(),
                    endpoint: self.settings.endpoint.clone(),
                });
            }
            // What an earlier attempt left behind was wrong, as after a power cut.
            tracing::warn!(file = remote.path, "what was there of it is damaged: downloading it anew");
            was_resumed = false;
            growing = self.begin(growing.path, remote)?;
        }
        let kept = growing.file.sync_all().and_then(|()| fs::rename(&growing.path, &blob));
        kept.map_err(|source| self.on_disk(&growing.path, remote, source))
    }

    /// Takes the lock of a file, as soon as no other process has it.
    fn lock(&self, remote: &RemoteFile, incomplete: &Path) -> Result<File, HubError> {
        let path = self.cache.lock(self.name.repo(), &remote.checksum);
        make_parent(&path)?;
        let open = File::options().create(true).append(true).open(&path);
        let file = open.map_err(|source| HubError::file("open the lock", &path, source))?;
        let size = || fs::metadata(incomplete).map_or(0, |facts| facts.len());
        let (mut seen, mut since) = (size(), Instant::now());
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(source)) => return Err(HubError::file("lock", &path, source)),
                Err(TryLockError::WouldBlock) => {}
            }
            check(self.stopped)?;
            let now = size();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > self.settings.patience * PATIENCE_FOR_OTHERS {
                return Err(HubError::Held {
                    name: self.name.to_string(),
                    file: remote.path.clone(),
                    lock: path,
                });
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Opens what has come of a file, and reads it for its checksum.
    fn begin<'f>(&self, path: PathBuf, remote: &'f RemoteFile) -> Result<Growing<'f>, HubError> {
        if fs::metadata(&path).is_ok_and(|facts| facts.len() > remote.size_bytes) {
            remove(&path)?;
        }
        // Nobody truncates it: where locks do not hold, as on some network file systems, another process writes the same bytes there.
        let open = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = open.map_err(|source| self.on_disk(&path, remote, source))?;
        let (mut check, mut bytes) = (remote.checksum.check(remote.size_bytes), 0);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            self::check(self.stopped)?;
            let left = usize::try_from(remote.size_bytes - bytes).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            let read =
                file.read(&mut buffer[..left]).map_err(|source| HubError::file("read", &path, source))?;
            if read == 0 {
                break;
            }
            check.update(&buffer[..read]);
            bytes += read as u64;
            self.done_bytes.fetch_add(read as u64, Ordering::Relaxed);
        }
        Ok(Growing { path, file, check, bytes, remote })
    }

    /// Brings what is missing. Returns whether what was there at first has stayed.
    fn grow(&self, growing: &mut Growing<'_>) -> Result<bool, HubError> {
        let remote = growing.remote;
        let (mut attempts, mut has_stayed) = (Attempts::default(), true);
        while growing.bytes < remote.size_bytes {
            let before = growing.bytes;
            let trouble = match self.client.bytes(self.name, self.commit, remote, before) {
                Ok(bytes) => {
                    if bytes.from < before {
                        self.done_bytes.fetch_sub(before, Ordering::Relaxed);
                        growing.bytes = 0;
                        growing.check = remote.checksum.check(remote.size_bytes);
                        has_stayed = false;
                    }
                    self.copy(growing, bytes.reader)?
                }
                Err(trouble) => Some(trouble),
            };
            if growing.bytes > before {
                attempts = Attempts::default();
            }
            if let Some(trouble) = trouble {
                attempts.after(trouble, self.stopped)?;
            }
        }
        Ok(has_stayed)
    }

    /// Writes what comes, up to the file's size. Returns why it ended early, if it did.
    fn copy(&self, growing: &mut Growing<'_>, mut from: Box<dyn Read>) -> Result<Option<Trouble>, HubError> {
        let remote = growing.remote;
        let disk = |source| self.on_disk(&growing.path, remote, source);
        growing.file.seek(SeekFrom::Start(growing.bytes)).map_err(disk)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        while growing.bytes < remote.size_bytes {
            check(self.stopped)?;
            let left =
                usize::try_from(remote.size_bytes - growing.bytes).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            let read = match from.read(&mut buffer[..left]) {
                Ok(0) => {
                    return Ok(Some(self.client.lost(self.name, format!("`{}` was cut off", remote.path))));
                }
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Some(self.client.broken(self.name, &remote.path, &error))),
            };
            growing.file.write_all(&buffer[..read]).map_err(disk)?;
            growing.check.update(&buffer[..read]);
            growing.bytes += read as u64;
            self.done_bytes.fetch_add(read as u64, Ordering::Relaxed);
        }
        Ok(None)
    }

    /// What a disk says while a file is written: it may have become full.
    fn on_disk(&self, path: &Path, remote: &RemoteFile, source: std::io::Error) -> HubError {
        if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            let there = fs::metadata(path).map_or(0, |facts| facts.len());
            return HubError::NoRoom {
                name: self.name.to_string(),
                cache: self.cache.folder().to_owned(),
                needed_bytes: remote.size_bytes.saturating_sub(there),
                free_bytes: free_bytes(self.cache.folder()).unwrap_or(0),
            };
        }
        HubError::file("write", path, source)
    }
}

/// Whether a file is in the cache in its whole length; that it is right was checked when it came.
pub(crate) fn is_whole(blob: &Path, remote: &RemoteFile) -> bool {
    fs::metadata(blob).is_ok_and(|facts| facts.is_file() && facts.len() == remote.size_bytes)
}

/// Bytes that this user may still write to the disk of a folder; none if nobody knows.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.is_dir())?;
    let disk = rustix::fs::statvfs(there).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn remove(path: &Path) -> Result<(), HubError> {
    fs::remove_file(path).map_err(|source| HubError::file("remove", path, source))
}

fn check(stopped: &AtomicBool) -> Result<(), HubError> {
    if stopped.load(Ordering::Relaxed) { Err(HubError::Stopped) } else { Ok(()) }
}
