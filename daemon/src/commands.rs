//! What the binary does: reads the command line, runs one command, turns its end into an exit status.

use actix_web::rt::{System, SystemRunner};
use anyhow::Result;
use clap::Parser;
use faser_config::LogConfig;
use faser_loading::plan_command;
use faser_openai::grammars;
use faser_operators::ctl::socket_client::CtlError;
use faser_operators::reload::Reload;
use faser_operators::{admin, ctl, log, top};
use faser_terminal::{Display, println};
#[cfg(feature = "gpu-check")]
use faser_tools::gpu_check;
use faser_tools::{bench, check, compare, generate, prove, pull, sim};

use crate::cli::{Cli, Command};
use crate::{manual, serve};

/// Runs the command of this process' command line, and ends the process with its status.
pub fn main() -> ! {
    // Forks, so it is to have no thread.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == grammars::COMMAND) {
        std::process::exit(grammars::run());
    }
    // Before there are threads that could read the environment.
    faser_actors::prepare_environment();
    let system = lasting_system();
    match run(&system, Cli::parse()) {
        // Before the system is dropped: that waits for threads, also for one that is still loading weights.
        Ok(status) => std::process::exit(status),
        Err(err) => {
            // Each message names its cause already.
            log::last_words(&err);
            std::process::exit(1);
        }
    }
}

/// A system that no thread is the last to let go of. Threads of the HTTP server may end while this one already ends the process, which takes a while where a GPU
/// is given back: the last one's thread-local handle would wake the system, by a thread-local value that is gone by then, and that aborts the process.
fn lasting_system() -> SystemRunner {
    let system = System::new();
    std::mem::forget(System::current());
    system
}

fn run(system: &SystemRunner, cli: Cli) -> Result<i32> {
    match cli.command {
        Command::Serve(args) => {
            let source = args.source();
            let document = source.document()?;
            let config = args.config_of(&document)?;
            let level = log::start(config.log);
            let reload = Reload::new(source, document, config.clone(), level);
            Ok(system.block_on(serve::serve(config, reload))?)
        }
        Command::Check(args) => {
            let config = args.load_config()?;
            log::start(quiet(config.log));
            // Of several nodes only the first is administered.
            if config.node.as_ref().is_none_or(|node| node.place.rank == 0) {
                admin::socket::check(&config.admin)?;
            }
            let said = check::check(&config)?;
            let quality =
                args.quality.as_deref().map(|text| check::quality(&config, text, args.quality_tokens));
            let quality = quality.transpose()?.map_or_else(String::new, |quality| format!("{quality}\n"));
            println(&format!("{quality}{said}"))?;
            Ok(0)
        }
        Command::Plan(args) => {
            let mut display = Display::new();
            let config = args.pair.read(args.config)?;
            let reports =
                plan_command::plan_all(&config, &mut |what, progress| display.show(what, progress))?;
            display.finish();
            let text = match &reports[..] {
                [only] if args.json => serde_json::to_string_pretty(only)?,
                several if args.json => serde_json::to_string_pretty(several)?,
                reports => reports.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n"),
            };
            println(&text)?;
            let mut status = 0;
            for report in &reports {
                let Some(refusal) = &report.refusal else { continue };
                let pair = report.pair.as_ref().map_or_else(String::new, |pair| format!("{pair}: "));
                log::last_words(&format!("{pair}{}", refusal.problem));
                status = 1;
            }
            Ok(status)
        }
        Command::Generate(args) => {
            let config = args.load_config()?;
            log::start(quiet(config.log));
            system.block_on(generate::generate(&args, &config))?;
            Ok(0)
        }
        Command::Bench(args) => {
            system.block_on(bench::bench(&args))?;
            Ok(0)
        }
        Command::Compare(args) => {
            let config = args.load_config()?;
            log::start(quiet(config.log));
            system.block_on(compare::compare(&args, &config))?;
            Ok(0)
        }
        Command::Prove(args) => {
            let config = args.load_config()?;
            log::start(quiet(config.log));
            Ok(i32::from(!system.block_on(prove::prove(&args, &config))?))
        }
        Command::Sim(args) => {
            sim::sim(&args)?;
            Ok(0)
        }
        Command::Pull(args) => {
            log::start(quiet(args.pair.read(args.config.clone())?.log));
            println(&pull::pull(&args)?)?;
            Ok(0)
        }
        Command::Models(args) => {
            println(&pull::models(&args)?)?;
            Ok(0)
        }
        Command::Ctl(args) => Ok(status_of(ctl::ctl(&args))),
        Command::Top(args) => Ok(status_of(top::top(&args).map(|()| 0))),
        Command::Completions(args) => {
            println(manual::completions(&args).trim_end())?;
            Ok(0)
        }
        Command::Man(args) => {
            let count = manual::man(&args)?;
            println(&format!("{count} pages in {}", args.folder.display()))?;
            Ok(0)
        }
        #[cfg(feature = "gpu-check")]
        Command::GpuCheck(args) => {
            if let Some(name) = &args.child {
                gpu_check::child(name, &args);
                return Ok(0);
            }
            Ok(i32::from(!gpu_check::gpu_check(&args)?))
        }
    }
}

/// The exit status of what speaks to a daemon.
fn status_of(ended: Result<i32, CtlError>) -> i32 {
    ended.unwrap_or_else(|err| {
        log::last_words(&err);
        err.exit_status()
    })
}

/// One-shot commands say what they have to say themselves: of the log only what is worse than `info`.
fn quiet(config: LogConfig) -> LogConfig {
    let level = if config.level == tracing::Level::INFO { tracing::Level::WARN } else { config.level };
    LogConfig { level, ..config }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, exit};
    use std::time::Duration;

    const INSIDE: &str = "FASER_TEST_ENDS_EARLY";

    /// Drawn out, as the end of a process that gives a GPU back.
    struct SlowEnd;

    impl Drop for SlowEnd {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    thread_local! {
        static SLOW_END: SlowEnd = const { SlowEnd };
    }

    #[test]
    fn a_thread_that_ends_after_the_systems_aborts_nothing() {
        if std::env::var_os(INSIDE).is_none() {
            let name = "commands::tests::a_thread_that_ends_after_the_systems_aborts_nothing";
            let ended = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(INSIDE, "1")
                .output()
                .unwrap();
            assert_eq!(ended.status.code(), Some(7), "{}", String::from_utf8_lossy(&ended.stderr));
            return;
        }
        // Dropped last, for it is there first.
        SLOW_END.with(|_| ());
        let system = lasting_system();
        system.block_on(async {
            // Its arbiter has told that it ends, and waits for a blocking task before its thread does.
            let arbiter = actix::Arbiter::new();
            arbiter.spawn_fn(|| {
                actix_web::rt::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(200)));
                actix::Arbiter::current().stop();
            });
            std::mem::forget(arbiter);
            actix_web::rt::time::sleep(Duration::from_millis(50)).await;
        });
        exit(7);
    }
}
