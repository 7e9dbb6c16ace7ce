//! `faser pull`: downloads models by their names, without loading them. `faser models`: which are there.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use clap::Args;
use faser_config::{Config, ModelSource};
use faser_hub::{Cache, CachedModel, Extent, Settings};
use faser_loading::fetched;
use faser_terminal::Display;

use crate::pair_args::PairArgs;

/// `faser pull`.
#[derive(Args, Debug)]
#[command(after_help = "\
Only what is served is downloaded: config, tokenizer, chat template, and the safetensors files or one GGUF file. What has come stays when it is
broken off, and the next call goes on from there.

The cache is that of Python's huggingface_hub, and so are the variables: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_TOKEN_PATH, HF_ENDPOINT,
HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT.

Examples:
  faser pull Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B
  faser pull hf://Qwen/Qwen3-8B@main              of a branch, a tag or a commit
  faser pull Qwen/Qwen3-8B-GGUF:Q4_K_M            one GGUF file
  faser pull -c faser.yaml                        what a config names")]
pub struct PullArgs {
    /// Config file (YAML).
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Models in its place.
    #[command(flatten)]
    pub pair: PairArgs,
}

/// `faser models`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  faser models
  faser models --json | jq '.models[].path'")]
pub struct ModelsArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Downloads what is not there; returns what is to be said: a line for each model, with its place.
///
/// # Errors
/// The config names nothing to download, or it cannot be downloaded.
pub fn pull(args: &PullArgs) -> Result<String> {
    if args.config.is_none() && args.pair.target.is_none() {
        bail!("say what to download: a name such as Qwen/Qwen3-8B, or a config by -c");
    }
    let config = args.pair.read(args.config.clone())?;
    let named = |config: &Config| matches!(config.model.source, ModelSource::Named { .. });
    if !config.each().iter().any(named) {
        bail!("there is nothing to download: no model has a name on the hub, such as hf://Qwen/Qwen3-8B");
    }
    let mut display = Display::new();
    let there = fetched(&config, Extent::Whole, &mut |what, progress| display.show(what, progress))?;
    display.finish();
    let pairs = config.each().iter().zip(there.each()).filter(|(asked, _)| named(asked));
    let lines = pairs.flat_map(|(_, pair)| match &pair.model.source {
        ModelSource::Directories { target, draft } => {
            let line = |role: &str, path: &Path| format!("{role:<8} {}", path.display());
            let draft = draft.as_deref().map(|draft| line("draft", draft));
            std::iter::once(line("target", target)).chain(draft).collect()
        }
        _ => Vec::new(),
    });
    Ok(lines.collect::<Vec<String>>().join("\n"))
}

/// What the cache has, as a table or as JSON.
///
/// # Errors
/// It cannot be read.
pub fn models(args: &ModelsArgs) -> Result<String> {
    let cache = Cache::new(&Settings::from_environment()?.cache);
    let models = cache.models()?;
    if args.json {
        return Ok(serde_json::to_string_pretty(
            &serde_json::json!({"cache": cache.folder(), "models": models}),
        )?);
    }
    if models.is_empty() {
        return Ok(format!(
            "no model in {}: `faser pull Qwen/Qwen3-0.6B` downloads one",
            cache.folder().display()
        ));
    }
    let rows: Vec<[String; 5]> = models.iter().map(row).collect();
    let head = ["MODEL", "REVISION", "SIZE", "CHANGED", "COMMIT"].map(str::to_owned);
    let mut widths = [0; 5];
    for row in std::iter::once(&head).chain(&rows) {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = (*width).max(cell.len()));
    }
    let [name, revision, size, changed, _] = widths;
    let line = |row: &[String; 5]| {
        let [model, revisions, bytes, when, commit] = row;
        format!("{model:<name$}  {revisions:<revision$}  {bytes:>size$}  {when:<changed$}  {commit}")
    };
    let lines = std::iter::once(&head).chain(&rows).map(line);
    Ok(format!("{}\n\nin {}", lines.collect::<Vec<_>>().join("\n"), cache.folder().display()))
}

fn row(model: &CachedModel) -> [String; 5] {
    let revisions = if model.revisions.is_empty() { "-".to_owned() } else { model.revisions.join(", ") };
    let more = if model.incomplete_bytes > 0 { " (and parts)" } else { "" };
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(model.modified_s);
    let size = indicatif::DecimalBytes(model.bytes).to_string();
    let ago = SystemTime::now().duration_since(changed).unwrap_or_default();
    let ago = format!("{} ago", indicatif::HumanDuration(ago));
    [model.repo.clone(), revisions, format!("{size}{more}"), ago, model.commit.clone()]
}
