//! Deciding allocates nothing once the buffers have grown: plans come back and are used again.

#[path = "../benches/load/mod.rs"]
mod load;

use faser_engine::Policy;
use load::Load;

#[test]
fn a_decision_in_the_steady_state_allocates_nothing() {
    // The last has draft steps so dear that outcomes are prepared.
    for (policy, step_us) in [
        (Policy::Off, 1500),
        (Policy::Fixed { k: 4 }, 1500),
        (Policy::Budget, 1500),
        (Policy::Faser, 1500),
        (Policy::Faser, 6000),
    ] {
        for (sequences, repeats) in [(1, true), (64, true), (1, false), (64, false)] {
            let mut load = Load::new(sequences, policy.clone(), step_us, repeats);
            // Outputs are far from their ends: nobody comes and nobody goes. Buffers grow until lengths and pruning have settled, and with the
            // text, ever more rarely. Of branches there are as many buffers as were ever needed together.
            for _ in 0..if sequences == 1 { 2000 } else { 200 } {
                load.step();
            }
            let prepared = load.totals().outcomes_drafted;
            let mut allocates = || {
                let counted = allocation_counter::measure(|| {
                    load.step();
                });
                counted.count_total > 0
            };
            let allocated = (0..100).filter(|_| allocates()).count();
            assert_eq!(
                allocated, 0,
                "{policy} with {sequences} sequences, {step_us} us a step, repeating {repeats}: of 100 rounds"
            );
            let prepared = load.totals().outcomes_drafted - prepared;
            let prepares = step_us > 1500 && sequences == 1;
            assert!(!prepares || prepared > 100, "{policy} with {sequences}: {prepared} outcomes");
        }
    }
}
