//! `faser ctl dashboard`: the daemon's page and what it shows, for browsers on this machine. Looks alone are handed on, and only to who has
//! the token: a port on loopback is open to every user here, and to every page that they look at.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use actix_web::http::{Method, StatusCode, header};
use actix_web::rt::System;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use clap::Args;
use tokio::sync::{mpsc, oneshot};

use super::socket_client::{Client, CtlError, Headers, of_pair, print};
use crate::admin::browser_rules::is_loopback;

/// What is handed on.
const PATHS: [&str; 4] = ["/", "/v1/status", "/v1/events", "/v1/requests"];
/// Headers of the daemon's answers that are handed on.
const HEADERS: [&str; 5] =
    ["content-type", "cache-control", "content-security-policy", "referrer-policy", "x-content-type-options"];
/// Connections at a time.
const MOST_CONNECTIONS: usize = 32;
/// Pieces of an answer on their way to one browser.
const PIECES: usize = 4;

/// `faser ctl dashboard`.
#[derive(Args, Debug)]
#[command(after_help = "\
It listens on this machine alone, and answers only who has the token of the address that it prints. Nothing can be changed by it. From
another machine use its socket over ssh, and http://127.0.0.1:8080/ in the browser there:

  ssh -L 8080:/run/faser/admin.sock HOST

Examples:
  faser ctl dashboard
  faser ctl dashboard --listen 127.0.0.1:8080 --open")]
pub struct DashboardArgs {
    /// Address and port on loopback; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub listen: SocketAddr,
    /// Open it with xdg-open too; the address with its token is then in the list of processes.
    #[arg(long)]
    pub open: bool,
}

/// An address that other machines do not reach.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|err| format!("{err}; write 127.0.0.1:8080"))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("other machines would reach it; write 127.0.0.1:8080, and come from there by ssh -L".to_owned())
}

struct Proxy {
    client: Client,
    token: String,
}

/// Answers until SIGINT or SIGTERM.
///
/// # Errors
/// The daemon is not there, or the address cannot be had.
pub(super) fn serve(client: &Client, args: &DashboardArgs, pair: Option<&str>) -> Result<i32, CtlError> {
    // Whoever may not look learns it now.
    client.get(&of_pair("/v1/status", pair))?;
    let failed = |source| CtlError::Listen { address: args.listen, source };
    let token = token().map_err(|err| CtlError::Output(format!("no token can be made: {err}")))?;
    let proxy = web::Data::new(Proxy { client: client.clone(), token });
    let inside = proxy.clone();
    System::new().block_on(async {
        let server =
            HttpServer::new(move || App::new().app_data(inside.clone()).default_service(web::to(forward)))
                .workers(1)
                .max_connections(MOST_CONNECTIONS)
                .h1_allow_half_closed(false)
                .shutdown_timeout(0)
                .bind(args.listen)
                .map_err(failed)?;
        let address = server.addrs().first().copied().unwrap_or(args.listen);
        let url = of_pair(&format!("http://{address}/?token={}", proxy.token), pair);
        print(&format!("dashboard: {url}\nCtrl-C ends it"))?;
        if args.open {
            open(&url);
        }
        server.run().await.map_err(failed)
    })?;
    Ok(0)
}

fn open(url: &str) {
    let silent = |command: &mut Command| command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    if let Err(err) = silent(Command::new("xdg-open").arg(url)) {
        eprintln!("xdg-open cannot be started ({err}): open the address by hand");
    }
}

async fn forward(proxy: web::Data<Proxy>, request: HttpRequest) -> HttpResponse {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let rest = match check(&proxy.token, request.method(), host, request.path(), request.query_string()) {
        Ok(rest) => rest,
        Err((status, why)) => return HttpResponse::build(status).body(format!("{why}\n")),
    };
    let path = format!("{}{}{rest}", request.path(), if rest.is_empty() { "" } else { "?" });
    let (head_to, head) = oneshot::channel();
    let (pieces_to, mut pieces) = mpsc::channel(PIECES);
    let client = proxy.client.clone();
    // The client blocks; a thread is cheap beside what a person looks at.
    std::thread::spawn(move || copy(&client, &path, head_to, &pieces_to));
    match head.await {
        Ok(Ok((status, headers))) => {
            let mut answer =
                HttpResponse::build(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY));
            for (name, value) in headers.into_iter().filter(|(name, _)| HEADERS.contains(&name.as_str())) {
                answer.insert_header((name, value));
            }
            answer.streaming(futures_util::stream::poll_fn(move |context| pieces.poll_recv(context)))
        }
        Ok(Err(err)) => HttpResponse::BadGateway().body(format!("{err}\n")),
        Err(_) => HttpResponse::BadGateway().body("the daemon does not answer\n"),
    }
}

