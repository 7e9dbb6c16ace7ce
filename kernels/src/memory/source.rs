//! Numbers as they lie in a checkpoint.

use super::buffer::Element;
use half::{bf16, f16};

/// Row-major numbers of a checkpoint, in the type they are stored in.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Upper half of single precision.
    Bf16(&'a [bf16]),
    /// Half precision.
    F16(&'a [f16]),
}

impl Source<'_> {
    /// How many numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Source::F32(x) => x.len(),
            Source::Bf16(x) => x.len(),
            Source::F16(x) => x.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies numbers from `from`, as many as `to` takes, in its type.
    pub(crate) fn read<T: FromSource>(&self, from: usize, to: &mut [T]) {
        let range = from..from + to.len();
        match self {
            Source::F32(x) => to.iter_mut().zip(&x[range]).for_each(|(y, x)| *y = T::from_f32(*x)),
            Source::Bf16(x) => to.iter_mut().zip(&x[range]).for_each(|(y, x)| *y = T::from_bf16(*x)),
            Source::F16(x) => to.iter_mut().zip(&x[range]).for_each(|(y, x)| *y = T::from_f32(x.to_f32())),
        }
    }
}

/// A type that numbers are stored in once loaded; rounded to nearest where it is narrower.
pub(crate) trait FromSource: Element {
    /// The zero of padding.
    const ZERO: Self;
    fn from_f32(x: f32) -> Self;
    fn from_bf16(x: bf16) -> Self;
}

impl FromSource for f32 {
    const ZERO: f32 = 0.0;

    fn from_f32(x: f32) -> f32 {
        x
    }

    fn from_bf16(x: bf16) -> f32 {
        x.to_f32()
    }
}

impl FromSource for bf16 {
    const ZERO: bf16 = bf16::ZERO;

    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }

    fn from_bf16(x: bf16) -> bf16 {
        x
    }
}
