//! A worker's own memory, kept from op to op: it grows to the largest need and stays, so a pass allocates nothing.

use crate::memory::Buffer;

/// Scratch of one worker.
#[derive(Default)]
pub(crate) struct Scratch {
    floats: Option<Buffer<f32>>,
    /// Tokens that may still be drawn, of the sampler.
    pub(crate) candidates: Vec<(f32, u32)>,
}

impl Scratch {
    /// Slices of these lengths, each aligned to a cache line, with whatever was in them.
    pub(crate) fn floats<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [f32]; N] {
        let line = 64 / size_of::<f32>();
        let total = lens.iter().map(|len| len.next_multiple_of(line)).sum();
        let mut rest = self.at_least(total);
        lens.map(|len| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(len.next_multiple_of(line));
            rest = tail;
            &mut part[..len]
        })
    }

    /// [`Scratch::floats`], and the candidates.
    pub(crate) fn floats_and_candidates(&mut self, len: usize) -> (&mut [f32], &mut Vec<(f32, u32)>) {
        self.at_least(len);
        (self.floats.as_deref_mut().map_or(&mut [], |floats| &mut floats[..len]), &mut self.candidates)
    }

    fn at_least(&mut self, len: usize) -> &mut [f32] {
        if self.floats.as_ref().is_none_or(|floats| floats.len() < len) {
            match Buffer::zeroed(len.next_power_of_two(), "a worker's scratch") {
                Ok(grown) => self.floats = Some(grown),
                Err(error) => panic!("{error}"),
            }
        }
        self.floats.as_deref_mut().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_apart_aligned_and_the_memory_stays() {
        let mut scratch = Scratch::default();
        let [a, b, c] = scratch.floats([3, 0, 70]);
        assert_eq!((a.len(), b.len(), c.len()), (3, 0, 70));
        a.fill(1.0);
        c.fill(2.0);
        assert_eq!((a[2], c[69]), (1.0, 2.0));
        assert_eq!((a.as_ptr() as usize % 64, c.as_ptr() as usize % 64), (0, 0));
        let before = a.as_ptr();
        let [small] = scratch.floats([5]);
        assert_eq!(small.as_ptr(), before);
    }
}
