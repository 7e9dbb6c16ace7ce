//! Products by cublasLt: algorithms are chosen once for each shape and partition, with the partition's SMs as their target.

use super::error::CudaError;
use super::gpu::Gpu;
use super::memory::DeviceBuffer;
use crate::RecordForm;
use crate::cuda::libraries::{Lt, lt_table};
use crate::cuda::{Element, Ptr};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUstream;
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;
/// The call that finds an algorithm.
const HEURISTIC: &str = "cublasLtMatmulAlgoGetHeuristic";
/// What NVIDIA recommends for compute capability 9.
const WORKSPACE_BYTES: usize = 32 << 20;

/// `out = x w^T + bias`, added to what `out` holds if asked. Sums are f32; f32 is not rounded to TF32.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// What `x` and `w` are held in.
    pub element: Element,
    /// The element's `[rows][inputs]`.
    pub x: Ptr,
    /// The element's `[outputs][inputs]`.
    pub w: Ptr,
    /// f32 `[outputs]`, or null.
    pub bias: Ptr,
    /// f32 `[rows][outputs]`.
    pub out: Ptr,
    /// Rows.
    pub rows: usize,
    /// Inputs.
    pub inputs: usize,
    /// Outputs.
    pub outputs: usize,
    /// Whether to add.
    pub add: bool,
    /// `w` is [records](crate::WeightRecords) of this form: cublasLt takes none.
    pub records: Option<RecordForm>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    partition: usize,
    bf16: bool,
    bias: bool,
    add: bool,
    rows: usize,
    inputs: usize,
    outputs: usize,
}

/// A handle, its workspace, and what was chosen.
pub(super) struct Blas {
    lt: &'static Lt,
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer,
    chosen: HashMap<Shape, Chosen>,
    /// Whether one was chosen since this was last taken.
    pub(super) chose: bool,
}

// SAFETY: used by one thread at a time, its owner's.
unsafe impl Send for Blas {}

impl Blas {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Blas, CudaError> {
        gpu.bind()?;
        let workspace = DeviceBuffer::zeroed(gpu, WORKSPACE_BYTES, "the workspace of cublasLt")?;
        let (lt, mut handle) = (lt_table()?, std::ptr::null_mut());
        // SAFETY: a place for a handle.
        unsafe { (lt.cublasLtCreate)(&raw mut handle) }.in_call("cublasLtCreate")?;
        Ok(Blas { lt, handle, workspace, chosen: HashMap::new(), chose: false })
    }

    /// `partition` is its number and its SMs.
    ///
    /// # Panics
    /// If weights are in records.
    pub(super) fn multiply(
        &mut self,
        product: &Product,
        stream: CUstream,
        partition: (usize, u32),
    ) -> Result<(), CudaError> {
        let Product { element, rows, inputs, outputs, .. } = *product;
        assert!(product.records.is_none(), "cublasLt takes no weights in records");
        let shape = Shape {
            partition: partition.0,
            bf16: element == Element::Bf16,
            bias: product.bias != Ptr::NULL,
            add: product.add,
            rows,
            inputs,
            outputs,
        };
        if !self.chosen.contains_key(&shape) {
            self.chosen.insert(shape, Chosen::new(self.lt, self.handle, &shape, product.bias, partition.1)?);
            self.chose = true;
        }
        let chosen = &self.chosen[&shape];
        if shape.bias {
            chosen.set(
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                &product.bias.0,
            )?;
        }
        let (alpha, beta) = (1.0f32, if product.add { 1.0f32 } else { 0.0 });
        let out = product.out.0 as *mut c_void;
        // SAFETY: descriptors and layouts are those of the shape and live as long as this; the pointers are device memory of the
        // caller's, as large as the shape says; alpha and beta are read at once.
        unsafe {
            (self.lt.cublasLtMatmul)(
                self.handle,
                chosen.description,
                (&raw const alpha).cast(),
                product.w.0 as *const c_void,
                chosen.weights.raw,
                product.x.0 as *const c_void,
                chosen.inputs.raw,
                (&raw const beta).cast(),
                out,
                chosen.outputs.raw,
                out,
                chosen.outputs.raw,
                &raw const chosen.algorithm,
                self.workspace.ptr().0 as *mut c_void,
                self.workspace.bytes(),
                stream.cast(),
            )
        }
        .in_call("cublasLtMatmul")
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.chosen.clear();
        // SAFETY: created above; its owner has waited for what used it.
        let _ = unsafe { (self.lt.cublasLtDestroy)(self.handle) };
    }
}

