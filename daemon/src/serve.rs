//! `faser serve`: binds, loads, serves, drains.
//!
//! ```text
//! bound ──► loading ──► serving ──signal──► draining ──► ended
//!              └────────────signal─────────────────────────┘        a second signal ends any of them at once
//! ```
//! When every device is given up it drains too, which takes no time, and ends with a status of its own: a new process may have them again.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::middleware::from_fn;
use actix_web::rt::task::JoinHandle;
use actix_web::{HttpServer, web};
use anyhow::{Result, anyhow};
use faser_config::{Config, sizes};
use faser_kv_events::{Endpoints, KvEventsError};
use faser_loading::load_pairs::{Loaded, load_all};
use faser_models::GenerationDefaults;
use faser_openai::access::Access;
use faser_openai::app::App;
use faser_openai::metrics_recorder;
use faser_openai::pairs::Pairs;
use faser_openai::pairs::Served;
use faser_operators::admin::peer::Operators;
use faser_operators::admin::{self, Admin};
use faser_operators::reload::Reload;
use faser_telemetry::Traces;
use faser_terminal::{Display, Hangups, Signals, SystemError, println};
use tokio::sync::Mutex;

use crate::keep_learned::{self, KeptPairs};
use crate::listen;
use crate::serve_node::serve_node;
use crate::systemd::{self, Sockets, Status, notify};

/// Connections get this long to take the last bytes once every sequence has ended.
const FLUSH_TIMEOUT_S: u64 = 2;
/// The exit status when no device is left: EX_TEMPFAIL of sysexits.h. Service managers start the daemon again.
const NO_DEVICE: i32 = 75;
/// Lanes get this long to leave what they are at, when sequences are broken off.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// A reload under way when a signal ends the daemon gets this long.
const RELOAD_PATIENCE: Duration = Duration::from_secs(1);
/// How often the service manager hears that other nodes are waited for: each time it waits a minute more.
const WAITING_INTERVAL: Duration = Duration::from_secs(20);
/// Histograms collect samples until somebody folds them into buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Serves until a signal ends it, or until no device is left; returns the exit status. SIGHUP has `reload` look at the config file again.
/// Needs a running actix System, and no other threads yet.
///
/// # Errors
/// The port cannot be had, or the models cannot be served.
pub async fn serve(config: Config, mut reload: Reload) -> Result<i32> {
    if let Some(node) = config.node.clone().filter(|node| node.place.rank > 0) {
        return serve_node(config, node).await;
    }
    let mut sockets = Sockets::take();
    let (handed_over, for_admin) = (sockets.http()?, sockets.admin()?);
    let mut signals = Signals::take_over()?;
    let mut hangups = Hangups::take_over()?;
    let recorder = metrics_recorder::install().map_err(|err| anyhow!("cannot set up metrics: {err}"))?;
    let access = Arc::new(Access::load(&config.server)?);
    reload.manage(Arc::clone(&access));
    let traces = Traces::start(config.telemetry.otlp_endpoint.as_deref())?;
    let app = App::new(config.server.clone(), access, recorder.clone()).traced(traces);
    let app = web::Data::new(app);
    let reload = Arc::new(Mutex::new(reload));
    // Before the port: who cannot have one of the two does not begin.
    let admin = administer(&config, for_admin, &app, &reload)?;
    let endpoints = kv_endpoints(&config)?;
    let (address, http) = bind(&config, &app, handed_over)?;
    actix_web::rt::spawn(async move {
        loop {
            actix_web::rt::time::sleep(UPKEEP_INTERVAL).await;
            recorder.run_upkeep();
        }
    });
    if app.access.keys().is_empty() && !address.ip().to_canonical().is_loopback() {
        tracing::warn!(%address, "listening beyond this machine: whoever reaches this port can use it, there are no keys");
    }
    let drain_timeout = config.drain_timeout;
    let waiting = config.node.as_ref().map(|_| actix_web::rt::spawn(tell_of_waiting()));
    let (pairs, kept) = tokio::select! {
        started = start(config, endpoints, app.clone()) => started?,
        signal = signals.next() => {
            tracing::info!(signal = signal.name, "ended while loading");
            notify::stopping(Duration::ZERO, "ended while loading");
            return Ok(0);
        }
    };
    waiting.iter().for_each(JoinHandle::abort);
    app.serve(pairs.clone());
    let scheme = if app.limits.tls.is_some() { "https" } else { "http" };
    announce(&pairs, &local(scheme, address), !app.access.keys().is_empty());
    let url = format!("{scheme}://{address}");
    let status = Rc::new(Status::ready(app.clone(), pairs.clone(), url));
    let telling = keep_telling(&status, &pairs, &kept);
    let signal = loop {
        tokio::select! {
            signal = signals.next() => break Some(signal),
            () = pairs.until_given_up() => break None,
            () = hangups.next() => {
                let (reload, pairs, status) = (Arc::clone(&reload), pairs.clone(), Rc::clone(&status));
                // Beside the signals: it asks dispatchers, and one that hangs must not hold up the end.
                actix_web::rt::spawn(async move { status.reloaded(look_again(&reload, &pairs).await) });
            }
        }
    };
    let active = pairs.active();
    let (drain_timeout, exit_status) = match signal {
        Some(signal) => {
            let drain_timeout = in_force(&reload, drain_timeout).await;
            tracing::info!(signal = signal.name, active, ?drain_timeout, "draining");
            (drain_timeout, 0)
        }
        None => {
            let devices = pairs.status();
            tracing::error!(devices, active, exit_status = NO_DEVICE, "no device is left: the daemon ends");
            // The streams have ended with their devices; they are still being told so.
            (Duration::from_secs(FLUSH_TIMEOUT_S), NO_DEVICE)
        }
    };
    app.start_draining();
    status.stopping(drain_timeout + STOP_TIMEOUT + 3 * Duration::from_secs(FLUSH_TIMEOUT_S));
    tokio::select! {
        () = drain(&pairs, &kept, telling, http, drain_timeout) => {
            if let Some((_, admin)) = &admin {
                admin.stop(true).await;
            }
            if let Some(traces) = app.traces().cloned() {
                // A panic there is in the log already.
                let _ = actix_web::rt::task::spawn_blocking(move || traces.stop()).await;
            }
            tracing::info!("ended");
            Ok(exit_status)
        }
        signal = signals.next() => {
            tracing::warn!(signal = signal.name, "ended at once, with sequences in flight");
            Ok(signal.exit_status())
        }
    }
}

