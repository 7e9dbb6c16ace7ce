//! Memory of a GPU, and pinned memory of the host that its copies read and write.

use super::error::{CudaError, Named};
use super::gpu::Gpu;
use crate::cuda::{
    Chunk, DraftState, LogitStats, LogprobFound, LogprobWish, PruneTest, Ptr, Sample, Sampler, Tile,
};
use cudarc::driver::{result, sys};
use half::bf16;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What has the same bytes on both sides.
///
/// # Safety
/// Only for types without padding or pointers of the host, of which any bytes are a value.
pub unsafe trait Plain: Copy + 'static {}
// SAFETY: numbers, and structs of them without padding.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}
// SAFETY: as above.
unsafe impl Plain for Chunk {}
// SAFETY: as above.
unsafe impl Plain for DraftState {}
// SAFETY: as above.
unsafe impl Plain for Sample {}
// SAFETY: as above.
unsafe impl Plain for Sampler {}
// SAFETY: as above.
unsafe impl Plain for PruneTest {}
// SAFETY: as above.
unsafe impl Plain for Tile {}
// SAFETY: as above.
unsafe impl Plain for LogprobFound {}
// SAFETY: as above.
unsafe impl Plain for LogprobWish {}
// SAFETY: as above.
unsafe impl Plain for LogitStats {}

/// Places in arenas are multiples of this: what vector loads and cp.async take.
const ALIGN: usize = 16;

/// Device memory; freed when it and its parts are dropped.
pub struct DeviceBuffer {
    memory: Arc<Allocated>,
    ptr: Ptr,
    bytes: usize,
}

/// What the driver gave.
struct Allocated {
    gpu: Arc<Gpu>,
    ptr: Ptr,
}

impl DeviceBuffer {
    /// Zeroed memory. `what` it is for stands in the error.
    ///
    /// # Errors
    /// There is not enough, and how much there is; or the driver fails.
    pub fn zeroed(gpu: &Arc<Gpu>, bytes: usize, what: &'static str) -> Result<DeviceBuffer, CudaError> {
        let buffer = DeviceBuffer::unfilled(gpu, bytes, what)?;
        // SAFETY: the whole of what was just allocated.
        unsafe { result::memset_d8_sync(buffer.ptr.0, 0, buffer.bytes) }.named("cuMemsetD8")?;
        // Streams that do not wait for the null stream may be next.
        gpu.finish()?;
        Ok(buffer)
    }

    /// Memory with anything in it, to be filled by an [`Upload`](super::Upload): nothing waits for it.
    ///
    /// # Errors
    /// As [`DeviceBuffer::zeroed`].
    pub fn unfilled(gpu: &Arc<Gpu>, bytes: usize, what: &'static str) -> Result<DeviceBuffer, CudaError> {
        gpu.bind()?;
        let bytes = bytes.max(ALIGN).next_multiple_of(ALIGN);
        // SAFETY: the memory is freed when this is dropped.
        let ptr = match unsafe { result::malloc_sync(bytes) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free_bytes, total_bytes) = gpu.memory()?;
                return Err(CudaError::OutOfMemory { what, wanted_bytes: bytes, free_bytes, total_bytes });
            }
            allocated => allocated.named("cuMemAlloc")?,
        };
        let memory = Arc::new(Allocated { gpu: gpu.clone(), ptr: Ptr(ptr) });
        Ok(DeviceBuffer { memory, ptr: Ptr(ptr), bytes })
    }

    /// So many bytes of it from byte `offset` on, which live as long as either.
    ///
    /// # Panics
    /// If it ends before.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> DeviceBuffer {
        assert!(offset + bytes <= self.bytes, "{bytes} bytes from {offset} on of {}", self.bytes);
        DeviceBuffer { memory: self.memory.clone(), ptr: self.ptr.behind(offset), bytes }
    }

    /// Where it is.
    #[must_use]
    pub fn ptr(&self) -> Ptr {
        self.ptr
    }

    /// Where byte `offset` of it is.
    ///
    /// # Panics
    /// Beyond its end.
    #[must_use]
    pub fn at(&self, offset: usize) -> Ptr {
        assert!(offset < self.bytes, "byte {offset} of {}", self.bytes);
        Ptr(self.ptr.0 + offset as u64)
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated above. The driver waits for what still uses it.
            let _ = unsafe { result::free_sync(self.ptr.0) };
        }
    }
}

/// Host memory that the GPU can read and write by itself; freed when dropped.
pub(super) struct Pinned {
    gpu: Arc<Gpu>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its memory, as a box does.
unsafe impl Send for Pinned {}
// SAFETY: who shares it reads alone, or has words that are read and written as atomics alone (`Flags`).
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<Pinned, CudaError> {
        gpu.bind()?;
        let bytes = bytes.max(ALIGN).next_multiple_of(ALIGN);
        // SAFETY: freed when dropped; zeroed below, before anyone reads it.
        let start =
            unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP) }.named("cuMemHostAlloc")?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| CudaError::Broken("pinned memory at address 0".to_owned()))?;
        // SAFETY: as many bytes as were allocated.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { gpu: gpu.clone(), start, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first bytes.
    pub(super) fn bytes_of(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes, "beyond pinned memory");
        // SAFETY: inside the memory, which is initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), bytes) }
    }

    /// The first bytes, to write.
    pub(super) fn bytes_of_mut(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.bytes, "beyond pinned memory");
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), bytes) }
    }

    fn slice<T: Plain>(&self, offset: usize, len: usize) -> &[T] {
        assert!(
            offset.is_multiple_of(ALIGN) && offset + len * size_of::<T>() <= self.bytes,
            "beyond pinned memory"
        );
        // SAFETY: inside the memory, aligned for every plain type, any bytes are a value; whoever asks knows that no copy into it is
        // under way.
        unsafe { std::slice::from_raw_parts(self.start.add(offset).cast().as_ptr(), len) }
    }

    pub(super) fn slice_mut<T: Plain>(&mut self, offset: usize, len: usize) -> &mut [T] {
        assert!(
            offset.is_multiple_of(ALIGN) && offset + len * size_of::<T>() <= self.bytes,
            "beyond pinned memory"
        );
        // SAFETY: as above, and nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset).cast().as_ptr(), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated above.
            let _ = unsafe { result::free_host(self.start.as_ptr().cast()) };
        }
    }
}

