//! Writing one slice from several workers, each its own part.

use std::marker::PhantomData;

/// A mutable slice whose disjoint parts several workers may write at once.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedMut<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<'_, T> {}

// SAFETY: it is a `&mut [T]` whose users promise (see `part`) never to overlap.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> SharedMut<'a, T> {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Where an element is, or would be.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn address(self, at: usize) -> *const T {
        self.start.wrapping_add(at)
    }

    /// `len` elements from `from`; panics out of bounds.
    ///
    /// # Safety
    /// No two parts that overlap may be alive at the same time.
    pub(crate) unsafe fn part(self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from.checked_add(len).is_some_and(|end| end <= self.len), "part out of bounds");
        // SAFETY: in bounds by the check above; unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}
