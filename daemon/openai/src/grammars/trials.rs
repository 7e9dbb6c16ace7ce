//! The daemon's end of the process that tries grammars: starts it for the first one, starts it again if it is gone, and hears what came of each.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use faser_models::{GrammarProgram, GrammarVocabulary};
use tokio::sync::oneshot;

use super::frames::{self, Bounds, Order, Outcome, Report};
use super::trial::COMMAND;

/// Trials of one model's grammars.
pub(super) struct Trials {
    /// The binary that can be that process.
    binary: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    numbers: u64,
    /// Of processes: reports of one that is gone are not those of the next.
    generation: u64,
    process: Option<Process>,
    open: HashMap<u64, oneshot::Sender<Outcome>>,
}

struct Process {
    child: Child,
    orders: ChildStdin,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A trial that somebody waits for. Dropping it stops the trial.
pub(super) struct Trial {
    state: Arc<Mutex<State>>,
    number: u64,
    outcome: oneshot::Receiver<Outcome>,
    over: bool,
}

impl Trials {
    pub(super) fn new(binary: PathBuf) -> Trials {
        Trials { binary, state: Arc::default() }
    }

    /// Begins a trial.
    ///
    /// # Errors
    /// The process cannot be started, or takes no orders.
    pub(super) fn begin(
        &self,
        vocabulary: &GrammarVocabulary,
        program: &GrammarProgram,
        bounds: Bounds,
    ) -> io::Result<Trial> {
        let mut state = lock(&self.state);
        state.numbers += 1;
        let number = state.numbers;
        if state.process.is_none() {
            let (process, reports) = self.start(vocabulary)?;
            state.generation += 1;
            state.process = Some(process);
            let (shared, generation) = (Arc::clone(&self.state), state.generation);
            thread::Builder::new()
                .name("faser-trials".to_owned())
                .spawn(move || listen(&shared, generation, reports))?;
        }
        let (tell, outcome) = oneshot::channel();
        state.open.insert(number, tell);
        let order = Order::Try { number, program: Box::new(program.clone()), bounds };
        if let Err(error) = state.order(&order) {
            state.open.remove(&number);
            return Err(error);
        }
        Ok(Trial { state: Arc::clone(&self.state), number, outcome, over: false })
    }

    fn start(&self, vocabulary: &GrammarVocabulary) -> io::Result<(Process, BufReader<ChildStdout>)> {
        let mut child = Command::new(&self.binary)
            .arg0("faser")
            .arg(COMMAND)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What a terminal sends to the daemon is not meant for it: the daemon may still be at requests.
            .process_group(0)
            .spawn()?;
        let missing = || io::Error::other("it has no pipes");
        let (orders, reports) =
            (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let mut process = Process { child, orders };
        frames::write(&mut process.orders, vocabulary)?;
        Ok((process, BufReader::new(reports)))
    }
}

impl State {
    /// A process that takes none is gone.
    fn order(&mut self, order: &Order) -> io::Result<()> {
        let Some(process) = &mut self.process else { return Err(io::Error::other("it is gone")) };
        frames::write(&mut process.orders, order).inspect_err(|_| self.process = None)
    }
}

impl Trial {
    /// What comes of it; none if the process is gone.
    pub(super) async fn outcome(mut self) -> Option<Outcome> {
        let outcome = (&mut self.outcome).await.ok();
        self.over = true;
        outcome
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if !self.over {
            let mut state = lock(&self.state);
            state.open.remove(&self.number);
            // A process that is gone has stopped it, too.
            let _ = state.order(&Order::Stop { number: self.number });
        }
    }
}

/// Hands on what a process reports, until it is gone: then nobody waits any more.
fn listen(state: &Mutex<State>, generation: u64, mut reports: BufReader<ChildStdout>) {
    while let Ok(Some(Report { number, outcome })) = frames::read(&mut reports) {
        if let Some(waiting) = lock(state).open.remove(&number) {
            let _ = waiting.send(outcome);
        }
    }
    let mut state = lock(state);
    if state.generation == generation {
        state.process = None;
        state.open.clear();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Each change to it is whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
