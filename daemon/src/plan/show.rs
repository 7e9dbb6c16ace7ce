//! A plan as text.

use std::fmt::{self, Display, Formatter};

use faser_topology::{
    DeviceId, DeviceLoad, Joined, Lanes, LinkKind, Plan, Rank, Replica, Shard, Share, Topology,
};

use super::{Facts, PlanReport};
use crate::config::sizes::written;

/// Columns of a bar.
const BAR: usize = 48;

impl Display for PlanReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.pair.iter().try_for_each(|name| writeln!(f, "pair     {name}"))?;
        machine(f, &self.topology, self.written)?;
        model(f, "target", &self.target)?;
        match &self.draft {
            Some(draft) => model(f, "draft", draft)?,
            None => writeln!(f, "draft    none")?,
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note     {note}"))?;
        if let Some(plan) = &self.plan {
            for (number, one) in plan.replicas.iter().enumerate() {
                replica(f, number, one, self.max_context, self.block_size)?;
            }
            devices(f, plan)?;
            plan.warnings.iter().try_for_each(|warning| writeln!(f, "warning  {warning}"))?;
            f.write_str("ok")?;
        }
        if let Some(refusal) = &self.refusal {
            write!(f, "\nno plan  {}", refusal.problem)?;
            for (number, change) in refusal.would_fit.iter().enumerate() {
                let head = if number == 0 { "fits    " } else { "or      " };
                write!(f, "\n{head} {change}")?;
            }
        }
        Ok(())
    }
}

fn machine(f: &mut Formatter<'_>, topology: &Topology, is_written: bool) -> fmt::Result {
    let host = &topology.host;
    let origin = if is_written { "as the config says" } else { "as it was found" };
    writeln!(f, "machine  {}, {origin}", topology.name)?;
    let nodes =
        if host.nodes.len() > 1 { format!(" on {} NUMA nodes", host.nodes.len()) } else { String::new() };
    writeln!(f, "host     {}: {} cores{nodes}, {}", host.name, host.cores.len(), written(host.memory_bytes))?;
    let width = topology.gpus.iter().map(|gpu| gpu.name.len()).max().unwrap_or(0);
    for (number, gpu) in topology.gpus.iter().enumerate() {
        let numa = gpu.numa.map_or_else(String::new, |numa| format!(", NUMA node {numa}"));
        let memory = written(gpu.memory_bytes);
        writeln!(f, "cuda:{number:<3} {:width$}  {} SMs, {memory}{numa}", gpu.name, gpu.sms)?;
    }
    links(f, topology)
}

/// In one line if all pairs are joined alike, else as a table.
fn links(f: &mut Formatter<'_>, topology: &Topology) -> fmt::Result {
    let Some(first) = topology.links.first() else { return Ok(()) };
    let rate = |joined: &Joined| format!("{:.0}", joined.link.bytes_per_s / 1e9);
    if topology.links.iter().all(|joined| joined.link == first.link) {
        let pairs = if topology.links.len() == 1 { "both" } else { "every two" };
        return writeln!(f, "links    {pairs}: {}, {} GB/s each way", first.link.kind, rate(first));
    }
    let letter = |kind: LinkKind| match kind {
        LinkKind::Nvlink => 'N',
        LinkKind::PcieSwitch => 'S',
        LinkKind::Pcie => 'P',
        LinkKind::PcieNuma => 'X',
    };
    let kinds = LinkKind::ALL
        .into_iter()
        .filter(|kind| topology.links.iter().any(|joined| joined.link.kind == *kind));
    let legend = kinds.map(|kind| format!("{} {kind}", letter(kind))).collect::<Vec<_>>().join(", ");
    writeln!(f, "links    GB/s each way; {legend}")?;
    let count = topology.gpus.len();
    let heads: String = (0..count).map(|gpu| format!("{gpu:>6}")).collect();
    writeln!(f, "         {:7}{heads}", "")?;
    for a in 0..count {
        let cell = |b| topology.link(a, b).map(|link| Joined { gpus: (a, b), link });
        let cells = (0..count).map(|b| match cell(b) {
            Some(joined) => format!("{:>6}", format!("{}{}", rate(&joined), letter(joined.link.kind))),
            None => format!("{:>6}", "-"),
        });
        writeln!(f, "         {:7}{}", DeviceId::Gpu(a).to_string(), cells.collect::<String>())?;
    }
    Ok(())
}

fn model(f: &mut Formatter<'_>, role: &str, model: &Facts) -> fmt::Result {
    let Facts { name, dtype, layers, heads, kv_heads, hidden, vocab, ranks, .. } = model;
    let (weights, kv) = (written(model.weight_bytes), written(model.kv_bytes_per_token));
    writeln!(
        f,
        "{role:<8} {name}: {layers} layers, hidden {hidden}, {heads} heads ({kv_heads} KV), vocabulary {vocab}; {dtype}, weights {weights}, KV of a token {kv}; TP {ranks}",
    )
}

