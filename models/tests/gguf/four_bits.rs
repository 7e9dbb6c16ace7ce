//! Blocks of 4 bits that are computed with as they are: near a forward pass in f32 over the widened weights, as far as activations allow.

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use faser_kernels::{Dtype, Isa};
use faser_models::{Model, ModelConfig, Shard, WeightSource};

use crate::converted::golden_case;
use crate::session::{Session, golden};
use crate::weights::wide;
use crate::writer::Folder;

fn load(path: &std::path::Path, dtype: Dtype) -> Model {
    Model::load(&WeightSource::folder(path).unwrap(), Shard::WHOLE, dtype, &mut |_| {}).unwrap()
}

fn logits(model: &Model, isa: Isa) -> Vec<f32> {
    let tokens = [1, 7, 100, 33, 120, 8];
    Session::new(model, isa, tokens.len(), tokens.len()).feed(0, &tokens).concat()
}

/// RMS of the difference, as a share of the RMS of `right`.
fn distance(found: &[f32], right: &[f32]) -> f32 {
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>();
    let error = squares(&mut found.iter().zip(right).map(|(a, b)| a - b));
    (error / squares(&mut right.iter().copied())).sqrt()
}

#[test]
fn logits_are_off_by_what_activations_lose() {
    let folder = Folder::new("four-bits");
    // What int8 activations do where the weights are theirs, to the bit.
    let path = folder.file("wide.gguf", &wide(GgmlDType::Q8_0).bytes());
    let [exact, eight] = [Dtype::F32, Dtype::Int8].map(|dtype| logits(&load(&path, dtype), Isa::detect()));
    let of_activations = distance(&eight, &exact);
    println!("Q8_0 in int8: {of_activations}");
    assert!(of_activations > 0.001 && of_activations < 0.02, "{of_activations}");
    // Bytes of 64 weights, and the error; in int8 blocks of other formats are rounded anew, which loses as much as activations do.
    for (format, bytes, most) in [
        (GgmlDType::Q4_0, 36, 1.3),
        (GgmlDType::Q4_1, 40, 1.3),
        (GgmlDType::Q4K, 40, 1.3),
        (GgmlDType::Q8_0, 68, 1.3),
        (GgmlDType::Q5K, 68, 1.9),
        (GgmlDType::Q6K, 68, 1.9),
    ] {
        let path = folder.file("wide.gguf", &wide(format).bytes());
        let [exact, int4] = [Dtype::F32, Dtype::Int4].map(|dtype| load(&path, dtype));
        let error = distance(&logits(&int4, Isa::detect()), &logits(&exact, Isa::detect()));
        println!("{format:?} in int4: {error}");
        assert!(error < most * of_activations, "{format:?}: {error} beside {of_activations}");
        // Two layers, the head in whole panels, the embedding, and five norms.
        let panels = 2 * 6 * 256 * 256 + 320 * 256;
        let wanted = panels * bytes / 64 + 300 * 256 * 2 + 5 * 256 * 4;
        assert_eq!(int4.weight_bytes(), wanted, "{format:?}");
        for shard in Shard::all(2) {
            let source = WeightSource::folder(&path).unwrap();
            let part = Model::load(&source, shard, Dtype::Int4, &mut |_| {}).unwrap();
            let config = source.config().unwrap();
            let told = config.stored_weight_bytes(&path, shard, Dtype::Int4).unwrap();
            assert_eq!(told, part.weight_bytes(), "{format:?} {shard}");
        }
    }
}

#[test]
fn instruction_sets_differ_by_no_more_than_in_int8() {
    let folder = Folder::new("four-bits-sets");
    let [four, eight] =
        [(GgmlDType::Q4K, Dtype::Int4), (GgmlDType::Q8_0, Dtype::Int8)].map(|(format, dtype)| {
            let model = load(&folder.file("wide.gguf", &wide(format).bytes()), dtype);
            let portable = logits(&model, Isa::Portable);
            let of = |isa| distance(&logits(&model, isa), &portable);
            Isa::available().into_iter().map(of).collect::<Vec<f32>>()
        });
    // Matrices give the same bits. Attention does not, and turns the rounding of an activation here and there.
    println!("{four:?} beside {eight:?}");
    for (four, eight) in four.iter().zip(&eight) {
        assert!(*four < 1.5 * eight + 1e-3, "{four} beside {eight}");
    }
}

#[test]
fn weights_that_no_file_has_quantised_are_quantised_as_those_of_a_checkpoint() {
    let folder = Folder::new("four-bits-plain");
    for case in ["llama", "qwen3-tied", "qwen3-moe"] {
        let path = folder.file("model.gguf", &golden_case(case, GgmlDType::F32).bytes());
        let [wanted, found] = [&golden(case), &path].map(|from| load(from, Dtype::Int4));
        assert!(logits(&found, Isa::detect()) == logits(&wanted, Isa::detect()), "{case}");
        assert_eq!(found.weight_bytes(), wanted.weight_bytes(), "{case}");
    }
}

/// Nearly all formats in one model, fused with each other: those of 4 bits stay, all others are int8.
#[test]
fn a_mix_is_near_the_forward_pass_over_the_blocks_that_gguf_widens() {
    let dir = golden("gguf");
    let tensors = candle_core::safetensors::load(dir.join("logits.safetensors"), &Device::Cpu).unwrap();
    let tokens: Vec<u32> = tensors["tokens"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    let expected: Vec<Vec<f32>> = tensors["logits"].to_vec2().unwrap();
    let path = dir.join("model.gguf");
    let model = load(&path, Dtype::Int4);
    let found = Session::new(&model, Isa::detect(), tokens.len(), tokens.len()).feed(0, &tokens);
    let error = distance(&found.concat(), &expected.concat());
    println!("a mix: {error}");
    assert!(error < 0.03, "{error}");
    let config = ModelConfig::load(&path).unwrap();
    let told = config.stored_weight_bytes(&path, Shard::WHOLE, Dtype::Int4).unwrap();
    assert_eq!(told, model.weight_bytes());
    assert!(told < config.weight_bytes(Shard::WHOLE, Dtype::Int8).unwrap());
}
