//! `faser ctl`: one call of the admin API from a terminal. Its exit status: 0 done, 1 refused by the daemon, 2 wrong use, 3 no daemon there.

mod dashboard_proxy;
mod readiness;
mod show;
pub mod socket_client;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use faser_config::tunables::TUNABLES;
use serde_json::{Map, Value, json};

use self::dashboard_proxy::DashboardArgs;
use self::socket_client::{Answer, Client, CtlError, STANDARD_SOCKET, of_pair, print};

/// `faser ctl`.
#[derive(Args, Debug)]
#[command(after_help = "\
It speaks to the daemon by its admin socket: `admin.socket` in the config; under systemd /run/faser/admin.sock. Everybody who may open it
may look; root, faser's own user and members of `admin.group` may change things, and every change is a line in the log.

Exit status: 0 done, 1 refused by the daemon, 2 wrong use, 3 no daemon there.

Examples:
  faser ctl status
  faser ctl ready --wait 300                      until requests are taken; the health check of a container
  faser ctl --socket /tmp/admin.sock requests
  faser ctl policy set policy=fixed:4 k_max=3     until the next reload; streams go on
  faser ctl reload && faser ctl config
  faser ctl drain --wait 60 && systemctl restart faser
  faser ctl trace --seconds 5 -o trace.json       for https://ui.perfetto.dev
  faser ctl requests --pair large                 of several pairs (`pairs` in the config)
  faser ctl dashboard                             the same live in a browser, at the address that it prints
  faser ctl --json status | jq .total.acceptance")]
pub struct CtlArgs {
    /// The daemon's admin socket.
    #[arg(long, value_name = "PATH", default_value = STANDARD_SOCKET, global = true)]
    pub socket: PathBuf,
    /// Print the daemon's answer as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Which of several pairs: for status, events, plan, profile, trace and dashboard the first without it, for requests, forget and policy set all.
    #[arg(long, value_name = "NAME", global = true)]
    pub pair: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// What is asked of the daemon.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// What the daemon does now: throughput, queue, KV, lanes, acceptance.
    Status,
    /// Whether requests are taken: exit status 0 if so, else 1 with the reason, 3 without a daemon.
    Ready {
        /// How long to wait for it, also for a daemon that is not there yet, in s.
        #[arg(long, value_name = "S", default_value_t = 0)]
        wait: u64,
    },
    /// The same as status again and again, one JSON object per line.
    Events {
        /// Time between two, in ms.
        #[arg(long, value_name = "MS", default_value_t = 1000)]
        every_ms: u64,
        /// With the passes of the lanes.
        #[arg(long)]
        timeline: bool,
    },
    /// The requests it has, the oldest first.
    Requests,
    /// End one request; its client gets an error.
    Cancel {
        /// The request, as `requests` lists it, such as 0-17.
        id: String,
    },
    /// The config in force, and what a reload would change.
    Config,
    /// Read the config file again: apply what can change in a running daemon, name what needs a restart.
    Reload {
        /// Only if the config still has this tag (see `config`).
        #[arg(long, value_name = "TAG")]
        tag: Option<String>,
    },
    /// Where the models of the config would go.
    Plan,
    /// How speculative lengths are chosen; `policy set` has them chosen otherwise.
    Policy {
        /// To change it.
        #[command(subcommand)]
        change: Option<PolicyCommand>,
    },
    /// Measure anew what passes cost; the daemon must have no requests, and takes none meanwhile.
    Profile,
    /// Forget the past outputs that are proposed from (`speculation.suffix_memory`).
    Forget,
    /// Take no new requests, and wait for those there are.
    Drain {
        /// How long to wait, in s.
        #[arg(long, value_name = "S", default_value_t = 0)]
        wait: u64,
    },
    /// Take requests again.
    Resume,
    /// Record what the lanes do, for https://ui.perfetto.dev.
    Trace {
        /// How long, 1 to 60 s.
        #[arg(long, value_name = "S", default_value_t = 5)]
        seconds: u64,
        /// Whose lanes.
        #[arg(long, value_name = "N", default_value_t = 0)]
        replica: usize,
        /// The file to write.
        #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
        output: PathBuf,
    },
    /// The level of the log, or another one from now on.
    LogLevel {
        /// error, warn, info, debug or trace.
        level: Option<String>,
    },
    /// All metrics, in Prometheus' text format.
    Metrics,
    /// The admin API as an OpenAPI document.
    Openapi,
    /// Show the daemon in a browser, until Ctrl-C.
    Dashboard(DashboardArgs),
}

