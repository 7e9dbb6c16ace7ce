//! HTTP/1.1 over the admin socket, one connection per call: no more of it than the daemon's answers need.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use faser_terminal::println;
use serde_json::Value;

/// Where the socket of the service is.
pub(crate) const STANDARD_SOCKET: &str = "/run/faser/admin.sock";

/// Speaks to the daemon at one socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

/// Names and values.
pub type Headers = Vec<(String, String)>;

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The tag of the config, where the answer has one.
    pub tag: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Errors
    /// It is none.
    pub fn json(&self) -> Result<Value, CtlError> {
        serde_json::from_slice(&self.body)
            .map_err(|err| CtlError::Broken(format!("an answer that is no JSON: {err}")))
    }

    /// The answer to a call that was made.
    ///
    /// # Errors
    /// The daemon has refused; the message is its own.
    pub fn done(self) -> Result<Answer, CtlError> {
        if self.status < 400 {
            return Ok(self);
        }
        let message = self.json().ok().and_then(|body| Some(body["error"]["message"].as_str()?.to_owned()));
        let message = message.unwrap_or_else(|| String::from_utf8_lossy(&self.body).into_owned());
        Err(CtlError::Refused { status: self.status, message })
    }
}

impl Client {
    /// The daemon whose socket is there; nothing is opened yet.
    pub fn new(path: &Path) -> Client {
        Client { path: path.to_owned() }
    }

    /// A look.
    ///
    /// # Errors
    /// The daemon is not there, breaks off, or refuses.
    pub fn get(&self, path: &str) -> Result<Answer, CtlError> {
        self.call("GET", path, None, None)?.done()
    }

    /// One call, whatever comes of it; `tag` is what the config must be.
    ///
    /// # Errors
    /// The daemon is not there, or breaks off.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        tag: Option<&str>,
    ) -> Result<Answer, CtlError> {
        let (head, mut rest) = self.open(method, path, body, tag)?;
        let mut body = Vec::new();
        rest.read_to_end(&mut body).map_err(broken)?;
        Ok(Answer { status: head.status, tag: head.tag, body })
    }

    /// Server-sent events, as they come.
    ///
    /// # Errors
    /// The daemon is not there, breaks off, or refuses.
    pub fn events(&self, path: &str) -> Result<Events, CtlError> {
        let (head, mut rest) = self.open("GET", path, None, None)?;
        if head.status >= 400 {
            let mut body = Vec::new();
            rest.read_to_end(&mut body).map_err(broken)?;
            Answer { status: head.status, tag: None, body }.done()?;
            return Err(CtlError::Broken("an answer that is no stream".to_owned()));
        }
        Ok(Events { lines: BufReader::new(rest) })
    }

    /// A look, to be handed on: status, headers (names in lower case), and the body as it comes.
    ///
    /// # Errors
    /// The daemon is not there, or breaks off.
    pub fn look(&self, path: &str) -> Result<(u16, Headers, impl Read + Send + use<>), CtlError> {
        let (head, rest) = self.open("GET", path, None, None)?;
        Ok((head.status, head.headers, rest))
    }

    fn open(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        tag: Option<&str>,
    ) -> Result<(Head, Body), CtlError> {
        let unreachable = |source| CtlError::Unreachable { path: self.path.clone(), source };
        let mut stream = UnixStream::connect(&self.path).map_err(unreachable)?;
        let body = body.map_or_else(String::new, Value::to_string);
        let tag = tag.map_or_else(String::new, |tag| format!("if-match: \"{tag}\"\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: faser\r\nconnection: close\r\ncontent-length: {}\r\n{tag}\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).map_err(broken)?;
        let mut reader = BufReader::new(stream);
        let head = head(&mut reader)?;
        let rest =
            Body { reader, chunked: head.chunked, left: head.length.unwrap_or(u64::MAX), begun: false };
        Ok((head, if rest.chunked { Body { left: 0, ..rest } } else { rest }))
    }
}

/// A path of a look at one pair.
pub(crate) fn of_pair(path: &str, pair: Option<&str>) -> String {
    let Some(pair) = pair else { return path.to_owned() };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let written = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    let parted = if path.contains('?') { '&' } else { '?' };
    format!("{path}{parted}pair={}", pair.bytes().map(written).collect::<String>())
}

/// Why a call was not made, or not answered.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// Nobody listens, or we may not ask.
    #[error("no daemon at {}: {source}. {}", path.display(), advice(source, path))]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The answer is none.
    #[error("the daemon does not answer as it should: {0}")]
    Broken(String),
    /// The daemon has said no.
    #[error("refused: {message}")]
    Refused {
        /// The status code.
        status: u16,
        /// Its words.
        message: String,
    },
    /// The command line cannot be meant so.
    #[error("{0}")]
    Usage(String),
    /// The answer cannot be put where it was to go.
    #[error("{0}")]
    Output(String),
    /// The dashboard cannot be shown there.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
}

