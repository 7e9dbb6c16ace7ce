//! A plain HTTP/1.1 client over one TCP connection per request: what goes over the wire is what a test wrote.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use serde_json::Value;

use crate::PATIENCE;
use crate::event_stream::{Body, Events};

/// Talks to the server at one address.
#[derive(Clone, Debug)]
pub struct Client {
    /// `127.0.0.1:8000`.
    pub address: String,
    key: Option<String>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, decoded.
    pub body: String,
}

impl Response {
    /// The body as JSON.
    ///
    /// # Panics
    /// It is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// `error.message` of an error in OpenAI's shape; panics unless the whole shape is there.
    ///
    /// # Panics
    /// The body is no such error.
    pub fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        assert!(
            error["message"].is_string() && error["type"].is_string(),
            "not an error in OpenAI's shape: {self:?}"
        );
        assert!(
            error.get("param").is_some() && error.get("code").is_some(),
            "param or code is missing: {self:?}"
        );
        error
    }
}

impl Client {
    /// Talks to the server at this address.
    pub fn new(address: String) -> Client {
        Client { address, key: None }
    }

    /// The same with an API key.
    pub fn with_key(&self, key: &str) -> Client {
        Client { key: Some(key.to_owned()), ..self.clone() }
    }

    /// GET.
    pub fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], "")
    }

    /// POST of JSON.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, &[], &body.to_string())
    }

    /// Any request with a text body and further headers.
    ///
    /// # Panics
    /// The connection fails.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let mut reader = self.open(method, path, headers, body).expect("the server takes a connection");
        let (status, headers) = head(&mut reader).expect("a response head");
        let mut bytes = Vec::new();
        Body::new(reader, &headers).read_to_end(&mut bytes).expect("a whole response body");
        let body = String::from_utf8(bytes).expect("a body in UTF-8");
        Response { status, headers, body }
    }

    /// POST of a streaming request; the events can be read as they come. Dropping them closes the connection.
    ///
    /// # Panics
    /// The connection fails, or the answer is not an event stream.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        self.try_stream(path, body).unwrap_or_else(|refusal| panic!("no event stream but {refusal:?}"))
    }

    /// [`Client::stream`], or the answer that came instead of a stream.
    ///
    /// # Errors
    /// The answer is not an event stream.
    ///
    /// # Panics
    /// The connection fails.
    pub fn try_stream(&self, path: &str, body: &Value) -> Result<Events, Response> {
        let mut reader =
            self.open("POST", path, &[], &body.to_string()).expect("the server takes a connection");
        let (status, headers) = head(&mut reader).expect("a response head");
        let mut body = Body::new(reader, &headers);
        let is_stream = |(name, value): &(String, String)| {
            name == "content-type" && value.starts_with("text/event-stream")
        };
        if status == 200 && headers.iter().any(is_stream) {
            return Ok(Events::new(body));
        }
        let mut text = String::new();
        body.read_to_string(&mut text).expect("a whole response body");
        Err(Response { status, headers, body: text })
    }

    fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n",
            self.address,
            body.len()
        );
        if !body.is_empty() && headers.iter().all(|(name, _)| *name != "content-type") {
            request.push_str("content-type: application/json\r\n");
        }
        if let Some(key) = &self.key {
            request.push_str(&format!("authorization: Bearer {key}\r\n"));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes())?;
        Ok(BufReader::new(stream))
    }
}

type Head = (u16, Vec<(String, String)>);

fn head(reader: &mut impl BufRead) -> std::io::Result<Head> {
    let bad = |line: &str| std::io::Error::other(format!("not a response head: {line:?}"));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| bad(&line))?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_lowercase(), value.trim().to_owned())),
            None if line.trim_end().is_empty() => return Ok((status, headers)),
            None => return Err(bad(&line)),
        }
    }
}
