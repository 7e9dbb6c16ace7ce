//! The daemon's answers for people.

use serde::Deserialize;
use serde_json::Value;

use crate::admin::snapshot::{Figures, ModelView, PairRow, PoolRow, ReplicaView, RequestRow, Snapshot};

/// JSON, indented.
pub(super) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
}

/// An object, a line for each field.
pub(super) fn fields(value: &Value) -> String {
    let rows = value.as_object().into_iter().flatten().map(|(key, value)| vec![key.clone(), plain(value)]);
    table(&rows.collect::<Vec<_>>())
}

/// A value as one writes it in a config.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// Columns as wide as they need to be.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn number(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"))
}

/// `/v1/status`.
pub(super) fn status(value: &Value) -> String {
    let Ok(now) = Snapshot::deserialize(value) else { return pretty(value) };
    let Snapshot { state, detail, version, pid, uptime_s, window_s, total, .. } = &now;
    let pool = |pool: PoolRow| {
        let used = pool.total - pool.free.min(pool.total);
        format!("{used} of {} blocks in use, {} cached", pool.total, pool.cached)
    };
    let mut rows = Vec::new();
    let mut row = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
    row("state", format!("{state} ({detail}), version {version}, process {pid}, up {uptime_s:.0} s"));
    for PairRow { name, state, requests, .. } in &now.pairs {
        let chosen = now.model.as_ref().is_some_and(|model| model.name == *name);
        row(if chosen { "pair *" } else { "pair" }, format!("{name}: {state}, {requests} requests"));
    }
    if let Some(ModelView { name, device, device_kind, .. }) = &now.model {
        row("model", format!("{name} on {device} ({device_kind})"));
        let policy = now.policy.clone().unwrap_or_default();
        let [name, k_max, running, waiting] =
            ["policy", "k_max", "max_running", "max_waiting"].map(|key| plain(policy.value(key)));
        row("policy", format!("{name}, k_max {k_max}"));
        let of = format!(
            "{} running (up to {running}), {} waiting (up to {waiting})",
            total.running, total.waiting
        );
        row("requests", of);
        let (tokens, requests) = (total.output_tokens_per_s, total.requests_per_s);
        row("output", format!("{tokens:.1} tokens/s, {requests:.2} requests/s over {window_s:.0} s"));
        row(
            "drafts",
            format!(
                "{} accepted, {} tokens per pass and sequence, k by chunks {}",
                percent(total.acceptance),
                number(total.tokens_per_chunk),
                histogram(&total.k_histogram)
            ),
        );
        let [draft, verify] = [total.draft_busy, total.verify_busy].map(|share| percent(Some(share)));
        let (partition, overlapped) = (total.partition, percent(total.overlapped));
        row(
            "lanes",
            format!(
                "draft {draft} busy, verify {verify} busy, partition {partition}, {overlapped} of passes overlapped"
            ),
        );
        if let Some(steering) = total.steering {
            row("steering", steering.to_string());
        }
        row("target KV", pool(total.target_kv));
        row("draft KV", pool(total.draft_kv));
        for ReplicaView { replica, draft_retired, .. } in &now.replicas {
            if let Some(why) = draft_retired {
                let of =
                    if now.replicas.len() > 1 { format!(" of replica {replica}") } else { String::new() };
                row("draft", format!("retired{of} until the daemon is restarted: {why}"));
            }
        }
        for ReplicaView { replica, state, figures, .. } in
            now.replicas.iter().filter(|_| now.replicas.len() > 1)
        {
            let Figures { running, waiting, output_tokens_per_s: tokens, .. } = figures;
            let text = format!("{state}: {running} running, {waiting} waiting, {tokens:.1} tokens/s");
            row(&format!("replica {replica}"), text);
        }
    }
    let mut text = table(&rows);
    if !now.slowest.is_empty() {
        text.push_str("\n\n");
        text.push_str(&request_table(&now.slowest));
    }
    text
}

/// Lengths that occur, as `0:3 4:17`.
fn histogram(counts: &[u64]) -> String {
    let occurring = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    let shown: Vec<String> = occurring.map(|(k, count)| format!("{k}:{count}")).collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(" ") }
}

/// `/v1/requests`.
pub(super) fn requests(value: &Value) -> String {
    match Vec::deserialize(&value["requests"]).as_deref() {
        Ok([]) => "no requests".to_owned(),
        Ok(requests) => request_table(requests),
        // Of a daemon of another version.
        Err(_) => pretty(value),
    }
}

