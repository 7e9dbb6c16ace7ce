//! In what the matrices of a pair are held, where the config leaves that open.

use std::path::Path;

use faser_actors::Dtype;
use faser_config::Config;
use faser_models::{ModelConfig, ModelError};

/// A checkpoint: its shape, and where its weights are, if anywhere.
pub(crate) type Stored<'a> = (&'a ModelConfig, Option<&'a Path>);

/// In what the target's matrices are held. If nothing is said, a CPU computes with those that are quantised in what is nearest to their own bits, which is less to
/// read than bf16, and everything else is bf16.
///
/// # Errors
/// Weights that are damaged, or of another shape.
pub(crate) fn target_dtype(
    config: &Config,
    (model, path): Stored<'_>,
    on_gpu: bool,
) -> Result<Dtype, ModelError> {
    match (config.model.dtype, path) {
        (Some(asked), _) => Ok(asked),
        (None, Some(path)) if !on_gpu => model.own_dtype(path),
        (None, _) => Ok(Dtype::Bf16),
    }
}

/// In what the matrices of a draft are held, if there is one, beside a target that is held in `target`. Text does not depend on it, so that is whatever proposes most in a
/// second: if nothing is said, on CPUs what has 4 bits of its own in those, and else int8 beside bf16, where steps are shorter so
/// (docs/results/2026-11-30-a-round-of-small-models.md), and beside what is quantised; on GPUs as the target.
///
/// # Errors
/// As [`target_dtype`].
pub(crate) fn draft_dtype(
    config: &Config,
    target: Dtype,
    draft: Option<Stored<'_>>,
    on_gpu: bool,
) -> Result<Dtype, ModelError> {
    let Some((model, path)) = draft else { return Ok(config.model.draft_dtype.unwrap_or(target)) };
    match (config.model.draft_dtype, config.model.dtype) {
        (Some(asked), _) => Ok(asked),
        (None, _) if on_gpu => Ok(target),
        (None, None) if target == Dtype::Int4 => {
            Ok(match path.map(|path| model.own_dtype(path)).transpose()? {
                Some(Dtype::Int4) => Dtype::Int4,
                _ => Dtype::Int8,
            })
        }
        (None, _) if target == Dtype::Bf16 => Ok(Dtype::Int8),
        (None, _) => Ok(target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use faser_config::raw::Document;

    fn with(yaml: &str) -> Config {
        let document = Document::parse(Path::new("faser.yaml"), yaml.to_owned()).expect("YAML");
        Config::from_document(&document).expect("a config")
    }

    fn golden(name: &str) -> (ModelConfig, std::path::PathBuf) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tests/golden").join(name);
        (ModelConfig::load(&path).expect("a config.json"), path)
    }

    #[test]
    fn a_draft_is_in_int8_beside_bf16_on_a_cpu_if_nothing_else_is_said() {
        let (model, _) = golden("llama");
        for (yaml, drafts, on_gpu, held) in [
            ("model: {dtype: bf16}", true, false, Dtype::Int8),
            ("model: {}", true, false, Dtype::Int8),
            ("model: {dtype: bf16}", false, false, Dtype::Bf16),
            ("model: {dtype: bf16}", true, true, Dtype::Bf16),
            ("model: {dtype: bf16, draft_dtype: bf16}", true, false, Dtype::Bf16),
            ("model: {dtype: f32}", true, false, Dtype::F32),
            ("model: {dtype: int8}", true, false, Dtype::Int8),
            ("model: {dtype: int4}", true, false, Dtype::Int4),
            ("model: {dtype: int4, draft_dtype: int8}", true, false, Dtype::Int8),
        ] {
            let config = with(yaml);
            let target = target_dtype(&config, (&model, None), on_gpu).expect("a dtype");
            let draft = drafts.then_some((&model, None));
            assert_eq!(draft_dtype(&config, target, draft, on_gpu).expect("a dtype"), held, "{yaml}");
        }
    }

    #[test]
    fn quantised_matrices_keep_their_bits_on_a_cpu_if_nothing_else_is_said() {
        for (name, held) in [
            ("llama", Dtype::Bf16),
            // Groups of 16, which int4 does not keep.
            ("quantised-awq", Dtype::Bf16),
            ("quantised-gptq-8-bits-v2", Dtype::Int8),
            ("quantised-w4a16", Dtype::Bf16),
            ("quantised-w8a8", Dtype::Int8),
            ("quantised-fp8-blocks", Dtype::Bf16),
            ("gpt-oss-mxfp4", Dtype::Int4),
            ("gguf/model.gguf", Dtype::Int4),
        ] {
            let (model, path) = golden(name);
            let stored = (&model, Some(&*path));
            let of = |yaml: &str, on_gpu| target_dtype(&with(yaml), stored, on_gpu).expect("a dtype");
            assert_eq!(of("model: {dtype: auto}", false), held, "{name}");
            assert_eq!(of("model: {dtype: bf16}", false), Dtype::Bf16, "{name}");
            assert_eq!(of("model: {}", true), Dtype::Bf16, "{name}");
            // A draft in bf16 is not made 4 bits of, which it was not trained for.
            let (plain, place) = golden("llama");
            for (draft, expected) in [((&plain, Some(&*place)), Dtype::Int8), (stored, held)] {
                if held == Dtype::Int4 {
                    let found = draft_dtype(&with("model: {}"), held, Some(draft), false).expect("a dtype");
                    assert_eq!(found, expected, "{name}");
                }
            }
        }
    }
}
