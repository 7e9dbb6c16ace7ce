//! Speed of the matmul: GFLOP/s, and GB/s of weights, by rows and instruction set.
//!
//! `cargo run --release -p faser-kernels --example matmul_speed -- [THREADS] [INPUTS OUTPUTS [MATRIX_COUNT]]`
//! The default, 32 matrices of 2048 x 2048 used in turn (256 MiB in bf16), does not fit in a cache; a count of 1 may.

use faser_kernels::ops::{Write, matmul};
use faser_kernels::{Dtype, Isa, KernelError, Lane, Matrix, Source, Tensor};
use faser_topology::CpuDevice;
use std::time::{Duration, Instant};

const ROWS: [usize; 3] = [16, 32, 64];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    let argument = |i: usize, default| arguments.get(i).copied().unwrap_or(default);
    let (inputs, outputs, count) = (argument(1, 2048), argument(2, 2048), argument(3, 32));
    let device = CpuDevice::discover()?;
    let partition = device.first(argument(0, device.cores.len()))?;
    println!("{}, {} threads, {count} x [{outputs}, {inputs}]", device.name, partition.cores.len());
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let matrices = (0..count)
            .map(|seed| random_matrix(inputs, outputs, dtype, seed))
            .collect::<Result<Vec<_>, _>>()?;
        for isa in Isa::available() {
            let lane = Lane::new(&partition, isa)?;
            let pinned = lane.pin_current_thread();
            println!("\n{dtype} weights, {isa}{}", if pinned { "" } else { " (not pinned)" });
            println!("{:>5} {:>10} {:>10} {:>8} {:>10}", "rows", "best us", "GFLOP/s", "GB/s", "median us");
            for rows in ROWS {
                let (best, median) = seconds(&lane, &matrices, rows);
                let flop = 2.0 * (rows * inputs * outputs) as f64;
                let (flop_rate, byte_rate) = (flop / best / 1e9, matrices[0].bytes() as f64 / best / 1e9);
                let (best, median) = (best * 1e6, median * 1e6);
                println!("{rows:>5} {best:>10.1} {flop_rate:>10.1} {byte_rate:>8.1} {median:>10.1}");
            }
        }
    }
    Ok(())
}

fn random_matrix(inputs: usize, outputs: usize, dtype: Dtype, seed: usize) -> Result<Matrix, KernelError> {
    let hash = |i: usize| (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let weights: Vec<f32> = (0..inputs * outputs).map(|i| hash(i) as f32 / (1 << 23) as f32 - 1.0).collect();
    Matrix::pack(inputs, &[Source::F32(&weights)], dtype)
}

/// Seconds of one matmul, best and median over rounds through all matrices: on a busy machine the best says more.
fn seconds(lane: &Lane, matrices: &[Matrix], rows: usize) -> (f64, f64) {
    let (inputs, outputs) = (matrices[0].in_features(), matrices[0].out_features());
    let x = Tensor::from_rows(inputs, &vec![0.5; rows * inputs]);
    let mut out = Tensor::zeros(rows, outputs);
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 3 || begin.elapsed() < Duration::from_millis(500) {
        for matrix in matrices {
            let start = Instant::now();
            matmul(lane, x.view(rows), matrix, None, out.view_mut(rows), Write::Replace);
            times.push(start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}