/// A place in an [`Arena`].
#[derive(Clone, Copy, Debug)]
pub struct Place {
    offset: usize,
    len: usize,
}

/// Small arrays that travel together: a piece of device memory with its twin in pinned memory. What is put in goes there by one copy,
/// what kernels write comes back by one. Its memory is the lane's to touch between [`CudaLane::send`](super::CudaLane::send) or
/// [`CudaLane::fetch`](super::CudaLane::fetch) and [`CudaLane::wait`](super::CudaLane::wait): [`Arena::clear`] is for after that.
pub struct Arena {
    pub(super) host: Pinned,
    pub(super) device: DeviceBuffer,
    pub(super) used: usize,
}

impl Arena {
    /// Room for so many bytes, which includes up to 15 for each array.
    ///
    /// # Errors
    /// There is no memory on one of both sides.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize, what: &'static str) -> Result<Arena, CudaError> {
        Ok(Arena {
            host: Pinned::zeroed(gpu, bytes)?,
            device: DeviceBuffer::zeroed(gpu, bytes, what)?,
            used: 0,
        })
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Room for `len` values, and where they will be on the device.
    ///
    /// # Panics
    /// If there is not so much room: the arena was made for less than it is used for.
    pub fn reserve<T: Plain>(&mut self, len: usize) -> (Ptr, Place) {
        let (offset, bytes) = (self.used, (len * size_of::<T>()).max(1).next_multiple_of(ALIGN));
        assert!(offset + bytes <= self.host.bytes(), "an arena of {} bytes is full", self.host.bytes());
        self.used += bytes;
        (self.device.at(offset), Place { offset, len })
    }

    /// Whether there is room for `len` more values.
    #[must_use]
    pub fn has_room<T: Plain>(&self, len: usize) -> bool {
        self.used + (len * size_of::<T>()).max(1).next_multiple_of(ALIGN) <= self.host.bytes()
    }

    /// Puts values in, and after them zeros up to `len` values: where what follows will be does not depend on how many there are.
    ///
    /// # Panics
    /// As [`Arena::reserve`], or if there are more.
    pub fn put_padded<T: Plain>(&mut self, values: &[T], len: usize) -> Ptr {
        let (ptr, place) = self.reserve::<T>(len);
        self.host.slice_mut(place.offset, values.len()).copy_from_slice(values);
        let (from, to) = (place.offset + size_of_val(values), place.offset + len * size_of::<T>());
        self.host.bytes_of_mut(to)[from..].fill(0);
        ptr
    }

    /// Puts values in.
    ///
    /// # Panics
    /// As [`Arena::reserve`].
    pub fn put<T: Plain>(&mut self, values: &[T]) -> Ptr {
        let (ptr, place) = self.reserve::<T>(values.len());
        self.host.slice_mut(place.offset, place.len).copy_from_slice(values);
        ptr
    }

    /// What came back.
    #[must_use]
    pub fn get<T: Plain>(&self, place: Place) -> &[T] {
        self.host.slice(place.offset, place.len)
    }
}

/// Words of the host's memory that both sides look at while kernels run: flags that the host sets, or what kernels tell.
pub struct Flags {
    memory: Pinned,
    on_device: Ptr,
}

impl Flags {
    /// So many, all 0.
    ///
    /// # Errors
    /// There is no pinned memory.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Flags, CudaError> {
        let memory = Pinned::zeroed(gpu, len * size_of::<u32>())?;
        let mut on_device = 0;
        // SAFETY: pinned memory that was mapped when it was allocated.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut on_device, memory.start.as_ptr().cast(), 0) }
            .named("cuMemHostGetDevicePointer")?;
        Ok(Flags { memory, on_device: Ptr(on_device) })
    }

    /// Where kernels have them: u32 each.
    #[must_use]
    pub fn ptr(&self) -> Ptr {
        self.on_device
    }

    /// Clears all.
    pub fn clear(&self) {
        self.all().iter().for_each(|flag| flag.store(0, Ordering::Release));
    }

    /// Sets one.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn set(&self, index: usize) {
        self.all()[index].store(1, Ordering::Release);
    }

    /// What stands there.
    ///
    /// # Panics
    /// If there is none of that number.
    #[must_use]
    pub fn get(&self, index: usize) -> u32 {
        self.all()[index].load(Ordering::Acquire)
    }

    /// The first `len` of them, for a copy by the GPU.
    pub(super) fn words(&self, len: usize) -> *const u32 {
        self.all()[..len].as_ptr().cast()
    }

    fn all(&self) -> &[AtomicU32] {
        // SAFETY: the memory is whole words, aligned, and touched by nothing but atomics and the GPU, whose stores are of whole words too.
        unsafe { std::slice::from_raw_parts(self.memory.start.cast().as_ptr(), self.memory.bytes / 4) }
    }
}

// No padding.
const _: () = assert!(size_of::<LogprobFound>() == 180 && size_of::<Tile>() == 8);