/// The drain timeout in force; a reload that takes long is not waited for.
async fn in_force(reload: &Mutex<Reload>, at_start: Duration) -> Duration {
    match actix_web::rt::time::timeout(RELOAD_PATIENCE, reload.lock()).await {
        Ok(reload) => reload.config().drain_timeout,
        Err(_) => at_start,
    }
}

/// What tells the service manager how things are, and files what is learned.
type Telling = Vec<JoinHandle<()>>;

/// Beats for the service manager's watchdog while all dispatchers move, and keeps its status line and what is learned up to date.
fn keep_telling(status: &Rc<Status>, pairs: &Pairs, kept: &Rc<KeptPairs>) -> Telling {
    let beating = systemd::watchdog_period().map(|period| {
        let pairs = pairs.clone();
        actix_web::rt::spawn(async move {
            systemd::beat(period, async || pairs.heartbeat().await, notify::alive).await;
        })
    });
    let status = Rc::clone(status);
    let showing = actix_web::rt::spawn(async move {
        loop {
            actix_web::rt::time::sleep(UPKEEP_INTERVAL).await;
            status.tell();
        }
    });
    let kept = Rc::clone(kept);
    let keeping = actix_web::rt::spawn(async move {
        loop {
            actix_web::rt::time::sleep(keep_learned::INTERVAL).await;
            kept.write().await;
        }
    });
    beating.into_iter().chain([showing, keeping]).collect()
}

/// SIGHUP: what came of it, in words.
async fn look_again(reload: &Mutex<Reload>, pairs: &Pairs) -> String {
    let mut reload = reload.lock().await;
    notify::reloading();
    match reload.run(Some(pairs)).await {
        Ok(changes) => {
            for change in &changes.restart {
                let why = change.why.as_deref();
                tracing::warn!(key = change.key, why, "changed in the config file, but needs a restart");
            }
            tracing::info!("reloaded: {changes}");
            changes.to_string()
        }
        Err(err) => {
            tracing::error!(%err, "reload refused, nothing is changed");
            format!("refused, nothing is changed: {err}")
        }
    }
}

