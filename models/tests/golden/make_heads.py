#!/usr/bin/env python3
"""Make the golden heads: tiny random draft heads in the layouts of the projects that publish them, beside a tiny target
whose hidden states they read, with what each proposes.

    pip install torch safetensors
    python make_heads.py             # writes the folders of heads/
    python make_heads.py NAME ...    # only these heads

The forward of each head is written out here in plain torch, in float32, over all of the text in every round: nothing is
kept between rounds, so a cache that holds a wrong row shows. Everything is seeded.

Heads in the layout of speculators are written by that package (0.9, with transformers) where it is installed. Where it
is not, the ones that lie there stay as they are.
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent / "heads"
V, H, L, THETA, EPS = 96, 32, 7, 10000.0, 1e-5  # of the target
DRAFT_V = 40  # of heads with a vocabulary of their own
PROMPT = 15
ROW = 3  # whose features are kept
MARGIN = 1e-3  # at least so far is each proposal ahead of the next best


# ---- parts of a decoder

def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, positions, theta):
    """Rotary embedding of `x` [heads, rows, size] in the halves layout."""
    half = x.shape[-1] // 2
    angle = torch.tensor(positions, dtype=torch.float32)[:, None] * theta ** -(torch.arange(half) / half)
    cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def heads_of(x, size):
    return x.view(len(x), -1, size).transpose(0, 1)


def attend(q, k, v, sees):
    """Attention of `q` [heads, rows, size] to `k` and `v`, which have fewer heads; `sees` [rows, columns] is a mask."""
    groups = len(q) // len(k)
    k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    score = (q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5
    y = score.masked_fill(~sees, float("-inf")).softmax(-1) @ v
    return y.transpose(0, 1).flatten(1)


def causal(rows):
    return torch.ones(rows, rows, dtype=torch.bool).tril()


class Part:
    """Weights below a prefix, and the numbers of the configuration that they are used with."""

    def __init__(self, weights, prefix, config):
        self.weights, self.prefix, self.config = weights, prefix, config
        self.eps = config["rms_norm_eps"]
        self.theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]

    def __getitem__(self, name):
        return self.weights[f"{self.prefix}{name}.weight"]

    def norm(self, x, name):
        return norm(x, self[name], self.eps)

    def mlp(self, x):
        return (F.silu(x @ self["mlp.gate_proj"].T) * (x @ self["mlp.up_proj"].T)) @ self["mlp.down_proj"].T

    def attention(self, x, positions):
        """Causal self-attention of rows whose norms are already applied."""
        size = self.config["head_dim"]
        q, k, v = (heads_of(x @ self[f"self_attn.{name}_proj"].T, size) for name in "qkv")
        q, k = rotate(q, positions, self.theta), rotate(k, positions, self.theta)
        return attend(q, k, v, causal(len(x))) @ self["self_attn.o_proj"].T

    def layer(self, x, positions):
        """An ordinary decoder layer."""
        x = x + self.attention(self.norm(x, "input_layernorm"), positions)
        return x + self.mlp(self.norm(x, "post_attention_layernorm"))


# ---- the target

class Target:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.embedding, self.head = self.weights["model.embed_tokens.weight"], self.weights["lm_head.weight"]

    def residuals(self, tokens):
        """R[k]: the residual stream as it enters layer k, no norm; R[0] the embedding, R[L] before the final norm."""
        x, positions = self.embedding[tokens], list(range(len(tokens)))
        streams = [x]
        for i in range(self.config["num_hidden_layers"]):
            x = Part(self.weights, f"model.layers.{i}.", self.config).layer(x, positions)
            streams.append(x)
        return streams


def numbers(hidden=H, heads=4, kv_heads=2, intermediate=64, layers=1, theta=THETA, eps=EPS):
    """What every Llama's config.json has."""
    return dict(
        model_type="llama", vocab_size=V, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=8, intermediate_size=intermediate, max_position_embeddings=256,
        rope_theta=theta, rope_scaling=None, rms_norm_eps=eps, hidden_act="silu", attention_bias=False,
        attention_dropout=0.0, mlp_bias=False, bos_token_id=1, eos_token_id=2, initializer_range=0.02,
        tie_word_embeddings=False, torch_dtype="float32", use_cache=True)


