//! An allocator that knows how much of the heap was in use at most.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static USED: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// Bytes in use; from now on the largest use is looked for anew.
pub(crate) fn begin() -> usize {
    let used = USED.load(Ordering::Relaxed);
    LARGEST.store(used, Ordering::Relaxed);
    used
}

/// Most bytes in use since.
pub(crate) fn largest() -> usize {
    LARGEST.load(Ordering::Relaxed)
}

struct Measured;

// SAFETY: all is handed to the system's allocator; counting has no effect on it.
unsafe impl GlobalAlloc for Measured {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        LARGEST.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Measured = Measured;
