//! In what a draft's matrices are held: text does not depend on it, so that is whatever proposes most in a second.

use faser_actors::Dtype;
use faser_config::Config;

/// In what the matrices of a draft are held, if there is one, beside a target that is held as `model.dtype` says. If nothing else
/// is said, they are in int8 on CPUs beside bf16, where steps are shorter so (docs/results/2026-11-30-a-round-of-small-models.md), and
/// on GPUs held as the target's.
pub(crate) fn draft_dtype(config: &Config, drafts: bool, on_gpu: bool) -> Dtype {
    match (config.model.draft_dtype, config.model.dtype) {
        (Some(asked), _) => asked,
        (None, Dtype::Bf16) if drafts && !on_gpu => Dtype::Int8,
        (None, target) => target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use faser_config::raw::Document;

    #[test]
    fn a_draft_is_in_int8_beside_bf16_on_a_cpu_if_nothing_else_is_said() {
        let with = |yaml: &str| {
            let document = Document::parse(Path::new("faser.yaml"), yaml.to_owned()).expect("YAML");
            Config::from_document(&document).expect("a config")
        };
        for (yaml, drafts, on_gpu, held) in [
            ("model: {dtype: bf16}", true, false, Dtype::Int8),
            ("model: {dtype: bf16}", false, false, Dtype::Bf16),
            ("model: {dtype: bf16}", true, true, Dtype::Bf16),
            ("model: {dtype: bf16, draft_dtype: bf16}", true, false, Dtype::Bf16),
            ("model: {dtype: f32}", true, false, Dtype::F32),
            ("model: {dtype: int8}", true, false, Dtype::Int8),
            ("model: {dtype: int4}", true, false, Dtype::Int4),
            ("model: {dtype: int4, draft_dtype: int8}", true, false, Dtype::Int8),
        ] {
            let config = with(yaml);
            assert_eq!(draft_dtype(&config, drafts, on_gpu), held, "{yaml}");
        }
    }
}
