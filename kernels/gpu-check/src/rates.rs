//! How fast memory and tensor cores are on some of the SMs: what cost tables of a GPU begin from, and the floor of every other check.

use std::sync::Arc;

use super::probes::{self, CopyArgs, FillArgs, ReadArgs};
use super::{CheckResult, Report, Setting, seconds};
use faser_kernels::cuda::{Arena, CudaError, CudaLane, DeviceBuffer, Element, Gpu, Product, Ptr, Share};

/// SMs of the shares that are timed, beside the whole GPU.
const SMS: [u32; 5] = [8, 16, 32, 64, 96];

/// Copies, reads and bf16 products on 8 SMs up to all.
///
/// # Errors
/// The GPU cannot be opened or split, or its memory is short.
pub fn rates(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let memory = Memory::new(&gpu, setting)?;
    let size = setting.size(4096, 16);
    let element = Element::Bf16.bytes();
    let (x, w) = (
        DeviceBuffer::zeroed(&gpu, size * size * element, "x")?,
        DeviceBuffer::zeroed(&gpu, size * size * element, "w")?,
    );
    let out = DeviceBuffer::zeroed(&gpu, size * size * 4, "out")?;
    for sms in SMS.into_iter().filter(|sms| *sms < gpu.info().sms).chain([gpu.info().sms]) {
        let share = share(&gpu, sms)?;
        let lane = &mut CudaLane::new(&[share], false)?;
        let (copy, read) = (memory.copy(lane)?, memory.read(lane)?);
        report.timed(format!("copy (read + write) on {sms} SMs"), 2.0 * copy / 1e9, "GB/s", None);
        report.timed(format!("read on {sms} SMs"), read / 1e9, "GB/s", None);
        for buffer in [&x, &w] {
            let fill = FillArgs::new(Element::Bf16, buffer.ptr(), size * size, 3, 1.0);
            lane.launch(&fill.launch(sms))?;
        }
        let product = Product {
            element: Element::Bf16,
            x: x.ptr(),
            w: w.ptr(),
            bias: Ptr::NULL,
            out: out.ptr(),
            rows: size,
            inputs: size,
            outputs: size,
            add: false,
            records: None,
        };
        let took = seconds(lane, setting.small, &mut |lane, _| lane.multiply(&product))?;
        let rate = 2.0 * (size as f64).powi(3) / took / 1e12;
        report.timed(format!("bf16 product of {size} cubed on {sms} SMs"), rate, "TFLOP/s", None);
    }
    report.right("a copy is what was copied", memory.copied_right(setting.ordinal)?);
    Ok(())
}

/// That many SMs, or all.
pub(super) fn share(gpu: &Arc<Gpu>, sms: u32) -> Result<Arc<Share>, CudaError> {
    if sms >= gpu.info().sms { Ok(Share::whole(gpu)) } else { Ok(Share::split(gpu, sms)?.draft) }
}

/// Bytes per second of a kernel that only reads memory which no cache holds, on the lane's SMs.
///
/// # Errors
/// There is no memory, or the device fails. The kernels of checks are loaded.
pub(super) fn read_bytes_per_s(lane: &mut CudaLane, setting: &Setting) -> Result<f64, CudaError> {
    Memory::new(&lane.gpu().clone(), setting)?.read(lane)
}

/// Two buffers that are too large for caches.
struct Memory {
    gpu: Arc<Gpu>,
    from: DeviceBuffer,
    to: DeviceBuffer,
    sum: DeviceBuffer,
    once: bool,
}

impl Memory {
    fn new(gpu: &Arc<Gpu>, setting: &Setting) -> Result<Memory, CudaError> {
        let bytes = setting.size(1 << 30, 1 << 14);
        let buffer = |bytes| DeviceBuffer::zeroed(gpu, bytes, "the memory of a check");
        Ok(Memory {
            gpu: gpu.clone(),
            from: buffer(bytes)?,
            to: buffer(bytes)?,
            sum: buffer(16)?,
            once: setting.small,
        })
    }

    fn count(&self) -> u64 {
        self.from.bytes() as u64 / 16
    }

    /// Bytes copied per second.
    fn copy(&self, lane: &mut CudaLane) -> Result<f64, CudaError> {
        let args = CopyArgs { from: self.from.ptr(), to: self.to.ptr(), count: self.count() };
        let launch = args.launch(lane.sms());
        Ok(self.from.bytes() as f64 / seconds(lane, self.once, &mut |lane, _| lane.launch(&launch))?)
    }

    /// Bytes read per second.
    fn read(&self, lane: &mut CudaLane) -> Result<f64, CudaError> {
        let args = ReadArgs { from: self.from.ptr(), sum: self.sum.ptr(), count: self.count() };
        let launch = args.launch(lane.sms());
        Ok(self.from.bytes() as f64 / seconds(lane, self.once, &mut |lane, _| lane.launch(&launch))?)
    }

    /// Whether copy and original add up to the same, which is not nothing.
    fn copied_right(&self, seed: usize) -> Result<bool, CudaError> {
        let lane = &mut CudaLane::new(&[Share::whole(&self.gpu)], false)?;
        let sms = lane.sms();
        let numbers = self.from.bytes() / 4;
        lane.launch(&FillArgs::new(Element::F32, self.from.ptr(), numbers, seed as u64, 1.0).launch(sms))?;
        let copy = CopyArgs { from: self.from.ptr(), to: self.to.ptr(), count: self.count() };
        lane.launch(&copy.launch(sms))?;
        let mut arena = Arena::new(&self.gpu, 64, "sums")?;
        let (sums, place) = arena.reserve::<u32>(2);
        lane.clear(sums, 8)?;
        for (from, sum) in [(&self.from, sums), (&self.to, Ptr(sums.0 + 4))] {
            lane.launch(&ReadArgs { from: from.ptr(), sum, count: self.count() }.launch(sms))?;
        }
        lane.fetch(&mut arena)?;
        lane.wait(&mut || {})?;
        let sums = arena.get::<u32>(place);
        Ok(sums[0] == sums[1] && sums[0] != 0)
    }
}