/// The admin socket, if there is to be one: handed over, or made.
fn administer(
    config: &Config,
    handed_over: Option<UnixListener>,
    app: &web::Data<App>,
    reload: &Arc<Mutex<Reload>>,
) -> Result<Option<(admin::socket::Socket, ServerHandle)>> {
    let operators =
        Operators::new(config.admin.group.as_deref()).map_err(|why| anyhow!("`admin.group`: {why}"))?;
    let socket = match (handed_over, admin::socket::place(&config.admin)) {
        (Some(listener), _) => admin::socket::handed_over(listener),
        (None, Some(path)) => admin::socket::listen(&path, &operators)?,
        (None, None) => return Ok(None),
    };
    let admin = web::Data::new(Admin::new(app.clone(), Arc::clone(reload), operators));
    let handle = admin::serve(&socket, admin)?;
    Ok(Some((socket, handle)))
}

/// Binds and begins to answer: /health at once, everything else with 503 until `App::serve`.
fn bind(
    config: &Config,
    app: &web::Data<App>,
    handed_over: Option<TcpListener>,
) -> Result<(SocketAddr, ServerHandle)> {
    let address = handed_over.as_ref().and_then(|socket| socket.local_addr().ok());
    let asked = address.unwrap_or(config.server.listen);
    app.access.listen(asked, &config.server)?;
    let shared = app.clone();
    let tls = app.access.tls()?;
    let workers = config.server.workers;
    let limits = &config.server;
    let server = HttpServer::new(move || {
        actix_web::App::new()
            .app_data(shared.clone())
            .wrap(from_fn(faser_openai::authorize))
            .wrap(from_fn(faser_openai::observe))
            .configure(faser_openai::routes)
    })
    .workers(workers)
    .max_connections(listen::connections(limits.max_connections).div_ceil(workers))
    .keep_alive(limits.keep_alive)
    .client_request_timeout(limits.header_timeout)
    .tls_handshake_timeout(limits.header_timeout)
    // A client that closes its side is gone: its sequences are cancelled, also before their first byte.
    .h1_allow_half_closed(false)
    .shutdown_timeout(FLUSH_TIMEOUT_S)
    .disable_signals();
    let socket = match handed_over {
        Some(socket) => {
            tracing::info!("listening on the socket that was handed over, not on `server.listen`");
            Ok(socket)
        }
        None => listen::open(asked),
    };
    let bound = socket.and_then(|socket| {
        listen::bound(&socket, limits.write_timeout)?;
        match tls {
            Some(tls) => server.listen_rustls_0_23(socket, tls),
            None => server.listen(socket),
        }
    });
    let server = bound.map_err(|err| {
        anyhow!(
            "cannot listen on {asked}: {err}. Is another server running there? Choose a port with --listen ADDR:PORT or server.listen"
        )
    })?;
    let address = server.addrs().first().copied().unwrap_or(asked);
    let server = server.run();
    let handle = server.handle();
    actix_web::rt::spawn(async move {
        if let Err(err) = server.await {
            tracing::error!(%err, "the HTTP server ended");
        }
    });
    Ok((address, handle))
}

/// Has the service manager wait longer, for as long as other nodes are waited for.
async fn tell_of_waiting() {
    loop {
        actix_web::rt::time::sleep(WAITING_INTERVAL).await;
        notify::still_starting("loading, or waiting for the other nodes");
    }
}

/// Where each pair publishes KV events, if it does.
fn kv_endpoints(config: &Config) -> Result<Vec<Vec<Endpoints>>, KvEventsError> {
    let of_pair = |pair: &Config| match &pair.kv_events {
        Some(events) => Endpoints::bind(events, pair.device.replicas),
        None => Ok(Vec::new()),
    };
    config.each().iter().map(of_pair).collect()
}

