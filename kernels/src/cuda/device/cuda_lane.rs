//! A lane on a GPU: launches, copies and products, in their order, on the SMs of the partition in use.
//!
//! By an event, what one lane is asked for waits for what another was asked for before, and no host waits. A graph is
//! launches that were asked for once, in capture, and are asked for again all together. Nothing of a captured launch
//! changes from one time to the next, neither where its arrays are nor its grid: what differs lies in those arrays. A
//! graph belongs to the partition on which it was captured, whose SMs its kernels keep.

use super::blaslt::{Blas, Product};
use super::error::{CudaError, Named};
use super::gpu::Gpu;
use super::memory::{Arena, Flags};
use super::nccl_group::{Nccl, NcclRankSlot, OnStream};
use super::peers::{Peers, TRIAL_LEN};
use super::sms::{Share, Stream};
use crate::collective::Collective;
use crate::cuda::{Element, Launch, Ptr, SumRanksArgs};
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waiting begins with looking all the time, this many times, before it lets other threads of the host go first.
const EAGER_LOOKS: u32 = 2000;
/// Looks at the stream between two at the lane's group.
const WATCH_EVERY: u32 = 64;
/// Calls of the group from one mark in the lane's stream to the next. A lane is less than three such stretches ahead of its GPU: if another
/// rank does not come, a full launch queue (some 1,000 launches) would keep this thread in the driver, where it can neither watch the
/// group nor end it. A call has two to five launches before it.
const MARK_EVERY: usize = 16;

/// How long sums may take by which ranks find out whether they may write each other's memory.
const TRIAL: Duration = Duration::from_secs(10);

/// After so long a GPU hangs on which nothing waits for others any more.
const DRAINED: Duration = Duration::from_secs(30);

/// How the small sums of a group's ranks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallSums {
    /// As all others, by NCCL: the GPUs may not write each other's memory, are too many or not all here, or that is turned off.
    Nccl,
    /// By NCCL too: the driver says that the GPUs may write each other's memory, and what they wrote did not come, or wrong.
    Unproven,
    /// Over each other's memory.
    Peers,
}

/// An ordered stream of work on a GPU, used by one thread. It has a stream for each partition; what one began is finished before
/// another goes on, by [`CudaLane::wait`].
pub struct CudaLane {
    gpu: Arc<Gpu>,
    streams: Vec<Stream>,
    current: usize,
    blas: Blas,
    /// Whether something was asked for since the last wait.
    busy: bool,
    /// The group that this lane is a rank of, and whether its sums are in the order of the ranks, however many there are.
    group: Option<Nccl>,
    in_order: bool,
    /// While something is captured, calls over the other GPUs' memory in it.
    captured: Option<u64>,
    /// Calls of the group, and the last two marks in front of some of them.
    calls: usize,
    marks: Vec<Event>,
    /// Looks at a stream that was not done, and since when there have been some.
    looks: u32,
    waits_since: Option<Instant>,
}

impl CudaLane {
    /// A lane on its shares of the partitions, all of one GPU. Where lanes share SMs, an `urgent` one goes first.
    ///
    /// # Errors
    /// The driver or cublasLt gives no stream, handle or workspace.
    pub fn new(shares: &[Arc<Share>], urgent: bool) -> Result<CudaLane, CudaError> {
        let Some(first) = shares.first() else {
            return Err(CudaError::Split { problem: "a lane needs at least one share".to_owned() });
        };
        let gpu = first.gpu().clone();
        let streams = shares.iter().map(|share| share.stream(urgent)).collect::<Result<Vec<_>, _>>()?;
        Ok(CudaLane {
            blas: Blas::new(&gpu)?,
            gpu,
            streams,
            current: 0,
            busy: false,
            group: None,
            in_order: false,
            captured: None,
            calls: 0,
            marks: Vec::new(),
            looks: 0,
            waits_since: None,
        })
    }