impl CtlError {
    /// The exit status that says so.
    pub fn exit_status(&self) -> i32 {
        match self {
            CtlError::Refused { .. } | CtlError::Output(_) | CtlError::Listen { .. } => 1,
            CtlError::Usage(_) => 2,
            CtlError::Unreachable { .. } | CtlError::Broken(_) => 3,
        }
    }
}

/// What to do about a socket that cannot be opened.
pub(super) fn advice(err: &io::Error, path: &Path) -> String {
    match err.kind() {
        io::ErrorKind::NotFound => {
            "Is faser running, and is `admin.socket` in its config? Name its socket by --socket".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            let group = std::fs::metadata(path)
                .ok()
                .and_then(|file| uzers::get_group_by_gid(std::os::unix::fs::MetadataExt::gid(&file)));
            match group {
                Some(group) => {
                    let name = group.name().to_string_lossy().into_owned();
                    format!(
                        "It is for root and members of the group `{name}` (usermod -aG {name} USER, then log in again)"
                    )
                }
                None => "It is for root and members of the group of its folder and file".to_owned(),
            }
        }
        io::ErrorKind::ConnectionRefused => "The daemon that made this socket has ended".to_owned(),
        _ => "Name the daemon's socket by --socket".to_owned(),
    }
}

/// Writes a line to standard output.
pub(super) fn print(text: &str) -> Result<(), CtlError> {
    println(text).map_err(|err| CtlError::Output(err.to_string()))
}

/// Snapshots as they come.
pub struct Events {
    lines: BufReader<Body>,
}

impl Iterator for Events {
    type Item = Result<Value, CtlError>;

    /// The next event; none after the end of the stream.
    fn next(&mut self) -> Option<Self::Item> {
        let mut line = String::new();
        loop {
            line.clear();
            match self.lines.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(err) => return Some(Err(broken(err))),
            }
            if let Some(data) = line.strip_prefix("data:") {
                let wrong = |err| CtlError::Broken(format!("an event that is no JSON: {err}"));
                return Some(serde_json::from_str(data).map_err(wrong));
            }
        }
    }
}

struct Head {
    status: u16,
    tag: Option<String>,
    chunked: bool,
    length: Option<u64>,
    headers: Headers,
}

fn head(reader: &mut impl BufRead) -> Result<Head, CtlError> {
    let odd = || CtlError::Broken("an answer that is no HTTP".to_owned());
    let mut line = String::new();
    reader.read_line(&mut line).map_err(broken)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(odd)?;
    let mut head = Head { status, tag: None, chunked: false, length: None, headers: Vec::new() };
    loop {
        line.clear();
        if reader.read_line(&mut line).map_err(broken)? == 0 {
            return Err(odd());
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(head) };
        let value = value.trim();
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "transfer-encoding" => head.chunked = value.eq_ignore_ascii_case("chunked"),
            "content-length" => head.length = value.parse().ok(),
            "etag" => head.tag = Some(value.trim_matches('"').to_owned()),
            _ => {}
        }
        head.headers.push((name, value.to_owned()));
    }
}

/// A body as it was before it was cut into chunks.
struct Body {
    reader: BufReader<UnixStream>,
    chunked: bool,
    /// Bytes left of this chunk, or of the body.
    left: u64,
    begun: bool,
}

impl Body {
    fn next_chunk(&mut self) -> std::io::Result<()> {
        let mut line = String::new();
        if std::mem::replace(&mut self.begun, true) {
            self.reader.read_line(&mut line)?;
            line.clear();
        }
        self.reader.read_line(&mut line)?;
        let odd = |_| std::io::Error::other("the answer broke off");
        self.left = u64::from_str_radix(line.trim(), 16).map_err(odd)?;
        self.chunked = self.left > 0;
        Ok(())
    }
}

impl Read for Body {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && self.chunked {
            self.next_chunk()?;
        }
        let most = out.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.reader.read(&mut out[..most])?;
        self.left -= read as u64;
        Ok(read)
    }
}

// `map_err` hands it over whole.
#[allow(clippy::needless_pass_by_value)]
fn broken(err: std::io::Error) -> CtlError {
    CtlError::Broken(format!("the connection broke off: {err}"))
}
