//! Models of GGUF files: the same bits as the checkpoints that they were written from, where weights are exact, and near them where not.

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use faser_kernels::{Dtype, Isa};
use faser_models::{Model, ModelConfig, ModelError, Progress, Shard, WeightSource, weight_files};

use crate::converted::{add, golden_case};
use crate::session::{Session, golden};
use crate::writer::{Folder, Writer};

/// Checkpoints of the architectures that GGUF files are read of.
const CASES: [&str; 18] = [
    "llama",
    "llama-gqa8-llama3-rope-tied",
    "llama-linear-rope-biases",
    "mistral-sliding",
    "qwen2-tied",
    "qwen3-sharded",
    "qwen3-tied",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "llama-yarn",
    "phi3",
    "phi3-longrope",
    "olmo2",
    "olmo2-biases",
    "smollm3",
    "glm4",
    "glm4-no-biases",
];

fn load(path: &std::path::Path, shard: Shard, dtype: Dtype) -> Result<Model, ModelError> {
    Model::load(&WeightSource::folder(path)?, shard, dtype, &mut |_| {})
}

fn logits(model: &Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    Session::new(model, Isa::detect(), tokens.len(), tokens.len()).feed(0, tokens)
}

fn tokens(case: &str) -> Vec<u32> {
    let expected = golden(case).join("expected.safetensors");
    let tensors = candle_core::safetensors::load(expected, &Device::Cpu).unwrap();
    tensors["tokens"].to_dtype(DType::U32).unwrap().to_vec1().unwrap()
}

#[test]
fn exact_weights_give_the_same_bits_as_the_checkpoint() {
    let folder = Folder::new("exact");
    for case in CASES {
        let path = folder.file("model.gguf", &golden_case(case, GgmlDType::F32).bytes());
        let (wanted, found) = (ModelConfig::load(&golden(case)).unwrap(), ModelConfig::load(&path).unwrap());
        // What has no key: which tokens end a text by generation_config.json, and the notes.
        let found = ModelConfig { notes: wanted.notes.clone(), eos: wanted.eos.clone(), ..found };
        assert_eq!(found, wanted, "{case}");
        assert!(found.check_headers(&path).unwrap());
        let tokens = tokens(case);
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8] {
            let [wanted, found] = [&golden(case), &path].map(|from| load(from, Shard::WHOLE, dtype).unwrap());
            assert!(logits(&found, &tokens) == logits(&wanted, &tokens), "{case} {dtype}");
            assert_eq!(found.weight_bytes(), wanted.weight_bytes(), "{case} {dtype}");
        }
    }
}

#[test]
fn greedy_texts_are_those_of_the_checkpoint() {
    let folder = Folder::new("greedy");
    for (case, format) in [("llama", GgmlDType::F32), ("qwen3-tied", GgmlDType::F32)] {
        let path = folder.file("model.gguf", &golden_case(case, format).bytes());
        let [wanted, found] = [&golden(case), &path].map(|from| {
            let model = load(from, Shard::WHOLE, Dtype::F32).unwrap();
            let mut session = Session::new(&model, Isa::detect(), 60, 60);
            let mut text = tokens(case);
            let mut row = session.feed(0, &text).pop().unwrap();
            while text.len() < 60 {
                let best = (0..).zip(&row).max_by(|a, b| a.1.total_cmp(b.1)).map(|(token, _)| token).unwrap();
                text.push(best);
                row = session.feed(text.len() - 1, &[best]).pop().unwrap();
            }
            text
        });
        assert_eq!(found, wanted, "{case}");
    }
}

#[test]
fn shards_are_the_same_parts() {
    let folder = Folder::new("shards");
    for case in ["llama-gqa8-llama3-rope-tied", "qwen3-moe"] {
        let path = folder.file("model.gguf", &golden_case(case, GgmlDType::F32).bytes());
        for shard in Shard::all(2) {
            let Ok(wanted) = load(&golden(case), shard, Dtype::F32) else {
                assert!(load(&path, shard, Dtype::F32).is_err());
                continue;
            };
            let found = load(&path, shard, Dtype::F32).unwrap();
            assert_eq!(found.weight_bytes(), wanted.weight_bytes());
        }
    }
}

