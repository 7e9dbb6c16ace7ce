//! The checks, in the order in which they are run: what serving needs first.

use faser_actors::gpu_check as actors;
use faser_actors::gpu_check::Check;

use super::policies::policies;

/// A check.
pub(super) struct Entry {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// What it shows, in words.
    pub(super) about: &'static str,
    /// Seconds after which it is ended.
    pub(super) limit_s: u64,
    /// Itself.
    pub(super) check: Check,
}

/// All of them.
pub(super) const CHECKS: &[Entry] = &[
    entry("device", "what the driver says of the GPU", 50, actors::device),
    entry("compile", "every kernel compiles for it, without spills", 50, actors::compile),
    entry("ops", "every kernel gives what the CPU's op does", 110, actors::ops),
    entry("logits", "a model's logits are the CPU's", 70, actors::logits),
    entry("split", "launches stay on their half of a split, streams are in order", 40, actors::split),
    entry("graph", "graphs keep the SMs of their half, and do what launches do", 40, actors::graph),
    entry("flags", "flags set while a pass runs are seen by the next shed_rows", 40, actors::flags),
    entry("astray", "a kernel that goes astray ends the lane with the driver's words", 30, actors::astray),
    entry("tokens", "requests get the CPU's tokens from a service in f32", 70, actors::tokens),
    entry("lost", "a service goes on after a kernel has gone astray", 70, actors::lost),
    entry("nccl", "two ranks sum and gather, and one that is lost is noticed", 60, actors::nccl),
    entry("rates", "copies, reads and bf16 products on some of the SMs", 60, actors::rates),
    entry("products", "products on a split: right, without TF32, and how fast", 120, actors::products),
    entry("attention", "how fast attention reads keys and values", 60, actors::attention),
    entry(
        "passes",
        "verify passes of a 7B model and draft steps, against reading the weights",
        170,
        actors::passes,
    ),
    entry("overlap", "drafting and verifying in turns, and at once on splits", 160, actors::overlap),
    entry("policies", "policies against each other through the service", 560, policies),
];

const fn entry(name: &'static str, about: &'static str, limit_s: u64, check: Check) -> Entry {
    Entry { name, about, limit_s, check }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_apart() {
        let mut names: Vec<&str> = CHECKS.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }

    #[test]
    fn the_script_runs_every_check_once_in_pieces_of_less_than_ten_minutes() {
        let script = include_str!("../../../bench/gpu_checks.sh");
        let mut all = Vec::new();
        for piece in script.lines().filter_map(|line| line.split_once("only=")?.1.strip_suffix(" ;;")) {
            let of = |name: &str| CHECKS.iter().find(|entry| entry.name == name).expect(name).limit_s;
            let limit: u64 = piece.split(',').map(of).sum();
            assert!(limit < 580, "{piece}: {limit} s");
            all.extend(piece.split(','));
        }
        let known: Vec<&str> = CHECKS.iter().map(|entry| entry.name).collect();
        assert_eq!(all, known, "every check once, in the order of the table");
    }
}