/// Loads the pairs and starts them.
async fn start(
    config: Config,
    endpoints: Vec<Vec<Endpoints>>,
    app: web::Data<App>,
) -> Result<(Pairs, Rc<KeptPairs>)> {
    let loaded = actix_web::rt::task::spawn_blocking(move || {
        let mut display = Display::new();
        let mut loading = notify::Loading::default();
        let loaded = load_all(&config, &mut |what, progress| {
            display.show(what, progress);
            let percent = progress.done_bytes * 100 / progress.total_bytes.max(1);
            let text = format!("loading {what}: {percent} %");
            loading.moved(what, progress.done_bytes, &text);
            app.set_loading(text);
        });
        display.finish();
        loaded.map_err(anyhow::Error::from)
    });
    let loaded = loaded.await.map_err(|err| SystemError::Call { what: "load", source: err.into() })??;
    let mut served = Vec::with_capacity(loaded.len());
    let mut kept = KeptPairs::default();
    for (mut pair, endpoints) in loaded.into_iter().zip(endpoints) {
        tell_loaded(&pair);
        let warming = pair.label.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        notify::still_starting(&format!("warming up{warming}"));
        let learned = pair.learned.take();
        if let Some(events) = &pair.config.kv_events {
            pair.kv_events = faser_kv_events::publish(events, endpoints)?;
        }
        let pair = Arc::new(pair.start().await?);
        if let Some(file) = learned {
            kept.add(&pair, file).await;
        }
        served.push(pair);
    }
    Ok((Pairs::new(served), Rc::new(kept)))
}

fn tell_loaded(loaded: &Loaded) {
    tracing::info!(
        model = loaded.name,
        device = %loaded.machine,
        kv = sizes::written(loaded.pools.kv_bytes),
        policy = %loaded.engine.tuning.policy,
        "loaded"
    );
    if let Some(source) = &loaded.cost_source {
        tracing::info!("cost tables {source}");
    }
    if loaded.defaults != GenerationDefaults::default() {
        tracing::info!("requests sample by generation_config.json: {}", loaded.defaults);
    }
    for note in &loaded.notes {
        tracing::warn!("{note}");
    }
    if let Err(why) = &loaded.template {
        tracing::info!(%why, "chats are refused");
    }
    metrics_recorder::tell_device(&loaded.machine, loaded.label.as_deref());
    if loaded.config.vllm_names {
        metrics_recorder::tell_cache(&loaded.name, 1 + loaded.more.len(), &loaded.engine);
    }
}

/// Where clients of this machine find the API.
fn local(scheme: &str, mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    format!("{scheme}://{address}")
}

/// The lines a person, or a script, waits for.
fn announce(pairs: &Pairs, url: &str, with_key: bool) {
    let name = &pairs.first().name;
    let serving = pairs.iter().map(|served| served.name.as_str()).collect::<Vec<_>>().join(", ");
    let device = |served: &Arc<Served>| {
        let of = if pairs.several() { format!(" of {}", served.name) } else { String::new() };
        format!("device{of}: {}\n", served.machine)
    };
    let devices: String = pairs.iter().map(device).collect();
    let header = if with_key { " -H 'authorization: Bearer YOUR_KEY'" } else { "" };
    let body = format!(
        r#"{{"model": "{name}", "prompt": "Returns the number of elements in the", "max_tokens": 64, "temperature": 0, "stream": true}}"#
    );
    let lines = format!(
        "{devices}ready: serving {serving} on {url}\ntry: curl -N{header} {url}/v1/completions -d '{body}'"
    );
    // Nobody may be reading; that is no reason to end.
    if let Err(err) = println(&lines) {
        tracing::warn!(%err, "ready, but nobody was told");
    }
}

/// Lets sequences in flight end, then the connections.
async fn drain(pairs: &Pairs, kept: &KeptPairs, telling: Telling, http: ServerHandle, timeout: Duration) {
    let left = pairs.drain(timeout).await;
    if left > 0 {
        tracing::warn!(left, "the drain timeout is over: sequences are broken off");
    }
    // What is stopped has no progress to show.
    telling.iter().for_each(JoinHandle::abort);
    let flush = Duration::from_secs(FLUSH_TIMEOUT_S);
    if actix_web::rt::time::timeout(flush, kept.write()).await.is_err() {
        tracing::warn!("what was learned is not kept: a dispatcher or the disk hangs");
    }
    // A dispatcher that hangs cannot be told to stop.
    if actix_web::rt::time::timeout(STOP_TIMEOUT, pairs.stop()).await.is_err() {
        tracing::error!("the service does not stop: its threads are left behind");
    }
    http.stop(true).await;
}
