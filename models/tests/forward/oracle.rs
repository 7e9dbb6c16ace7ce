//! Layers of every kind and mixture, those that no family has too, against a forward pass by candle, in f64: an oracle
//! that shares no code with what it judges; and random checkpoints for it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{D, DType, Device, Result, Tensor};
use faser_kernels::ops::Activation;
use faser_kernels::{Dtype, Isa};
use faser_models::rounding::Distance;
use faser_models::{
    AttentionSpec, Experts, LayerSpec, Mlp, MlpSpec, Model, ModelConfig, Norms, QkNorm, RopeConfig, Shard,
    WeightSource,
};

use crate::session::Session;

/// Numbers that look random.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }

    /// From -1 to 1.
    fn number(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }
}

/// A shape with layers that differ, of all that a layer can be.
pub(crate) fn config(random: &mut Random) -> ModelConfig {
    let llama = faser_models::synthetic::SyntheticSpec::preset("tiny").expect("a preset").configs();
    let kv_heads = random.one_of(&[1, 2, 4]);
    let heads = kv_heads * random.one_of(&[1, 2, 3]);
    let head_dim = random.one_of(&[4, 10, 16, 32]);
    let norm_offset = random.one_of(&[0.0, 1.0]);
    let layers = (0..1 + random.below(3)).map(|_| layer(random, head_dim)).collect();
    let vocab = 30 + random.below(60);
    ModelConfig {
        hidden: 8 + 4 * random.below(12),
        layers,
        heads,
        kv_heads,
        head_dim,
        intermediate: 4 * (1 + random.below(14)),
        vocab,
        stored_vocab: vocab,
        max_context: 64,
        tie_embeddings: random.chance(),
        embedding_scale: random.one_of(&[1.0, 3.5]),
        norm_offset,
        logit_scale: random.one_of(&[1.0, 0.3]),
        logit_soft_cap: random.one_of(&[None, Some(4.0)]),
        ..llama.expect("a shape").0
    }
}

fn layer(random: &mut Random, head_dim: usize) -> LayerSpec {
    // The last is of experts alone.
    let activation = random.one_of(&Activation::ALL[..4]);
    let rope = RopeConfig {
        partial: random.one_of(&[None, Some(2.max(head_dim / 4 * 2))]),
        neighbours: random.chance(),
        ..RopeConfig::plain(random.one_of(&[500.0, 10_000.0]))
    };
    LayerSpec {
        attention: AttentionSpec {
            norms: Norms {
                before: random.one_of(&[None, Some("norm_a")]),
                after: random.one_of(&[None, Some("norm_b")]),
            },
            qkv_bias: random.chance(),
            o_bias: random.chance(),
            fused: random.one_of(&[None, Some("self_attn.qkv_proj")]),
            qk_norm: random.one_of(&[None, Some(QkNorm::Heads), Some(QkNorm::Whole)]),
            window: random.one_of(&[None, Some(1), Some(5), Some(17)]),
            scale: random.one_of(&[0.2, 0.5]),
            soft_cap: random.one_of(&[None, Some(1.5)]),
            sinks: random.chance(),
            first: 0,
            beside_embedding: None,
            rope: (random.below(4) > 0).then_some(rope),
        },
        mlp: MlpSpec {
            norms: Norms {
                before: random.one_of(&[None, Some("norm_c")]),
                after: random.one_of(&[None, Some("norm_d")]),
            },
            kind: random.one_of(&[Mlp::Gated(activation), Mlp::Plain(activation)]),
            fused: random.one_of(&[None, Some("mlp.fused_proj")]),
            bias: random.chance(),
        },
    }
}

