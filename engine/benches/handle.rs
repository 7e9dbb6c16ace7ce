//! What a decision costs: `Engine::handle` on the result of a pass, with many sequences running.

mod load;

use criterion::{Criterion, criterion_group, criterion_main};
use faser_engine::Policy;
use load::Load;

fn handle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handle");
    for policy in [Policy::Fixed { k: 4 }, Policy::Budget, Policy::Faser] {
        for sequences in [64, 256] {
            let mut load = Load::new(sequences, policy.clone());
            group.bench_function(format!("{policy}/{sequences}"), |bencher| {
                bencher.iter_custom(|iterations| (0..iterations).map(|_| load.step()).sum());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, handle);
criterion_main!(benches);