/// `faser ctl policy set`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Set keys in the running daemon, all or none, until the next reload. Streams go on, and their text stays the same.
    #[command(after_help = keys_and_examples())]
    Set {
        /// What to change, as KEY=VALUE.
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = pair)]
        pairs: Vec<(String, Value)>,
        /// Only if the config still has this tag (see `config`).
        #[arg(long, value_name = "TAG")]
        tag: Option<String>,
    },
}

fn keys_and_examples() -> String {
    let keys = TUNABLES.iter().map(|tunable| format!("  {:<16} {}\n", tunable.name(), tunable.help));
    format!(
        "Keys, as in the config, null for the default:\n{}\nExamples:\n  faser ctl policy set policy=off\n  \
         faser ctl policy set policy=faser k_max=8 prune=false partition=1\n  faser ctl policy set k_max=null",
        keys.collect::<String>()
    )
}

/// KEY=VALUE, a value being JSON where it looks like it.
fn pair(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as k_max=3")?;
    let value = match value {
        "null" | "none" => Value::Null,
        "true" | "on" => true.into(),
        "false" => false.into(),
        text => text.parse::<u64>().map_or_else(|_| text.into(), Value::from),
    };
    Ok((key.to_owned(), value))
}

/// Makes one call and prints what came of it; returns the exit status.
///
/// # Errors
/// The daemon is not there, refuses, or nobody reads.
pub fn ctl(args: &CtlArgs) -> Result<i32, CtlError> {
    let client = Client::new(&args.socket);
    let pair = args.pair.as_deref();
    // Of calls that no pair is for, the daemon refuses it.
    let done = |method, path: &str, body: Option<Value>| {
        client.call(method, path, with_pair(body, pair).as_ref(), None)?.done()
    };
    let look = |path: &str, show: fn(&Value) -> String| -> Result<i32, CtlError> {
        let answer = client.get(&of_pair(path, pair))?.json()?;
        told(&answer, args.json, show)
    };
    match &args.command {
        CtlCommand::Status => look("/v1/status", show::status),
        CtlCommand::Ready { wait } => readiness::ready(&client, pair, Duration::from_secs(*wait), args.json),
        CtlCommand::Requests => look("/v1/requests", show::requests),
        CtlCommand::Config => look("/v1/config", show::config),
        CtlCommand::Plan => look("/v1/plan", show::pretty),
        CtlCommand::Openapi => look("/openapi.json", show::pretty),
        CtlCommand::Policy { change: None } => look("/v1/policy", show::fields),
        CtlCommand::LogLevel { level: None } => look("/v1/log-level", show::fields),
        CtlCommand::Events { every_ms, timeline } => {
            let path = format!("/v1/events?every_ms={every_ms}&timeline={timeline}");
            for event in client.events(&of_pair(&path, pair))? {
                print(&event?.to_string())?;
            }
            Ok(0)
        }
        CtlCommand::Policy { change: Some(PolicyCommand::Set { pairs, tag }) } => {
            let mut body = Map::new();
            for (key, value) in pairs {
                if body.insert(key.clone(), value.clone()).is_some() {
                    return Err(CtlError::Usage(format!("{key} is set twice; write it once")));
                }
            }
            let body = with_pair(Some(body.into()), pair);
            let answer = client.call("PATCH", "/v1/policy", body.as_ref(), tag.as_deref())?.done()?;
            told(&answer.json()?, args.json, show::changes)
        }
        CtlCommand::Reload { tag } => {
            let body = with_pair(None, pair);
            let answer = client.call("POST", "/v1/reload", body.as_ref(), tag.as_deref())?.done()?;
            told(&answer.json()?, args.json, show::changes)
        }
        CtlCommand::LogLevel { level: Some(level) } => {
            let answer = done("PUT", "/v1/log-level", Some(json!({"level": level})))?;
            told(&answer.json()?, args.json, show::changes)
        }
        CtlCommand::Cancel { id } => {
            let id: String = id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            told(&done("POST", &format!("/v1/requests/{id}/cancel"), None)?.json()?, args.json, show::fields)
        }
        CtlCommand::Profile => told(&done("POST", "/v1/profile", None)?.json()?, args.json, show::fields),
        CtlCommand::Forget => told(&done("POST", "/v1/forget", None)?.json()?, args.json, show::fields),
        CtlCommand::Resume => told(&done("POST", "/v1/resume", None)?.json()?, args.json, show::fields),
        CtlCommand::Drain { wait } => {
            let answer = done("POST", "/v1/drain", Some(json!({"wait_s": wait})))?.json()?;
            told(&answer, args.json, show::drained)?;
            Ok(i32::from(*wait > 0 && answer["left"] != 0))
        }
        CtlCommand::Trace { seconds, replica, output } => {
            let answer = done("POST", "/v1/trace", Some(json!({"seconds": seconds, "replica": replica})))?;
            write(output, &answer)?;
            Ok(0)
        }
        CtlCommand::Dashboard(wanted) => dashboard_proxy::serve(&client, wanted, pair),
        CtlCommand::Metrics => {
            print(String::from_utf8_lossy(&client.get(&of_pair("/metrics", pair))?.body).trim_end())?;
            Ok(0)
        }
    }
}

