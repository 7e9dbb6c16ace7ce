//! Zeroed, page-aligned memory from the operating system, in huge pages where it grants them.

use crate::KernelError;
use half::bf16;
use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
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
// SAFETY: a `u16` inside.
unsafe impl Element for bf16 {}

/// `len` elements, zeroed at first, aligned to a page.
pub(crate) struct Buffer<T: Element> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the buffer owns its memory, and elements may be sent and shared.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// `what` is for the message when there is no memory.
    pub(crate) fn zeroed(len: usize, what: &'static str) -> Result<Buffer<T>, KernelError> {
        if len == 0 {
            return Ok(Buffer { start: NonNull::dangling(), len });
        }
        let no_memory = |bytes| KernelError::OutOfMemory { bytes, what };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(no_memory(usize::MAX))?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches no existing memory.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        let start = NonNull::new(mapped.cast::<T>())
            .filter(|_| mapped != libc::MAP_FAILED)
            .ok_or(no_memory(bytes))?;
        // SAFETY: advice about the mapping just made; it changes no content, and may be refused.
        unsafe { libc::madvise(mapped, bytes, libc::MADV_HUGEPAGE) };
        Ok(Buffer { start, len })
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: unmaps exactly what `zeroed` mapped, which nothing borrows any more.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * size_of::<T>()) };
        }
    }
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
    fn too_much_is_an_error() {
        for len in [usize::MAX, usize::MAX / 8] {
            let refusal = Buffer::<f32>::zeroed(len, "a test").err().unwrap().to_string();
            assert!(refusal.contains("a test"), "{refusal}");
        }
    }
}
