//! What grammars allow, computed beside the lane: its thread asks, goes on with the pass, and waits where tokens are drawn.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use faser_engine::TokenId;
use faser_models::{ForcedToken, GrammarMatcher, TokenMask};

use super::sequences::Following;

/// What is asked of a matcher that stands at the end of an output.
enum Question {
    /// What may come there, and after each of these tokens.
    Along(Vec<TokenId>),
    /// The text that must come there, so many tokens at most, and what may come after that.
    Forced(usize),
}

/// What is known of a chunk.
#[derive(Default)]
pub(super) struct Allowed {
    /// Tokens of text that must come.
    pub(super) forced: Vec<ForcedToken>,
    /// What may come after those; or in each place of a chunk's samples. None: anything.
    pub(super) masks: Vec<Option<TokenMask>>,
}

struct Job {
    chunk: usize,
    matcher: Box<GrammarMatcher>,
    output: Vec<TokenId>,
    question: Question,
    answer: Allowed,
}

struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Job>,
}

/// The masks of one plan, chunk by chunk.
#[derive(Default)]
pub(super) struct Masks {
    /// There once a request had a grammar; ends with this.
    worker: Option<Worker>,
    /// Asked and not yet answered.
    open: usize,
    /// Answered without the worker, if the system gave no thread.
    here: Vec<Job>,
    of: Vec<Allowed>,
}

impl Masks {
    /// A new plan of so many chunks.
    pub(super) fn begin(&mut self, chunks: usize) {
        self.of.clear();
        self.of.resize_with(chunks, Allowed::default);
    }

    /// What is known of a chunk, after `wait`.
    pub(super) fn of(&self, chunk: usize) -> &Allowed {
        &self.of[chunk]
    }

    /// The tokens of text that must come in a chunk, once.
    pub(super) fn take_forced(&mut self, chunk: usize) -> Vec<ForcedToken> {
        std::mem::take(&mut self.of[chunk].forced)
    }

    /// The bits of the tokens that may be drawn in a place of a chunk; none if all may.
    pub(super) fn bits(&self, chunk: usize, place: usize) -> Option<&[u32]> {
        Some(self.of(chunk).masks.get(place)?.as_ref()?.words())
    }

    /// Asks what may come after a chunk's output, and after each of `proposals` behind it.
    pub(super) fn ask_along(&mut self, chunk: usize, following: &mut Following, proposals: &[TokenId]) {
        self.ask(chunk, following, Question::Along(proposals.to_vec()));
    }

    /// Asks which text must come after a chunk's output, `most` tokens at most.
    pub(super) fn ask_forced(&mut self, chunk: usize, following: &mut Following, most: usize) {
        self.ask(chunk, following, Question::Forced(most));
    }

    fn ask(&mut self, chunk: usize, following: &mut Following, question: Question) {
        let Some(matcher) = following.matcher.take() else { return };
        let (output, answer) = (following.output.clone(), Allowed::default());
        let job = Job { chunk, matcher, output, question, answer };
        self.worker = self.worker.take().or_else(start);
        match &self.worker {
            Some(worker) => {
                worker.jobs.send(job).unwrap_or_else(|_| gone());
                self.open += 1;
            }
            None => self.here.push(answered(job)),
        }
    }

    /// Waits for all answers. Each matcher goes back to where it came from, by the number of its chunk.
    pub(super) fn wait(&mut self, mut give_back: impl FnMut(usize, Box<GrammarMatcher>)) {
        while self.open > 0 || !self.here.is_empty() {
            let Job { chunk, matcher, answer, .. } = match (&self.worker, self.here.pop()) {
                (_, Some(job)) => job,
                (Some(worker), None) => {
                    self.open -= 1;
                    worker.done.recv().unwrap_or_else(|_| gone())
                }
                (None, None) => gone(),
            };
            self.of[chunk] = answer;
            give_back(chunk, matcher);
        }
    }
}

/// The lane is of no use without it.
fn gone() -> ! {
    panic!("the thread that follows grammars is gone")
}

fn start() -> Option<Worker> {
    let (jobs, queue) = channel::<Job>();
    let (tell, done) = channel();
    let work = move || {
        for job in queue {
            // The lane has gone: nobody asks any more.
            if tell.send(answered(job)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("faser-grammar".to_owned()).spawn(work).ok()?;
    Some(Worker { jobs, done })
}

fn answered(mut job: Job) -> Job {
    job.answer = match &job.question {
        Question::Along(proposals) => {
            Allowed { forced: Vec::new(), masks: job.matcher.along(&job.output, proposals) }
        }
        Question::Forced(most) => {
            let (forced, next) = job.matcher.forced(&job.output, *most);
            Allowed { forced, masks: vec![next] }
        }
    };
    job
}
