//! The commands that are no daemon: `faser generate`, `check`, `bench`, `compare`, `prove`, `sim`, `pull`, `models` and `gpu-check`.

pub mod bench;
pub mod check;
pub mod compare;
pub mod generate;
#[cfg(feature = "gpu-check")]
pub mod gpu_check;
pub mod pair_args;
pub mod prove;
pub mod pull;
pub mod sim;
pub mod target_args;

/// The arguments of a command as a shell's line has them.
#[cfg(test)]
fn arguments<A: clap::Args>(line: &str) -> Result<A, clap::Error> {
    let command = A::augment_args(clap::Command::new("faser"));
    A::from_arg_matches(&command.try_get_matches_from(line.split_whitespace().skip(1))?)
}