    /// Makes this the lane of one rank of a group, and waits until the others have joined too. Sums are added up `in_order` of the ranks, if that is
    /// asked for: a row's sum does not depend on how many there are.
    ///
    /// # Errors
    /// NCCL refuses, another rank gave up, or does not come in time; or sums of more than two ranks cannot be in order.
    ///
    /// # Panics
    /// If the slot was taken before.
    pub fn join(&mut self, slot: &NcclRankSlot, in_order: bool) -> Result<SmallSums, CudaError> {
        self.gpu.bind()?;
        let sms = self.streams.iter().map(|stream| stream.share.sms()).min().unwrap_or(1);
        let mut group = slot.join(&self.gpu, sms)?;
        let small_sums = match group.peers_mut().and_then(Peers::trial) {
            Some(arena) => {
                let right = self.prove(&group, arena)?;
                group.settle_peers(right)?;
                if group.peers().is_some() { SmallSums::Peers } else { SmallSums::Unproven }
            }
            None => SmallSums::Nccl,
        };
        // Two numbers have one sum.
        if in_order && group.ranks() > 2 && group.peers().is_none() {
            return Err(CudaError::NoPeers { ranks: group.ranks() });
        }
        (self.in_order, self.group) = (in_order && group.ranks() > 2, Some(group));
        self.marks = vec![Event::new(&self.gpu)?, Event::new(&self.gpu)?];
        Ok(small_sums)
    }

    /// Whether sums over the others' memory are what they must be: two on each partition, through both slots of the blocks that they take.
    fn prove(&mut self, group: &Nccl, mut arena: Arena) -> Result<bool, CudaError> {
        let Some(peers) = group.peers() else { return Ok(false) };
        let mut right = true;
        for partition in 0..self.streams.len() {
            self.current = partition;
            let found = self.prove_here(group, peers, &mut arena);
            if found.is_err() {
                // The arena goes when nothing uses it any more.
                peers.stop().set(0);
                self.drain();
            }
            right &= found?;
        }
        self.current = 0;
        Ok(right)
    }

    /// The same on the partition in use. Where one failed nobody waits in the next.
    fn prove_here(&mut self, group: &Nccl, peers: &Peers, arena: &mut Arena) -> Result<bool, CudaError> {
        arena.clear();
        // Whole numbers, of which any order has the same sum; that of two sums is as many times the first as there are ranks.
        let value = |rank: usize, i: usize| ((i * 7 + rank * 31) % 127) as f32;
        let own: Vec<f32> = (0..TRIAL_LEN).map(|i| value(group.rank(), i)).collect();
        let at = arena.put(&own);
        self.send(arena)?;
        for _ in 0..2 {
            self.launch(&peers.sum(at, TRIAL_LEN))?;
        }
        self.fetch(arena)?;
        let (begun, within) = (Instant::now(), TRIAL.min(group.deadline()));
        let mut in_time = true;
        // It is not lost to the lane: what does not come is stopped, and others are asked.
        while !self.look()? {
            if in_time && (begun.elapsed() > within || group.stands().is_err()) {
                peers.stop().set(0);
                in_time = false;
            }
            std::thread::yield_now();
        }
        group.stands()?;
        arena.clear();
        let sums = arena.reserve::<f32>(TRIAL_LEN).1;
        let sum = |i| (0..group.ranks()).map(|rank| value(rank, i)).sum::<f32>() * group.ranks() as f32;
        Ok(in_time && arena.get::<f32>(sums).iter().enumerate().all(|(i, found)| *found == sum(i)))
    }

