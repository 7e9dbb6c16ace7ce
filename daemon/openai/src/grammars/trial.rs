//! The process in which grammars of strangers are compiled first. Some small ones take minutes, gigabytes, or a stack without end, and
//! the compiler can neither be stopped nor bounded from within. Here each is compiled in a process forked for it alone, with bounds that
//! the kernel keeps: what runs into one is gone with all it had, and nothing else is.
//!
//! The process that forks has one thread, so that a copy of it is whole, and the vocabulary ready, which copies share.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Stdin, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use faser_models::{
    GrammarCompiler, GrammarError, GrammarProgram, GrammarVocabulary, end_after_cpu_time, fork, one_arena,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getppid, kill_process, set_parent_process_death_signal,
    setpriority_process, setrlimit, wait,
};

use super::frames::{self, Bounds, Order, Outcome, Report};

/// The argument by which the binary is this process.
pub const COMMAND: &str = "__try-grammars";
/// Stack of a compilation that is tried. What fits into it fits into that of the daemon, which is larger.
pub(super) const STACK_BYTES: usize = 128 << 20;
/// Lanes and streams come first.
const NICE: i32 = 10;
/// How soon the end of a process that said nothing is seen.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Runs until the daemon closes its end. An exit status.
pub fn run() -> i32 {
    match serve() {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "the process that tries grammars ends: {error}");
            1
        }
    }
}

/// Trials under way, by their process.
type Open = HashMap<i32, u64>;

fn serve() -> io::Result<()> {
    let _ = setpriority_process(None, NICE);
    one_arena();
    let stdin = io::stdin();
    let mut orders = BufReader::with_capacity(64 << 10, stdin);
    let Some(vocabulary) = frames::read::<GrammarVocabulary>(&mut orders)? else { return Ok(()) };
    let compiler =
        GrammarCompiler::new(&vocabulary).map_err(|error| io::Error::other(error.to_string()))?.for_trials();
    drop(vocabulary);
    let mut open = Open::new();
    loop {
        report_ended(&mut open)?;
        if !ready(&orders, (!open.is_empty()).then_some(LOOK_EVERY))? {
            continue;
        }
        match frames::read(&mut orders)? {
            None => return Ok(()),
            Some(Order::Stop { number }) => {
                for (pid, _) in open.iter().filter(|(_, open)| **open == number) {
                    Pid::from_raw(*pid).map(|pid| kill_process(pid, Signal::KILL));
                }
            }
            Some(Order::Try { number, program, bounds }) => match fork()? {
                Some(pid) => {
                    open.insert(pid, number);
                }
                None => std::process::exit(attempt(&compiler, &program, bounds, number)),
            },
        }
    }
}

/// Waits for an order; false if none came in time.
fn ready(orders: &BufReader<Stdin>, within: Option<Duration>) -> io::Result<bool> {
    if !orders.buffer().is_empty() {
        return Ok(true);
    }
    let within = within.map(|time| Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
    let mut of = [PollFd::from_borrowed_fd(orders.get_ref().as_fd(), PollFlags::IN)];
    match poll(&mut of, within.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Tells how trials ended that said nothing themselves; what has been told is told again, and not listened to.
fn report_ended(open: &mut Open) -> io::Result<()> {
    while !open.is_empty()
        && let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG)
    {
        let Some(number) = open.remove(&pid.as_raw_nonzero().get()) else { continue };
        let slow = [Signal::PROF.as_raw(), Signal::KILL.as_raw()];
        let outcome = match status.terminating_signal() {
            Some(signal) if slow.contains(&signal) => Outcome::TooSlow,
            _ => Outcome::TooLarge,
        };
        report(number, outcome)?;
    }
    Ok(())
}

/// Tells how a trial ended. Standard output would write a frame in two if there is a line's end among the bytes of its length.
fn report(number: u64, outcome: Outcome) -> io::Result<()> {
    let mut out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    frames::write(&mut out, &Report { number, outcome })
}

/// What the forked process does. Its exit status.
fn attempt(compiler: &GrammarCompiler, program: &GrammarProgram, bounds: Bounds, number: u64) -> i32 {
    let tried = bounded(bounds).and_then(|()| {
        let before = resident_bytes();
        let work = || {
            let grammar = compiler.compile(program)?;
            grammar.try_out()?;
            Ok::<_, GrammarError>(resident_bytes().saturating_sub(before))
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work)?;
            thread.join().map_err(|_| io::Error::other("the compiler panicked"))
        })
    });
    let outcome = match tried {
        Ok(Ok(bytes)) => Outcome::Fits { bytes },
        Ok(Err(refused)) => Outcome::Refused(refused),
        Err(_) => return 1,
    };
    i32::from(report(number, outcome).is_err())
}

/// Puts the bounds on this process.
fn bounded(Bounds { cpu, memory_bytes }: Bounds) -> io::Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != parent {
        return Err(io::Error::other("nobody waits for it"));
    }
    let limit =
        |resource, current| setrlimit(resource, Rlimit { current: Some(current), maximum: Some(current) });
    let mapped = status_bytes("VmSize:").ok_or_else(|| io::Error::other("/proc/self/status says nothing"))?;
    limit(Resource::Core, 0)?;
    end_after_cpu_time(cpu)?;
    limit(Resource::As, mapped + STACK_BYTES as u64 + memory_bytes)?;
    // Of what goes wrong here, nobody is told but by the report.
    let nowhere = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stderr(&nowhere)?;
    Ok(())
}

fn resident_bytes() -> u64 {
    status_bytes("RssAnon:").unwrap_or(0)
}

/// A line of /proc/self/status that is in kB.
fn status_bytes(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb << 10)
}
