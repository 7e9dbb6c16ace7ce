//! What is wrong with a file is said in one line; whatever its bytes are, reading them ends without a fault.

use candle_core::quantized::GgmlDType;
use faser_kernels::Dtype;
use faser_models::{
    ChatTemplate, Model, ModelConfig, ModelError, Shard, Tokenizer, WeightSource, check_gguf,
};
use proptest::prelude::*;

use crate::converted::golden_case;
use crate::session::golden;
use crate::writer::{Folder, Writer};

/// What loading the file says.
fn said(folder: &Folder, bytes: &[u8]) -> String {
    let path = folder.file("x.gguf", bytes);
    let load = || Model::load(&WeightSource::folder(&path)?, Shard::WHOLE, Dtype::F32, &mut |_| {});
    let said = load().map(drop).unwrap_err().to_string();
    // Numbers are found bad where nobody knows of files any more.
    let names = said.contains("x.gguf") || said.contains("a damaged checkpoint");
    assert!(names && !said.contains('\n'), "{said}");
    said
}

fn llama() -> Writer {
    golden_case("llama", GgmlDType::F32)
}

/// A change of a file that is right, and what is said of it.
type Damage = (&'static str, fn(&mut Writer));

const DAMAGES: [Damage; 45] = [
    ("version 1 of GGUF", |w| w.version = 1),
    ("version 4 of GGUF", |w| w.version = 4),
    ("big-endian", |w| w.version = 3_u32.swap_bytes()),
    ("`general.architecture` is \"gemma3\"; of GGUF files llama, qwen2, qwen3", |w| {
        w.text("general.architecture", "gemma3");
    }),
    ("`general.architecture` is missing", |w| w.remove("general.architecture")),
    ("`general.architecture` is 7, a text in UTF-8 is expected", |w| w.whole("general.architecture", 7)),
    ("`general.type` is \"adapter\"", |w| w.text("general.type", "adapter")),
    ("`general.alignment` is 7, a power of two", |w| w.whole("general.alignment", 7)),
    ("lies at 16768, and tensors are aligned to 4096", |w| w.whole("general.alignment", 4096)),
    ("`llama.block_count` is missing", |w| w.remove("llama.block_count")),
    ("`llama.block_count` is 0", |w| w.whole("llama.block_count", 0)),
    ("`llama.block_count` is 2000000000", |w| w.whole("llama.block_count", 2_000_000_000)),
    ("`llama.block_count` is \"two\", a whole number is expected", |w| w.text("llama.block_count", "two")),
    ("`llama.embedding_length` is -5", |w| w.set("llama.embedding_length", 5, &(-5_i32).to_le_bytes())),
    ("`llama.attention.head_count` is 0", |w| w.whole("llama.attention.head_count", 0)),
    ("`llama.attention.head_count_kv` differs from layer to layer", |w| {
        w.integers("llama.attention.head_count_kv", &[1, 2]);
    }),
    ("`llama.attention.head_count_kv` is 3, which does not divide", |w| {
        w.whole("llama.attention.head_count_kv", 3);
    }),
    ("`llama.attention.layer_norm_rms_epsilon` is missing", |w| {
        w.remove("llama.attention.layer_norm_rms_epsilon");
    }),
    ("`llama.attention.layer_norm_rms_epsilon` is NaN", |w| {
        w.number("llama.attention.layer_norm_rms_epsilon", f32::NAN);
    }),
    ("`llama.rope.freq_base` is -1", |w| w.number("llama.rope.freq_base", -1.0)),
    ("`llama.rope.dimension_count` is 4, and heads are", |w| w.whole("llama.rope.dimension_count", 4)),
    ("`llama.rope.scaling.type` is \"su\"", |w| w.text("llama.rope.scaling.type", "su")),
    ("`llama.rope.scaling.factor` is missing", |w| w.text("llama.rope.scaling.type", "yarn")),
    ("no tensor `rope_factors_short.weight`", |w| w.text("llama.rope.scaling.type", "longrope")),
    ("`llama.rope.scaling.factor` is missing", |w| w.text("llama.rope.scaling.type", "linear")),
    ("is \"yarn\", and the tensor `rope_freqs.weight` is of another scaling", |w| {
        w.text("llama.rope.scaling.type", "yarn");
        w.tensor("rope_freqs.weight", &[4], crate::writer::F32, vec![0; 16]);
    }),
    ("tensor `rope_freqs.weight` divides frequencies otherwise", |w| {
        let bytes = [1.0_f32, 1.5, 1.0, 1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        w.tensor("rope_freqs.weight", &[4], crate::writer::F32, bytes);
    }),
    ("tensor `rope_freqs.weight` has shape [3], and [4] is expected", |w| {
        w.tensor("rope_freqs.weight", &[3], crate::writer::F32, vec![0; 12]);
    }),
    ("`llama.expert_used_count` is missing", |w| w.whole("llama.expert_count", 8)),
    ("`llama.expert_count` is 100000, a whole number from 1 to 1024", |w| {
        w.whole("llama.expert_count", 100_000);
        w.whole("llama.expert_used_count", 2);
    }),
    ("`llama.expert_used_count` is 9, and there are 8 experts", |w| {
        w.whole("llama.expert_count", 8);
        w.whole("llama.expert_used_count", 9);
    }),
    ("there is no tensor `blk.0.ffn_gate_inp.weight`", |w| {
        w.whole("llama.expert_count", 8);
        w.whole("llama.expert_used_count", 2);
    }),
    ("`llama.expert_gating_func` is 2, and only 1", |w| w.whole("llama.expert_gating_func", 2)),
    ("`llama.expert_weights_norm` is false, and only true", |w| {
        w.whole("llama.expert_count", 8);
        w.whole("llama.expert_used_count", 2);
        w.flag("llama.expert_weights_norm", false);
    }),
    ("`llama.attention.causal` is false", |w| w.flag("llama.attention.causal", false)),
    ("`tokenizer.ggml.eos_token_id` is 5000, and the embedding has", |w| {
        w.whole("tokenizer.ggml.eos_token_id", 5000);
    }),
    ("there is no tensor `token_embd.weight`", |w| w.tensors.retain(|t| t.name != "token_embd.weight")),
    ("there is no tensor `blk.1.ffn_up.weight`, which the metadata ask for", |w| {
        w.tensors.retain(|t| t.name != "blk.1.ffn_up.weight");
    }),
    ("tensor `blk.1.attn_sinks.weight` has no place", |w| {
        w.tensor("blk.1.attn_sinks.weight", &[4], crate::writer::F32, vec![0; 16]);
    }),
    ("tensor `blk.0.ffn_gate.weight` has shape [56, 32], and [64, 32] follows", |w| {
        w.whole("llama.feed_forward_length", 64);
    }),
    ("tensor `output.weight` is stored as IQ4_XS, which is not read; F32, F16, Q4_0", |w| {
        w.named("output.weight").format = 23;
    }),
    ("tensor `output.weight` is stored as type 99 of ggml", |w| w.named("output.weight").format = 99),
    ("tensor `output.weight` has rows of 32 numbers, and Q4_K has blocks of 256", |w| {
        w.named("output.weight").format = 12;
    }),
    ("tensor `token_embd.weight` lies over tensor `output.weight`", |w| {
        w.named("token_embd.weight").said_at = Some(0);
    }),
    ("has NaN at place 0", |w| {
        w.named("output.weight").data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    }),
];

#[test]
fn what_is_wrong_is_said_by_name() {
    let folder = Folder::new("damaged");
    for (part, damage) in DAMAGES {
        let mut writer = llama();
        damage(&mut writer);
        let said = said(&folder, &writer.bytes());
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_file_that_ends_too_early_is_named_wherever_it_was_cut() {
    let folder = Folder::new("cut");
    let whole = llama().bytes();
    for length in (0..600).chain((600..whole.len()).step_by(97)).chain([whole.len() - 1]) {
        let said = said(&folder, &whole[..length]);
        assert!(said.contains("truncated") || said.contains("no GGUF file"), "{length}: {said}");
    }
    assert!(said(&folder, b"PK\x03\x04 and more").contains("no GGUF file"));
}

#[test]
fn absurd_counts_and_sizes_are_refused() {
    let folder = Folder::new("absurd");
    let whole = llama().bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        said(&folder, &changed)
    };
    assert!(with(8, &u64::MAX.to_le_bytes()).contains("18446744073709551615 tensors"));
    assert!(with(16, &(1_u64 << 40).to_le_bytes()).contains("1099511627776 keys"));
    // The length of the first key's name.
    assert!(with(24, &u64::MAX.to_le_bytes()).contains("truncated"));
    let mut twice = llama();
    let again = twice.keys[0].clone();
    twice.keys.push(again);
    assert!(said(&folder, &twice.bytes()).contains("`general.architecture` is there twice"));
    let mut tensors = llama();
    let again = tensors.tensors[0].clone();
    tensors.tensors.push(again);
    assert!(said(&folder, &tensors.bytes()).contains("is there twice"));
    let dimensions = |dimensions: &[u64]| {
        let mut writer = llama();
        writer.named("output.weight").dimensions = dimensions.to_vec();
        said(&folder, &writer.bytes())
    };
    assert!(dimensions(&[u64::MAX, 2]).contains("a shape larger than any memory"));
    assert!(dimensions(&[1 << 40, 1 << 10]).contains("ends outside of the file"));
    assert!(dimensions(&[32, 0]).contains("a dimension of 0"));
    assert!(dimensions(&[1; 5]).contains("5 dimensions"));
    let key = |of: u32, value: &[u8]| {
        let mut writer = llama();
        writer.set("x", of, value);
        said(&folder, &writer.bytes())
    };
    assert!(key(77, &[]).contains("`x` has type 77"));
    assert!(key(7, &[2]).contains("`x` is 2, and true is 1"));
    let list = |of: u32, len: u64| [&of.to_le_bytes()[..], &len.to_le_bytes()].concat();
    assert!(key(9, &list(9, 1)).contains("a list of lists"));
    for of in [0, 4, 8, 12] {
        assert!(key(9, &list(of, u64::MAX)).contains("truncated"), "{of}");
    }
}

/// Reads a file as a daemon does that is to serve it; it may be refused, and nothing else may happen.
fn read_all(folder: &Folder, bytes: &[u8]) {
    let path = folder.file("x.gguf", bytes);
    let Ok(config) = ModelConfig::load(&path) else { return };
    let _ = ChatTemplate::load(&path);
    let _ = Tokenizer::load(&path, &config);
    if config.check_headers(&path).is_ok() {
        let source = WeightSource::Folder(path, Box::new(config));
        let _ = Model::load(&source, Shard::WHOLE, Dtype::Bf16, &mut |_| {});
    }
}

fn whole_file() -> Writer {
    let mut writer = golden_case("qwen3-tied", GgmlDType::Q8_0);
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.text("tokenizer.ggml.pre", "qwen2");
    writer.texts("tokenizer.ggml.tokens", &["a", "b", "ab", "Ġ", "<|im_end|>"]);
    writer.integers("tokenizer.ggml.token_type", &[1, 1, 1, 1, 3]);
    writer.texts("tokenizer.ggml.merges", &["a b"]);
    writer.whole("tokenizer.ggml.bos_token_id", 3);
    writer.whole("tokenizer.ggml.eos_token_id", 4);
    writer.text("tokenizer.chat_template", "{{ messages[0].content }}");
    writer
}

#[test]
fn the_file_that_is_changed_below_is_right() {
    let folder = Folder::new("right");
    let path = folder.file("x.gguf", &whole_file().bytes());
    let config = ModelConfig::load(&path).unwrap();
    assert_eq!(config.eos, [4]);
    Tokenizer::load(&path, &config).unwrap();
    ChatTemplate::load(&path).unwrap();
    Model::load(&WeightSource::folder(&path).unwrap(), Shard::WHOLE, Dtype::Bf16, &mut |_| {}).unwrap();
    assert!(golden("qwen3-tied").exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Bytes of the header are others, some are left out, and some come twice.
    #[test]
    fn whatever_a_file_is_it_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4, 0_usize..12), 1..6),
    ) {
        use std::sync::OnceLock;
        static WHOLE: OnceLock<(Vec<u8>, usize)> = OnceLock::new();
        static FOLDER: OnceLock<Folder> = OnceLock::new();
        let (whole, header) = WHOLE.get_or_init(|| {
            let writer = whole_file();
            let bytes = writer.bytes();
            let data: usize = writer.tensors.iter().map(|tensor| tensor.data.len().next_multiple_of(32)).sum();
            let header = bytes.len() - data;
            (bytes, header)
        });
        let mut bytes = whole.clone();
        for (place, value, kind, length) in changes {
            let at = place.index(*header).min(bytes.len() - 1);
            let end = (at + length).min(bytes.len());
            match kind {
                0 => bytes[at] = value,
                1 => bytes[at] ^= 1 << (value % 8),
                2 => drop(bytes.drain(at..end)),
                _ => {
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
            }
        }
        let checked = check_gguf(std::path::Path::new("x.gguf"), &bytes);
        let is_right = checked.is_ok();
        match checked {
            Ok((config, places)) => {
                prop_assert!(config.vocab > 0 && places.iter().all(|place| bytes.get(place.clone()).is_some()));
            }
            Err(refused) => {
                let said = refused.to_string();
                prop_assert!(said.contains("x.gguf") || matches!(refused, ModelError::Pair(_)), "{}", said);
                prop_assert!(said.len() < 4096 && !said.contains('\n'), "{}", said);
            }
        }
        // Some of those that are refused, too: another way leads there.
        if is_right || bytes.len() % 16 == 0 {
            read_all(FOLDER.get_or_init(|| Folder::new("mutated")), &bytes);
        }
    }
}
