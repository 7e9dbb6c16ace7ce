//! Checkpoints of 4 bits that int4 computes with as they are: near a forward pass in f32 over the numbers that their codes stand for, as far
//! as activations in 8 bits allow; and what is not held so.

use std::path::{Path, PathBuf};

use faser_kernels::{Dtype, Isa};
use faser_models::{Model, ModelConfig, OwnBits, Quality, Shard, WeightSource};

use crate::accuracy::{demo, demo_prompts};
use crate::quantised_files::{Layout, Order, quantise};
use crate::session::{Session, golden};

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("faser-own-bits-{}-{name}", std::process::id())))
    }

    /// The demo target, quantised.
    fn quantised(name: &str, layout: Layout, group: usize) -> Folder {
        let folder = Folder::new(name);
        quantise(&demo("target"), &folder.0, layout, group);
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn load(path: &Path, dtype: Dtype) -> Model {
    Model::load(&WeightSource::folder(path).unwrap(), Shard::WHOLE, dtype, &mut |_| {}).unwrap()
}

fn logits(model: &Model, isa: Isa, tokens: &[u32]) -> Vec<f32> {
    Session::new(model, isa, tokens.len(), tokens.len()).feed(0, tokens).concat()
}

/// RMS of the difference, as a share of the RMS of `right`.
fn distance(found: &[f32], right: &[f32]) -> f32 {
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>();
    let error = squares(&mut found.iter().zip(right).map(|(a, b)| a - b));
    (error / squares(&mut right.iter().copied())).sqrt()
}

/// All matrices of the demo target's layers: four in each.
const MATRICES: usize = 6 * 4;

#[test]
fn logits_are_off_by_what_activations_lose_and_bytes_are_those_that_were_told() {
    let text = demo_prompts(&load(&demo("target"), Dtype::Bf16), 1).remove(0);
    let (symmetric, zero_points) = (18, 20);
    for (name, layout, group, block_bytes) in [
        ("awq", Layout::Awq, 128, zero_points),
        ("awq-32", Layout::Awq, 32, zero_points),
        ("gptq", Layout::Gptq(Order::Plain), 64, zero_points),
        ("gptq-backwards", Layout::Gptq(Order::Backwards), 64, zero_points),
        ("w4a16", Layout::Packed { symmetric: true }, 128, symmetric),
        ("w4a16-zero-points", Layout::Packed { symmetric: false }, 32, zero_points),
    ] {
        let folder = Folder::quantised(name, layout, group);
        let config = ModelConfig::load(&folder.0).unwrap();
        let kept = OwnBits { kept: MATRICES, on_gpu: MATRICES, others: 0, ..OwnBits::default() };
        assert_eq!(config.own_bits(&folder.0).unwrap(), kept, "{name}");
        let [exact, int8, int4] = [Dtype::F32, Dtype::Int8, Dtype::Int4].map(|dtype| load(&folder.0, dtype));
        let right = logits(&exact, Isa::detect(), &text);
        let [int8, own] = [&int8, &int4].map(|model| distance(&logits(model, Isa::detect(), &text), &right));
        println!("{name}: int4 is off by {own}, int8 by {int8}");
        // int8 rounds weights too, by as much; the head is int8 in both.
        assert!(own < 0.03 && own < 1.3 * int8, "{name}: {own} {int8}");
        let layers = config.layers.len() * (256 * (4 + 2 + 2) * 64 + 256 * 256 + 3 * 256 * 704);
        let (vocab, hidden) = (config.vocab, config.hidden);
        let beside =
            vocab * hidden * 2 + vocab * hidden * 34 / 32 + (2 * config.layers.len() + 1) * hidden * 4;
        assert_eq!(int4.weight_bytes(), (layers / 32 * block_bytes + beside) as u64, "{name}");
        for shard in Shard::all(2) {
            let source = WeightSource::folder(&folder.0).unwrap();
            let part = Model::load(&source, shard, Dtype::Int4, &mut |_| {}).unwrap();
            let told = config.stored_weight_bytes(&folder.0, shard, Dtype::Int4).unwrap();
            assert_eq!(told, part.weight_bytes(), "{name} {shard}");
        }
        // By its config.json alone: with zero points, if there may be some, and as int8 where `desc_act` may have groups apart.
        let likely = config.weight_bytes(Shard::WHOLE, Dtype::Int4).unwrap();
        let most = if layout == Layout::Gptq(Order::Backwards) { 170 } else { 110 };
        assert!((int4.weight_bytes()..int4.weight_bytes() * most / 100).contains(&likely), "{name}");
        assert!(most == 110 || likely > int4.weight_bytes() * 110 / 100, "{name}");
    }
}

#[test]
fn what_kernels_do_not_know_is_int8_and_said() {
    let text = demo_prompts(&load(&demo("target"), Dtype::Bf16), 1).remove(0);
    for (name, layout, group, why) in [
        ("apart", Layout::Gptq(Order::Apart), 64, "desc_act"),
        ("sixteen", Layout::Awq, 16, "32 or a multiple"),
    ] {
        let folder = Folder::quantised(name, layout, group);
        let config = ModelConfig::load(&folder.0).unwrap();
        let found = config.own_bits(&folder.0).unwrap();
        assert_eq!((found.kept, found.others), (0, MATRICES), "{name}");
        assert!(found.why.unwrap().contains(why), "{found:?}");
        let [exact, int8, int4] = [Dtype::F32, Dtype::Int8, Dtype::Int4].map(|dtype| load(&folder.0, dtype));
        assert_eq!(int4.weight_bytes(), int8.weight_bytes());
        assert!(logits(&int4, Isa::detect(), &text) == logits(&int8, Isa::detect(), &text), "{name}");
        let off = distance(&logits(&int4, Isa::detect(), &text), &logits(&exact, Isa::detect(), &text));
        assert!(off < 0.03, "{name}: {off}");
    }
    // A checkpoint of 8 bits, and one that is not quantised.
    let fp8 = ModelConfig::load(&golden("quantised-fp8-channel")).unwrap();
    let found = fp8.own_bits(&golden("quantised-fp8-channel")).unwrap();
    assert!(found.kept == 0 && found.others > 0 && found.why == Some("not of 4 bits"), "{found:?}");
    let plain = ModelConfig::load(&demo("target")).unwrap();
    assert_eq!(plain.own_bits(&demo("target")).unwrap(), OwnBits::default());
}

/// Experts keep their codes, and what the checkpoint has in bf16 is int8, not 4 bits.
#[test]
fn experts_of_mxfp4_run_in_their_own_bits() {
    let folder = golden("gpt-oss-mxfp4");
    let config = ModelConfig::load(&folder).unwrap();
    let (layers, experts) = (config.layers.len(), config.experts().unwrap().count);
    let found = config.own_bits(&folder).unwrap();
    assert_eq!(found, OwnBits { kept: layers * experts * 2, on_gpu: 0, others: 0, ..OwnBits::default() });
    let [exact, int8, int4] = [Dtype::F32, Dtype::Int8, Dtype::Int4].map(|dtype| load(&folder, dtype));
    let text: Vec<u32> = (0..40).map(|i| i * i % 120).collect();
    let right = logits(&exact, Isa::detect(), &text);
    // Of the row in the middle: where two experts are nearly as good, rounding chooses, and such a row is far off.
    let [off, off_int8] = [&int4, &int8].map(|model| {
        let (found, vocab) = (logits(model, Isa::detect(), &text), config.vocab);
        let rows = found.chunks(vocab).zip(right.chunks(vocab));
        let mut off: Vec<f32> = rows.map(|(found, right)| distance(found, right)).collect();
        off.sort_unstable_by(f32::total_cmp);
        off[off.len() / 2]
    });
    println!("mxfp4: int4 is off by {off}, int8 by {off_int8}");
    assert!(off < 0.03 && off < 1.5 * off_int8, "{off} {off_int8}");
    assert!(int4.weight_bytes() < int8.weight_bytes());
    assert_eq!(config.stored_weight_bytes(&folder, Shard::WHOLE, Dtype::Int4).unwrap(), int4.weight_bytes());
    assert_eq!(config.weight_bytes(Shard::WHOLE, Dtype::Int4).unwrap(), int4.weight_bytes());
}

#[test]
fn chunks_give_the_same_bits_as_one_prefill() {
    let folder = Folder::quantised("chunks", Layout::Awq, 64);
    let paths = [folder.0.clone(), golden("gpt-oss-mxfp4")];
    let text: Vec<u32> = (0..40).map(|i| i * i % 120).collect();
    for path in &paths {
        let model = load(path, Dtype::Int4);
        for isa in Isa::available() {
            let whole = logits(&model, isa, &text);
            for chunk in [1, 7] {
                let mut session = Session::new(&model, isa, text.len(), chunk);
                let starts = (0..).step_by(chunk);
                let parts =
                    text.chunks(chunk).zip(starts).flat_map(|(part, start)| session.feed(start, part));
                assert!(parts.collect::<Vec<_>>().concat() == whole, "{isa} {} {chunk}", path.display());
            }
        }
    }
}

/// Beside what quantising lost, which both have, own bits lose next to nothing.
#[test]
fn predictions_are_those_of_the_widened_weights() {
    let folder = Folder::quantised("quality", Layout::Awq, 128);
    let exact = load(&folder.0, Dtype::F32);
    let text: Vec<u32> = demo_prompts(&exact, 8).concat();
    let of = |dtype| Quality::of(&load(&folder.0, dtype), &exact, &text, 1).unwrap();
    let [bf16, own] = [Dtype::Bf16, Dtype::Int4].map(of);
    println!("bf16: {bf16:?}\nown bits: {own:?}");
    assert!(own.divergence < 0.002 && own.same_token > 0.95, "{own:?}");
    assert!(bf16.divergence < own.divergence, "{bf16:?}");
}

/// AutoGPTQ gives every matrix a bias, of zeros where the model has none: `quantise` does so too.
#[test]
fn a_bias_that_a_model_does_not_have_is_refused_unless_it_is_zero() {
    let folder = Folder::quantised("gptq-bias", Layout::Gptq(Order::Plain), 64);
    let file = folder.0.join("model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    let size = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&whole[8..8 + size]).unwrap();
    let bias = "model.layers.0.mlp.down_proj.bias";
    let first = header[bias]["data_offsets"][0].as_u64().expect("it has one") as usize;
    load(&folder.0, Dtype::F32);
    let mut other = whole.clone();
    other[8 + size + first + 1] = 0x3c;
    std::fs::write(&file, other).unwrap();
    let source = WeightSource::folder(&folder.0).unwrap();
    let refused = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains(bias), "{refused}");
}