    /// This rank of the lane's group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, Collective::rank)
    }

    /// Ranks of the lane's group: 1 alone.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.group.as_ref().map_or(1, Collective::ranks)
    }

    /// Sees to it that all ranks of the group have the same plans in the same order.
    ///
    /// # Errors
    /// They have not, and the group is ended.
    pub fn agree_on(&mut self, plan: u64) -> Result<(), CudaError> {
        self.group.as_mut().map_or(Ok(()), |group| Ok(group.agree_on(plan)?))
    }

    /// Asks for the sum of what the ranks of the group have at `at`, `len` elements, in place; alone nothing is to be done.
    ///
    /// # Errors
    /// The group is lost.
    pub fn all_reduce_sum(&mut self, at: Ptr, len: usize, element: Element) -> Result<(), CudaError> {
        if let Some(most) = self.over_peers(len).filter(|_| element == Element::F32) {
            for first in (0..len).step_by(most) {
                let (at, len) = (at.behind(first * element.bytes()), most.min(len - first));
                self.ask_peers(|peers| peers.sum(at, len))?;
            }
            return Ok(());
        }
        self.mark()?;
        let mut values = self.floats(at, len, element);
        let Some(group) = &self.group else { return Ok(()) };
        self.busy = true;
        Ok(group.all_reduce_sum(&mut values)?)
    }

    /// Asks for what all ranks of the group have at `own`, `len` words of 4 bytes each, rank after rank at `all`; alone, for a copy.
    ///
    /// # Errors
    /// The group is lost, or the driver refuses.
    pub fn all_gather(&mut self, own: Ptr, all: Ptr, len: usize) -> Result<(), CudaError> {
        if self.over_peers(len).is_some_and(|most| len <= most) {
            return self.ask_peers(|peers| peers.gather(own, all, len));
        }
        self.mark()?;
        let (from, mut to) =
            (self.floats(own, len, Element::F32), self.floats(all, len * self.ranks(), Element::F32));
        let Some(group) = &self.group else { return self.copy(own, all, 4 * len) };
        self.busy = true;
        Ok(group.all_gather(&from, &mut to)?)
    }

    /// Whether a sum of so many numbers can be captured: it goes over the other GPUs' memory, or there are none.
    #[must_use]
    pub fn captures_sums(&self, len: usize) -> bool {
        self.group.is_none() || self.over_peers(len).is_some()
    }

    /// Numbers of a call over the other GPUs' memory, if a sum of so many goes there: few, or all where sums are in order.
    fn over_peers(&self, len: usize) -> Option<usize> {
        let most = self.group.as_ref()?.peers()?.most();
        (len <= most || self.in_order).then_some(most)
    }

    /// Asks for a call over the other GPUs' memory.
    fn ask_peers(&mut self, call: impl FnOnce(&Peers) -> Launch<SumRanksArgs>) -> Result<(), CudaError> {
        match &mut self.captured {
            Some(calls) => *calls += 1,
            None => self.begins(1)?,
        }
        let launch = self.group.as_ref().and_then(Nccl::peers).map(call);
        launch.map_or(Ok(()), |launch| self.launch(&launch))
    }

    /// Before so many calls over the other GPUs' memory are asked for.
    fn begins(&mut self, calls: u64) -> Result<(), CudaError> {
        self.mark()?;
        Ok(self.group.as_ref().map_or(Ok(()), |group| group.begins(calls))?)
    }

    /// Before a call of the group: now and then waits until the GPU has come to the mark before the last, which becomes the last.
    fn mark(&mut self) -> Result<(), CudaError> {
        let call = self.calls;
        self.calls = call.wrapping_add(1);
        if self.marks.is_empty() || !call.is_multiple_of(MARK_EVERY) {
            return Ok(());
        }
        let place = call / MARK_EVERY % self.marks.len();
        let (mut looks, mut since) = (0u32, None);
        while !self.told(self.marks[place].reached())? {
            looks = looks.wrapping_add(1);
            if let Some(group) = self.group.as_ref().filter(|_| looks.is_multiple_of(WATCH_EVERY)) {
                group.watch(*since.get_or_insert_with(Instant::now))?;
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        // SAFETY: both live.
        unsafe { result::event::record(self.marks[place].raw, self.stream()) }.named("cuEventRecord")
    }

    fn floats(&self, at: Ptr, len: usize, element: Element) -> OnStream {
        OnStream { at, len, element, stream: self.stream() }
    }

    /// Its GPU.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// SMs of the partition in use.
    #[must_use]
    pub fn sms(&self) -> u32 {
        self.streams[self.current].share.sms()
    }

    /// What follows runs on this partition.
    ///
    /// # Errors
    /// What runs on the one before fails.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn work_on(&mut self, partition: usize) -> Result<(), CudaError> {
        assert!(partition < self.streams.len(), "partition {partition} of {}", self.streams.len());
        if partition != self.current {
            self.wait(&mut || {})?;
            self.current = partition;
        }
        Ok(())
    }

    /// Binds the calling thread, which from now on is the lane's.
    ///
    /// # Errors
    /// The GPU's context is gone.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.gpu.bind()
    }

    /// Asks for a launch. An empty grid is nothing to do. Pointers in its arguments are of memory that lives until the lane was waited for.
    ///
    /// # Errors
    /// The driver refuses it. What goes wrong inside comes out at a later call.
    pub fn launch<A>(&mut self, launch: &Launch<A>) -> Result<(), CudaError> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        self.busy = true;
        let [x, y, z] = launch.grid;
        let mut parameters = [(&raw const launch.args).cast_mut().cast::<c_void>()];
        // SAFETY: the kernel's one parameter is this struct, byte for byte, and the driver copies it. Kernels touch device memory
        // alone (and flags of the host, which are atomic): an illegal access ends in a failure of the device.
        unsafe {
            result::launch_kernel(
                self.gpu.function(launch.kernel),
                (x, y, z),
                (launch.block, 1, 1),
                launch.shared_bytes,
                self.stream(),
                &mut parameters,
            )
        }
        .named(launch.kernel)
    }

    /// Asks for a product of matrices by cublasLt.
    ///
    /// # Errors
    /// cublasLt has no algorithm for it, or fails.
    pub fn multiply(&mut self, product: &Product) -> Result<(), CudaError> {
        self.busy = true;
        let (stream, sms) = (self.stream(), self.sms());
        self.blas.multiply(product, stream, (self.current, sms))
    }

    /// Whether algorithms of cublasLt were chosen since this was last asked: it loads kernels for that.
    pub fn chose(&mut self) -> bool {
        std::mem::take(&mut self.blas.chose)
    }

    /// Asks for zeros.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn clear(&mut self, ptr: Ptr, bytes: usize) -> Result<(), CudaError> {
        self.busy = true;
        // SAFETY: device memory of the caller's.
        unsafe { result::memset_d8_async(ptr.0, 0, bytes, self.stream()) }.named("cuMemsetD8Async")
    }

    /// Asks for a copy on the device.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), CudaError> {
        self.busy = true;
        // SAFETY: device memory of the caller's.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream()) }.named("cuMemcpyDtoDAsync")
    }

    /// Asks for a copy on the device of rows that stand `from.1` and `to.1` bytes apart.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn copy_rows(
        &mut self,
        from: (Ptr, usize),
        to: (Ptr, usize),
        bytes: usize,
        rows: usize,
    ) -> Result<(), CudaError> {
        if rows == 0 || bytes == 0 {
            return Ok(());
        }
        self.busy = true;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from.0.0,
            srcArray: std::ptr::null_mut(),
            srcPitch: from.1,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.0.0,
            dstArray: std::ptr::null_mut(),
            dstPitch: to.1,
            WidthInBytes: bytes,
            Height: rows,
        };
        // SAFETY: device memory of the caller's; the driver copies the description.
        unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.stream()) }.named("cuMemcpy2DAsync")
    }

    /// Asks for a copy of the first `len` flags, as they will be when it comes to its turn.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn snapshot(&mut self, flags: &Flags, len: usize, to: Ptr) -> Result<(), CudaError> {
        self.busy = true;
        let from = flags.words(len);
        // SAFETY: pinned memory that lives until the lane was waited for, read by the device as flags always are.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from.cast(), 4 * len, self.stream()) }
            .named("cuMemcpyHtoDAsync")
    }

    /// Sends what was put into an arena.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn send(&mut self, arena: &mut Arena) -> Result<(), CudaError> {
        self.busy = true;
        let (to, used) = (arena.device.ptr(), arena.used);
        let from: &[u8] = arena.host.bytes_of(used);
        // SAFETY: both are as long; the arena may not be written before `wait`, which its owner sees to.
        unsafe { result::memcpy_htod_async(to.0, from, self.stream()) }.named("cuMemcpyHtoDAsync")
    }

    /// Fetches an arena's content; it is there after `wait`.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn fetch(&mut self, arena: &mut Arena) -> Result<(), CudaError> {
        self.busy = true;
        let (from, used, stream) = (arena.device.ptr(), arena.used, self.stream());
        let to = arena.host.bytes_of_mut(used);
        // SAFETY: both are as long; the arena may not be read before `wait`, which its owner sees to.
        unsafe { result::memcpy_dtoh_async(to, from.0, stream) }.named("cuMemcpyDtoHAsync")
    }

    /// Waits for everything that was asked for; `meanwhile` is called again and again.
    ///
    /// # Errors
    /// Something of it failed: the device is lost to this lane.
    pub fn wait(&mut self, meanwhile: &mut dyn FnMut()) -> Result<(), CudaError> {
        if !self.busy {
            return Ok(());
        }
        let mut looks = 0u32;
        while !self.look()? {
            meanwhile();
            looks = looks.saturating_add(1);
            if looks > EAGER_LOOKS {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Waits until nothing of it is under way, whatever has become of it: before memory goes that it uses.
    pub fn finish(&mut self) {
        if self.wait(&mut || {}).is_err()
            && let Some(group) = &self.group
        {
            // What waited for other ranks leaves the stream.
            group.end();
            self.drain();
        }
    }

    /// Waits for the stream, whatever the group says; not for a GPU that hangs.
    fn drain(&mut self) {
        let begun = Instant::now();
        // SAFETY: the stream lives.
        while unsafe { sys::cuStreamQuery(self.stream()) } == sys::CUresult::CUDA_ERROR_NOT_READY
            && begun.elapsed() < DRAINED
        {
            std::thread::yield_now();
        }
        (self.busy, self.waits_since) = (false, None);
    }

    /// Asks how far the device is, once: true if it has done everything, and what it wrote for the host is seen.
    ///
    /// # Errors
    /// Something that was asked for failed, or the lane's group is lost.
    pub fn look(&mut self) -> Result<bool, CudaError> {
        // SAFETY: the stream lives.
        let code = unsafe { sys::cuStreamQuery(self.stream()) };
        if code == sys::CUresult::CUDA_ERROR_NOT_READY {
            return self.watch().map(|()| false);
        }
        (self.busy, self.waits_since) = (false, None);
        let done = self.told(code.named("cuStreamQuery").map(|()| true))?;
        // What was stopped has ended too, with anything in what it was to write.
        self.group.as_ref().map_or(Ok(()), Nccl::stands)?;
        Ok(done)
    }

    /// What fails on this GPU ends the group.
    fn told(&self, found: Result<bool, CudaError>) -> Result<bool, CudaError> {
        if let (Err(error), Some(group)) = (&found, &self.group) {
            group.abort(&format!("on the GPU of rank {}: {error}", group.rank()));
        }
        found
    }

    /// Now and then, while the stream is not done: whether the group still is what it waits for.
    fn watch(&mut self) -> Result<(), CudaError> {
        let Some(group) = &self.group else { return Ok(()) };
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(WATCH_EVERY) {
            return Ok(());
        }
        Ok(group.watch(*self.waits_since.get_or_insert_with(Instant::now))?)
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.streams[self.current].raw
    }

    /// The number of the partition in use.
    #[must_use]
    pub fn partition(&self) -> usize {
        self.current
    }

    pub(super) fn begin_work(&mut self) {
        self.busy = true;
    }

    /// Records an event behind all that the lane was asked for; where it was recorded before is forgotten, but by those who wait for it already.
    ///
    /// # Errors
    /// The driver refuses, such as in a capture or for another GPU's event.
    pub fn record(&mut self, event: &Event) -> Result<(), CudaError> {
        self.begin_work();
        // SAFETY: both live.
        unsafe { result::event::record(event.raw, self.stream()) }.named("cuEventRecord")
    }

    /// What the lane is asked for from here on begins when what stands before the event, where it is recorded now, is done.
    ///
    /// # Errors
    /// The driver refuses, such as in a capture.
    pub fn wait_for(&mut self, event: &Event) -> Result<(), CudaError> {
        self.begin_work();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live, and the driver keeps what it needs of the event.
        unsafe { result::stream::wait_event(self.stream(), event.raw, flags) }.named("cuStreamWaitEvent")
    }

    /// From here on, what is asked for is not done but captured, up to [`CudaLane::end_capture`]: launches, products, zeros and copies on the
    /// device. Copies from and to the host are refused, and so is waiting.
    ///
    /// # Errors
    /// The driver refuses, such as while it captures already; or what was asked for before fails, for which a rank of a group waits: in the
    /// driver, which may wait for the GPU when a graph is made, it could not find out that another rank is lost.
    pub fn begin_capture(&mut self) -> Result<(), CudaError> {
        if self.group.is_some() {
            self.wait(&mut || {})?;
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.stream(), mode) }.named("cuStreamBeginCapture")?;
        self.captured = Some(0);
        Ok(())
    }

    /// What was captured. To be called after an error in between, too.
    ///
    /// # Errors
    /// Something was asked for that cannot be captured, or the driver has no memory for it.
    pub fn end_capture(&mut self) -> Result<Graph, CudaError> {
        let calls = self.captured.take().unwrap_or(0);
        // SAFETY: the stream lives; an instance does not need the graph that it is of.
        let raw = unsafe {
            let graph = result::stream::end_capture(self.stream()).named("cuStreamEndCapture")?;
            let instance = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            instance.named("cuGraphInstantiate")?
        };
        Ok(Graph { gpu: self.gpu().clone(), partition: self.partition(), calls, raw })
    }

    /// Asks for all that a graph has. Pointers in it are of memory that lives until the lane was waited for.
    ///
    /// # Errors
    /// The driver refuses it.
    ///
    /// # Panics
    /// If it was captured on another partition.
    pub fn replay(&mut self, graph: &Graph) -> Result<(), CudaError> {
        assert_eq!(graph.partition, self.partition(), "a graph of another partition");
        if graph.calls > 0 {
            self.begins(graph.calls)?;
        }
        self.begin_work();
        // SAFETY: both live. Its launches were checked when they were captured.
        unsafe { result::graph::launch(graph.raw, self.stream()) }.named("cuGraphLaunch")
    }
}

impl Drop for CudaLane {
    fn drop(&mut self) {
        // What is still under way may use memory that goes with the lane's owner.
        if self.gpu.bind().is_ok() {
            self.finish();
        }
        // Before its stream.
        self.group = None;
    }
}

/// A place in what a lane was asked for, once it is recorded there.
pub struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: a handle of the driver, which locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that nobody has recorded: it is waited for in no time.
    ///
    /// # Errors
    /// The driver has none.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Event, CudaError> {
        gpu.bind()?;
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Ok(Event { gpu: gpu.clone(), raw: raw.named("cuEventCreate")? })
    }

    /// Whether what stands before it is done.
    fn reached(&self) -> Result<bool, CudaError> {
        // SAFETY: it lives.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => code.named("cuEventQuery").map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: created above, destroyed once. Whoever waits for it still does.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// Captured launches. It is dropped after the lane was waited for.
pub struct Graph {
    gpu: Arc<Gpu>,
    partition: usize,
    /// Of them, those over the memory of the group's other GPUs.
    calls: u64,
    raw: sys::CUgraphExec,
}

// SAFETY: a handle of the driver, which locks.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: instantiated below, destroyed once.
            let _ = unsafe { result::graph::exec_destroy(self.raw) };
        }
    }
}