/// Reads an answer of the daemon as long as somebody takes it.
fn copy(
    client: &Client,
    path: &str,
    head_to: oneshot::Sender<Result<(u16, Headers), CtlError>>,
    pieces_to: &mpsc::Sender<io::Result<web::Bytes>>,
) {
    let mut body = match client.look(path) {
        Ok((status, headers, body)) => {
            // A browser that has gone is noticed by what follows.
            let _ = head_to.send(Ok((status, headers)));
            body
        }
        Err(err) => {
            let _ = head_to.send(Err(err));
            return;
        }
    };
    let mut buffer = vec![0; 16 << 10];
    loop {
        let piece = match body.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => Ok(web::Bytes::copy_from_slice(&buffer[..read])),
            Err(err) => Err(err),
        };
        let last = piece.is_err();
        if pieces_to.blocking_send(piece).is_err() || last {
            return;
        }
    }
}

/// What is left of the query without the token, if this may be handed on.
fn check(
    token: &str,
    method: &Method,
    host: Option<&str>,
    path: &str,
    query: &str,
) -> Result<String, (StatusCode, &'static str)> {
    if !host.is_some_and(is_loopback) {
        return Err((StatusCode::FORBIDDEN, "the Host of a call must be localhost or a loopback address"));
    }
    let parts = || query.split('&').filter(|part| !part.is_empty());
    let given = parts().filter_map(|part| part.strip_prefix("token=")).next_back().unwrap_or_default();
    if !same(given, token) {
        return Err((StatusCode::FORBIDDEN, "open the whole address that `faser ctl dashboard` has printed"));
    }
    if method != Method::GET {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "one may look, but change nothing"));
    }
    if !PATHS.contains(&path) {
        return Err((StatusCode::NOT_FOUND, "there is nothing here"));
    }
    Ok(parts().filter(|part| !part.starts_with("token=")).collect::<Vec<_>>().join("&"))
}

/// Whether both are the same, in a time that does not tell how much of them is.
fn same(given: &str, token: &str) -> bool {
    let differences = given.bytes().zip(token.bytes()).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
    given.len() == token.len() && differences == 0
}

/// 128 bits that nobody can guess, in hexadecimal digits.
fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_on_loopback_alone() {
        assert!(loopback("127.0.0.1:0").is_ok() && loopback("[::1]:8080").is_ok());
        for text in ["0.0.0.0:80", "[::]:80", "192.168.0.1:80", "8080", "localhost:80"] {
            assert!(loopback(text).unwrap_err().contains("127.0.0.1:8080"), "{text}");
        }
    }

    #[test]
    fn only_looks_with_the_token_from_this_machine_are_handed_on() {
        let get =
            |host, path, query: &str| check("abcd", &Method::GET, host, path, query).map_err(|err| err.0);
        let here = Some("127.0.0.1:8080");
        assert_eq!(get(here, "/", "token=abcd"), Ok(String::new()));
        assert_eq!(
            get(here, "/v1/events", "every_ms=500&token=abcd&timeline=true"),
            Ok("every_ms=500&timeline=true".to_owned())
        );
        for query in
            ["", "token=", "token=abc", "token=abcde", "token=abce", "token=abcd&token=x", "x=token=abcd"]
        {
            assert_eq!(get(here, "/", query), Err(StatusCode::FORBIDDEN), "{query}");
        }
        for host in [None, Some("example.com"), Some("faser"), Some("10.0.0.1")] {
            assert_eq!(get(host, "/", "token=abcd"), Err(StatusCode::FORBIDDEN), "{host:?}");
        }
        assert_eq!(get(here, "/v1/config", "token=abcd"), Err(StatusCode::NOT_FOUND));
        let post = check("abcd", &Method::POST, here, "/v1/status", "token=abcd").unwrap_err();
        assert_eq!(post.0, StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn tokens_are_long_and_differ() {
        let (one, other) = (token().unwrap(), token().unwrap());
        assert!(one.len() == 32 && one != other && same(&one, &one.clone()) && !same(&one, &other));
    }
}