/// The same where some layers have experts.
fn with_experts(random: &mut Random, mut config: ModelConfig) -> ModelConfig {
    let count = 1 + random.below(9);
    let experts = Experts {
        bias: random.chance(),
        activation: random.one_of(&Activation::ALL),
        count,
        active: 1 + random.below(count),
        width: random.one_of(&[4, 20, 64]),
        renormed: random.chance(),
        shared: random.one_of(&[None, Some(8), Some(64)]),
    };
    for (index, layer) in config.layers.iter_mut().enumerate() {
        if index == 0 || random.chance() {
            let before = layer.mlp.norms.before.or(Some("experts_layernorm"));
            let norms = Norms { before, after: None };
            layer.mlp = MlpSpec { norms, kind: Mlp::Experts(experts), fused: None, bias: false };
        }
    }
    config
}

/// A folder with a random checkpoint of a shape; it goes with this.
pub(crate) struct Checkpoint {
    folder: PathBuf,
    tensors: HashMap<String, Tensor>,
}

impl Checkpoint {
    pub(crate) fn new(config: &ModelConfig, random: &mut Random, name: &str) -> Checkpoint {
        let mut tensors = HashMap::new();
        let mut add = |name: String, shape: &[usize]| {
            let count = shape.iter().product::<usize>();
            // Outputs of a matrix about as large as its inputs; norms away from 1.
            let size = if let [_, inputs] = shape { 1.7 / (*inputs as f32).sqrt() } else { 0.6 };
            let middle = if name.contains("norm") { 1.0 - config.norm_offset } else { 0.0 };
            let numbers: Vec<f32> = (0..count).map(|_| middle + size * random.number()).collect();
            tensors.insert(name, Tensor::from_vec(numbers, shape, &Device::Cpu).expect("a tensor"));
        };
        let ModelConfig { hidden, intermediate, vocab, heads, kv_heads, head_dim, .. } = *config;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        add("model.embed_tokens.weight".into(), &[vocab, hidden]);
        if !config.tie_embeddings {
            add("lm_head.weight".into(), &[vocab, hidden]);
        }
        add("model.norm.weight".into(), &[hidden]);
        for (index, LayerSpec { attention, mlp }) in config.layers.iter().enumerate() {
            let mut add = |part: &str, shape: &[usize]| add(format!("model.layers.{index}.{part}"), shape);
            let norms = [attention.norms, mlp.norms].map(|norms| [norms.before, norms.after]);
            norms.into_iter().flatten().flatten().for_each(|norm| add(&format!("{norm}.weight"), &[hidden]));
            let mut linear = |part: &str, outputs: usize, inputs: usize, bias: bool| {
                add(&format!("{part}.weight"), &[outputs, inputs]);
                if bias {
                    add(&format!("{part}.bias"), &[outputs]);
                }
            };
            match attention.fused {
                Some(fused) => linear(fused, q + 2 * kv, hidden, attention.qkv_bias),
                None => {
                    linear("self_attn.q_proj", q, hidden, attention.qkv_bias);
                    linear("self_attn.k_proj", kv, hidden, attention.qkv_bias);
                    linear("self_attn.v_proj", kv, hidden, attention.qkv_bias);
                }
            }
            linear("self_attn.o_proj", hidden, q, attention.o_bias);
            if let Some(fused) = mlp.fused {
                let parts = if matches!(mlp.kind, Mlp::Gated(_)) { 2 } else { 1 };
                linear(fused, parts * intermediate, hidden, mlp.bias);
            }
            let apart = mlp.fused.is_none();
            let mut gated = |place: &str, width: usize, gate: bool, bias: bool| {
                if gate && apart {
                    linear(&format!("{place}.gate_proj"), width, hidden, bias);
                }
                if apart {
                    linear(&format!("{place}.up_proj"), width, hidden, bias);
                }
                linear(&format!("{place}.down_proj"), hidden, width, bias);
            };
            match mlp.kind {
                Mlp::Gated(_) => gated("mlp", intermediate, true, mlp.bias),
                Mlp::Plain(_) => gated("mlp", intermediate, false, mlp.bias),
                Mlp::Experts(Experts { count, width, shared, bias, .. }) => {
                    (0..count).for_each(|expert| gated(&format!("mlp.experts.{expert}"), width, true, bias));
                    if let Some(width) = shared {
                        gated("mlp.shared_expert", width, true, false);
                        linear("mlp.shared_expert_gate", 1, hidden, bias);
                    }
                    linear("mlp.gate", count, hidden, bias);
                }
            }
            if attention.sinks {
                add("self_attn.sinks", &[heads]);
            }
            let [q_norm, k_norm] = match attention.qk_norm {
                None => continue,
                Some(QkNorm::Heads) => [head_dim; 2],
                Some(QkNorm::Whole) => [q, kv],
            };
            add("self_attn.q_norm.weight", &[q_norm]);
            add("self_attn.k_norm.weight", &[k_norm]);
        }
        let folder = std::env::temp_dir().join(format!("faser-oracle-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        candle_core::safetensors::save(&tensors, folder.join("model.safetensors")).expect("a file");
        Checkpoint { folder, tensors }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The logits after each token of a text.
    pub(crate) fn logits(&self, config: &ModelConfig, tokens: &[u32]) -> Result<Vec<Vec<f64>>> {
        let tensors =
            self.tensors.iter().map(|(name, tensor)| Ok((name.as_str(), tensor.to_dtype(DType::F64)?)));
        Oracle { config, tensors: tensors.collect::<Result<_>>()? }.forward(tokens)
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Oracle<'a> {
    config: &'a ModelConfig,
    tensors: HashMap<&'a str, Tensor>,
}

impl Oracle<'_> {
    fn forward(&self, tokens: &[u32]) -> Result<Vec<Vec<f64>>> {
        let ids = Tensor::new(tokens, &Device::Cpu)?;
        let embedding = &self.tensors["model.embed_tokens.weight"];
        let mut x = (embedding.index_select(&ids, 0)? * f64::from(self.config.embedding_scale))?;
        for (index, LayerSpec { attention, mlp }) in self.config.layers.iter().enumerate() {
            let place = format!("model.layers.{index}");
            let normed = |x: &Tensor, name: Option<&str>| {
                name.map_or(Ok(x.clone()), |name| self.norm(x, &format!("{place}.{name}")))
            };
            let branch = self.attend(&place, attention, &normed(&x, attention.norms.before)?)?;
            x = (x + self.normed_behind(&branch, &place, attention.norms)?)?;
            let branch = self.activate(&place, mlp, &normed(&x, mlp.norms.before)?)?;
            x = (x + self.normed_behind(&branch, &place, mlp.norms)?)?;
        }
        let head = if self.config.tie_embeddings { embedding } else { &self.tensors["lm_head.weight"] };
        let logits = (self.norm(&x, "model.norm")?.matmul(&head.t()?)? * f64::from(self.config.logit_scale))?;
        capped(logits, self.config.logit_soft_cap)?.to_vec2()
    }

    fn normed_behind(&self, branch: &Tensor, place: &str, norms: Norms) -> Result<Tensor> {
        norms.after.map_or(Ok(branch.clone()), |name| self.norm(branch, &format!("{place}.{name}")))
    }

    /// Over the last dimension.
    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let weight = (&self.tensors[format!("{name}.weight").as_str()] + f64::from(self.config.norm_offset))?;
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        let root = (mean + f64::from(self.config.rms_eps))?.sqrt()?;
        x.broadcast_div(&root)?.broadcast_mul(&weight)
    }

    fn linear(&self, x: &Tensor, place: &str, name: &str) -> Result<Tensor> {
        let y = x.matmul(&self.tensors[format!("{place}.{name}.weight").as_str()].t()?)?;
        let bias = self.tensors.get(format!("{place}.{name}.bias").as_str());
        bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
    }

    fn attend(&self, place: &str, spec: &AttentionSpec, x: &Tensor) -> Result<Tensor> {
        let ModelConfig { heads, kv_heads, head_dim, .. } = *self.config;
        let n = x.dim(0)?;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let all = spec.fused.map(|fused| self.linear(x, place, fused)).transpose()?;
        let by_heads = |part: &str, count: usize, first: usize| -> Result<Tensor> {
            let mut y = match &all {
                Some(all) => all.narrow(1, first, count * head_dim)?.contiguous()?,
                None => self.linear(x, place, &format!("self_attn.{part}_proj"))?,
            };
            let norm = format!("{place}.self_attn.{part}_norm");
            let turned = part != "v";
            if turned && spec.qk_norm == Some(QkNorm::Whole) {
                y = self.norm(&y, &norm)?;
            }
            y = y.reshape((n, count, head_dim))?;
            if turned && spec.qk_norm == Some(QkNorm::Heads) {
                y = self.norm(&y, &norm)?;
            }
            let y = y.transpose(0, 1)?.contiguous()?;
            let y = match spec.rope.as_ref().filter(|_| turned) {
                Some(rope) => turned_by(&y, rope)?,
                None => y,
            };
            // Query heads share key heads in groups that stand together.
            let group = heads / count;
            y.unsqueeze(1)?.expand((count, group, n, head_dim))?.contiguous()?.reshape((heads, n, head_dim))
        };
        let q = by_heads("q", heads, 0)?;
        let k = by_heads("k", kv_heads, q_width)?;
        let v = by_heads("v", kv_heads, q_width + kv_width)?;
        let scores = (q.matmul(&k.transpose(1, 2)?.contiguous()?)? * f64::from(spec.scale))?;
        let sees = |row: usize, other: usize| other <= row && row - other < spec.window.unwrap_or(n);
        let mask = (0..n * n).map(|at| if sees(at / n, at % n) { 0.0 } else { f64::NEG_INFINITY });
        let mask = Tensor::from_iter(mask, &Device::Cpu)?.reshape((n, n))?;
        let scores = capped(scores, spec.soft_cap)?.broadcast_add(&mask)?;
        // A sink is a score that all rows have, and no value.
        let sinks = self.tensors.get(format!("{place}.self_attn.sinks").as_str());
        let sinks = sinks.map(|sinks| sinks.reshape((heads, 1, 1))?.expand((heads, n, 1))).transpose()?;
        let scores = Tensor::cat(&[Some(scores), sinks].into_iter().flatten().collect::<Vec<_>>(), 2)?;
        let powers = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let weights = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?.narrow(2, 0, n)?;
        let attended = weights.matmul(&v)?.transpose(0, 1)?.contiguous()?.reshape((n, heads * head_dim))?;
        self.linear(&attended, place, "self_attn.o_proj")
    }

    fn activate(&self, place: &str, spec: &MlpSpec, x: &Tensor) -> Result<Tensor> {
        let (activation, gate) = match spec.kind {
            Mlp::Experts(experts) => return self.mix(place, experts, x),
            Mlp::Gated(activation) => (activation, true),
            Mlp::Plain(activation) => (activation, false),
        };
        let Some(fused) = spec.fused else { return self.gated(&format!("{place}.mlp"), activation, gate, x) };
        let (all, width) = (self.linear(x, place, fused)?, self.config.intermediate);
        let inner = match gate {
            true => gating(activation, &all.narrow(1, 0, width)?, &all.narrow(1, width, width)?)?,
            false => activated(activation, &all)?,
        };
        self.linear(&inner, place, "mlp.down_proj")
    }

    fn gated(&self, place: &str, activation: Activation, gate: bool, x: &Tensor) -> Result<Tensor> {
        let up = self.linear(x, place, "up_proj")?;
        let inner = match gate {
            true => gating(activation, &self.linear(x, place, "gate_proj")?, &up)?,
            false => activated(activation, &up)?,
        };
        self.linear(&inner, place, "down_proj")
    }

    /// Every expert of every row, most of them weighed by 0.
    fn mix(&self, place: &str, experts: Experts, x: &Tensor) -> Result<Tensor> {
        let Experts { activation, count, active, renormed, shared, .. } = experts;
        let mut weights = self.linear(x, place, "mlp.gate")?.exp()?.to_vec2::<f64>()?;
        for row in &mut weights {
            let mut sorted = row.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let sum: f64 = sorted[..if renormed { active } else { count }].iter().sum();
            row.iter_mut().for_each(|w| *w = if *w >= sorted[active - 1] { *w / sum } else { 0.0 });
        }
        let weights = Tensor::new(weights, &Device::Cpu)?;
        let mut sum = x.zeros_like()?;
        for expert in 0..count {
            let of = self.gated(&format!("{place}.mlp.experts.{expert}"), activation, true, x)?;
            sum = (sum + of.broadcast_mul(&weights.narrow(1, expert, 1)?)?)?;
        }
        if shared.is_none() {
            return Ok(sum);
        }
        let of = self.gated(&format!("{place}.mlp.shared_expert"), activation, true, x)?;
        let gate = self.linear(x, place, "mlp.shared_expert_gate")?;
        sum + of.broadcast_div(&(gate.neg()?.exp()? + 1.0)?)?
    }
}

fn activated(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Silu => x.silu(),
        Activation::GeluTanh => x.gelu(),
        Activation::Gelu => x.gelu_erf(),
        Activation::ReluSquared => x.relu()?.sqr(),
        Activation::SwigluOai => {
            let x = x.minimum(7.0)?;
            &x / ((&x * -1.702)?.exp()? + 1.0)?
        }
    }
}

/// The value of the gate, times what it lets through.
fn gating(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let up = if activation == Activation::SwigluOai { (up.clamp(-7.0, 7.0)? + 1.0)? } else { up.clone() };
    activated(activation, gate)? * up
}

/// Rotated by their positions: `[heads, n, head_dim]`; halves of what turns are pairs, or neighbours are.
fn turned_by(x: &Tensor, rope: &RopeConfig) -> Result<Tensor> {
    let (heads, n, all) = x.dims3()?;
    let dim = rope.partial.unwrap_or(all);
    let half = dim / 2;
    let angle = |at: usize| (at / half) as f64 / f64::from(rope.theta).powf((at % half) as f64 / half as f64);
    let angles = Tensor::from_iter((0..n * half).map(angle), &Device::Cpu)?.reshape((n, half))?;
    let (cos, sin) = (angles.cos()?, angles.sin()?);
    let (turning, rest) = (x.narrow(2, 0, dim)?.contiguous()?, x.narrow(2, dim, all - dim)?);
    let (a, b) = match rope.neighbours {
        true => {
            let pairs = turning.reshape((heads, n, half, 2))?;
            let of = |place| pairs.narrow(3, place, 1)?.contiguous()?.reshape((heads, n, half));
            (of(0)?, of(1)?)
        }
        false => (turning.narrow(2, 0, half)?, turning.narrow(2, half, half)?),
    };
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    let turned = match rope.neighbours {
        true => Tensor::stack(&[first, second], 3)?.reshape((heads, n, dim))?,
        false => Tensor::cat(&[first, second], 2)?,
    };
    Tensor::cat(&[turned, rest.contiguous()?], 2)
}

fn capped(x: Tensor, cap: Option<f32>) -> Result<Tensor> {
    cap.map(f64::from).map_or(Ok(x.clone()), |cap| (x / cap)?.tanh()? * cap)
}

fn tokens(config: &ModelConfig, random: &mut Random) -> Vec<u32> {
    (0..30).map(|_| random.below(config.vocab) as u32).collect()
}

fn rounded(logits: Vec<Vec<f64>>) -> Vec<Vec<f32>> {
    logits.into_iter().map(|row| row.into_iter().map(|logit| logit as f32).collect()).collect()
}

#[test]
fn layers_of_any_mixture_have_candles_logits() {
    for seed in 0..90 {
        let mut random = Random(seed);
        let config = config(&mut random);
        let config = if seed < 60 { config } else { with_experts(&mut random, config) };
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
