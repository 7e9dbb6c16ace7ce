//! `faser check`: loads what the config names and says how it would be placed.

use std::fmt::Write;

use faser_models::Model;

use faser_engine::cost::{PassCost, Reach};
use faser_topology::Node;

use crate::config::{Config, sizes};
use crate::error::DaemonError;
use crate::load::{Loaded, load};
use crate::progress::Display;

/// Loads everything `serve` would load and returns the summary; nothing is started.
///
/// # Errors
/// What `serve` would fail with.
pub fn check(config: &Config) -> Result<String, DaemonError> {
    let mut display = Display::new();
    let loaded = load(config, &mut |what, progress| display.show(what, progress))?;
    display.finish();
    Ok(summary(config, &loaded))
}

fn summary(config: &Config, loaded: &Loaded) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<8} {value}");
    };
    line("model", format!("{} on http://{}", loaded.name, config.server.listen));
    line("target", described(&loaded.target));
    line("draft", loaded.draft.as_deref().map_or_else(|| "none".to_owned(), described));
    let chat = match &loaded.template {
        Ok(_) => "yes".to_owned(),
        Err(err) => format!("no: {err}"),
    };
    line("chat", chat);
    let device = &loaded.device;
    line(
        "device",
        format!(
            "{}, {} cores, {} free, {}",
            device.name,
            device.cores.len(),
            sizes::written(device.memory_bytes),
            loaded.isa
        ),
    );
    if device.nodes.len() > 1 {
        line("nodes", nodes(&device.nodes, &device.nodes_of(config.device.threads)));
    }
    if let Some(why) = &loaded.why_cpu {
        line("no gpu", why.clone());
    }
    let placement = &loaded.placement;
    for pair in &placement.partitions {
        line(
            "lanes",
            format!("draft on cores {:?}, verify on cores {:?}", pair.draft.cores, pair.verify.cores),
        );
    }
    let engine = &loaded.engine;
    line(
        "kv",
        format!(
            "{}: {} target and {} draft blocks of {} tokens, room for {} sequences of {} tokens",
            sizes::written(placement.kv_bytes),
            placement.target_blocks,
            placement.draft_blocks,
            engine.block_size,
            placement.target_blocks / engine.max_context.div_ceil(engine.block_size).max(1),
            engine.max_context,
        ),
    );
    line(
        "bounds",
        format!(
            "{} running, {} waiting, {} rows per pass",
            engine.max_running, engine.max_waiting, engine.max_pass_rows
        ),
    );
    line("policy", engine.policy.to_string());
    if let Some(source) = &loaded.cost_source {
        line("tables", source.to_string());
    }
    for (pair, costs) in placement.partitions.iter().zip(&engine.partitions) {
        let ms = |cost: &PassCost, rows| format!("{:.2}", cost.seconds(rows, Reach::NONE) * 1e3);
        let [one, eight, many] = [1, 8, 64].map(|rows| ms(&costs.verify, rows));
        let (step, steps) = (ms(&costs.draft, 1), ms(&costs.draft, 16));
        let cores = (pair.verify.cores.len(), pair.draft.cores.len());
        line(
            "costs",
            format!(
                "on {} + {} cores: verify pass of 1, 8, 64 rows {one}, {eight}, {many} ms; draft step of 1, 16 sequences {step}, {steps} ms",
                cores.0, cores.1
            ),
        );
    }
    text.push_str("ok");
    text
}

fn described(model: &Model) -> String {
    let config = model.config();
    format!(
        "{:?}, {} layers, hidden {}, {} heads ({} kv), vocabulary {}, context {}, weights {}",
        config.architecture,
        config.layers,
        config.hidden,
        config.heads,
        config.kv_heads,
        config.vocab,
        config.max_context,
        sizes::written(model.weight_bytes()),
    )
}

/// The NUMA nodes, and on which of them (by number) the weights are.
fn nodes(nodes: &[Node], weights: &[usize]) -> String {
    let cores = nodes.iter().map(|node| format!("{} with {} cores", node.number, node.cores.len()));
    let weights: Vec<String> = weights.iter().map(ToString::to_string).collect();
    format!("{}; weights on {}", cores.collect::<Vec<_>>().join(", "), weights.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_told_with_their_cores_and_where_weights_are() {
        let node = |number: usize, cores: usize| Node { number, cores: (0..cores).collect() };
        let told = nodes(&[node(0, 8), node(2, 4)], &[0, 2]);
        assert_eq!(told, "0 with 8 cores, 2 with 4 cores; weights on 0 and 2");
    }
}