/// The fields of a change of one pair.
fn with_pair(body: Option<Value>, pair: Option<&str>) -> Option<Value> {
    let Some(pair) = pair else { return body };
    let mut body = body.unwrap_or_else(|| json!({}));
    body["pair"] = pair.into();
    Some(body)
}

fn told(answer: &Value, json: bool, show: fn(&Value) -> String) -> Result<i32, CtlError> {
    print(&if json { show::pretty(answer) } else { show(answer) })?;
    Ok(0)
}

fn write(path: &Path, answer: &Answer) -> Result<(), CtlError> {
    let failed = |err| CtlError::Output(format!("cannot write {}: {err}", path.display()));
    std::fs::write(path, &answer.body).map_err(failed)?;
    print(&format!("{}: {} bytes; open it at https://ui.perfetto.dev", path.display(), answer.body.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_look_like() {
        assert_eq!(pair("policy=fixed:4"), Ok(("policy".to_owned(), json!("fixed:4"))));
        assert_eq!(pair("policy=off"), Ok(("policy".to_owned(), json!("off"))));
        assert_eq!(pair("k_max=3"), Ok(("k_max".to_owned(), json!(3))));
        assert_eq!(pair("k_max=null"), Ok(("k_max".to_owned(), Value::Null)));
        assert_eq!(pair("prune=false"), Ok(("prune".to_owned(), json!(false))));
        assert!(pair("prune").unwrap_err().contains("KEY=VALUE"));
    }

    #[test]
    fn a_key_that_is_set_twice_is_wrong_use() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: CtlArgs,
        }
        let line = ["ctl", "policy", "set", "k_max=1", "prune=false", "k_max=2"];
        let refused = ctl(&<Line as clap::Parser>::parse_from(line).args).unwrap_err();
        assert_eq!(refused.exit_status(), 2);
        assert!(refused.to_string().contains("k_max is set twice"), "{refused}");
    }

    #[test]
    fn names_of_pairs_survive_the_query() {
        assert_eq!(of_pair("/v1/status", None), "/v1/status");
        let path = of_pair("/v1/events?every_ms=1", Some("Qwen/Q&A+3-ü"));
        assert_eq!(path, "/v1/events?every_ms=1&pair=Qwen%2FQ%26A%2B3-%C3%BC");
        let read = crate::admin::admin_api::query(path.split_once('?').unwrap().1).unwrap();
        assert_eq!(read["pair"], "Qwen/Q&A+3-ü");
        assert_eq!(with_pair(None, Some("a")), Some(json!({"pair": "a"})));
    }

    #[test]
    fn errors_say_what_to_do_and_have_their_exit_status() {
        let client = Client::new(Path::new("/nowhere/admin.sock"));
        let err = client.get("/v1/status").unwrap_err();
        assert_eq!(err.exit_status(), 3);
        assert!(err.to_string().contains("--socket"), "{err}");
        let denied = socket_client::advice(
            &std::io::Error::from(std::io::ErrorKind::PermissionDenied),
            Path::new("/"),
        );
        assert!(denied.contains("`root`"), "{denied}");
        assert_eq!(CtlError::Refused { status: 409, message: String::new() }.exit_status(), 1);
    }
}
