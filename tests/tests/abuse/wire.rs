//! Bytes on the wire, and what comes back, however it comes.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
};

use serde_json::Value;

use faser_tests::PATIENCE;

/// What came back on a connection.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A response: its status and its body.
    Response(u16, String),
    /// Nothing but the end.
    Closed,
}

impl Answer {
    /// The first response in `bytes`, or the end.
    fn of(bytes: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(bytes);
        let Some((head, body)) = last(&text).split_once("\r\n\r\n") else { return Answer::Closed };
        let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        status.map_or(Answer::Closed, |status| Answer::Response(status, body.to_owned()))
    }

    /// Whether it is an error of the API with this status, in OpenAI's shape and short enough to be read.
    pub(crate) fn is_error(&self, wanted: u16) -> Result<(), String> {
        let Answer::Response(status, body) = self else { return Err("it was closed".to_owned()) };
        let error = serde_json::from_str::<Value>(body).unwrap_or_default()["error"].take();
        let shape = error["message"].is_string() && error["type"].is_string();
        let shape = shape && error.get("param").is_some() && error.get("code").is_some();
        if *status != wanted || !shape || body.len() > 4096 {
            return Err(format!("{status} with {} bytes: {:.300}", body.len(), body));
        }
        Ok(())
    }

    /// Whether it is a refusal of the HTTP library (4xx, nothing in it), one of the API, or the end.
    pub(crate) fn is_refusal(&self) -> Result<(), String> {
        match self {
            Answer::Closed => Ok(()),
            Answer::Response(400..=499, body) if body.is_empty() => Ok(()),
            Answer::Response(status @ 400..=499, _) => self.is_error(*status),
            Answer::Response(status, body) => Err(format!("{status}: {body:.300}")),
        }
    }
}

/// A request with this body and `connection: close`.
pub(crate) fn post(path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    request("POST", path, &format!("content-length: {}\r\n", body.as_ref().len()), body)
}

/// A request with these header lines.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body.as_ref()].concat()
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server takes a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
    stream
}

/// Sends all of it, or as much as is taken, and reads the answer; `half_close` says that nothing more will come.
pub(crate) fn exchange(address: &str, bytes: &[u8], half_close: bool) -> Answer {
    let mut stream = connect(address);
    // A server that has refused need not take the rest.
    let sent = stream.write_all(bytes);
    if half_close && sent.is_ok() {
        let _ = stream.shutdown(Shutdown::Write);
    }
    read(&mut stream)
}

/// Reads up to the end of the connection, or of a response with a length.
///
/// # Panics
/// Neither comes.
pub(crate) fn read(stream: &mut TcpStream) -> Answer {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Answer::of(&bytes),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("neither answered nor closed within {PATIENCE:?}: {:?}", Answer::of(&bytes));
            }
            // Reset: what it had sent before counts.
            Err(_) => return Answer::of(&bytes),
        }
        if is_whole(&bytes) {
            return Answer::of(&bytes);
        }
    }
}

/// A response without the go-ahead that may stand in front of it.
fn last(text: &str) -> &str {
    text.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(text)
}

fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = last(&text).split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| body.len() >= length)
}
