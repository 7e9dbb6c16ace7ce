//! The matrices of a transformer layer, in as many copies as it takes that none of them stays in a cache.

use faser_kernels::ops::{Write, matmul};
use faser_kernels::{Dtype, KernelError, Lane, Matrix, Source, Tensor};

/// A matrix of each layer.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// What it makes of what, for the table's head.
    pub(crate) name: &'static str,
    /// Columns of its input.
    pub(crate) inputs: usize,
    /// Columns of its output.
    pub(crate) outputs: usize,
}

/// A layer of TinyLlama-1.1B.
pub(crate) const LAYER: [Shape; 4] = [
    Shape { name: "q|k|v", inputs: 2048, outputs: 2560 },
    Shape { name: "o", inputs: 2048, outputs: 2048 },
    Shape { name: "gate|up", inputs: 2048, outputs: 11_264 },
    Shape { name: "down", inputs: 5632, outputs: 2048 },
];

/// Operations that a layer's matrices take for so many rows: a multiplication and an addition are two.
pub(crate) fn ops(shapes: &[Shape], rows: usize) -> u64 {
    shapes.iter().map(|shape| 2 * (rows * shape.inputs * shape.outputs) as u64).sum()
}

/// Memory of a layer's matrices, in bytes.
pub(crate) fn bytes(shapes: &[Shape], dtype: Dtype) -> u64 {
    shapes.iter().map(|shape| Matrix::packed_bytes(shape.outputs, shape.inputs, dtype)).sum()
}

/// Copies of a layer, used in turn as a pass uses its layers.
pub(crate) struct Layers {
    copies: Vec<Vec<Matrix>>,
    next: usize,
    /// Input and output of each matrix.
    activations: Vec<(Tensor, Tensor)>,
}

impl Layers {
    /// So many copies that they take `least_bytes`, and activations of up to `most_rows`.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(
        shapes: &[Shape],
        dtype: Dtype,
        least_bytes: u64,
        most_rows: usize,
    ) -> Result<Layers, KernelError> {
        let largest = shapes.iter().map(|shape| shape.outputs.max(most_rows) * shape.inputs).max();
        let numbers: Vec<f32> = (0..largest.unwrap_or(0)).map(noise).collect();
        let pack = |shape: &Shape| {
            let weights = Source::F32(&numbers[..shape.inputs * shape.outputs]);
            Matrix::pack(shape.inputs, &[weights], dtype)
        };
        let copies = (0..least_bytes.div_ceil(bytes(shapes, dtype)))
            .map(|_| shapes.iter().map(pack).collect())
            .collect::<Result<_, _>>()?;
        let activations = shapes.iter().map(|shape| {
            let input = Tensor::from_rows(shape.inputs, &numbers[..most_rows * shape.inputs]);
            (input, Tensor::zeros(most_rows, shape.outputs))
        });
        Ok(Layers { copies, next: 0, activations: activations.collect() })
    }

    /// The products of the next layer.
    pub(crate) fn step(&mut self, lane: &Lane, rows: usize) {
        for (matrix, (x, out)) in self.copies[self.next].iter().zip(&mut self.activations) {
            matmul(lane, x.view(rows), matrix, None, out.view_mut(rows), Write::Replace);
        }
        self.next = (self.next + 1) % self.copies.len();
    }
}

/// From -1 to 1.
fn noise(i: usize) -> f32 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0
}
