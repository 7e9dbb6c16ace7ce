//! Two daemons of this binary, of which one is killed in the middle of all requests: they go on on the other, by `resume`.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use faser_bench::{Resumed, ResumedStreams};
use faser_config::{AdminSocket, Config};
use faser_models::end_with_parent;
use futures_util::future::try_join_all;
use serde_json::json;

use super::args::ProveArgs;
use super::requests::Requests;
use super::table::{Answer, Proof, Way};

/// Attempts to kill one while it has a stream open.
const ATTEMPTS: usize = 3;
/// The least that a config may say.
const LEAST_OF_GPU: f64 = 0.05;

/// What two daemons of one config cannot have, or this client cannot speak.
///
/// # Errors
/// The config has it.
pub(super) fn check(config: &Config) -> Result<()> {
    let stands_in_the_way = [
        ("admin.socket", matches!(config.admin.socket, AdminSocket::At(_))),
        ("server.tls", config.server.tls.is_some()),
    ];
    match stands_in_the_way.iter().find(|(_, there)| *there) {
        Some((key, _)) => bail!("two daemons are started by this config: leave `{key}` out of a copy of it"),
        None => Ok(()),
    }
}

/// A daemon on a free port of this machine; killed on drop.
struct Daemon {
    child: Child,
    url: String,
}

impl Daemon {
    /// It takes so much of a GPU's memory, if it has one.
    fn start(args: &ProveArgs, of_gpu: f64) -> Result<Daemon> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--gpu-memory-utilization", &of_gpu.to_string()]);
        if let Some(file) = &args.config {
            command.arg("-c").arg(file);
        }
        command.args(&args.pair.target);
        if let Some(draft) = &args.pair.draft {
            command.arg("--draft").arg(draft);
        }
        command.env_remove("RUNTIME_DIRECTORY").env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS");
        // They end with this process, however that ends.
        end_with_parent(&mut command);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let said = child.stdout.take().context("its standard output is piped")?;
        let mut daemon = Daemon { child, url: String::new() };
        for line in BufReader::new(said).lines() {
            if let Some((_, address)) =
                line?.split_once(" on http://").filter(|(ready, _)| ready.starts_with("ready: "))
            {
                daemon.url = format!("http://{address}");
                return Ok(daemon);
            }
        }
        let status = daemon.child.wait()?;
        Err(anyhow!(
            "a daemon of this config ended with {status}: `faser serve --gpu-memory-utilization {of_gpu}` says why"
        ))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs it, and adds what came to the proof.
///
/// # Errors
/// A daemon does not start, no stream was open when one was killed, or a request fails.
pub(super) async fn run(
    args: &ProveArgs,
    config: &Config,
    requests: &Requests,
    streams: usize,
    proof: &mut Proof,
) -> Result<()> {
    // Both are on the same GPU.
    let of_gpu = (config.device.gpu_memory_utilization / 2.0).max(LEAST_OF_GPU);
    // What is short may have been written whole before its daemon was killed.
    for _ in 0..ATTEMPTS {
        if let Some(way) = once((args, of_gpu), requests, streams).await? {
            proof.add(way);
            return Ok(());
        }
    }
    bail!(
        "no stream was open on the daemon that was killed, {ATTEMPTS} times: ask for more --requests or --max-tokens"
    );
}

/// One attempt; none if no stream was open.
async fn once((args, of_gpu): (&ProveArgs, f64), requests: &Requests, streams: usize) -> Result<Option<Way>> {
    eprintln!("  two daemons start");
    let daemons = [Daemon::start(args, of_gpu)?, Daemon::start(args, of_gpu)?];
    let urls = daemons.iter().map(|daemon| daemon.url.clone()).collect();
    let key = std::env::var("OPENAI_API_KEY").ok().filter(|key| !key.is_empty());
    let servers = ResumedStreams::new(urls, streams, key.as_deref());
    let [first, second] = daemons;
    let started = Instant::now();
    // As a stream of the second daemon begins, once a third of all have ended.
    let (ended, doomed) = (Cell::new(0), RefCell::new(Some(second)));
    let hear = |server: usize, so_far: &Resumed| {
        ended.set(ended.get() + usize::from(so_far.ended));
        let open = server == 1 && !so_far.ended && !so_far.tokens.is_empty();
        if open && 3 * ended.get() >= requests.count {
            // SIGKILL, by the drop.
            drop(doomed.borrow_mut().take());
        }
    };
    let next = Cell::new(0);
    let stream = async || {
        let mut answers = Vec::new();
        while next.get() < requests.count {
            let number = next.replace(next.get() + 1);
            let body = json!({
                "prompt": requests.prompt(number), "max_tokens": requests.max_tokens, "ignore_eos": true,
                "temperature": requests.temperature, "seed": requests.seed(number), "top_p": 1, "top_k": 0,
                "min_p": 0, "repetition_penalty": 1, "speculation": {"k_max": requests.k},
            });
            let whole = servers.complete(number, &body, &hear).await.map_err(|why| anyhow!("{why}"))?;
            answers.push((number, whole));
        }
        Ok::<_, anyhow::Error>(answers)
    };
    let answered = try_join_all((0..streams.min(requests.count)).map(|_| stream())).await;
    let took = started.elapsed();
    drop(first);
    let mut answers: Vec<(usize, Resumed)> = answered?.into_iter().flatten().collect();
    answers.sort_by_key(|(number, _)| *number);
    let moved = answers.iter().filter(|(_, whole)| whole.moves > 0).count();
    if moved == 0 {
        return Ok(None);
    }
    let answers: Vec<Answer> = answers
        .into_iter()
        .map(|(_, Resumed { tokens, text, .. })| Answer { tokens, text, ..Answer::default() })
        .collect();
    let source = format!("two daemons, one killed, {moved} streams moved");
    Ok(Some(Way::new(&source, requests.k, streams, took, &answers).unobserved()))
}
