//! `faser generate`: prompts through the same service as the daemon's, in this process, to the terminal.

use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use faser_actors::Sampling;
use faser_config::raw::ConfigSource;
use faser_config::{Config, ConfigError};
use faser_engine::{Origin, Totals, Usage};
use faser_loading::load_pairs::load;
use faser_models::Conversation;
use faser_openai::pairs::{Opening, Served};
use faser_openai::params::Parameters;
use faser_openai::random;
use faser_openai::text_sequence::{Ending, Finish, Piece, Span};
use faser_terminal::{Display, print, println};
use serde_json::{Value, json};

use crate::pair_args::flags;

/// `faser generate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Text goes to standard output, figures to standard error (with --json everything to standard output).

Examples:
  faser generate \"impl Iterator for\" --max-tokens 200
  faser generate --chat \"What does Vec::drain do?\" --temperature 0.7 --seed 1
  faser generate --target model.gguf \"fn main() {\"
  faser generate --k 0 \"fn main() {\"               without speculation: the same text, slower
  faser generate --prompts models/rustdoc/heldout_prompts.json --json")]
pub struct GenerateArgs {
    /// The text to continue.
    #[arg(required_unless_present = "prompts", conflicts_with = "prompts")]
    pub prompt: Option<String>,
    /// Config file (YAML); without it the demo pair is used.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A model's folder, GGUF file, or name on the hub (org/name), in the place of a config file.
    #[arg(long, value_name = "MODEL", conflicts_with = "config")]
    pub target: Option<PathBuf>,
    /// The draft model's; without it there is none, unless the target is a draft that names its own.
    #[arg(long, value_name = "MODEL", requires = "target", conflicts_with = "config")]
    pub draft: Option<PathBuf>,
    /// Continue each prompt of a JSON file, one after the other: a list of strings, or of objects with a `prompt`.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Tokens to generate at most.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_tokens: usize,
    /// 0 takes the likeliest token always.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Sample from the likeliest tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// The same seed gives the same text; without one it is random.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Speculative length: fixed:K as policy, 0 for none. Without it the config decides.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(0..=16))]
    pub k: Option<u64>,
    /// Treat the prompt as a user's message, through the model's chat template.
    #[arg(long)]
    pub chat: bool,
    /// No colours, also on a terminal.
    #[arg(long)]
    pub no_color: bool,
    /// Print one JSON object with every run and the averages.
    #[arg(long)]
    pub json: bool,
    /// Measure what passes cost anew, also if an earlier start has cached it; for policies that need to know it.
    #[arg(long)]
    pub profile: bool,
    /// Which of the config's pairs; without it the first.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}

impl GenerateArgs {
    /// The config with this command's flags laid over it.
    ///
    /// # Errors
    /// The file or a flag is wrong.
    pub fn load_config(&self) -> Result<Config, ConfigError> {
        let policy = self.k.map(|k| if k == 0 { "off".to_owned() } else { format!("fixed:{k}") });
        let policy = policy.map(|policy| ("speculation.policy", "--k", Value::from(policy)));
        let pair = flags(self.target.as_deref(), self.draft.as_deref(), "--target");
        let flags = pair.into_iter().chain(policy).collect();
        let document = ConfigSource { file: self.config.clone(), flags }.document()?;
        Config::from_document(&document)?.one(self.model.as_deref())?.profiled(self.profile)
    }
}

/// Runs every prompt, one after the other. Needs a running actix System.
///
/// # Errors
/// The pair cannot be loaded, or a prompt cannot be read or served.
pub async fn generate(args: &GenerateArgs, config: &Config) -> Result<()> {
    let prompts = match (&args.prompts, &args.prompt) {
        (Some(file), _) => read_prompts(file)?,
        (None, prompt) => vec![prompt.clone().unwrap_or_default()],
    };
    let mut display = Display::new();
    let loaded = load(config, &mut |what, progress| display.show(what, progress))?;
    display.finish();
    let served = loaded.start().await?;
    // Passes of the warm-up do not count.
    let before = served.service.view().totals;
    let mut runs = Vec::with_capacity(prompts.len());
    for prompt in &prompts {
        if !args.json && prompts.len() > 1 {
            println(&format!("\n> {prompt}"))?;
        }
        runs.push(run(&served, args, prompt).await?);
    }
    let figures = Figures::new(&runs, &before, &served.service.view().totals);
    if args.json {
        let runs: Vec<Value> = runs.iter().map(Run::to_json).collect();
        let all = json!({"model": served.name, "runs": runs, "average": figures.to_json()});
        println(&all.to_string())?;
    } else {
        eprintln!("{figures}");
    }
    served.service.clone().stop().await;
    Ok(())
}

/// One prompt, shown as it comes unless everything is printed as JSON at the end.
async fn run(served: &Served, args: &GenerateArgs, prompt: &str) -> Result<Run> {
    let ids = if args.chat {
        let conversation = Conversation::of(json!([{"role": "user", "content": prompt}]));
        let text = match &served.template {
            Ok(template) => template.render(&conversation)?,
            Err(err) => return Err(anyhow!("--chat cannot be had: {err}")),
        };
        served.tokenizer.encode(&text, false)?
    } else {
        served.tokenizer.encode(prompt, true)?
    };
    let parameters = Parameters {
        sampling: Sampling {
            temperature: args.temperature,
            top_p: args.top_p,
            seed: args.seed.unwrap_or_else(random::number),
            ..Sampling::default()
        },
        max_new_tokens: Some(args.max_tokens),
        ..Parameters::default()
    };
    let colour = !args.no_color && std::io::stdout().is_terminal();
    let started = Instant::now();
    let mut sequence = served.open(&ids.into(), &parameters, Opening::default()).await?;
    let mut text = String::new();
    loop {
        match sequence.next().await? {
            Some(Piece::Text(spans)) => {
                if !args.json {
                    show(&spans, colour)?;
                }
                text.extend(spans.into_iter().map(|span| span.text));
            }
            Some(Piece::End(ending)) => {
                if !args.json {
                    println("")?;
                }
                let took = started.elapsed();
                return Ok(Run { prompt: prompt.to_owned(), text, ending: *ending, took });
            }
            None => return Err(faser_openai::text_sequence::SequenceError::Ended.into()),
        }
    }
}

/// Accepted proposals are green.
fn show(spans: &[Span], colour: bool) -> Result<()> {
    let span = |span: &Span| match span {
        Span { text, origin: Origin::Draft, .. } if colour => format!("\x1b[32m{text}\x1b[0m"),
        Span { text, .. } => text.clone(),
    };
    Ok(print(&spans.iter().map(span).collect::<String>())?)
}

/// A JSON list of strings, or of objects with a `prompt`.
fn read_prompts(file: &Path) -> Result<Vec<String>> {
    let refuse = |problem: String| anyhow!("{}: {problem}", file.display());
    let text = std::fs::read_to_string(file).map_err(|err| refuse(err.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|err| refuse(format!("not valid JSON: {err}")))?;
    let wanted = "expected a JSON list of strings, or of objects such as {\"prompt\": \"…\"}";
    let items =
        value.as_array().filter(|items| !items.is_empty()).ok_or_else(|| refuse(wanted.to_owned()))?;
    let prompt = |(i, item): (usize, &Value)| {
        let text = item.as_str().or_else(|| item.get("prompt")?.as_str());
        text.map(str::to_owned).ok_or_else(|| refuse(format!("entry {i}: {wanted}")))
    };
    items.iter().enumerate().map(prompt).collect()
}

/// One prompt that has been continued.
#[derive(Debug)]
pub struct Run {
    /// The prompt.
    pub prompt: String,
    /// What was generated.
    pub text: String,
    /// How it ended.
    pub ending: Ending,
    /// From the request to its end.
    pub took: Duration,
}

impl Run {
    /// As `--json` prints it.
    pub fn to_json(&self) -> Value {
        let usage = self.ending.usage.unwrap_or_default();
        json!({
            "prompt": self.prompt,
            "text": self.text,
            "tokens": self.ending.output,
            "finish_reason": self.ending.finish.name(),
            "output_tokens": self.ending.output.len(),
            "target_passes": usage.target_passes,
            "proposed": usage.proposed,
            "accepted": usage.accepted,
            "tokens_per_pass": ratio(self.decided_tokens(), usage.target_passes),
            "acceptance": ratio(usage.accepted, usage.proposed),
            "seconds": self.took.as_secs_f64(),
        })
    }

    /// Tokens that target passes decided on: the output, and the stop token if one ended it.
    fn decided_tokens(&self) -> usize {
        let usage = self.ending.usage.unwrap_or_default();
        usage.output_tokens + usize::from(self.ending.finish == Finish::Stop)
    }
}

/// Figures over several runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    output_tokens: usize,
    decided_tokens: usize,
    took: Duration,
    target_passes: usize,
    proposed: usize,
    accepted: usize,
    /// Share of the proposals at each place in a chunk that were accepted.
    per_position: Vec<f64>,
}

impl Figures {
    /// Sums up; `before` and `after` are the engine's totals around the runs.
    pub fn new(runs: &[Run], before: &Totals, after: &Totals) -> Figures {
        let sum =
            |of: fn(&Usage) -> usize| runs.iter().filter_map(|run| run.ending.usage.as_ref()).map(of).sum();
        let gained = |after: &[u64], before: &[u64]| -> Vec<u64> {
            after.iter().zip(before).map(|(after, before)| after.saturating_sub(*before)).collect()
        };
        let accepted = gained(&after.accepted_per_position, &before.accepted_per_position);
        let proposed = gained(&after.proposed_per_position, &before.proposed_per_position);
        let positions = accepted.iter().zip(&proposed).take_while(|(_, proposed)| **proposed > 0);
        Figures {
            output_tokens: sum(|usage| usage.output_tokens),
            decided_tokens: runs.iter().map(Run::decided_tokens).sum(),
            took: runs.iter().map(|run| run.took).sum(),
            target_passes: sum(|usage| usage.target_passes),
            proposed: sum(|usage| usage.proposed),
            accepted: sum(|usage| usage.accepted),
            per_position: positions.map(|(accepted, proposed)| *accepted as f64 / *proposed as f64).collect(),
        }
    }