/// A model as wide as blocks are, with random weights.
pub(crate) fn wide(format: GgmlDType) -> Writer {
    let (hidden, heads, kv_heads, inner, vocab, layers) = (256, 4, 2, 256, 300, 2);
    let mut writer = Writer::new("llama");
    for (key, value) in [
        ("embedding_length", hidden),
        ("block_count", layers),
        ("feed_forward_length", inner),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("context_length", 64),
    ] {
        writer.whole(&format!("llama.{key}"), value as u32);
    }
    writer.number("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let mut state = 7_u32;
    let mut random = |rows: usize, cols: usize, middle: f32| {
        let numbers: Vec<f32> = (0..rows * cols)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                middle + ((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * 0.12
            })
            .collect();
        let shape: &[usize] = if rows == 1 { &[cols] } else { &[rows, cols] };
        Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap()
    };
    let head = hidden / heads;
    for (name, rows, cols, middle) in
        [("token_embd", vocab, hidden, 0.0), ("output", vocab, hidden, 0.0), ("output_norm", 1, hidden, 1.0)]
    {
        add(&mut writer, &format!("{name}.weight"), &random(rows, cols, middle), format);
    }
    for layer in 0..layers {
        for (name, rows, cols, middle) in [
            ("attn_norm", 1, hidden, 1.0),
            ("ffn_norm", 1, hidden, 1.0),
            ("attn_q", heads * head, hidden, 0.0),
            ("attn_k", kv_heads * head, hidden, 0.0),
            ("attn_v", kv_heads * head, hidden, 0.0),
            ("attn_output", hidden, heads * head, 0.0),
            ("ffn_gate", inner, hidden, 0.0),
            ("ffn_up", inner, hidden, 0.0),
            ("ffn_down", hidden, inner, 0.0),
        ] {
            let name = format!("blk.{layer}.{name}.weight");
            add(&mut writer, &name, &random(rows, cols, middle), format);
        }
    }
    writer
}

#[test]
fn each_quantisation_is_as_near_as_its_bits_allow() {
    let folder = Folder::new("near");
    let of = |format| {
        let path = folder.file("wide.gguf", &wide(format).bytes());
        let model = load(&path, Shard::WHOLE, Dtype::F32).unwrap();
        logits(&model, &[1, 7, 200, 33, 250, 8]).concat()
    };
    let exact = of(GgmlDType::F32);
    let size = exact.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (format, most) in [
        (GgmlDType::BF16, 0.02),
        (GgmlDType::F16, 0.003),
        (GgmlDType::Q8_0, 0.03),
        (GgmlDType::Q6K, 0.08),
        (GgmlDType::Q5K, 0.15),
        (GgmlDType::Q5_0, 0.15),
        (GgmlDType::Q5_1, 0.15),
        (GgmlDType::Q4K, 0.25),
        (GgmlDType::Q4_0, 0.35),
        (GgmlDType::Q4_1, 0.25),
        (GgmlDType::Q3K, 0.5),
        (GgmlDType::Q2K, 0.9),
    ] {
        let found = of(format);
        let error = found.iter().zip(&exact).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt() / size;
        println!("{format:?}: {error}");
        assert!(error < most && error > 0.0, "{format:?}: {error}");
    }
}

#[test]
fn progress_counts_every_byte_of_the_file_once() {
    let folder = Folder::new("progress");
    let writer = wide(GgmlDType::Q4K);
    let path = folder.file("wide.gguf", &writer.bytes());
    let mut last = Progress { done_bytes: 0, total_bytes: 0 };
    let source = WeightSource::folder(&path).unwrap();
    Model::load(&source, Shard::WHOLE, Dtype::Bf16, &mut |progress| last = progress).unwrap();
    let bytes: usize = writer.tensors.iter().map(|tensor| tensor.data.len()).sum();
    assert_eq!((last.done_bytes, last.total_bytes), (bytes as u64, bytes as u64));
}

/// The same model in parts: metadata in the first, tensors spread over all.
fn split(whole: &Writer, parts: usize) -> Vec<Writer> {
    let each = whole.tensors.len().div_ceil(parts);
    (0..parts)
        .map(|number| {
            let mut part =
                Writer { keys: if number == 0 { whole.keys.clone() } else { Vec::new() }, ..whole.clone() };
            part.tensors = whole.tensors.iter().skip(number * each).take(each).cloned().collect();
            part.small("split.no", number as u16);
            part.small("split.count", parts as u16);
            part.whole("split.tensors.count", whole.tensors.len() as u32);
            part
        })
        .collect()
}

fn name(number: usize, parts: usize) -> String {
    format!("wide-{:05}-of-{parts:05}.gguf", number + 1)
}

#[test]
fn a_model_in_parts_is_the_whole() {
    let folder = Folder::new("parts");
    let whole = wide(GgmlDType::Q8_0);
    let one = folder.file("whole.gguf", &whole.bytes());
    for (number, part) in split(&whole, 3).iter().enumerate() {
        folder.file(&name(number, 3), &part.bytes());
    }
    let first = folder.path().join(name(0, 3));
    assert_eq!(weight_files(&first).unwrap().len(), 3);
    let [one, parts] = [&one, &first].map(|path| {
        let model = load(path, Shard::WHOLE, Dtype::F32).unwrap();
        logits(&model, &[1, 2, 3])
    });
    assert!(one == parts);
}

#[test]
fn parts_that_do_not_make_a_whole_are_refused_by_name() {
    let folder = Folder::new("bad-parts");
    let whole = wide(GgmlDType::Q8_0);
    let parts = split(&whole, 3);
    let place = |number: usize, part: &Writer| folder.file(&name(number, 3), &part.bytes());
    let all = || parts.iter().enumerate().for_each(|(number, part)| drop(place(number, part)));
    let first = folder.path().join(name(0, 3));
    let said = |path: &std::path::Path| {
        let said = load(path, Shard::WHOLE, Dtype::F32).unwrap_err().to_string();
        assert!(!said.contains('\n'), "{said}");
        said
    };
    all();
    let second = said(&folder.path().join(name(1, 3)));
    assert!(second.contains("part 2 of 3, give the first, wide-00001-of-00003.gguf"), "{second}");
    // A part that is another one: the first again.
    place(2, &parts[0]);
    assert!(said(&first).contains("wide-00003-of-00003.gguf: `split.no` is 0"), "{}", said(&first));
    let mut again = parts[0].clone();
    again.small("split.no", 2);
    place(2, &again);
    assert!(said(&first).contains("is in ") && said(&first).contains("as well"), "{}", said(&first));
    let mut fewer = parts[2].clone();
    fewer.tensors.pop();
    place(2, &fewer);
    assert!(said(&first).contains("`split.tensors.count` is 21, and 20 tensors"), "{}", said(&first));
    let mut other = parts[2].clone();
    other.small("split.count", 4);
    place(2, &other);
    assert!(said(&first).contains("`split.count` is 4"), "{}", said(&first));
    std::fs::remove_file(folder.path().join(name(2, 3))).unwrap();
    assert!(said(&first).contains("cannot read") && said(&first).contains("00003-of-00003"));
    let renamed = folder.file("renamed.gguf", &parts[0].bytes());
    assert!(said(&renamed).contains("its name must end in -00001-of-00003.gguf"), "{}", said(&renamed));
}

/// By another's hand: blocks that the package gguf wrote and widened, and a forward pass in numpy that turns neighbours (make_gguf.py).
#[test]
fn logits_are_those_of_a_forward_pass_over_the_blocks_that_gguf_widens() {
    let dir = golden("gguf");
    let tensors = candle_core::safetensors::load(dir.join("logits.safetensors"), &Device::Cpu).unwrap();
    let tokens: Vec<u32> = tensors["tokens"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
    let expected: Vec<Vec<f32>> = tensors["logits"].to_vec2().unwrap();
    let model = load(&dir.join("model.gguf"), Shard::WHOLE, Dtype::F32).unwrap();
    let found = logits(&model, &tokens);
    let most = expected.concat().iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let error = found.concat().iter().zip(expected.concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{error} of {most}");
    assert!(error < 1e-3 && most > 1.0, "{error} of {most}");
    let note = &model.config().notes[0];
    for part in ["GGUF 3, llama", "5 of F32", "4 of Q4_K", "tokenizer llama (default), 300 tokens"] {
        assert!(note.contains(part), "{part}: {note}");
    }
}
