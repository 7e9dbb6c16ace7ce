//! Where experts lie in safetensors files, told by the names there: apart, as checkpoints of Qwen and of Mixtral have them, or stacked, as
//! transformers 5 holds them, and writes them with `save_original_format=False`.
//!
//! ```text
//! here      mlp.gate               mlp.experts.3.gate_proj                    mlp.experts.3.down_proj
//! Mixtral   block_sparse_moe.gate  block_sparse_moe.experts.3.w1              block_sparse_moe.experts.3.w2
//! stacked   mlp.gate               mlp.experts.gate_up_proj, [3], first half  mlp.experts.down_proj, [3]
//! ```

/// Of Mixtral's modules: theirs, ours.
const MIXTRAL: &str = ".block_sparse_moe.";
const OURS: &str = ".mlp.";
/// Of an expert's projections: Mixtral's, ours, the stack that has it, its place among the parts of the stack, and how many those are.
const PROJECTIONS: [(&str, &str, &str, usize, usize); 3] = [
    ("w1", "gate_proj", "gate_up_proj", 0, 2),
    ("w3", "up_proj", "gate_up_proj", 1, 2),
    ("w2", "down_proj", "down_proj", 0, 1),
];

/// How all experts of a checkpoint lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpertLayout {
    Apart,
    Mixtral,
    Stacked,
}

/// A matrix in a stack of all experts' `[experts, parts * outputs, inputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InStack {
    pub(super) expert: usize,
    pub(super) part: usize,
    pub(super) parts: usize,
}

impl ExpertLayout {
    /// That of files with tensors of these names.
    pub(super) fn of<'n>(mut names: impl Iterator<Item = &'n String>) -> ExpertLayout {
        let known = names.find_map(|name| {
            if name.contains(MIXTRAL) {
                Some(ExpertLayout::Mixtral)
            } else {
                name.ends_with(".mlp.experts.gate_up_proj").then_some(ExpertLayout::Stacked)
            }
        });
        known.unwrap_or(ExpertLayout::Apart)
    }

    /// The name in the files of a tensor of ours, and where it is in that one if it is a part.
    pub(super) fn stored(self, name: &str) -> (String, Option<InStack>) {
        let as_it_is = || (name.to_owned(), None);
        let expert = || {
            let (layer, rest) = name.split_once(".mlp.experts.")?;
            let (expert, projection) = rest.strip_suffix(".weight")?.split_once('.')?;
            let known = PROJECTIONS.iter().find(|(_, ours, ..)| *ours == projection)?;
            Some((layer, expert, known))
        };
        match self {
            ExpertLayout::Apart => as_it_is(),
            ExpertLayout::Mixtral => match expert() {
                Some((layer, expert, (theirs, ..))) => {
                    (format!("{layer}{MIXTRAL}experts.{expert}.{theirs}.weight"), None)
                }
                None => (name.replace(OURS, MIXTRAL), None),
            },
            ExpertLayout::Stacked => {
                expert().map_or_else(as_it_is, |(layer, expert, (.., stack, part, parts))| {
                    let place = expert.parse().map(|expert| InStack { expert, part: *part, parts: *parts });
                    (format!("{layer}.mlp.experts.{stack}"), place.ok())
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_files() {
        let [router, gate, up, down] =
            ["gate", "experts.12.gate_proj", "experts.12.up_proj", "experts.12.down_proj"]
                .map(|part| format!("model.layers.3.mlp.{part}.weight"));
        let stored = |layout: ExpertLayout, name: &str| {
            let (name, place) = layout.stored(name);
            (name.strip_prefix("model.layers.3.").map(str::to_owned), place)
        };
        for name in [&router, &gate, "model.layers.3.self_attn.q_proj.weight"] {
            assert_eq!(ExpertLayout::Apart.stored(name), (name.to_owned(), None));
        }
        let mixtral = |name| stored(ExpertLayout::Mixtral, name).0;
        assert_eq!(mixtral(&router).as_deref(), Some("block_sparse_moe.gate.weight"));
        assert_eq!(mixtral(&up).as_deref(), Some("block_sparse_moe.experts.12.w3.weight"));
        let at = |part, parts| Some(InStack { expert: 12, part, parts });
        let stacked = |name| stored(ExpertLayout::Stacked, name);
        assert_eq!(stacked(&router), (Some("mlp.gate.weight".to_owned()), None));
        assert_eq!(stacked(&gate), (Some("mlp.experts.gate_up_proj".to_owned()), at(0, 2)));
        assert_eq!(stacked(&up), (Some("mlp.experts.gate_up_proj".to_owned()), at(1, 2)));
        assert_eq!(stacked(&down), (Some("mlp.experts.down_proj".to_owned()), at(0, 1)));
        let of = |name: &str| ExpertLayout::of([router.clone(), name.to_owned()].iter());
        assert_eq!(of("model.layers.0.mlp.experts.gate_up_proj"), ExpertLayout::Stacked);
        assert_eq!(of("model.layers.0.block_sparse_moe.gate.weight"), ExpertLayout::Mixtral);
        assert_eq!(of(&gate), ExpertLayout::Apart);
    }
}
