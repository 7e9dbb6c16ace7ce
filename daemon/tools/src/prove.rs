//! `faser prove`: the same requests in every way that this pair can be run in, and whether each wrote the same bytes.

mod args;
mod requests;
mod table;
mod two_daemons;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use faser_actors::{Service, Submission, Update};
use faser_config::raw::ConfigSource;
use faser_config::{Config, ModelSource};
use faser_engine::survival::Source;
use faser_engine::{FinishReason, Policy, SpeculationMode, TokenId};
use faser_loading::load_pairs::{Loaded, load};
use faser_loading::locate::demo_drafts;
use faser_models::Detokenizer;
use faser_openai::text_sequence::SequenceError;
use faser_terminal::{Display, println};
use futures_util::future::try_join_all;

use crate::pair_args::flags;
pub use args::ProveArgs;
use requests::Requests;
use table::{Answer, Proof, Way};

/// Runs every way; true if all wrote the same. Needs a running actix System.
///
/// # Errors
/// A pair cannot be loaded, or a request fails.
pub async fn prove(args: &ProveArgs, config: &Config) -> Result<bool> {
    two_daemons::check(config)?;
    let pair = loaded(config)?;
    let requests = Requests::new(args, config, &pair)?;
    let mut proof = Proof::new(requests.title(&pair));
    let mut reference: Vec<Answer> = Vec::new();
    for &streams in &args.streams {
        let answers = in_process(&pair, &requests, SpeculationMode::Off, streams, &[], &mut proof).await?;
        if reference.is_empty() {
            reference = answers;
        }
    }
    let predicted: Vec<Vec<TokenId>> = reference.iter().map(Answer::nearly).collect();
    let mut modes = vec![(SpeculationMode::Lookup, false), (SpeculationMode::Lookup, true)];
    modes.push((SpeculationMode::Suffix, false));
    if config.model.source.has_draft() {
        modes.extend([(SpeculationMode::Draft, false), (SpeculationMode::Auto, false)]);
    }
    for (mode, predicts) in modes {
        for &streams in &args.streams {
            let predicted = if predicts { &predicted[..] } else { &[] };
            in_process(&pair, &requests, mode, streams, predicted, &mut proof).await?;
        }
    }
    // Before others take the memory.
    drop(pair);
    if args.config.is_none() && matches!(config.model.source, ModelSource::Demo { draft: true }) {
        for (name, target, draft) in demo_drafts()? {
            let source = ConfigSource { file: None, flags: flags(Some(&target), Some(&draft), "MODEL") };
            let mut config = Config::from_document(&source.document()?)?;
            config.tuning.policy = Policy::Faser;
            let pair = loaded(&config)?;
            for &streams in &args.streams {
                proof.draft = Some(name.clone());
                in_process(&pair, &requests, SpeculationMode::Draft, streams, &[], &mut proof).await?;
            }
        }
        proof.draft = None;
    }
    let most = args.streams.iter().copied().max().unwrap_or(1);
    let killed = two_daemons::run(args, config, &requests, most, &mut proof).await;
    // What the others showed stands, whatever became of that.
    println(&proof.to_string())?;
    killed?;
    Ok(proof.same())
}

fn loaded(config: &Config) -> Result<Loaded> {
    let mut display = Display::new();
    let pair = load(config, &mut |what, progress| display.show(what, progress))?;
    display.finish();
    Ok(pair)
}

/// All requests on a service of its own in this process, so many at once; what came is added to the proof.
async fn in_process(
    pair: &Loaded,
    requests: &Requests,
    mode: SpeculationMode,
    streams: usize,
    predicted: &[Vec<TokenId>],
    proof: &mut Proof,
) -> Result<Vec<Answer>> {
    let started = Instant::now();
    let service = Service::start(requests.service(pair, mode)).await?;
    let next = Cell::new(0);
    let stream = async || {
        let mut answers = Vec::new();
        while next.get() < requests.count {
            let number = next.replace(next.get() + 1);
            let submission = Submission {
                prediction: predicted.get(number).cloned().unwrap_or_default(),
                ..requests.submission(number, mode)
            };
            answers.push((number, ask(&service, submission, pair).await?));
        }
        Ok::<_, anyhow::Error>(answers)
    };
    let answered = try_join_all((0..streams.min(requests.count)).map(|_| stream())).await;
    service.stop().await;
    let mut answers: Vec<(usize, Answer)> = answered?.into_iter().flatten().collect();
    answers.sort_by_key(|(number, _)| *number);
    let answers: Vec<Answer> = answers.into_iter().map(|(_, answer)| answer).collect();
    let source = match mode {
        SpeculationMode::Off => "no speculation",
        SpeculationMode::Draft => "draft model",
        SpeculationMode::Lookup if predicted.is_empty() => "prompt-lookup",
        SpeculationMode::Lookup => "predicted output",
        SpeculationMode::Suffix => "past outputs",
        SpeculationMode::Auto => "the policy's choice",
    };
    proof.add(Way::new(source, requests.k_of(mode), streams, started.elapsed(), &answers));
    Ok(answers)
}

async fn ask(service: &Service, submission: Submission, pair: &Loaded) -> Result<Answer> {
    let mut detokenizer = Detokenizer::new(Arc::clone(&pair.tokenizer)).behind(&submission.prompt);
    let mut updates = service.submit(submission).await?;
    let mut answer = Answer::default();
    loop {
        match updates.next().await {
            Some(Update::Tokens(emitted)) => {
                for token in emitted.iter().map(|emitted| emitted.token) {
                    answer.tokens.push(token);
                    answer.text.push_str(&detokenizer.push(token).unwrap_or_default());
                }
            }
            Some(Update::Finished { reason: FinishReason::Length, usage }) => {
                answer.text.push_str(&detokenizer.finish());
                for source in Source::ALL {
                    answer.proposed += usage.by_source[source].proposed;
                    answer.accepted += usage.by_source[source].accepted;
                }
                return Ok(answer);
            }
            Some(Update::Finished { .. }) => return Err(SequenceError::DeviceFailed.into()),
            None => return Err(SequenceError::Ended.into()),
        }
    }
}
