//! A hub of our own on loopback, which speaks the protocol of Hugging Face's: listings of revisions, `resolve` with redirects to a second server
//! for large files, ranges, tokens, error codes; and it fails in every way that a test asks for.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};

use crate::PATIENCE;

/// Files of so many bytes are in Git itself; larger ones, and weights, are in LFS.
const MOST_IN_GIT: usize = 64 << 10;

/// A model on it.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Its only commit.
    pub commit: String,
    /// Its files, by path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Sizes that are told in the place of the true ones.
    pub told_sizes: HashMap<String, u64>,
    /// Whether its files are for those who have accepted its terms.
    pub gated: bool,
}

/// A failure, on a path that has this part in it, so many times.
#[derive(Clone, Debug)]
pub struct Fault {
    /// A part of the path.
    pub of: &'static str,
    /// How often it happens.
    pub times: usize,
    /// What happens.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// This status, and this header.
    Status(u16, &'static str, &'static str),
    /// The connection is closed behind so many bytes.
    Cut(usize),
    /// Nothing comes behind so many bytes, and the connection stays open.
    Stall(usize),
    /// A byte is another one.
    Corrupt,
    /// So many bytes come, every 10 ms.
    Trickle(usize),
    /// Ranges are not known: all of it comes.
    NoRanges,
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Whether the second server was asked, which has large files.
    pub at_store: bool,
    /// Path and query.
    pub path: String,
    /// The first byte that was asked for.
    pub from: usize,
    /// What proves who asked.
    pub authorization: Option<String>,
    /// Bytes of the body that were sent.
    pub sent: usize,
}

#[derive(Default)]
struct State {
    repositories: HashMap<String, Repository>,
    faults: Vec<Fault>,
    asked: Vec<Asked>,
    store: Option<SocketAddr>,
    token: Option<String>,
}

/// A running hub.
#[derive(Clone)]
pub struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Repository {
    /// Of these files.
    pub fn new(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Repository {
        let files: BTreeMap<String, Vec<u8>> = files.into_iter().collect();
        let all: Vec<u8> =
            files.iter().flat_map(|(path, content)| [path.as_bytes(), content].concat()).collect();
        Repository { commit: sha1(&all), files, told_sizes: HashMap::new(), gated: false }
    }

    /// Of the files in a folder.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn of_folder(folder: &Path) -> Repository {
        let entries = std::fs::read_dir(folder).expect("the folder can be read").flatten();
        let file = |entry: std::fs::DirEntry| {
            let content = std::fs::read(entry.path()).expect("the file can be read");
            (entry.file_name().into_string().expect("a name in UTF-8"), content)
        };
        Repository::new(entries.filter(|entry| entry.path().is_file()).map(file))
    }
}

impl Default for Hub {
    fn default() -> Self {
        Hub::new()
    }
}

impl Hub {
    /// Starts an empty hub.
    ///
    /// # Panics
    /// Loopback has no free ports.
    pub fn new() -> Hub {
        let state = Arc::new(Mutex::new(State::default()));
        let store = listen(Arc::clone(&state), true);
        let address = listen(Arc::clone(&state), false);
        let hub = Hub { address, state };
        hub.state().store = Some(store);
        hub
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its address, for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes a model in; returns its commit.
    pub fn add(&self, name: &str, repository: Repository) -> String {
        let commit = repository.commit.clone();
        self.state().repositories.insert(name.to_owned(), repository);
        commit
    }

    /// The token that opens what is gated.
    pub fn accept(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// Fails so.
    pub fn fail(&self, of: &'static str, times: usize, kind: FaultKind) {
        self.state().faults.push(Fault { of, times, kind });
    }

    /// Fails no more.
    pub fn mend(&self) {
        self.state().faults.clear();
    }

    /// What was asked so far; it is forgotten.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state().asked)
    }
}

/// The SHA-256 of `content`, in hexadecimal digits.
pub fn sha256(content: &[u8]) -> String {
    hex(digest(&SHA256, content).as_ref())
}

fn sha1(content: &[u8]) -> String {
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, content).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What Git calls a file of this content.
pub fn git_sha1(content: &[u8]) -> String {
    sha1(&[format!("blob {}\0", content.len()).as_bytes(), content].concat())
}

fn is_large(path: &str, content: &[u8]) -> bool {
    content.len() > MOST_IN_GIT || path.ends_with(".safetensors") || path.ends_with(".gguf")
}

fn listen(state: Arc<Mutex<State>>, is_store: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("a listener has an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            // A client that goes away is none of the hub's business.
            thread::spawn(move || answer(&stream, &state, is_store));
        }
    });
    address
}