def layer_shapes(prefix, c, width=None):
    """Names and shapes of a decoder layer whose attention reads rows of `width`."""
    hidden, size, wide = c["hidden_size"], c["head_dim"], c["intermediate_size"]
    width = width or hidden
    shapes = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (c["num_attention_heads"] * size, width),
        "self_attn.k_proj": (c["num_key_value_heads"] * size, width),
        "self_attn.v_proj": (c["num_key_value_heads"] * size, width),
        "self_attn.o_proj": (hidden, c["num_attention_heads"] * size),
        "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide)}
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def drawn(shapes, generator):
    """Weights that make every part count: unit gain, norm weights away from 1, biases away from 0."""
    weights = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if name == "mask_hidden":
            weights[name] = 3 * noise  # as large as the features in whose place it stands
        elif len(shape) == 1:
            weights[name] = 0.5 * noise if name.endswith("bias") else 1 + 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            weights[name] = 0.5 * noise
        else:
            # Features are small beside what the branches add, so that proposals change from place to place.
            weights[name] = noise * ((0.2 if name == "fc.weight" else 1.5) / shape[-1] ** 0.5)
    return weights


def write(folder, config, weights):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def make_target():
    config = dict(architectures=["LlamaForCausalLM"], **numbers(layers=L))
    shapes = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,), "lm_head.weight": (V, H)}
    for i in range(L):
        shapes |= layer_shapes(f"model.layers.{i}.", config)
    write(HERE / "target", config, drawn(shapes, torch.Generator().manual_seed(0)))


# ---- vocabulary of a head

def draft_vocabulary(generator):
    """`d2t`, offsets from ids of the head to ids of the target, and `t2d`, which ids of the target the head has."""
    ids = torch.randperm(V, generator=generator)[:DRAFT_V].sort().values
    has = torch.zeros(V, dtype=torch.bool)
    has[ids] = True
    return {"d2t": ids - torch.arange(DRAFT_V), "t2d": has}


class Head:
    """A head as it lies in a folder, with what it borrows from the target."""

    def __init__(self, folder, target):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        # speculators nests the numbers of the layers
        self.numbers = self.config.get("transformer_layer_config", self.config)
        self.own = Part(self.weights, "", self.numbers)
        embedding, head = self.weights.get("embed_tokens.weight"), self.weights.get("lm_head.weight")
        self.embedding = target.embedding if embedding is None else embedding
        self.head = target.head if head is None else head
        self.d2t = self.weights.get("d2t", torch.zeros(len(self.head), dtype=torch.int64))

    def part(self, prefix):
        return Part(self.weights, prefix, self.numbers)

    def choice(self, logits):
        """The best token by `logits`, as the target numbers it."""
        first, second = logits.topk(2).values.tolist()
        assert first - second > MARGIN, f"two tokens are within {first - second}: take another seed"
        draft_id = int(logits.argmax())
        return draft_id + int(self.d2t[draft_id])

    def fused(self, taps):
        """What the head reads of the target's rows `taps` [rows, n x hidden]."""
        raise NotImplementedError

    def round(self, fused, tokens, k):
        """Proposals and logits behind `tokens`, of which all but the last have a row in `fused`."""
        raise NotImplementedError


# ---- EAGLE-3