fn request_table(requests: &[RequestRow]) -> String {
    let names = ["ID", "STATE", "K", "ACCEPTED", "PROMPT", "OUTPUT", "TOKENS/PASS", "TTFT", "AGE"];
    let mut rows = vec![names.map(str::to_owned).to_vec()];
    rows.extend(requests.iter().map(|request| {
        let seconds = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.2} s"));
        vec![
            request.id.clone(),
            request.state.to_string(),
            request.k.to_string(),
            percent(request.acceptance),
            request.prompt_tokens.to_string(),
            format!("{}/{}", request.output_tokens, request.max_new_tokens),
            number(request.tokens_per_pass),
            seconds(request.ttft_s),
            seconds(Some(request.age_s)),
        ]
    }));
    table(&rows)
}

/// `/v1/config`.
pub(super) fn config(value: &Value) -> String {
    let file = value["file"].as_str().unwrap_or("none: every default");
    let mut rows = vec![vec!["KEY".to_owned(), "IN FORCE".to_owned(), "A CHANGE COUNTS FOR".to_owned()]];
    rows.extend(
        value["live"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|row| vec![plain(&row["key"]), plain(&row["value"]), plain(&row["when"])]),
    );
    let pending = value["pending"].as_array().map_or(&[][..], Vec::as_slice);
    let pending = match (value["error"].as_str(), pending) {
        (Some(error), _) => format!("a reload would be refused: {error}"),
        (None, []) => "a reload would change nothing".to_owned(),
        (None, keys) => {
            let keys: Vec<String> = keys.iter().map(plain).collect();
            format!("a reload would apply, or name as waiting for a restart: {}", keys.join(", "))
        }
    };
    format!("file  {file}\ntag   {}\n\n{}\n\n{pending}", plain(&value["tag"]), table(&rows))
}

/// What a change of the config brought.
pub(super) fn changes(value: &Value) -> String {
    let list = |name: &str| value[name].as_array().map_or(&[][..], Vec::as_slice).to_vec();
    let (applied, restart) = (list("applied"), list("restart"));
    if applied.is_empty() && restart.is_empty() {
        return "nothing has changed".to_owned();
    }
    let row = |what: &str, change: &Value| {
        let why = change["why"].as_str().map_or_else(String::new, |why| format!("({why})"));
        vec![
            what.to_owned(),
            plain(&change["key"]),
            format!("{} -> {}", plain(&change["before"]), plain(&change["after"])),
            why,
        ]
    };
    let applied = applied.iter().map(|change| row("applied", change));
    let restart = restart.iter().map(|change| row("needs a restart", change));
    table(&applied.chain(restart).collect::<Vec<_>>())
}

/// `/v1/drain`.
pub(super) fn drained(value: &Value) -> String {
    match value["left"].as_u64() {
        Some(0) => "drained: no requests are left, and none are taken until `faser ctl resume`".to_owned(),
        left => format!(
            "draining: {} requests are left, and no new ones are taken until `faser ctl resume`",
            left.unwrap_or(0)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_while_loading_and_one_of_a_daemon_that_serves() {
        let loading = json!({"state": "loading", "detail": "loading target: 3 %", "version": "0", "pid": 7, "uptime_s": 1.2});
        assert_eq!(status(&loading), "state  loading (loading target: 3 %), version 0, process 7, up 1 s");
        let mut serving = loading;
        serving["model"] = json!({"name": "demo", "device": "a CPU", "device_kind": "cpu"});
        serving["policy"] = json!({"policy": "faser", "k_max": null, "max_running": 8, "max_waiting": 9});
        serving["total"] = json!({"running": 1, "waiting": 0, "acceptance": 0.75, "k_histogram": [1, 0, 3]});
        serving["slowest"] = json!([{"id": "0-7", "state": "decode", "k": 2, "age_s": 1.5}]);
        let text = status(&serving);
        assert!(text.contains("75 % accepted") && text.contains("k by chunks 0:1 2:3"), "{text}");
        assert!(text.contains("0-7  decode") && text.contains("1.50 s"), "{text}");
    }

    #[test]
    fn changes_say_before_and_after() {
        let none = json!({"applied": [], "restart": []});
        assert_eq!(changes(&none), "nothing has changed");
        let some = json!({
            "applied": [{"key": "log.level", "before": null, "after": "debug"}],
            "restart": [{"key": "server.workers", "before": 2, "after": 3, "why": "it is so"}],
        });
        assert_eq!(
            changes(&some),
            "applied          log.level       - -> debug\nneeds a restart  server.workers  2 -> 3      (it is so)"
        );
    }
}
