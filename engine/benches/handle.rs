//! What a decision costs: `Engine::handle` on the result of a pass, with many sequences running.

mod load;

use criterion::{Criterion, criterion_group, criterion_main};
use faser_engine::Policy;
use load::Load;

fn handle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handle");
    for (policy, step_us, repeats, name) in [
        (Policy::Fixed { k: 4 }, 1500, false, "fixed:4"),
        (Policy::Budget, 1500, false, "budget"),
        (Policy::Faser, 1500, false, "faser"),
        // So dear that outcomes are prepared.
        (Policy::Faser, 6000, false, "faser, preparing"),
        (Policy::Faser, 1500, true, "faser, repeating"),
        // So dear that nothing is drafted, beside what that costs without a policy.
        (Policy::Faser, 90_000, false, "faser, undrafted"),
        (Policy::Off, 90_000, false, "off"),
    ] {
        for sequences in [8, 64, 256] {
            let mut load = Load::new(sequences, policy.clone(), step_us, repeats);
            group.bench_function(format!("{name}/{sequences}"), |bencher| {
                bencher.iter_custom(|iterations| (0..iterations).map(|_| load.step()).sum());
            });
            let totals = load.totals();
            println!(
                "{name}/{sequences}: {} outcomes in {} passes",
                totals.outcomes_drafted, totals.target_passes
            );
        }
    }
    group.finish();
}

criterion_group!(benches, handle);
criterion_main!(benches);
