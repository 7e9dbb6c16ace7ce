//! What the binary does: reads the command line, runs one command, turns its end into an exit status.

use actix_web::rt::SystemRunner;
use anyhow::Result;
use clap::Parser;
use faser_config::LogConfig;
use faser_loading::plan_command;
use faser_openai::grammars;
use faser_operators::ctl::socket_client::CtlError;
use faser_operators::reload::Reload;
use faser_operators::{ctl, log, top};
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
    let system = actix_web::rt::System::new();
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
            Ok(i32::from(reports.iter().any(|report| report.refusal.is_some())))
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
