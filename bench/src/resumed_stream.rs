//! A streamed completion that outlives its server: where one dies or breaks off, the next of several goes on with it, by faser's `resume`.

use std::time::{Duration, Instant};

use awc::{Client, Connector};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::event_lines::EventLines;

/// A completion may go without a new token for so long, over all servers, before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries of one completion.
const PAUSE: Duration = Duration::from_millis(50);

/// Servers of the same model, any of which goes on with what another has begun.
pub struct ResumedStreams {
    client: Client,
    urls: Vec<String>,
}

/// A completion, put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Whether it has ended.
    pub ended: bool,
    /// How often another server went on with it, behind at least one token.
    pub moves: usize,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    #[serde(default)]
    token_ids: Vec<u32>,
    finish_reason: Option<String>,
}

/// Why one server did not bring a completion to its end.
enum Broken {
    /// Another may.
    Elsewhere(String),
    /// None will.
    Refused(String),
}

impl ResumedStreams {
    /// Of servers at these addresses, asked for up to `streams` completions at once.
    pub fn new(urls: Vec<String>, streams: usize, api_key: Option<&str>) -> ResumedStreams {
        let connector = Connector::new().limit(streams.max(1)).timeout(Duration::from_secs(5));
        let mut builder = Client::builder().connector(connector).timeout(PATIENCE);
        if let Some(key) = api_key {
            builder = builder.bearer_auth(key);
        }
        ResumedStreams { client: builder.finish(), urls }
    }

    /// The completion that `body` asks for, which has a seed: first of server `first`, then of the next. `heard` is told whenever there is
    /// more of it, and of which server. In a running actix System.
    ///
    /// # Errors
    /// In words: a server refuses the request, or none brings a token for long.
    pub async fn complete(
        &self,
        first: usize,
        body: &Value,
        heard: &dyn Fn(usize, &Resumed),
    ) -> Result<Resumed, String> {
        let (mut whole, mut server, mut since) = (Resumed::default(), first, Instant::now());
        loop {
            let before = whole.tokens.len();
            let at = server % self.urls.len();
            let why = match self.go_on(at, body, &mut whole, heard).await {
                Ok(()) => return Ok(whole),
                Err(Broken::Refused(why)) => return Err(why),
                Err(Broken::Elsewhere(why)) => why,
            };
            if whole.tokens.len() > before {
                since = Instant::now();
                whole.moves += 1;
            }
            if since.elapsed() > PATIENCE {
                return Err(why);
            }
            server += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Has a server go on with a completion to its end. What counts is what comes up to a token, or the end.
    async fn go_on(
        &self,
        server: usize,
        body: &Value,
        whole: &mut Resumed,
        heard: &dyn Fn(usize, &Resumed),
    ) -> Result<(), Broken> {
        let mut body = body.clone();
        body["stream"] = true.into();
        body["return_token_ids"] = true.into();
        body["resume"] = json!({"token_ids": whole.tokens});
        let url = format!("{}/v1/completions", self.urls[server]);
        let sent = self.client.post(url).send_json(&body).await;
        let mut response = sent.map_err(|error| Broken::Elsewhere(error.to_string()))?.timeout(PATIENCE);
        let status = response.status();
        if !status.is_success() {
            let body = response.body().await.unwrap_or_default();
            let why = format!("{status}: {}", String::from_utf8_lossy(&body));
            let later = status.is_server_error() || status.as_u16() == 429;
            return Err(if later { Broken::Elsewhere(why) } else { Broken::Refused(why) });
        }
        let (mut lines, mut text) = (EventLines::default(), String::new());
        while let Some(bytes) = response.next().await {
            let bytes = bytes.map_err(|error| Broken::Elsewhere(error.to_string()))?;
            for data in lines.feed(&bytes).into_iter().filter(|data| data != b"[DONE]") {
                let chunk: Chunk = serde_json::from_slice(&data)
                    .map_err(|error| Broken::Refused(format!("{error} in an event")))?;
                if let Some(error) = chunk.error {
                    let later = ["shutting_down", "device_failed"].iter().any(|code| error["code"] == *code);
                    let why = error.to_string();
                    return Err(if later { Broken::Elsewhere(why) } else { Broken::Refused(why) });
                }
                for choice in chunk.choices {
                    text.push_str(&choice.text);
                    whole.ended = choice.finish_reason.is_some();
                    if whole.ended || !choice.token_ids.is_empty() {
                        whole.text.push_str(&std::mem::take(&mut text));
                        whole.tokens.extend(choice.token_ids);
                        heard(server, whole);
                    }
                }
            }
            if whole.ended {
                return Ok(());
            }
        }
        Err(Broken::Elsewhere("the stream ended before its text".to_owned()))
    }
}
