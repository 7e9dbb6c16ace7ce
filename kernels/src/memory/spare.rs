//! Memory that was freed and that the allocator has kept.

/// Gives the system what the allocator keeps of freed memory. glibc does so by itself only at the end of an arena, so that a few small things
/// that live on hold all that was freed before them; each thread has an arena, and an idle one is never looked at. Worth it after work
/// that took much memory: it takes some milliseconds.
///
/// Other allocators than glibc's give memory back by themselves.
pub fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and locks each arena while it works on it.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_stays() {
        let numbers: Vec<Vec<u32>> = (0..1000).map(|i| vec![i; 1000]).collect();
        drop(numbers.iter().step_by(2).cloned().collect::<Vec<_>>());
        give_memory_back();
        assert!((0..).zip(&numbers).all(|(i, numbers)| *numbers == vec![i; 1000]));
    }
}
