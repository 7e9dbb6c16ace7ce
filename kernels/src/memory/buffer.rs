//! Zeroed, page-aligned memory from the operating system, in huge pages where it grants them.

use crate::KernelError;
use half::bf16;
use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

/// A number for which all-zero bytes are zero and every bit pattern is a value.
///
/// # Safety
/// Only for types without padding or invalid bit patterns, and without drop glue.
pub(crate) unsafe trait Element: Copy + Send + Sync + 'static {}
// SAFETY: a plain number.
unsafe impl Element for f32 {}
// SAFETY: a plain number.
unsafe impl Element for u32 {}
// SAFETY: a plain number.
unsafe impl Element for i8 {}
// SAFETY: a `u16` inside.
unsafe impl Element for bf16 {}

/// `len` elements, zeroed at first, aligned to a page.
pub(crate) struct Buffer<T: Element> {
    start: NonNull<T>,
    len: usize,
    /// What the elements lie in.
    _mapping: Option<Arc<Mapping>>,
}

// SAFETY: the buffer owns its memory, and elements may be sent and shared.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// `what` is for the message when there is no memory.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Buffer<T>, KernelError> {
        if len == 0 {
            return Ok(Buffer { start: NonNull::dangling(), len, _mapping: None });
        }
        let bytes = len.checked_mul(size_of::<T>());
        let found = bytes.and_then(|bytes| if bytes < LARGE { shared(bytes) } else { alone(bytes) });
        let no_memory = KernelError::OutOfMemory { bytes: bytes.unwrap_or(usize::MAX), what };
        let (start, mapping) = found.ok_or(no_memory)?;
        Ok(Buffer { start: start.cast(), len, _mapping: Some(mapping) })
    }
}

/// A huge page: memory is granted in these where it is aligned to them.
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;
/// From this size on a buffer has a mapping of its own; smaller ones share, or most of them would lie in no huge page.
const LARGE: usize = 4 << 20;
/// What is mapped for small buffers at a time.
const SHARED: usize = 32 << 20;

/// Memory of the system's, aligned to a huge page.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only an address until a buffer is made of it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> Option<Mapping> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let room = bytes.checked_add(HUGE)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches no existing memory.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), room, protection, flags, -1, 0) };
        let mapped = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED)?;
        let before = mapped.as_ptr().align_offset(HUGE);
        // SAFETY: the offset is below `HUGE`, and `bytes` more are in the mapping; what is before and after is given back, and used by
        // nobody. Advice changes no content, and may be refused.
        unsafe {
            let start = mapped.add(before);
            if before > 0 {
                libc::munmap(mapped.as_ptr().cast(), before);
            }
            if before < HUGE {
                libc::munmap(start.add(bytes).as_ptr().cast(), HUGE - before);
            }
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
            Some(Mapping { start, bytes })
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` kept, which nothing borrows any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

type Place = (NonNull<u8>, Arc<Mapping>);

fn alone(bytes: usize) -> Option<Place> {
    let mapping = Mapping::new(bytes)?;
    Some((mapping.start, Arc::new(mapping)))
}

/// Behind the last small buffer, each in memory that nobody had before; a mapping goes when its last buffer goes.
fn shared(bytes: usize) -> Option<Place> {
    static CURRENT: Mutex<Option<(Arc<Mapping>, usize)>> = Mutex::new(None);
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = bytes.next_multiple_of(PAGE);
    if current.as_ref().is_none_or(|(mapping, used)| mapping.bytes - used < bytes) {
        *current = Some((Arc::new(Mapping::new(SHARED)?), 0));
    }
    let (mapping, used) = current.as_mut()?;
    // SAFETY: there is room, by the check above.
    let start = unsafe { mapping.start.add(*used) };
    *used += bytes;
    Some((start, Arc::clone(mapping)))
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is valid for `len` initialised elements (zeroed by the system) while `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable() {
        let mut buffer = Buffer::<f32>::zeroed(5000, "a test").unwrap();
        assert_eq!(buffer.as_ptr() as usize % 4096, 0);
        assert!(buffer.iter().all(|x| *x == 0.0));
        buffer[4999] = 1.0;
        assert_eq!(buffer.iter().sum::<f32>(), 1.0);
        assert!(Buffer::<bf16>::zeroed(0, "a test").unwrap().is_empty());
    }

    #[test]
    fn small_buffers_share_large_ones_do_not_and_all_are_apart() {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for round in 0..40_usize {
            let mut buffer = Buffer::<f32>::zeroed(300_000 + round, "a test").unwrap();
            assert!(buffer.iter().all(|x| *x == 0.0));
            buffer.fill(round as f32);
            small.push(buffer);
            if round % 3 == 0 {
                small.remove(round / 4); // others of its mapping stay
            }
            large.push(Buffer::<f32>::zeroed(LARGE / 4 + round, "a test").unwrap());
        }
        assert!(small.iter().all(|buffer| buffer.iter().all(|x| *x == buffer[0])));
        assert!(large.iter().all(|buffer| (buffer.as_ptr() as usize).is_multiple_of(HUGE)));
        let mut firsts: Vec<_> = small.iter().map(|buffer| buffer[0] as usize).collect();
        firsts.dedup();
        assert_eq!(firsts.len(), small.len());
    }

    #[test]
    fn too_much_is_an_error() {
        for len in [usize::MAX, usize::MAX / 8] {
            let refusal = Buffer::<f32>::zeroed(len, "a test").err().unwrap().to_string();
            assert!(refusal.contains("a test"), "{refusal}");
        }
    }
}
