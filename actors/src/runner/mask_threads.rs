//! The threads in which grammars are followed. One answers what takes microseconds. A job that turns out to take long keeps its thread, which
//! another one follows in its place, and what its matcher is asked later goes to the slow: those get what the lanes leave of the cores.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use faser_engine::{SeqId, TokenId};
use faser_models::{ForcedToken, GrammarMatcher, TokenMask};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Time, of a core or in wait for others who follow the same grammar, from which on a job is slow.
const SLOW: Duration = Duration::from_millis(2);
/// Such a time of a slow matcher's job below which it is slow no more.
const QUICK: Duration = Duration::from_millis(1);
/// Slow threads that stay. There are more for as long as jobs last that were not known to be slow: at most one for each sequence.
const STAYING_SLOW: usize = 1;
/// The least that a thread can ask for.
const LEAST_NICE: i32 = 19;
/// How often somebody who waits looks whether a job has become slow.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What is asked of a matcher that stands at the end of an output.
pub(super) enum Question {
    /// What may come behind the first so many of these, and behind more of them, up to all.
    Along { proposals: Vec<TokenId>, first: usize },
    /// The text that must come there, so many tokens at most, and what may come after that.
    Forced { most: usize },
}

pub(super) struct Job {
    /// Increasing.
    pub(super) ticket: u64,
    pub(super) seq: SeqId,
    pub(super) matcher: Box<GrammarMatcher>,
    pub(super) output: Vec<TokenId>,
    pub(super) question: Question,
    pub(super) slow: bool,
}

pub(super) enum Answer {
    /// What may come in a place.
    Place { ticket: u64, seq: SeqId, place: usize, mask: Option<TokenMask> },
    /// What must come, and what may come after that.
    Forced { ticket: u64, forced: Vec<ForcedToken>, mask: Option<TokenMask> },
    /// All is said.
    Home { ticket: u64, seq: SeqId, matcher: Box<GrammarMatcher>, slow: bool },
    /// The matcher is lost.
    Lost,
}

pub(super) struct MaskThreads {
    shared: Arc<Shared>,
    answers: Receiver<Answer>,
}

struct Shared {
    state: Mutex<State>,
    quick_jobs: Condvar,
    slow_jobs: Condvar,
    /// Jobs up to this ticket are only finished with the place that they are at: nobody waits for more.
    settled: AtomicU64,
    tell: Sender<Answer>,
    /// Where threads may run: a lane's own is bound to a core.
    cores: Option<CpuSet>,
}

#[derive(Default)]
struct State {
    quick: VecDeque<Job>,
    slow: VecDeque<Job>,
    /// The number of the thread for quick jobs; 0 if there is none.
    quick_thread: u64,
    threads: u64,
    slow_threads: usize,
    /// What the quick thread is at.
    running: Option<Running>,
    closed: bool,
}

#[derive(Clone, Copy)]
struct Running {
    thread: Pid,
    /// When somebody first looked, and how long the thread had waited for a core by then.
    seen: Option<(Instant, Duration)>,
}

impl Default for MaskThreads {
    fn default() -> MaskThreads {
        let (tell, answers) = channel();
        let shared = Shared {
            state: Mutex::default(),
            quick_jobs: Condvar::new(),
            slow_jobs: Condvar::new(),
            settled: AtomicU64::new(0),
            tell,
            cores: all_cores(),
        };
        MaskThreads { shared: Arc::new(shared), answers }
    }
}

impl Drop for MaskThreads {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.quick_jobs.notify_all();
        self.shared.slow_jobs.notify_all();
    }
}

impl MaskThreads {
    /// Has a job done. If the system gives no thread, it is done here.
    pub(super) fn send(&mut self, job: Job) {
        let mut state = self.shared.lock();
        let there = match job.slow {
            true => state.slow_threads > 0 || self.start(&mut state, false),
            false => state.quick_thread > 0 || self.start(&mut state, true),
        };
        if !there {
            drop(state);
            return self.shared.carry_out(job);
        }
        let (queue, ready) = match job.slow {
            true => (&mut state.slow, &self.shared.slow_jobs),
            false => (&mut state.quick, &self.shared.quick_jobs),
        };
        queue.push_back(job);
        ready.notify_one();
    }

    /// An answer, if there is one.
    pub(super) fn answer(&mut self) -> Option<Answer> {
        self.answers.try_recv().ok().inspect(known)
    }