    /// As `--json` prints it.
    pub fn to_json(&self) -> Value {
        json!({
            "output_tokens": self.output_tokens,
            "target_passes": self.target_passes,
            "tokens_per_s": self.tokens_per_s(),
            "tokens_per_pass": ratio(self.decided_tokens, self.target_passes),
            "acceptance": ratio(self.accepted, self.proposed),
            "acceptance_per_position": self.per_position,
        })
    }

    fn tokens_per_s(&self) -> f64 {
        self.output_tokens as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// The closing line.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tokens in {:.2} s: {:.1} tokens/s, {:.2} tokens per target pass",
            self.output_tokens,
            self.took.as_secs_f64(),
            self.tokens_per_s(),
            ratio(self.decided_tokens, self.target_passes).unwrap_or(0.0),
        )?;
        let Some(acceptance) = ratio(self.accepted, self.proposed) else {
            return f.write_str(", no speculation");
        };
        write!(f, ", {:.0} % of proposals accepted", acceptance * 100.0)?;
        let places: Vec<String> =
            self.per_position.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
        write!(f, " (by position: {} %)", places.join(" "))
    }
}

/// `None` when there is nothing to divide by.
fn ratio(of: usize, by: usize) -> Option<f64> {
    (by > 0).then(|| of as f64 / by as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Vec<String>> {
        let file = std::env::temp_dir().join(format!("faser-prompts-{}-{name}.json", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let prompts = read_prompts(&file);
        std::fs::remove_file(&file).unwrap();
        prompts
    }

    #[test]
    fn prompts_are_strings_or_objects() {
        let prompts = read("good", r#"["a", {"prompt": "b", "source": "elsewhere"}]"#).unwrap();
        assert_eq!(prompts, ["a", "b"]);
    }

    #[test]
    fn other_files_are_refused_by_name_and_entry() {
        for (name, text, problem) in [
            ("syntax", "[", "not valid JSON"),
            ("empty", "[]", "expected a JSON list"),
            ("entry", r#"["a", 3]"#, "entry 1: expected a JSON list of strings"),
        ] {
            let error = read(name, text).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(problem), "{error}");
        }
        let error = read_prompts(Path::new("nowhere.json")).unwrap_err().to_string();
        assert!(error.starts_with("nowhere.json: "), "{error}");
    }

    fn run(output: usize, passes: usize, proposed: usize, accepted: usize) -> Run {
        let usage =
            Usage { output_tokens: output, target_passes: passes, proposed, accepted, ..Usage::default() };
        let ending = Ending {
            finish: Finish::Length,
            output: vec![1; output],
            reasoning_tokens: None,
            usage: Some(usage),
        };
        Run { prompt: "p".into(), text: "t".into(), ending, took: Duration::from_secs(1) }
    }

    #[test]
    fn the_closing_line_sums_up_all_runs() {
        let mut after = Totals::default();
        after.accepted_per_position[..2].copy_from_slice(&[9, 3]);
        after.proposed_per_position[..2].copy_from_slice(&[10, 10]);
        let figures = Figures::new(&[run(20, 5, 10, 8), run(10, 5, 10, 4)], &Totals::default(), &after);
        assert_eq!(
            figures.to_string(),
            "30 tokens in 2.00 s: 15.0 tokens/s, 3.00 tokens per target pass, 60 % of proposals accepted \
             (by position: 90 30 %)"
        );
        assert_eq!(figures.to_json()["acceptance_per_position"], json!([0.9, 0.3]));
    }

    #[test]
    fn the_stop_token_counts_for_the_pass_that_found_it() {
        let mut stopped = run(9, 5, 20, 5);
        stopped.ending.finish = Finish::Stop;
        assert_eq!(stopped.to_json()["tokens_per_pass"], json!(2.0));
        let figures = Figures::new(&[stopped], &Totals::default(), &Totals::default());
        assert_eq!(figures.to_json()["tokens_per_pass"], json!(2.0));
    }

    #[test]
    fn without_speculation_there_is_no_acceptance() {
        let figures = Figures::new(&[run(4, 4, 0, 0)], &Totals::default(), &Totals::default());
        assert!(figures.to_string().ends_with("1.00 tokens per target pass, no speculation"), "{figures}");
        assert_eq!(figures.to_json()["acceptance"], Value::Null);
    }
}
