//! Weights into device memory: read, converted and copied piece by piece, through two pinned buffers.

use super::error::{CudaError, Named};
use super::gpu::Gpu;
use super::memory::{DeviceBuffer, Pinned, Plain};
use super::sms::{Share, Stream};
use crate::KernelError;
use crate::cuda::Element;
use crate::memory::{FromSource, Source, WeightRecords};
use cudarc::driver::result;
use half::bf16;
use std::sync::Arc;

/// Fills device memory from the host: one half is written while the other travels. That is all the memory of the host it takes.
pub struct Upload {
    halves: [(Pinned, Stream); 2],
    next: usize,
}

impl Upload {
    /// Bytes of each half.
    pub const HALF_BYTES: usize = 16 << 20;

    /// Two pinned buffers and two streams.
    ///
    /// # Errors
    /// The driver has none.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Upload, CudaError> {
        let whole = Share::whole(gpu);
        let half = || Ok::<_, CudaError>((Pinned::zeroed(gpu, Self::HALF_BYTES)?, whole.stream(false)?));
        Ok(Upload { halves: [half()?, half()?], next: 0 })
    }

    /// Copies `len` values to `to`, from its value `first` on; `fill` writes those from a number on, as many as there is room for. They are
    /// on the device when [`Upload::finish`] comes back.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If `to` ends before that.
    pub fn values<T: Plain>(
        &mut self,
        to: &DeviceBuffer,
        first: usize,
        len: usize,
        mut fill: impl FnMut(usize, &mut [T]),
    ) -> Result<(), CudaError> {
        self.pieces(to, (first, len), 1, |from, values| {
            fill(from, values);
            Ok(())
        })
    }

    /// Copies a matrix in records to `to`, which is as large.
    ///
    /// # Errors
    /// The driver fails, or a weight is not finite, or enormous.
    pub fn records<E: From<CudaError> + From<KernelError>>(
        &mut self,
        to: &DeviceBuffer,
        records: WeightRecords,
        sources: &[Source<'_>],
    ) -> Result<(), E> {
        let (len, eight) = (records.bytes() / size_of::<u32>(), records.eight_words());
        self.pieces(to, (0, len), eight, |from, words| {
            records.write(sources, from / eight * 8, words).map_err(E::from)
        })
    }

    /// As [`Upload::values`]; pieces are whole multiples of `unit` values, and may be refused.
    fn pieces<T: Plain, E: From<CudaError>>(
        &mut self,
        to: &DeviceBuffer,
        (first, len): (usize, usize),
        unit: usize,
        mut fill: impl FnMut(usize, &mut [T]) -> Result<(), E>,
    ) -> Result<(), E> {
        let each = size_of::<T>();
        assert!((first + len) * each <= to.bytes(), "{len} values from {first} on in {} bytes", to.bytes());
        let together = Self::HALF_BYTES / each / unit * unit;
        assert!(together > 0, "{unit} values do not fit in half of what travels");
        for from in (0..len).step_by(together) {
            let count = together.min(len - from);
            let (pinned, stream) = &mut self.halves[self.next];
            // SAFETY: the stream lives. What it copied from this half is there.
            unsafe { result::stream::synchronize(stream.raw) }.named("cuStreamSynchronize")?;
            let values = pinned.slice_mut::<T>(0, count);
            fill(from, values)?;
            // SAFETY: inside `to`, as asserted; the half is not written before its stream was waited for.
            unsafe { result::memcpy_htod_async(to.at((first + from) * each).0, values, stream.raw) }
                .named("cuMemcpyHtoDAsync")?;
            self.next = 1 - self.next;
        }
        Ok(())
    }

    /// Copies the numbers of a source to `to`, from its number `first` on, as the element.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If `to` ends before that.
    pub fn numbers(
        &mut self,
        to: &DeviceBuffer,
        first: usize,
        source: Source<'_>,
        element: Element,
    ) -> Result<(), CudaError> {
        match element {
            Element::F32 => self.converted::<f32>(to, first, source),
            Element::Bf16 => self.converted::<bf16>(to, first, source),
        }
    }

    fn converted<T: Plain + FromSource>(
        &mut self,
        to: &DeviceBuffer,
        first: usize,
        source: Source<'_>,
    ) -> Result<(), CudaError> {
        self.values::<T>(to, first, source.len(), |from, to| source.read(from, to))
    }

    /// Waits until everything is there.
    ///
    /// # Errors
    /// A copy failed.
    pub fn finish(&mut self) -> Result<(), CudaError> {
        for (_, stream) in &self.halves {
            // SAFETY: the stream lives.
            unsafe { result::stream::synchronize(stream.raw) }.named("cuStreamSynchronize")?;
        }
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
