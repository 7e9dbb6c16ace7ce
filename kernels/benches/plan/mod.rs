//! What is measured, and how long.

use crate::layers::{LAYER, Shape};
use faser_kernels::{Dtype, Isa, Lane};
use faser_topology::CpuDevice;
use std::error::Error;
use std::time::Duration;

/// How much is measured of what.
pub(crate) struct Plan {
    /// Whether each case runs just once: numbers mean nothing then.
    pub(crate) test: bool,
    pub(crate) shapes: [Shape; 4],
    /// Weights together, and the buffer that is read.
    pub(crate) bytes: usize,
    pub(crate) peak_time: Duration,
    pub(crate) read_time: Duration,
    pub(crate) isas: Vec<Isa>,
    pub(crate) dtypes: Vec<Dtype>,
    pub(crate) workers: Vec<usize>,
    /// Instruction sets left out, and why.
    pub(crate) skipped: Vec<String>,
}

impl Plan {
    /// By `MATMUL_CASES`, the command line, and what the machine has.
    ///
    /// # Errors
    /// If the variable says something unknown.
    pub(crate) fn new(device: &CpuDevice) -> Result<Plan, Box<dyn Error>> {
        let all = match std::env::var_os("MATMUL_CASES") {
            None => false,
            Some(value) if value == "default" => false,
            Some(value) if value == "all" => true,
            Some(value) => return Err(format!("MATMUL_CASES is {value:?}: choose default or all").into()),
        };
        // As criterion decides it: `cargo bench` says `--bench`, `cargo test` does not.
        let argument = |name: &str| std::env::args().any(|argument| argument == name);
        let test = !argument("--bench") || argument("--test");
        let (mut isas, mut skipped) = (Vec::new(), Vec::new());
        for isa in Isa::ALL {
            if let Err(error) = Lane::new(&device.first(1)?, isa) {
                skipped.push(format!("{isa}: {error}"));
            } else if all || test || isa == Isa::detect() || isa.to_string() == "amx" {
                isas.push(isa);
            } else {
                skipped.push(format!("{isa}: not in the default set, MATMUL_CASES=all has it"));
            }
        }
        let mut dtypes = vec![Dtype::Bf16, Dtype::Int8, Dtype::Int4];
        dtypes.extend((all || test).then_some(Dtype::F32));
        let mut workers = vec![1, device.cores.len()];
        workers.dedup();
        let smaller =
            |shape: Shape| Shape { inputs: shape.inputs / 16, outputs: shape.outputs / 16, ..shape };
        let millis = |full: u64| Duration::from_micros(if test { 100 } else { full * 1000 });
        Ok(Plan {
            test,
            shapes: if test { LAYER.map(smaller) } else { LAYER },
            bytes: if test { 1 << 20 } else { 1 << 30 },
            peak_time: millis(8),
            read_time: millis(10),
            isas,
            dtypes,
            workers,
            skipped,
        })
    }
}
