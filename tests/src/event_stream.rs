//! The body of an answer as it comes, and the server-sent events of a streaming one.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

use serde_json::Value;

/// The events of one answer, as they come; dropping it closes the connection.
#[derive(Debug)]
pub struct Events {
    reader: BufReader<Body>,
    done: bool,
}

/// A streamed answer read to its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The texts of choice 0, put together.
    pub text: String,
    /// The finish reason of choice 0.
    pub finish_reason: Option<String>,
    /// The usage, if an event carried one.
    pub usage: Option<Value>,
    /// Events that brought text.
    pub arrivals: usize,
    /// Whether `[DONE]` came.
    pub done: bool,
    /// An error event.
    pub error: Option<Value>,
}

impl Transcript {
    /// Whether the answer ended as it should: with a finish reason and `[DONE]`.
    pub fn complete(&self) -> bool {
        self.done && self.finish_reason.is_some() && self.error.is_none()
    }
}

impl Events {
    pub(crate) fn new(body: Body) -> Events {
        Events { reader: BufReader::new(body), done: false }
    }

    /// Whether `[DONE]` was read.
    pub fn done(&self) -> bool {
        self.done
    }

    /// Reads on to the end.
    ///
    /// # Panics
    /// The stream breaks off, or an event is not JSON.
    pub fn transcript(self) -> Transcript {
        self.follow(|_| ())
    }

    /// Like [`Events::transcript`], showing every event to `see` on its way.
    ///
    /// # Panics
    /// The stream breaks off, or an event is not JSON.
    pub fn follow(mut self, mut see: impl FnMut(&Value)) -> Transcript {
        let mut transcript = Transcript::default();
        for event in self.by_ref() {
            see(&event);
            if let Some(error) = event.get("error") {
                transcript.error = Some(error.clone());
            }
            let choice = &event["choices"][0];
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
            transcript.text.push_str(text);
            transcript.arrivals += usize::from(!text.is_empty());
            if let Some(reason) = choice["finish_reason"].as_str() {
                transcript.finish_reason = Some(reason.to_owned());
            }
            if event["usage"].is_object() {
                transcript.usage = Some(event["usage"].clone());
            }
        }
        transcript.done = self.done;
        transcript
    }
}

impl Iterator for Events {
    type Item = Value;

    /// The next event; none after `[DONE]` or the end of the stream.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        while !self.done {
            line.clear();
            if self.reader.read_line(&mut line).expect("the stream does not break off") == 0 {
                return None;
            }
            match line.trim_end().strip_prefix("data: ") {
                Some("[DONE]") => self.done = true,
                Some(data) => {
                    let event = serde_json::from_str(data);
                    return Some(event.unwrap_or_else(|error| panic!("{error} in event {data:?}")));
                }
                None => {
                    assert!(line.trim_end().is_empty() || line.starts_with(':'), "not an event: {line:?}");
                }
            }
        }
        None
    }
}

/// A response body as it was before it was chunked.
#[derive(Debug)]
pub(crate) struct Body {
    reader: BufReader<TcpStream>,
    chunked: bool,
    /// Bytes left in this chunk, or in the body; `usize::MAX` when only the end of the connection ends it.
    left: usize,
    /// In a chunked body: whether a chunk was read, after which a line break follows.
    started: bool,
}

impl Body {
    pub(crate) fn new(reader: BufReader<TcpStream>, headers: &[(String, String)]) -> Body {
        let header =
            |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
        let chunked = header("transfer-encoding") == Some("chunked");
        let length = header("content-length").and_then(|length| length.parse().ok());
        let left = if chunked { 0 } else { length.unwrap_or(usize::MAX) };
        Body { reader, chunked, left, started: false }
    }

    /// Reads the length of the next chunk; the last has length 0.
    fn next_chunk(&mut self) -> std::io::Result<()> {
        let mut line = String::new();
        if self.started {
            self.reader.read_line(&mut line)?;
            line.clear();
        }
        self.started = true;
        self.reader.read_line(&mut line)?;
        self.left = usize::from_str_radix(line.trim(), 16)
            .map_err(|_| std::io::Error::other(format!("the chunked body broke off: {line:?}")))?;
        self.chunked = self.left > 0;
        Ok(())
    }
}

impl Read for Body {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 && self.chunked {
            self.next_chunk()?;
        }
        let most = out.len().min(self.left);
        let read = self.reader.read(&mut out[..most])?;
        if read == 0 && most > 0 && self.left != usize::MAX {
            return Err(std::io::Error::other("the connection was closed in the middle of the body"));
        }
        if self.left != usize::MAX {
            self.left -= read;
        }
        Ok(read)
    }
}