/// A response's status, headers and body.
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    fn new(status: u16, headers: &[(&str, &str)], body: Vec<u8>) -> Reply {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Reply { status, headers, body }
    }

    fn refusal(status: u16, code: &str) -> Reply {
        Reply::new(status, &[("X-Error-Code", code), ("X-Error-Message", "refused")], b"refused".to_vec())
    }
}

fn answer(stream: &TcpStream, state: &Mutex<State>, is_store: bool) -> Option<()> {
    let locked = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let request = lines.next()?;
    let mut words = request.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let range: Option<usize> =
        headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split('-').next()?.parse().ok());
    let authorization = headers.get("authorization").cloned();
    let fault = {
        let mut state = locked();
        let found = state.faults.iter_mut().find(|fault| fault.times > 0 && path.contains(fault.of));
        found.map(|fault| {
            fault.times -= 1;
            fault.kind.clone()
        })
    };
    let mut reply = match &fault {
        Some(FaultKind::Status(status, name, value)) => {
            Reply::new(*status, &[(*name, *value)], b"failed".to_vec())
        }
        _ if is_store => of_store(&locked(), &path),
        _ => of_hub(&locked(), &path, authorization.as_deref()),
    };
    let whole = reply.body.len();
    if matches!(fault, Some(FaultKind::Corrupt))
        && let Some(byte) = reply.body.last_mut()
    {
        *byte ^= 1;
    }
    let from = range.filter(|_| reply.status == 200 && !matches!(fault, Some(FaultKind::NoRanges)));
    if let Some(from) = from {
        reply.status = 206;
        reply
            .headers
            .push(("Content-Range".into(), format!("bytes {from}-{}/{whole}", whole.saturating_sub(1))));
        reply.body.drain(..from.min(whole));
    }
    let number = {
        let mut state = locked();
        state.asked.push(Asked {
            at_store: is_store,
            path,
            from: range.unwrap_or(0),
            authorization,
            sent: 0,
        });
        state.asked.len() - 1
    };
    let mut head = format!(
        "HTTP/1.1 {} x\r\nContent-Length: {}\r\nConnection: close\r\n",
        reply.status,
        reply.body.len()
    );
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = stream;
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if method == "HEAD" {
        return Some(());
    }
    let (most, part) = match fault {
        Some(FaultKind::Cut(most) | FaultKind::Stall(most)) => (most, usize::MAX),
        Some(FaultKind::Trickle(part)) => (usize::MAX, part),
        _ => (usize::MAX, usize::MAX),
    };
    let body = &reply.body[..reply.body.len().min(most)];
    for part in body.chunks(part.min(1 << 20)) {
        stream.write_all(part).ok()?;
        if let Some(asked) = locked().asked.get_mut(number) {
            asked.sent += part.len();
        }
        if matches!(fault, Some(FaultKind::Trickle(_))) {
            thread::sleep(Duration::from_millis(10));
        }
    }
    if matches!(fault, Some(FaultKind::Stall(_))) {
        thread::sleep(PATIENCE);
    }
    Some(())
}

fn of_store(state: &State, path: &str) -> Reply {
    let wanted = path.trim_start_matches("/lfs/").split('?').next().unwrap_or_default();
    let files = state.repositories.values().flat_map(|repository| repository.files.values());
    match files.into_iter().find(|content| sha256(content) == wanted) {
        Some(content) => Reply::new(200, &[("Accept-Ranges", "bytes")], content.clone()),
        None => Reply::new(404, &[], Vec::new()),
    }
}

