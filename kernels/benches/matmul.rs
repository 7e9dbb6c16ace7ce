//! How near matmul comes to what the machine can do: in the matrices of a TinyLlama-1.1B layer, for 1 to 64 rows, GFLOP/s beside
//! the measured peak of the same cores, and GB/s of weights beside the bandwidth at which the same cores read memory.
//!
//! ```sh
//! cargo bench -p faser-kernels --bench matmul                                      # the default set: 2 to 5 minutes on 2 cores
//! cargo bench -p faser-kernels --bench matmul -- '/bf16/workers-1/rows-(1|16)$'    # a part of it, by regular expression
//! MATMUL_CASES=all cargo bench -p faser-kernels --bench matmul -- '/avx2/int8/'    # a part of everything there is
//! cargo test -p faser-kernels --bench matmul                                       # once through everything, on small matrices
//! ```
//!
//! A case is `matmul/ISA/DTYPE/workers-N/rows-N`. The default set has bf16, int8 and int4 on the instruction set that lanes get here
//! and on AMX if there is any, for one worker and for as many as there are cores. `MATMUL_CASES=all` adds f32 and the machine's other
//! instruction sets. It takes 3 GiB of memory.
//!
//! An iteration is a layer, its four matrices one after the other. Copies of the layer, 1 GiB of them or more, are used in turn, as
//! a pass goes through its layers: weights come from memory, never from a cache. Right after each of criterion's samples
//! the peak and the bandwidth are measured for some milliseconds: where the machine drifts they drift along. The tables at the end are
//! medians over the samples of a case. In int8 and int4 an operation is one of whole numbers. Other work on the same cores spoils all of it.

mod layers;
mod machine;
mod plan;
mod report;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput};
use faser_kernels::{Dtype, Isa, Lane};
use faser_topology::CpuDevice;
use layers::{Layers, Shape};
use machine::{Memory, Peak};
use plan::Plan;
use report::{Case, Limit, Sample};
use std::cell::OnceCell;
use std::error::Error;
use std::time::{Duration, Instant};

const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// What weights and the buffer that is read take, and some more for packing.
const NEEDED_BYTES: u64 = 3 << 30;
/// Times that all limits are measured for their own table.
const LIMIT_SAMPLES: usize = 10;

/// What measuring needs.
struct Bench {
    plan: Plan,
    device: CpuDevice,
    memory: OnceCell<Memory>,
    cases: Vec<Case>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = CpuDevice::discover()?;
    let plan = Plan::new(&device)?;
    if !plan.test && device.memory_bytes < NEEDED_BYTES {
        return Err(
            format!("{} bytes of memory are free, {NEEDED_BYTES} are needed", device.memory_bytes).into()
        );
    }
    let mut criterion = Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .nresamples(10_000)
        .configure_from_args();
    let pinned = Lane::new(&device.first(1)?, Isa::Portable)?.pin_current_thread();
    let mut bench = Bench { plan, device, memory: OnceCell::new(), cases: Vec::new() };
    let mut group = criterion.benchmark_group("matmul");
    group.sampling_mode(SamplingMode::Flat);
    for dtype in bench.plan.dtypes.clone() {
        bench.measure(&mut group, dtype)?;
    }
    group.finish();
    criterion.final_summary();
    bench.report(pinned);
    Ok(())
}

impl Bench {
    /// All cases of a dtype that criterion's filter lets through.
    fn measure(
        &mut self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        dtype: Dtype,
    ) -> Result<(), Box<dyn Error>> {
        let mut layers = None;
        for &isa in &self.plan.isas {
            for &workers in &self.plan.workers {
                let lane = Lane::new(&self.device.first(workers)?, isa)?;
                for rows in ROWS {
                    let case = self.case(group, &lane, dtype, rows, &mut layers);
                    if !case.samples.is_empty() {
                        self.cases.push(case.without_warm_up());
                    }
                }
            }
        }
        Ok(())
    }

    /// One case; without samples if the filter does not let it through. Weights are made for the first that needs them.
    fn case(
        &self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        lane: &Lane,
        dtype: Dtype,
        rows: usize,
        layers: &mut Option<Layers>,
    ) -> Case {
        let (isa, workers) = (lane.isa(), lane.workers());
        let Plan { shapes, bytes, .. } = &self.plan;
        let ops = layers::ops(shapes, rows);
        let peak = Peak::of(&isa.to_string(), dtype);
        let mut samples = Vec::new();
        group.throughput(Throughput::Elements(ops));
        group.bench_function(format!("{isa}/{dtype}/workers-{workers}/rows-{rows}"), |bencher| {
            let layers = layers.get_or_insert_with(|| {
                Layers::new(shapes, dtype, *bytes as u64, ROWS[ROWS.len() - 1]).expect("memory for weights")
            });
            let mut timed = (0, Duration::ZERO);
            bencher.iter_custom(|iterations| {
                let start = Instant::now();
                (0..iterations).for_each(|_| layers.step(lane, rows));
                timed = (iterations, start.elapsed());
                timed.1
            });
            samples.push(Sample {
                layers: timed.0,
                seconds: timed.1.as_secs_f64() / timed.0 as f64,
                peak: peak.map(|peak| self.peak(peak, workers)),
                read: self.read(workers),
            });
        });
        Case { isa, dtype, workers, rows, ops, bytes: layers::bytes(shapes, dtype), samples }
    }

    /// Operations a second of so many workers.
    fn peak(&self, peak: Peak, workers: usize) -> f64 {
        peak.measure(&self.device.cores[..workers], self.plan.peak_time)
    }

    /// Bytes that so many workers read a second.
    fn read(&self, workers: usize) -> f64 {
        let memory = self.memory.get_or_init(|| Memory::new(self.plan.bytes));
        memory.measure(&self.device.cores[..workers], self.plan.read_time)
    }

    /// Everything that the machine can do, again and again in turn: medians.
    fn limits(&self) -> Vec<Limit> {
        let peaks = Peak::all();
        let names = peaks.iter().map(|peak| peak.name()).chain([report::READ]);
        let mut limits: Vec<Limit> =
            names.map(|name| Limit { name, rates: vec![Vec::new(); self.plan.workers.len()] }).collect();
        for _ in 0..if self.plan.test { 1 } else { LIMIT_SAMPLES } {
            for (i, limit) in limits.iter_mut().enumerate() {
                for (workers, rates) in self.plan.workers.iter().zip(&mut limit.rates) {
                    rates.push(
                        peaks.get(i).map_or_else(|| self.read(*workers), |peak| self.peak(*peak, *workers)),
                    );
                }
            }
        }
        limits
    }

    /// Prints the tables, unless the numbers mean nothing.
    fn report(&self, pinned: bool) {
        let Plan { test, shapes, bytes, workers, skipped, .. } = &self.plan;
        if self.cases.is_empty() {
            // Listing, or a filter that lets nothing through.
            return eprintln!("no case was measured; MATMUL_CASES=all adds to those there are");
        }
        let tables = [report::cases(&self.cases), report::limits(workers, &self.limits())];
        if !test {
            let shapes =
                shapes.map(|Shape { name, inputs, outputs }| format!("{name} {inputs} -> {outputs}"));
            println!(
                "## matmul against the machine\n\n{}{}",
                self.device.name,
                if pinned { "" } else { ", not pinned" }
            );
            println!("A layer: {}. Copies in turn: {} MiB or more.\n", shapes.join(", "), bytes >> 20);
            println!("{}", tables.join("\n"));
        }
        for skipped in skipped {
            println!("skipped {skipped}");
        }
    }
}
