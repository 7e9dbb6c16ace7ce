//! An allocator that counts: for tests, of other crates too, that a pass allocates nothing, or how much is in use at most.
#![allow(unreachable_pub, dead_code, reason = "a module of several test files")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// How often memory was asked for so far, by any thread.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

static USED: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// Bytes in use; from here on the largest use is looked for.
pub fn begin_bytes() -> usize {
    let used = USED.load(Ordering::Relaxed);
    LARGEST.store(used, Ordering::Relaxed);
    used
}

/// Most bytes in use since.
pub fn largest_bytes() -> usize {
    LARGEST.load(Ordering::Relaxed)
}

struct Counting;

// SAFETY: all is handed to the system's allocator; counting has no effect on it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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
static ALLOCATOR: Counting = Counting;