class Eagle3(Head):
    """EAGLE-3, 3.1 and the layouts of them. Row p has the token p+1, the target's features of p, and position p."""

    def layer_ids(self):
        ids = self.config.get("eagle_aux_hidden_state_layer_ids")
        return ids or [2, L // 2, L - 3]

    def fused(self, taps):
        count = len(self.layer_ids())
        if self.config.get("fc_norm"):
            chunks = taps.chunk(count, -1)
            taps = torch.cat([self.own.norm(chunk, f"fc_norm.{i}") for i, chunk in enumerate(chunks)], -1)
        elif self.config.get("norm_before_fc"):
            taps = self.own.norm(taps, "input_norm")
        return taps @ self.own["fc"].T

    def rows(self, tokens, hidden):
        """The layers over rows of tokens and hidden states, in float32 and without a cache."""
        first = self.part("midlayer." if "midlayer.hidden_norm.weight" in self.weights else "layers.0.")
        positions = list(range(len(tokens)))
        normed = first.norm(hidden, "hidden_norm")
        of_speculators = "speculators_model_type" in self.config
        residual = normed if self.config.get("norm_before_residual", of_speculators) else hidden
        x = torch.cat((first.norm(self.embedding[tokens], "input_layernorm"), normed), -1)
        x = residual + first.attention(x, positions)
        x = x + first.mlp(first.norm(x, "post_attention_layernorm"))
        for i in range(1, self.numbers["num_hidden_layers"]):
            x = self.part(f"layers.{i}.").layer(x, positions)
        return x

    def round(self, fused, tokens, k):
        fed, hidden, proposals, logits = tokens[1:], fused, [], []
        for _ in range(k):
            out = self.rows(fed, hidden)[-1]
            normed = self.own.norm(out, "norm")
            logits.append(self.head @ normed)
            proposals.append(self.choice(logits[-1]))
            fed = fed + proposals[-1:]
            hidden = torch.cat((hidden, (normed if self.config.get("norm_output") else out)[None]))
        return dict(proposals=proposals, logits=logits)


def eagle3_shapes(config, prefix, target_hidden=H, vocabulary=DRAFT_V, taps=3):
    hidden = config["hidden_size"]
    return {
        "fc.weight": (hidden, taps * target_hidden), f"{prefix}hidden_norm.weight": (hidden,),
        **layer_shapes(prefix, config, 2 * hidden), "norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}


def eagle3_config(**more):
    known = ("hidden", "heads", "kv_heads", "theta", "eps", "intermediate")
    options = {name: more.pop(name) for name in known if name in more}
    return dict(architectures=["LlamaForCausalLMEagle3"], **numbers(**options), **more)


def make_eagle3_original(folder, generator):
    """As SafeAILab publishes: no layer ids, a vocabulary of its own, the target's embedding."""
    config = eagle3_config(kv_heads=4, draft_vocab_size=DRAFT_V)
    write(folder, config, drawn(eagle3_shapes(config, "midlayer."), generator) | draft_vocabulary(generator))


def make_eagle3_own_embedding(folder, generator):
    """Its own embedding, the target's vocabulary, layers named; rope and epsilon are not the target's."""
    config = eagle3_config(kv_heads=2, theta=5000.0, eps=1e-3, eagle_aux_hidden_state_layer_ids=[2, 4, 6])
    shapes = eagle3_shapes(config, "midlayer.", vocabulary=V) | {"embed_tokens.weight": (V, H)}
    write(folder, config, drawn(shapes, generator))


def make_eagle3_1(folder, generator):
    """EAGLE-3.1: each tapped layer has a norm, and what goes round again is behind the last norm."""
    config = eagle3_config(draft_vocab_size=DRAFT_V, fc_norm=True, norm_output=True,
                           eagle_aux_hidden_state_layer_ids=[2, 3, 5])
    shapes = eagle3_shapes(config, "midlayer.") | {f"fc_norm.{i}.weight": (H,) for i in range(3)}
    write(folder, config, drawn(shapes, generator) | draft_vocabulary(generator))


def make_eagle3_wider_target(folder, generator):
    """A head narrower than its target, which cannot borrow the embedding; one tap is the embedding itself."""
    config = eagle3_config(hidden=24, heads=3, kv_heads=1, intermediate=48, draft_vocab_size=DRAFT_V,
                           target_hidden_size=H, eagle_aux_hidden_state_layer_ids=[0, 3, 6])
    shapes = eagle3_shapes(config, "midlayer.") | {"embed_tokens.weight": (V, 24)}
    write(folder, config, drawn(shapes, generator) | draft_vocabulary(generator))


# ---- P-EAGLE

class PEagle(Eagle3):
    """EAGLE-3 that proposes in one pass: behind the rows of the text stand rows of the mask token and `mask_hidden`."""

    def round(self, fused, tokens, k):
        fed = tokens[1:] + [self.config["mask_token_id"]] * (k - 1)
        unknown = self.fused(self.weights["mask_hidden"][0])
        out = self.rows(fed, torch.cat((fused, unknown.expand(k - 1, -1))))[-k:]
        logits = list(self.own.norm(out, "norm") @ self.head.T)
        return dict(proposals=[self.choice(row) for row in logits], logits=logits)


# ---- DFlash

class DFlash(Head):
    """The target's features are keys and values of each layer; a block of the anchor and masks sees them and itself."""

    first = 1  # row of the block that brings the first proposal

    def layer_ids(self):
        """Of speculators the k of R[k], of the others the layer whose output it is; -1 is the embedding."""
        ids = self.config.get("aux_hidden_state_layer_ids")
        return ids or [i + 1 for i in self.option("target_layer_ids")]

    def option(self, name):
        return self.config.get("dflash_config", {}).get(name, self.config.get(name))

    def fused(self, taps):
        return self.own.norm(taps @ self.own["fc"].T, "hidden_norm")

    def block(self, fused, tokens, rows):
        """Output of `rows` rows, the anchor's and masks, that see all of `fused` and one another, or those before them."""
        x = self.embedding[tokens[-1:] + [self.option("mask_token_id")] * (rows - 1)]
        at = list(range(len(tokens) - 1, len(tokens) - 1 + rows))
        everywhere, size = list(range(len(fused))) + at, self.numbers["head_dim"]
        own = causal(rows) if self.option("causal") else torch.ones(rows, rows, dtype=torch.bool)
        sees = torch.cat((torch.ones(rows, len(fused), dtype=torch.bool), own), -1)
        for i in range(self.numbers["num_hidden_layers"]):
            layer = self.part(f"layers.{i}.")
            normed = layer.norm(x, "input_layernorm")
            # The features come as they are: the norm is for rows of the block.
            seen = torch.cat((fused, normed))
            q = layer.norm(heads_of(normed @ layer["self_attn.q_proj"].T, size), "self_attn.q_norm")
            k = layer.norm(heads_of(seen @ layer["self_attn.k_proj"].T, size), "self_attn.k_norm")
            v = heads_of(seen @ layer["self_attn.v_proj"].T, size)
            q, k = rotate(q, at, layer.theta), rotate(k, everywhere, layer.theta)
            y = attend(q, k, v, sees)
            x = x + y @ layer["self_attn.o_proj"].T
            x = x + layer.mlp(layer.norm(x, "post_attention_layernorm"))
        return self.own.norm(x, "norm")

    def round(self, fused, tokens, k):
        hidden = self.block(fused, tokens, k + self.first)[self.first :]
        logits = list(hidden @ self.head.T)
        return dict(proposals=[self.choice(row) for row in logits], logits=logits)


def dflash_config(architecture, layers, **more):
    """Numbers of a Qwen3, of which the layers of DFlash are."""
    config = numbers(layers=layers) | dict(
        model_type="qwen3", layer_types=["full_attention"] * layers, max_window_layers=layers, sliding_window=None,
        use_sliding_window=False, num_target_layers=L)
    del config["mlp_bias"]
    return dict(architectures=[architecture], **config, **more)


def dflash_shapes(config):
    hidden, size = config["hidden_size"], config["head_dim"]
    shapes = {"fc.weight": (hidden, 3 * H), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(f"layers.{i}.", config)
        shapes |= {f"layers.{i}.self_attn.{name}_norm.weight": (size,) for name in "qk"}
    return shapes


def make_dflash(folder, generator):
    """As z-lab publishes: two layers, embedding and head of the target."""
    config = dflash_config("DFlashDraftModel", 2, block_size=5,
                           dflash_config=dict(mask_token_id=0, target_layer_ids=[1, 3, 5]))
    write(folder, config, drawn(dflash_shapes(config), generator))


def make_dflash_causal(folder, generator):
    """Rows of a block see those before them alone."""
    nested = dict(mask_token_id=0, target_layer_ids=[0, 2, 4], causal=True)
    config = dflash_config("DFlashDraftModel", 2, block_size=5, dflash_config=nested)
    write(folder, config, drawn(dflash_shapes(config), generator))


# ---- DSpark

class DSpark(DFlash):
    """DFlash whose anchor proposes too, and whose logits depend on the token before: from left to right."""

    first = 0

    def linear(self, name, x):
        weight = self.weights[f"{name}.weight"]
        return weight @ x + self.weights.get(f"{name}.bias", 0.0)

    def round(self, fused, tokens, k):
        proposals, logits, confidence = [], [], []
        state = torch.zeros(self.config["markov_rank"])
        before = tokens[-1]
        for hidden in self.block(fused, tokens, k):
            embedded = self.weights["markov_head.markov_w1.weight"][before]
            reads = embedded
            if self.config["markov_head_type"] == "gated":
                reads = self.linear("markov_head.gate_proj", torch.cat((hidden, embedded))).sigmoid() * embedded
            elif self.config["markov_head_type"] == "rnn":
                gate, new, out = self.linear("markov_head.joint_proj", torch.cat((state, embedded, hidden))).chunk(3)
                state = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh()
                reads = out.tanh()
            logits.append(self.head @ hidden + self.linear("markov_head.markov_w2", reads))
            proposals.append(self.choice(logits[-1]))
            if self.config["enable_confidence_head"]:
                seen = torch.cat((hidden, embedded)) if self.config["confidence_head_with_markov"] else hidden
                confidence.append(self.linear("confidence_head.proj", seen).sigmoid())
            before = proposals[-1]
        found = dict(proposals=proposals, logits=logits)
        return found | dict(confidence=torch.cat(confidence)) if confidence else found


def make_dspark(folder, generator, kind, target_layer_ids, **confidence):
    """As DeepSpec writes them, with copies of the target's embedding and head."""
    rank = 8
    config = dflash_config(
        "Qwen3DSparkModel", 1, block_size=4, mask_token_id=1, target_layer_ids=target_layer_ids, num_anchors=32,
        markov_rank=rank, markov_head_type=kind, enable_confidence_head=bool(confidence), **confidence)
    shapes = dflash_shapes(config) | {f"markov_head.markov_{name}.weight": (V, rank) for name in ("w1", "w2")}
    more = {"gated": ("gate_proj", rank, H + rank), "rnn": ("joint_proj", 3 * rank, 2 * rank + H)}.get(kind)
    if more:
        name, rows, width = more
        shapes |= {f"markov_head.{name}.weight": (rows, width), f"markov_head.{name}.bias": (rows,)}
    if confidence:
        width = H + rank * confidence["confidence_head_with_markov"]
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    lent = Target(HERE / "target")
    weights = drawn(shapes, generator)
    weights["markov_head.markov_w1.weight"] *= 4  # so that the token before changes the choice
    write(folder, config, weights | {"embed_tokens.weight": lent.embedding, "lm_head.weight": lent.head})


def make_dspark_vanilla(folder, generator):
    """No confidence; the first tap is the embedding."""
    make_dspark(folder, generator, "vanilla", [-1, 2, 4])


def make_dspark_gated(folder, generator):
    """Confidence from the hidden state alone."""
    make_dspark(folder, generator, "gated", [1, 3, 5], confidence_head_with_markov=False)


def make_dspark_rnn(folder, generator):
    """Confidence from the hidden state and the token before."""
    make_dspark(folder, generator, "rnn", [0, 2, 5], confidence_head_with_markov=True)


# ---- the layout of speculators

CLASSES = dict(eagle3="Eagle3DraftModel", peagle="PEagleDraftModel", dflash="DFlashDraftModel")


class Missing(Exception):
    """The package is not installed."""


def written_by_speculators(folder, generator, kind, layers, **options):
    """Have the package write a head of `kind`, `layers` as transformers configures them, with weights drawn here."""
    try:
        import speculators.models
        from speculators.proposals.greedy import GreedyTokenProposalConfig
    except ImportError:
        raise Missing from None
    layers = layers()
    # Not the default, which wants a compiler.
    layers._attn_implementation = "eager"
    method = GreedyTokenProposalConfig(speculative_tokens=options.pop("speculative_tokens"))
    described = speculators.SpeculatorsConfig(
        algorithm=kind, proposal_methods=[method], default_proposal_method="greedy",
        verifier=speculators.VerifierConfig(name_or_path="../target", architectures=["LlamaForCausalLM"]))
    model_class = getattr(speculators.models, CLASSES[kind])
    model = model_class(model_class.config_class(
        transformer_layer_config=layers, speculators_config=described, **options))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    model.load_state_dict(drawn(shapes, generator) | draft_vocabulary(generator))
    model.save_pretrained(folder)
    (folder / "config.py").unlink(missing_ok=True)  # the package's own code


def llama_layers(count):
    from transformers import LlamaConfig
    return LlamaConfig(
        vocab_size=V, hidden_size=H, num_hidden_layers=count, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=64, max_position_embeddings=256, rms_norm_eps=EPS, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=THETA))


def make_eagle3_speculators(folder, generator):
    """What goes round the first attention is behind the norm, the embedding is its own."""
    written_by_speculators(folder, generator, "eagle3", lambda: llama_layers(1), draft_vocab_size=DRAFT_V,
                           norm_before_residual=True, eagle_aux_hidden_state_layer_ids=[2, 4, 5], speculative_tokens=3)


def make_p_eagle(folder, generator):
    """Two layers, of which the second is an ordinary one."""
    written_by_speculators(folder, generator, "peagle", lambda: llama_layers(2), draft_vocab_size=DRAFT_V,
                           mask_token_id=2, norm_before_residual=False, eagle_aux_hidden_state_layer_ids=[2, 3, 6],
                           speculative_tokens=4)


def make_dflash_speculators(folder, generator):
    """A vocabulary of its own; the package leaves the embedding to the target."""
    def layers():
        from transformers import Qwen3Config
        return Qwen3Config(
            vocab_size=V, hidden_size=H, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=8,
            intermediate_size=48, max_position_embeddings=256, rms_norm_eps=EPS, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=THETA))
    written_by_speculators(folder, generator, "dflash", layers, draft_vocab_size=DRAFT_V, block_size=4, mask_token_id=2,
                           aux_hidden_state_layer_ids=[2, 4, 5], speculative_tokens=3)


# ---- golden.json

# name: (maker, class of the reference, proposals a round, how far the text is longer in each next round)
CASES = {
    "eagle3-original": (make_eagle3_original, Eagle3, 3, [4, 1, 3, 2]),
    "eagle3-own-embedding": (make_eagle3_own_embedding, Eagle3, 3, [1, 2, 3, 4]),
    "eagle3-1": (make_eagle3_1, Eagle3, 3, [3, 4, 2, 1]),
    "eagle3-wider-target": (make_eagle3_wider_target, Eagle3, 3, [2, 1, 4, 3]),
    "eagle3-speculators": (make_eagle3_speculators, Eagle3, 3, [2, 4, 1, 3]),
    "p-eagle": (make_p_eagle, PEagle, 4, [5, 1, 3, 2, 4]),
    "dflash": (make_dflash, DFlash, 4, [3, 1, 5, 4, 2]),
    "dflash-speculators": (make_dflash_speculators, DFlash, 3, [3, 1, 4, 2]),
    "dspark-vanilla": (make_dspark_vanilla, DSpark, 4, [4, 5, 1, 2, 3]),
    "dspark-gated": (make_dspark_gated, DSpark, 4, [1, 5, 2, 4, 3]),
    "dspark-rnn": (make_dspark_rnn, DSpark, 4, [2, 3, 5, 1, 4]),
    "dflash-causal": (make_dflash_causal, DFlash, 4, [1, 4, 2, 5, 3]),
}


def rounded(tensor):
    return [rounded(part) for part in tensor] if tensor.dim() > 1 else [float(f"{x:.7g}") for x in tensor.tolist()]


def make_case(seed, name, target):
    make, kind, k, growths = CASES[name]
    folder, generator = HERE / name, torch.Generator().manual_seed(seed)
    make(folder, generator)
    # What is stored is the head: read it back.
    head = kind(folder, target)
    committed = [PROMPT + 1]
    for growth in growths:
        committed.append(committed[-1] + growth)
    assert sorted(growths) == list(range(1, k + 2))
    tokens = torch.randint(3, V, (committed[-1],), generator=generator).tolist()
    streams = target.residuals(tokens)
    ids = head.layer_ids()
    taps = torch.cat([streams[i] for i in ids], -1)
    fused = head.fused(taps)
    rounds = []
    for n in committed:
        # The anchor, token n-1, has not been through the target yet.
        found = head.round(fused[: n - 1], tokens[:n], k)
        line = dict(committed=n, k=k, proposals=found["proposals"], logits=rounded(torch.stack(found["logits"])))
        if "confidence" in found:
            line["confidence"] = rounded(found["confidence"])
        rounds.append(line)
    features = dict(row=ROW, taps=rounded(taps[ROW]), fused=rounded(fused[ROW]))
    golden = dict(tokens=tokens, prompt=PROMPT, layers=ids, features=features, rounds=rounds)
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items() if key != "rounds"]
    lines.append(' "rounds": [\n  ' + ",\n  ".join(map(json.dumps, rounds)) + "\n ]")
    (folder / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    largest = max(abs(x) for line in rounds for row in line["logits"] for x in row)
    print(f"{name:24} {size:7} bytes, layers {ids}, logits to {largest:.1f}, "
          f"proposals {[line['proposals'] for line in rounds]}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}")
    make_target()
    target = Target(HERE / "target")
    with torch.inference_mode():
        for seed, name in enumerate(CASES):
            if not sys.argv[1:] or name in sys.argv[1:]:
                try:
                    make_case(seed + 1, name, target)
                except Missing:
                    print(f"{name:24} stays: speculators is not installed")