fn replica(
    f: &mut Formatter<'_>,
    number: usize,
    replica: &Replica,
    max_context: usize,
    block_size: usize,
) -> fmt::Result {
    let Replica { kv_blocks, kv_tokens, sequences, .. } = replica;
    writeln!(
        f,
        "\nreplica {number}: KV for {kv_tokens} tokens ({kv_blocks} blocks of {block_size}), room for {sequences} x {max_context}"
    )?;
    if let Some(Joined { link, .. }) = &replica.slowest_link {
        writeln!(f, "  its group sums over {}, {:.0} GB/s", link.kind, link.bytes_per_s / 1e9)?;
    }
    for rank in &replica.ranks {
        shards(f, rank)?;
    }
    if let Some(alike) = replica.ranks.first().filter(|first| all_alike(first, &replica.ranks)) {
        return lanes(f, alike, "");
    }
    replica.ranks.iter().try_for_each(|rank| lanes(f, rank, &format!(" of {}", rank.device)))
}

fn all_alike(first: &Rank, ranks: &[Rank]) -> bool {
    ranks.iter().all(|rank| rank.partitions == first.partitions)
}

fn shards(f: &mut Formatter<'_>, rank: &Rank) -> fmt::Result {
    let models = [("target", &rank.target), ("draft", &rank.draft)];
    let mut device = rank.device.to_string();
    for (role, shard) in models.into_iter().filter_map(|(role, shard)| Some((role, shard.as_ref()?))) {
        let Shard { share, weight_bytes, kv_bytes, .. } = shard;
        let sizes = format!("weights {}, KV {}", written(*weight_bytes), written(*kv_bytes));
        writeln!(f, "  {device:<7} {role:<6} {}; {sizes}", slices(share))?;
        device.clear();
    }
    Ok(())
}

fn slices(share: &Share) -> String {
    if share.ranks == 1 {
        return "whole".to_owned();
    }
    let range = |range: &std::ops::Range<usize>| match range.len() {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end.saturating_sub(1)),
    };
    format!(
        "rank {} of {}: heads {}, KV heads {}, MLP columns {}, tokens {}",
        share.rank,
        share.ranks,
        range(&share.heads),
        range(&share.kv_heads),
        range(&share.columns),
        range(&share.tokens),
    )
}

fn lanes(f: &mut Formatter<'_>, rank: &Rank, of: &str) -> fmt::Result {
    let cores = |cores: &[usize]| match cores {
        [] => "none".to_owned(),
        cores => cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    };
    let words = |lanes: &Lanes| match lanes {
        Lanes::Sms { draft_sms: 0, verify_sms } => format!("verify on {verify_sms} SMs"),
        Lanes::Sms { draft_sms, verify_sms: 0 } => format!("draft on {draft_sms} SMs"),
        Lanes::Sms { draft_sms, verify_sms } => format!("{draft_sms} + {verify_sms} SMs"),
        Lanes::Cores(pair) if pair.draft.cores.is_empty() => {
            format!("verify on cores {}", cores(&pair.verify.cores))
        }
        Lanes::Cores(pair) => format!("cores {} + {}", cores(&pair.draft.cores), cores(&pair.verify.cores)),
    };
    let both = rank.target.is_some() && rank.draft.is_some();
    let list: Vec<String> = rank.partitions.iter().map(words).collect();
    let list = match list.split_first() {
        Some((first, rest)) if both && rest.is_empty() => format!("{first} in turns"),
        Some((first, rest)) if both => format!("{first} in turns, or at a time {}", rest.join(", ")),
        _ => {
            let mut list = list;
            list.dedup();
            list.join(", ")
        }
    };
    let head = if both { "lanes" } else { "lane" };
    let drafts = if both { " (draft + verify)" } else { "" };
    writeln!(f, "  {head}{of}{drafts}: {list}")
}

fn devices(f: &mut Formatter<'_>, plan: &Plan) -> fmt::Result {
    writeln!(
        f,
        "\nmemory   T target's weights, D draft's weights, W workspaces, K KV, . may be used, | the rest"
    )?;
    for load in &plan.devices {
        let free = load.budget_bytes - load.used_bytes();
        let DeviceLoad { target_weight_bytes, draft_weight_bytes, workspace_bytes, kv_bytes, .. } = load;
        writeln!(
            f,
            "{:<8} {}  T {}, D {}, W {}, K {}, {} left of {}",
            load.device.to_string(),
            bar(load),
            written(*target_weight_bytes),
            written(*draft_weight_bytes),
            written(*workspace_bytes),
            written(*kv_bytes),
            written(free),
            written(load.budget_bytes),
        )?;
    }
    Ok(())
}

/// A device's memory, a column for an equal part of it.
fn bar(load: &DeviceLoad) -> String {
    let parts = [
        ('T', load.target_weight_bytes),
        ('D', load.draft_weight_bytes),
        ('W', load.workspace_bytes),
        ('K', load.kv_bytes),
        ('.', load.budget_bytes - load.used_bytes()),
        ('|', load.memory_bytes - load.budget_bytes),
    ];
    let column = |bytes: u64| (bytes as f64 / load.memory_bytes.max(1) as f64 * BAR as f64).round() as usize;
    let (mut bar, mut sum) = (String::new(), 0);
    for (letter, bytes) in parts {
        sum += bytes;
        let more = column(sum).saturating_sub(bar.len());
        bar.extend(std::iter::repeat_n(letter, more));
    }
    bar
}
