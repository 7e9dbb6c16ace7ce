//! Where the time of a whole pass of a model, mostly a synthetic one, goes on the CPU lane:
//! `cargo run --release -p faser-models --example pass_speed -- --help`
//!
//! A pass is what verification needs: all layers, the logits of all rows, and a token sampled greedily for each. Beside it stands the
//! floor: the time in which the machine, with the same threads and in the same minutes, merely reads the weights once. Keys and values of
//! the context are hashed numbers, uniform from -1 to 1: times do not depend on them.
//!
//! Cases go round-robin for many rounds, each round beginning with another, so that what disturbs the machine meets all of them; medians of the
//! rounds are reported, and the best. A case finds in the caches what the one before it left: mostly the same weights.

mod options;
mod pass_workload;
mod speed_figures;

use std::error::Error;
use std::path::Path;

use clap::Parser;
use faser_kernels::{CpuDevice, Lane};
use faser_models::synthetic::{SyntheticSpec, pair};
use faser_models::{Model, Shard, WeightSource};

use options::{Case, Options};
use pass_workload::{Memory, Timing, Workload};
use speed_figures::{Machine, Report};

/// Readings of the bandwidth before the first pass.
const FIRST_READINGS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let cases = options.cases()?;
    let device = CpuDevice::discover()?;
    let partition = device.first(options.threads.unwrap_or(device.cores.len()))?;
    let lane = Lane::new(&partition, options.isa)?;
    let pinned = lane.pin_current_thread();
    let model = make(&options)?;
    let model = match options.kv_dtype {
        Some(kv_dtype) => model.with_kv(kv_dtype),
        None => model,
    };
    let weight_bytes = read_bytes(&model);
    let mut memory = Memory::new(weight_bytes);
    let mut workload = Workload::new(model, lane, options.layout, &cases)?;
    let measured = measure(&mut workload, &mut memory, &cases, options.rounds);
    let pinned = pinned && workload.lane().unpinned_helpers() == 0;
    let machine = Machine { device: device.name, pinned };
    let report = Report::new(&options, machine, &workload, weight_bytes, &measured);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        speed_figures::print(&report, options.shares);
    }
    Ok(())
}

/// The synthetic model of a preset, or the one in a folder or file.
fn make(options: &Options) -> Result<Model, Box<dyn Error>> {
    let folder = Path::new(&options.model);
    if folder.exists() {
        let source = WeightSource::folder(folder)?;
        return Ok(Model::load(&source, Shard::WHOLE, options.dtype, &mut |_| {})?);
    }
    let spec = SyntheticSpec::preset(&options.model)?;
    let (model, _) = pair(&spec, options.dtype, &mut |progress| {
        eprint!("\rmaking weights: {} %", 100 * progress.done_bytes / progress.total_bytes);
    })?;
    eprintln!();
    Ok(model)
}

/// What a pass reads of the weights, however many rows it has: of the embedding only a row per token, which is left out.
fn read_bytes(model: &Model) -> u64 {
    let embedding = model.config().vocab * model.config().hidden * model.dtype().beside().bytes();
    model.weight_bytes() - embedding as u64
}

/// All readings of the bandwidth, in bytes per second, and the timings of each case.
struct Measured {
    bandwidths: Vec<f64>,
    timings: Vec<(Case, Vec<Timing>)>,
}

fn measure(workload: &mut Workload, memory: &mut Memory, cases: &[Case], rounds: usize) -> Measured {
    let mut bandwidths: Vec<f64> = (0..FIRST_READINGS).map(|_| memory.read(workload.lane())).collect();
    let mut timings: Vec<(Case, Vec<Timing>)> = cases.iter().map(|case| (*case, Vec::new())).collect();
    // The first round is not kept: it touches all memory.
    for round in 0..=rounds {
        bandwidths.push(memory.read(workload.lane()));
        // The caches hold again what they hold after a pass.
        workload.pass(cases[0]);
        for i in 0..cases.len() {
            let (case, timings) = &mut timings[(round + i) % cases.len()];
            let timing = workload.pass(*case);
            if round > 0 {
                timings.push(timing);
            }
        }
        eprint!("\rround {round} of {rounds}");
    }
    eprintln!();
    Measured { bandwidths, timings }
}