/// Column-major, as cublasLt has it: row-major `[rows][columns]` is `columns` by `rows`.
struct Layout {
    lt: &'static Lt,
    raw: sys::cublasLtMatrixLayout_t,
}

impl Layout {
    fn new(lt: &'static Lt, bf16: bool, columns: usize, rows: usize) -> Result<Layout, CudaError> {
        let number = if bf16 { sys::cudaDataType_t::CUDA_R_16BF } else { sys::cudaDataType_t::CUDA_R_32F };
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for a layout.
        unsafe {
            (lt.cublasLtMatrixLayoutCreate)(&raw mut raw, number, columns as u64, rows as u64, columns as i64)
        }
        .in_call("cublasLtMatrixLayoutCreate")?;
        Ok(Layout { lt, raw })
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once.
        let _ = unsafe { (self.lt.cublasLtMatrixLayoutDestroy)(self.raw) };
    }
}

struct Chosen {
    lt: &'static Lt,
    description: sys::cublasLtMatmulDesc_t,
    weights: Layout,
    inputs: Layout,
    outputs: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Chosen {
    fn new(
        lt: &'static Lt,
        handle: sys::cublasLtHandle_t,
        shape: &Shape,
        bias: Ptr,
        sms: u32,
    ) -> Result<Chosen, CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let Shape { bf16, rows, inputs, outputs, .. } = *shape;
        // Not the fast kind of f32: that one rounds to TF32.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let mut description = std::ptr::null_mut();
        // SAFETY: a place for a description.
        unsafe {
            (lt.cublasLtMatmulDescCreate)(&raw mut description, compute, sys::cudaDataType_t::CUDA_R_32F)
        }
        .in_call("cublasLtMatmulDescCreate")?;
        let mut chosen = Chosen {
            lt,
            description,
            weights: Layout::new(lt, bf16, inputs, outputs)?,
            inputs: Layout::new(lt, bf16, inputs, rows)?,
            outputs: Layout::new(lt, false, outputs, rows)?,
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        chosen.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        chosen.set(Attribute::CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &(sms as i32))?;
        if shape.bias {
            chosen.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.0)?;
            chosen.set(
                Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
                &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            )?;
            chosen.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &sys::cudaDataType_t::CUDA_R_32F)?;
        }
        let mut preference = std::ptr::null_mut();
        // SAFETY: a place for a preference.
        unsafe { (lt.cublasLtMatmulPreferenceCreate)(&raw mut preference) }
            .in_call("cublasLtMatmulPreferenceCreate")?;
        let most = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes: usize = WORKSPACE_BYTES;
        let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        let mut count = 0;
        // SAFETY: all of these were just created; the preference is destroyed once; a place for one result and a number.
        let asked = unsafe {
            let set = (lt.cublasLtMatmulPreferenceSetAttribute)(
                preference,
                most,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            );
            let asked = set.in_call("cublasLtMatmulPreferenceSetAttribute").and_then(|()| {
                (lt.cublasLtMatmulAlgoGetHeuristic)(
                    handle,
                    chosen.description,
                    chosen.weights.raw,
                    chosen.inputs.raw,
                    chosen.outputs.raw,
                    chosen.outputs.raw,
                    preference,
                    1,
                    found.as_mut_ptr(),
                    &raw mut count,
                )
                .in_call(HEURISTIC)
            });
            let _ = (lt.cublasLtMatmulPreferenceDestroy)(preference);
            asked
        };
        asked?;
        if count == 0 {
            return Err(CudaError::Blas {
                call: HEURISTIC,
                code: "no algorithm for this product".to_owned(),
            });
        }
        // SAFETY: one was found.
        let found = unsafe { found.assume_init() };
        found.state.in_call(HEURISTIC)?;
        chosen.algorithm = found.algo;
        Ok(chosen)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), CudaError> {
        // SAFETY: the description lives, and copies the value, whose size the attribute has.
        unsafe {
            (self.lt.cublasLtMatmulDescSetAttribute)(
                self.description,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        }
        .in_call("cublasLtMatmulDescSetAttribute")
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once.
        let _ = unsafe { (self.lt.cublasLtMatmulDescDestroy)(self.description) };
    }
}

trait InCall {
    fn in_call(self, call: &'static str) -> Result<(), CudaError>;
}

impl InCall for sys::cublasStatus_t {
    fn in_call(self, call: &'static str) -> Result<(), CudaError> {
        match self {
            sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
            code => Err(CudaError::Blas { call, code: format!("{code:?}") }),
        }
    }
}