fn of_hub(state: &State, path: &str, authorization: Option<&str>) -> Reply {
    let path = path.split('?').next().unwrap_or_default();
    let known = state.token.as_ref().is_some_and(|token| authorization == Some(&format!("Bearer {token}")));
    if let Some(rest) = path.strip_prefix("/api/models/") {
        let (name, tail) = match rest.find("/revision/").or(rest.find("/tree/")) {
            Some(at) => rest.split_at(at),
            None => (rest, "/revision/main"),
        };
        let Some(repository) = state.repositories.get(name) else {
            return Reply::refusal(if authorization.is_some() { 404 } else { 401 }, "RepoNotFound");
        };
        let (kind, revision) = tail.trim_start_matches('/').split_once('/').unwrap_or(("revision", "main"));
        if revision != "main" && revision != "refs%2Fpr%2F1" && revision != repository.commit {
            return Reply::refusal(404, "RevisionNotFound");
        }
        let told = if kind == "tree" { tree(repository) } else { info(name, repository) };
        return Reply::new(200, &[("Content-Type", "application/json")], told.to_string().into_bytes());
    }
    let asked = path.trim_start_matches('/').split_once("/resolve/");
    let Some((name, (revision, file))) = asked.and_then(|(name, rest)| Some((name, rest.split_once('/')?)))
    else {
        return Reply::new(404, &[], Vec::new());
    };
    let Some(repository) = state.repositories.get(name) else { return Reply::refusal(401, "RepoNotFound") };
    if repository.gated && !known {
        return Reply::refusal(if authorization.is_some() { 403 } else { 401 }, "GatedRepo");
    }
    let Some(content) =
        repository.files.get(file).filter(|_| revision == "main" || revision == repository.commit)
    else {
        return Reply::refusal(404, "EntryNotFound");
    };
    let (commit, size) = (repository.commit.as_str(), content.len().to_string());
    if !is_large(file, content) {
        let etag = format!("\"{}\"", git_sha1(content));
        return Reply::new(
            200,
            &[("X-Repo-Commit", commit), ("ETag", &etag), ("Accept-Ranges", "bytes")],
            content.clone(),
        );
    }
    let (sha, store) = (sha256(content), state.store.map(|store| store.to_string()).unwrap_or_default());
    let to = format!("http://{store}/lfs/{sha}?signature=of-the-store");
    let etag = format!("\"{sha}\"");
    let linked = [("X-Linked-Size", size.as_str()), ("X-Linked-Etag", etag.as_str())];
    Reply::new(
        302,
        &[&[("Location", to.as_str()), ("X-Repo-Commit", commit)], &linked[..]].concat(),
        Vec::new(),
    )
}

/// What `huggingface_hub` calls the info of a model, with `blobs=true`.
fn info(name: &str, repository: &Repository) -> Value {
    let siblings = repository.files.iter().map(|(path, content)| {
        let size = repository.told_sizes.get(path).copied().unwrap_or(content.len() as u64);
        match is_large(path, content) {
            true => json!({"rfilename": path, "size": size, "blobId": git_sha1(b"pointer"),
                "lfs": {"sha256": sha256(content), "size": size, "pointerSize": 135}}),
            false => json!({"rfilename": path, "size": size, "blobId": git_sha1(content)}),
        }
    });
    json!({"_id": "0", "id": name, "modelId": name, "sha": repository.commit, "private": false, "gated": repository.gated,
        "disabled": false, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings.collect::<Vec<_>>()})
}

fn tree(repository: &Repository) -> Value {
    let entries = repository.files.iter().map(|(path, content)| match is_large(path, content) {
        true => json!({"type": "file", "path": path, "size": content.len(), "oid": git_sha1(b"pointer"),
            "lfs": {"oid": sha256(content), "size": content.len(), "pointerSize": 135}}),
        false => json!({"type": "file", "path": path, "size": content.len(), "oid": git_sha1(content)}),
    });
    Value::Array(entries.collect())
}