    /// Waits for an answer.
    pub(super) fn answer_until(&mut self, until: Instant) -> Option<Answer> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Ok(answer) = self.answers.recv_timeout(left.min(LOOK_EVERY)) {
                return Some(answer).inspect(known);
            }
            self.part_from_slow();
            if left <= LOOK_EVERY {
                return None;
            }
        }
    }

    /// Nobody waits for more of the jobs up to this ticket.
    pub(super) fn settled(&self, ticket: u64) {
        self.shared.settled.store(ticket, Ordering::Relaxed);
    }

    /// If the thread for quick jobs is at a slow one, another takes its place.
    fn part_from_slow(&mut self) {
        let mut state = self.shared.lock();
        let Some(Running { thread, seen }) = &mut state.running else { return };
        let (thread, Some(waited)) = (*thread, waited_for_a_core(*thread)) else { return };
        let (since, waited_then) = *seen.get_or_insert((Instant::now(), waited));
        // At work, or in wait for somebody else who is at work on the same grammar.
        if since.elapsed().saturating_sub(waited.saturating_sub(waited_then)) < SLOW {
            return;
        }
        // If that is not allowed, it takes more of the cores than it should.
        let _ = setpriority_process(Some(thread), LEAST_NICE);
        state.slow_threads += 1;
        state.running = None;
        state.quick_thread = 0;
        if !state.quick.is_empty() {
            self.start(&mut state, true);
        }
    }

    fn start(&self, state: &mut State, quick: bool) -> bool {
        let (number, shared) = (state.threads + 1, self.shared.clone());
        let work = move || {
            if let Some(cores) = &shared.cores {
                let _ = sched_setaffinity(None, cores);
            }
            if !quick {
                let _ = setpriority_process(None, LEAST_NICE);
            }
            if catch_unwind(AssertUnwindSafe(|| shared.work(number, quick))).is_err() {
                let _ = shared.tell.send(Answer::Lost);
            }
        };
        if thread::Builder::new().name("faser-grammar".to_owned()).spawn(work).is_err() {
            return false;
        }
        state.threads = number;
        match quick {
            true => state.quick_thread = number,
            false => state.slow_threads += 1,
        }
        true
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change to it is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What thread `number` does until it is not needed any more.
    fn work(&self, number: u64, quick: bool) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            let quick = quick && state.quick_thread == number;
            if !quick && state.slow_threads > STAYING_SLOW {
                state.slow_threads -= 1;
                return;
            }
            let job = if quick { state.quick.pop_front() } else { state.slow.pop_front() };
            let Some(job) = job else {
                let ready = if quick { &self.quick_jobs } else { &self.slow_jobs };
                state = ready.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if quick {
                state.running = Some(Running { thread: gettid(), seen: None });
            }
            drop(state);
            self.carry_out(job);
            state = self.lock();
            if state.quick_thread == number {
                state.running = None;
            }
        }
    }

    fn carry_out(&self, job: Job) {
        let Job { ticket, seq, mut matcher, mut output, question, slow } = job;
        let begun = own_cpu_time();
        let (turns, mut waited) = (matcher.turn(), Duration::ZERO);
        let mut turn = || {
            let begun = Instant::now();
            let turn = turns.take();
            waited += begun.elapsed();
            turn
        };
        // Who asked may be gone.
        let tell = |answer| drop(self.tell.send(answer));
        match question {
            Question::Along { proposals, first } => {
                output.extend(&proposals[..first]);
                for place in first..=proposals.len() {
                    let mask = {
                        let _turn = turn();
                        matcher.follow(&output);
                        matcher.allowed()
                    };
                    tell(Answer::Place { ticket, seq, place, mask });
                    if self.settled.load(Ordering::Relaxed) >= ticket {
                        break;
                    }
                    output.extend(proposals.get(place));
                }
            }
            Question::Forced { most } => {
                let (forced, mask) = {
                    let _turn = turn();
                    matcher.forced(&output, most)
                };
                tell(Answer::Forced { ticket, forced, mask });
            }
        }
        let took = own_cpu_time().saturating_sub(begun) + waited;
        tell(Answer::Home { ticket, seq, matcher, slow: took > if slow { QUICK } else { SLOW } });
    }
}

/// The lane is of no use without it.
fn known(answer: &Answer) {
    assert!(!matches!(answer, Answer::Lost), "a thread that follows grammars has panicked");
}

/// Where the threads of this process may run, as far as can be known from one that may be bound to a core.
fn all_cores() -> Option<CpuSet> {
    sched_getaffinity(Some(rustix::process::getpid())).ok()
}

fn own_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// How long a thread that could have run has waited for a core so far.
fn waited_for_a_core(thread: Pid) -> Option<Duration> {
    let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
    let text = std::fs::read_to_string(path).ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}
