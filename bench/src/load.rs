//! The closed loop: every worker sends its next request when its last is answered.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use awc::{Client, Connector};
use futures_util::future::join_all;
use serde::Deserialize;

use crate::{
    Answered, BenchError, BenchSpec, KMax, Prompt, Quantiles, Report, Run, Targets,
    timed_stream::{Caller, Sample},
};

/// What happens while a benchmark runs, for whoever shows it.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Every prompt is asked once, unmeasured.
    WarmUp {
        /// How many prompts.
        prompts: usize,
    },
    /// A run begins.
    RunStarted {
        /// Its place in the order, from 0.
        index: usize,
        /// How many runs there are.
        of: usize,
        /// Requests kept in flight.
        concurrency: usize,
        /// The speculative length asked for.
        k: KMax,
    },
    /// Requests of the run that are answered or failed.
    RequestDone {
        /// So many.
        done: usize,
        /// Of so many.
        of: usize,
    },
    /// A run is over.
    RunFinished(&'a Run),
}

/// Runs the benchmark against the server at `spec.url` and reports; must be called inside an actix runtime.
///
/// The runs of one repeat stand next to each other, and every second repeat takes the values of k in reverse, so that a
/// slow drift of the machine does not favour one of them.
///
/// # Errors
/// [`BenchError`] when the spec or the prompts are unusable, the server does not answer, or a run has no single answer.
/// Failed requests among good ones are counted in the report instead.
pub async fn run(spec: &BenchSpec, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Report, BenchError> {
    spec.validate()?;
    let prompts = spec.prompts.load()?;
    let most = spec.concurrency.iter().copied().max().unwrap_or(1);
    let connector = Connector::new().limit(most).timeout(Duration::from_secs(5));
    let mut builder = Client::builder().connector(connector).timeout(spec.patience);
    if let Some(key) = &spec.api_key {
        builder = builder.bearer_auth(key);
    }
    let client = builder.finish();
    let model = match &spec.model {
        Some(model) => model.clone(),
        None => first_model(&client, &spec.url).await?,
    };
    let caller = Caller { client, spec, model };
    if spec.warm_up {
        warm_up(&caller, &prompts, progress).await?;
    }
    let order = order(spec);
    let mut runs = Vec::with_capacity(order.len());
    for (index, &(repeat, concurrency, k)) in order.iter().enumerate() {
        progress(Progress::RunStarted { index, of: order.len(), concurrency, k });
        let run = one_run(&caller, &prompts, repeat, concurrency, k, progress).await?;
        progress(Progress::RunFinished(&run));
        runs.push(run);
    }
    Ok(Report::new(spec.clone(), caller.model, runs))
}

/// Repeats outermost, then concurrency, then k: forwards in even repeats, backwards in odd ones.
fn order(spec: &BenchSpec) -> Vec<(usize, usize, KMax)> {
    let mut order = Vec::new();
    for repeat in 0..spec.repeats {
        for &concurrency in &spec.concurrency {
            let mut ks = spec.k.clone();
            if repeat % 2 == 1 {
                ks.reverse();
            }
            order.extend(ks.into_iter().map(|k| (repeat, concurrency, k)));
        }
    }
    order
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelEntry>,
}

#[derive(Deserialize)]
struct ModelEntry {
    id: String,
}

async fn first_model(client: &Client, url: &str) -> Result<String, BenchError> {
    let refuse = |why: String| BenchError::Server { url: url.to_owned(), why };
    let mut response =
        client.get(format!("{url}/v1/models")).send().await.map_err(|error| refuse(error.to_string()))?;
    if !response.status().is_success() {
        let hint = if response.status() == 401 { " (set OPENAI_API_KEY)" } else { "" };
        return Err(refuse(format!("/v1/models is answered with {}{hint}", response.status())));
    }
    let list: ModelList = response.json().await.map_err(|error| refuse(format!("/v1/models: {error}")))?;
    let first = list.data.into_iter().next();
    first.map(|entry| entry.id).ok_or_else(|| refuse("/v1/models lists none".into()))
}

async fn warm_up(
    caller: &Caller<'_>,
    prompts: &[Prompt],
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), BenchError> {
    progress(Progress::WarmUp { prompts: prompts.len() });
    for prompt in prompts {
        let answer = caller.complete(prompt, 0, KMax::ServerDefault, 2).await;
        answer.map_err(|why| BenchError::Server { url: caller.spec.url.clone(), why })?;
    }
    Ok(())
}

async fn one_run(
    caller: &Caller<'_>,
    prompts: &[Prompt],
    repeat: usize,
    concurrency: usize,
    k: KMax,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Run, BenchError> {
    let requests = caller.spec.requests;
    let next = Cell::new(0);
    let answers = RefCell::new(Vec::with_capacity(requests));
    let progress = RefCell::new(progress);
    let started = Instant::now();
    let worker = async || {
        while next.get() < requests {
            let index = next.replace(next.get() + 1);
            let prompt = &prompts[index % prompts.len()];
            let answer = caller.complete(prompt, index as u64, k, caller.spec.max_tokens.of(index)).await;
            answers.borrow_mut().push((index, answer));
            let done = answers.borrow().len();
            (progress.borrow_mut())(Progress::RequestDone { done, of: requests });
        }
    };
    join_all((0..concurrency.min(requests)).map(|_| worker())).await;
    let wall = started.elapsed();
    let mut answers = answers.into_inner();
    answers.sort_by_key(|(index, _)| *index);
    summarise(answers, repeat, concurrency, k, wall, &caller.spec.targets)
}

fn summarise(
    answers: Vec<(usize, Result<Sample, String>)>,
    repeat: usize,
    concurrency: usize,
    k: KMax,
    wall: Duration,
    targets: &Targets,
) -> Result<Run, BenchError> {
    let requests = answers.len();
    let answered = |sample: &Sample| Answered { ttft: sample.ttft, tpot: tpot(sample) };
    let attained =
        targets.attained(answers.iter().map(|(_, answer)| answer.as_ref().ok().map(answered)), wall);
    let mut first_failure = None;
    let mut texts = Vec::with_capacity(requests);
    let mut samples = Vec::with_capacity(requests);
    for (_, answer) in answers {
        texts.push(answer.as_ref().ok().map(|sample| sample.text.clone()));
        match answer {
            Ok(sample) => samples.push(sample),
            Err(why) => first_failure = first_failure.or(Some(why)),
        }
    }
    if samples.is_empty() {
        let why = first_failure.unwrap_or_default();
        return Err(BenchError::AllFailed { requests, concurrency, k: k.to_string(), why });
    }
    let output_tokens: usize = samples.iter().map(|sample| sample.usage.completion_tokens).sum();
    let gaps: Vec<Duration> = samples.iter().flat_map(|sample| sample.gaps.iter().copied()).collect();
    let ttfts: Vec<Duration> = samples.iter().map(|sample| sample.ttft).collect();
    let tpots: Vec<Duration> = samples.iter().filter_map(tpot).collect();
    Ok(Run {
        concurrency,
        k,
        repeat,
        requests,
        failed: requests - samples.len(),
        first_failure,
        wall_s: wall.as_secs_f64(),
        prompt_tokens: samples.iter().map(|sample| sample.usage.prompt_tokens).sum(),
        output_tokens,
        output_tokens_per_s: output_tokens as f64 / wall.as_secs_f64(),
        ttft: Quantiles::of(&ttfts),
        itl: Quantiles::of(&gaps),
        tpot: Quantiles::of(&tpots),
        attained,
        texts,
    })
}

/// Time per output token after the first (TPOT); none for an answer of one token.
fn tpot(sample: &Sample) -> Option<Duration> {
    let later = sample.usage.completion_tokens.checked_sub(1).filter(|&later| later > 0)?;
    Some(sample.decode / u32::try_from(later).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attained;

    #[test]
    fn every_combination_runs_in_every_repeat_and_k_turns_around() {
        let ks = vec![KMax::AtMost(0), KMax::AtMost(4)];
        let spec = BenchSpec {
            concurrency: vec![1, 8],
            k: ks.clone(),
            repeats: 2,
            ..BenchSpec::new("http://127.0.0.1:1")
        };
        let order = order(&spec);
        let expected = [
            (0, 1, ks[0]),
            (0, 1, ks[1]),
            (0, 8, ks[0]),
            (0, 8, ks[1]),
            (1, 1, ks[1]),
            (1, 1, ks[0]),
            (1, 8, ks[1]),
            (1, 8, ks[0]),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_run_without_answers_is_an_error_and_one_failure_is_counted() {
        let fail = |index| (index, Err("429: queue full".to_owned()));
        let targets = Targets { ttft_ms: Some(5.0), tpot_ms: Some(1.0) };
        let summarise = |answers, wall_s| {
            summarise(answers, 0, 2, KMax::AtMost(4), Duration::from_secs(wall_s), &targets)
        };
        let none = summarise(vec![fail(0), fail(1)], 1);
        assert!(none.unwrap_err().to_string().contains("429"));
        let sample = Sample {
            ttft: Duration::from_millis(5),
            gaps: vec![Duration::from_millis(2); 2],
            decode: Duration::from_millis(4),
            usage: crate::timed_stream::Usage { prompt_tokens: 3, completion_tokens: 5 },
            text: "abc".into(),
        };
        let run = summarise(vec![(0, Ok(sample)), fail(1)], 2).unwrap();
        // What failed missed its targets.
        assert_eq!(run.attained, Some(Attained { attainment: 0.5, request_goodput: 0.5 }));
        assert_eq!((run.failed, run.output_tokens), (1, 5));
        assert!((run.output_tokens_per_s - 2.5).abs() < 1e-12);
        assert!((run.tpot.median_ms - 1.0).abs() < 1e-9);
        assert_eq!(run.texts, [Some("abc".to_owned()), None]);
    }
}
