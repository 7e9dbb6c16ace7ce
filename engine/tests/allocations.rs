//! Deciding allocates nothing once the buffers have grown: plans come back and are used again.

#[path = "../benches/load/mod.rs"]
mod load;

use faser_engine::Policy;
use load::Load;

#[test]
fn a_decision_in_the_steady_state_allocates_nothing() {
    for policy in [Policy::Off, Policy::Fixed { k: 4 }, Policy::Budget, Policy::Faser] {
        for sequences in [1, 64] {
            let mut load = Load::new(sequences, policy.clone());
            // Outputs are far from their ends: nobody comes and nobody goes. Buffers grow until lengths and pruning have settled.
            for _ in 0..200 {
                load.step();
            }
            let counted = allocation_counter::measure(|| {
                for _ in 0..100 {
                    load.step();
                }
            });
            assert_eq!(counted.count_total, 0, "{policy} with {sequences} sequences");
        }
    }
}
