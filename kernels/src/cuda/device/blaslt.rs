//! Products by cublasLt: algorithms are chosen once for each shape and partition, with the partition's SMs as their target.

use super::error::CudaError;
use super::gpu::Gpu;
use super::memory::DeviceBuffer;
use crate::cuda::{Element, Ptr};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys::CUstream;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;
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
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer,
    chosen: HashMap<Shape, Chosen>,
}

// SAFETY: used by one thread at a time, its owner's.
unsafe impl Send for Blas {}

impl Blas {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Blas, CudaError> {
        gpu.bind()?;
        let workspace = DeviceBuffer::zeroed(gpu, WORKSPACE_BYTES, "the workspace of cublasLt")?;
        let handle = result::create_handle().in_call("cublasLtCreate")?;
        Ok(Blas { handle, workspace, chosen: HashMap::new() })
    }

    /// `partition` is its number and its SMs.
    pub(super) fn multiply(
        &mut self,
        product: &Product,
        stream: CUstream,
        partition: (usize, u32),
    ) -> Result<(), CudaError> {
        let Product { element, rows, inputs, outputs, .. } = *product;
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
            self.chosen.insert(shape, Chosen::new(self.handle, &shape, product.bias, partition.1)?);
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
            result::matmul(
                self.handle,
                chosen.description,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                product.w.0 as *const c_void,
                chosen.weights.0,
                product.x.0 as *const c_void,
                chosen.inputs.0,
                out,
                chosen.outputs.0,
                out,
                chosen.outputs.0,
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
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Column-major, as cublasLt has it: row-major `[rows][columns]` is `columns` by `rows`.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(bf16: bool, columns: usize, rows: usize) -> Result<Layout, CudaError> {
        let number = if bf16 { sys::cudaDataType_t::CUDA_R_16BF } else { sys::cudaDataType_t::CUDA_R_32F };
        let layout = result::create_matrix_layout(number, columns as u64, rows as u64, columns as i64);
        layout.in_call("cublasLtMatrixLayoutCreate").map(Layout)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

struct Chosen {
    description: sys::cublasLtMatmulDesc_t,
    weights: Layout,
    inputs: Layout,
    outputs: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Chosen {
    fn new(handle: sys::cublasLtHandle_t, shape: &Shape, bias: Ptr, sms: u32) -> Result<Chosen, CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let Shape { bf16, rows, inputs, outputs, .. } = *shape;
        // Not the fast kind of f32: that one rounds to TF32.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let description = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F);
        let mut chosen = Chosen {
            description: description.in_call("cublasLtMatmulDescCreate")?,
            weights: Layout::new(bf16, inputs, outputs)?,
            inputs: Layout::new(bf16, inputs, rows)?,
            outputs: Layout::new(false, outputs, rows)?,
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
        let preference = result::create_matmul_pref().in_call("cublasLtMatmulPreferenceCreate")?;
        let most = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes: usize = WORKSPACE_BYTES;
        // SAFETY: all of these were just created; the preference is destroyed once.
        let found = unsafe {
            let set = result::set_matmul_pref_attribute(
                preference,
                most,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            );
            let found = set.and_then(|()| {
                result::get_matmul_algo_heuristic(
                    handle,
                    chosen.description,
                    chosen.weights.0,
                    chosen.inputs.0,
                    chosen.outputs.0,
                    chosen.outputs.0,
                    preference,
                )
            });
            let _ = result::destroy_matmul_pref(preference);
            found
        };
        chosen.algorithm = found.in_call("cublasLtMatmulAlgoGetHeuristic")?.algo;
        Ok(chosen)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), CudaError> {
        // SAFETY: the description lives, and copies the value, whose size the attribute has.
        unsafe {
            result::set_matmul_desc_attribute(
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
        let _ = unsafe { result::destroy_matmul_desc(self.description) };
    }
}

trait InCall<T> {
    fn in_call(self, call: &'static str) -> Result<T, CudaError>;
}

impl<T> InCall<T> for Result<T, result::CublasError> {
    fn in_call(self, call: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| CudaError::Blas { call, code: format!("{:?}", error.0) })
    }
}
