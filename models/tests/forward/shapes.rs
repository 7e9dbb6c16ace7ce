//! Layers of every kind and mixture, those that no family has too, against candle; see `oracle`.

use faser_kernels::{Dtype, Isa};
use faser_models::rounding::Distance;
use faser_models::{Model, ModelConfig, Shard, WeightSource};

use crate::oracle::{Checkpoint, Random, config};
use crate::session::Session;

fn tokens(config: &ModelConfig, random: &mut Random) -> Vec<u32> {
    (0..30).map(|_| random.below(config.vocab) as u32).collect()
}

fn rounded(logits: Vec<Vec<f64>>) -> Vec<Vec<f32>> {
    logits.into_iter().map(|row| row.into_iter().map(|logit| logit as f32).collect()).collect()
}

#[test]
fn layers_of_any_mixture_have_candles_logits() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let config = config(&mut random);
        let checkpoint = Checkpoint::new(&config, &mut random, &format!("cpu-{seed}"));
        let tokens = tokens(&config, &mut random);
        let expected = rounded(checkpoint.logits(&config, &tokens).unwrap());
        let folder = checkpoint.folder();
        let source = WeightSource::Folder(folder.to_owned(), Box::new(config.clone()));
        let model = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
        assert_eq!(
            config.weight_bytes(Shard::WHOLE, Dtype::F32).unwrap(),
            model.weight_bytes(),
            "{config:?}"
        );
        for isa in [Isa::Portable, Isa::detect()] {
            let mut session = Session::new(&model, isa, tokens.len(), tokens.len());
            let (first, rest) = tokens.split_at(random.below(tokens.len()));
            let mut found = session.feed(0, first);
            found.extend(session.feed(first.len(), rest));
            let distance = Distance::between(&found, &expected);
            let most = Distance::of_rounding(Dtype::F32, config.layers.len());
            assert!(distance.is_within(most), "seed {seed}, {isa}: {distance} beyond {most}, {config:?}");
        }
    }
}
