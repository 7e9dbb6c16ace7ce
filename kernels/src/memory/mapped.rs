//! A file mapped read-only: weights are read from the page cache, and only those pages that are asked for.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The content of a file, in memory as long as this value lives.
///
/// The file must not be shortened meanwhile: reading past its new end would raise SIGBUS, as with every mapped file.
#[derive(Debug)]
pub struct MappedFile {
    start: *mut libc::c_void,
    bytes: usize,
}

// SAFETY: the mapping is private, read-only and not bound to a thread.
unsafe impl Send for MappedFile {}
// SAFETY: as above; shared reads of read-only memory do not race.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps a whole file. An empty file is an empty slice.
    ///
    /// # Errors
    /// The file cannot be opened, or the system refuses to map it.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = File::open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if bytes == 0 {
            return Ok(MappedFile { start: std::ptr::null_mut(), bytes });
        }
        // SAFETY: a fresh mapping of an open file touches no memory of ours; the result is checked below.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(MappedFile { start, bytes })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `open` mapped `bytes` readable bytes at `start`, and they stay mapped until `drop`.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the mapping was made by `open` and is given back once; no slice of it outlives `self`.
            unsafe { libc::munmap(self.start, self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_reads_as_its_bytes() {
        let path = std::env::temp_dir().join(format!("faser-mapped-{}", std::process::id()));
        for content in [&b""[..], b"one page or less", &[7; 10_000]] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(&*MappedFile::open(&path).unwrap(), content);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
