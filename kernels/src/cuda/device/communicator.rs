//! A communicator of NCCL: one rank's end of a group, never waited on by a call of its own.

use super::error::CudaError;
use crate::cuda::libraries::{Nccl, nccl_table};
use crate::cuda::{Element, Ptr};
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys;
use std::ffi::{CStr, c_int, c_void};

/// As NCCL counts: the oldest that has all calls made here in the form they are made.
const LEAST_VERSION: u32 = 21_800;
/// Of the fields of a config: those up to this version are said.
const CONFIG_VERSION: u32 = 23_000;
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`: NCCL chooses.
const CHOOSES: c_int = c_int::MIN;

/// What a call of NCCL said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// All is well, and the last call is queued.
    Ready,
    /// The last call is not queued yet, or others have not joined.
    Under,
}

/// What NCCL refused or reported, in its words.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) call: &'static str,
    pub(super) code: String,
}

/// A communicator; freed by [`Communicator::abort`], which every owner must call.
pub(super) struct Communicator {
    nccl: &'static Nccl,
    raw: sys::ncclComm_t,
}

// SAFETY: NCCL's handles may be used from any thread, by one at a time: their owner sees to it.
unsafe impl Send for Communicator {}

/// The version of NCCL, as NCCL counts: 23003 is 2.30.3.
///
/// # Errors
/// It is not there, or too old; says what to do.
pub fn nccl_version() -> Result<u32, CudaError> {
    let (nccl, mut version) = (nccl_table()?, 0);
    // SAFETY: a place for a number.
    state(nccl, "ncclGetVersion", unsafe { (nccl.ncclGetVersion)(&raw mut version) })?;
    let version = u32::try_from(version).unwrap_or(0);
    if version < LEAST_VERSION {
        return Err(CudaError::OldNccl { version });
    }
    Ok(version)
}

/// What the ranks of a new group find each other by.
pub(super) fn unique_id() -> Result<sys::ncclUniqueId, CudaError> {
    nccl_version()?;
    let (nccl, mut id) = (nccl_table()?, sys::ncclUniqueId { internal: [0; 128] });
    // SAFETY: a place for an id.
    state(nccl, "ncclGetUniqueId", unsafe { (nccl.ncclGetUniqueId)(&raw mut id) })?;
    Ok(id)
}

impl Communicator {
    /// Begins to join a group with the GPU that the calling thread is bound to; [`Communicator::state`] says when all ranks have.
    pub(super) fn join(
        id: sys::ncclUniqueId,
        rank: usize,
        ranks: usize,
        most_blocks: u32,
    ) -> Result<Communicator, Failed> {
        const CALL: &str = "ncclCommInitRankConfig";
        let nccl = nccl_table().map_err(|error| Failed { call: CALL, code: error.to_string() })?;
        let mut config = sys::ncclConfig_t {
            size: size_of::<sys::ncclConfig_t>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            // No call waits for other ranks.
            blocking: 0,
            cgaClusterSize: CHOOSES,
            minCTAs: CHOOSES,
            maxCTAs: most_blocks as c_int,
            netName: std::ptr::null(),
            splitShare: CHOOSES,
            trafficClass: CHOOSES,
            commName: std::ptr::null(),
            collnetEnable: CHOOSES,
            CTAPolicy: CHOOSES,
            shrinkShare: CHOOSES,
            nvlsCTAs: CHOOSES,
            nChannelsPerNetPeer: CHOOSES,
            nvlinkCentricSched: CHOOSES,
            graphUsageMode: CHOOSES,
            numRmaCtx: CHOOSES,
            maxP2pPeers: CHOOSES,
        };
        let mut raw: sys::ncclComm_t = std::ptr::null_mut();
        // SAFETY: places for a handle and a config, which NCCL copies; the GPU's context is current.
        let code = unsafe {
            (nccl.ncclCommInitRankConfig)(&raw mut raw, ranks as c_int, id, rank as c_int, &raw mut config)
        };
        let communicator = Communicator { nccl, raw };
        match state(nccl, CALL, code) {
            Ok(_) => Ok(communicator),
            Err(failed) => {
                communicator.abort();
                Err(failed)
            }
        }
    }

    /// How it is now.
    pub(super) fn state(&self) -> Result<State, Failed> {
        let mut code = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the communicator lives; a place for a code.
        let asked = unsafe { (self.nccl.ncclCommGetAsyncError)(self.raw, &raw mut code) };
        state(self.nccl, "ncclCommGetAsyncError", asked)?;
        state(self.nccl, "a collective", code)
    }

    /// Queues a sum over the ranks, in place.
    pub(super) fn all_reduce(
        &self,
        at: Ptr,
        len: usize,
        element: Element,
        stream: CUstream,
    ) -> Result<State, Failed> {
        let (from, to) = (at.0 as *const c_void, at.0 as *mut c_void);
        // SAFETY: device memory of the caller's, as long as he says; the stream lives.
        let code = unsafe {
            (self.nccl.ncclAllReduce)(
                from,
                to,
                len,
                number(element),
                sys::ncclRedOp_t::ncclSum,
                self.raw,
                stream.cast(),
            )
        };
        state(self.nccl, "ncclAllReduce", code)
    }

    /// Queues a gathering of `len` numbers of each rank.
    pub(super) fn all_gather(
        &self,
        own: Ptr,
        all: Ptr,
        len: usize,
        element: Element,
        stream: CUstream,
    ) -> Result<State, Failed> {
        let (from, to) = (own.0 as *const c_void, all.0 as *mut c_void);
        // SAFETY: as above; `all` has place for all ranks'.
        let code =
            unsafe { (self.nccl.ncclAllGather)(from, to, len, number(element), self.raw, stream.cast()) };
        state(self.nccl, "ncclAllGather", code)
    }

    /// Ends it, and what it has queued: its kernels leave their stream. No other rank is waited for.
    pub(super) fn abort(self) {
        if !self.raw.is_null() {
            // SAFETY: joined above, and ended once: this is the last use of it.
            let _ = unsafe { (self.nccl.ncclCommAbort)(self.raw) };
        }
    }
}

fn number(element: Element) -> sys::ncclDataType_t {
    match element {
        Element::F32 => sys::ncclDataType_t::ncclFloat32,
        Element::Bf16 => sys::ncclDataType_t::ncclBfloat16,
    }
}

fn state(nccl: &Nccl, call: &'static str, code: sys::ncclResult_t) -> Result<State, Failed> {
    match code {
        sys::ncclResult_t::ncclSuccess => Ok(State::Ready),
        sys::ncclResult_t::ncclInProgress => Ok(State::Under),
        code => Err(failed(nccl, call, code)),
    }
}

fn failed(nccl: &Nccl, call: &'static str, code: sys::ncclResult_t) -> Failed {
    // SAFETY: NCCL returns a string of its own, or null.
    let words = unsafe { (nccl.ncclGetLastError)(std::ptr::null_mut()).as_ref() };
    // SAFETY: as above; it ends with a NUL.
    let words = words.map(|words| unsafe { CStr::from_ptr(words) }.to_string_lossy().trim().to_owned());
    let words =
        words.filter(|words| !words.is_empty()).map_or_else(String::new, |words| format!(" ({words})"));
    Failed { call, code: format!("{code:?}{words}") }
}

impl From<Failed> for CudaError {
    fn from(Failed { call, code }: Failed) -> CudaError {
        CudaError::Group(crate::CollectiveError::Library { call, code })
    }
}
