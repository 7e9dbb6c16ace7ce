//! One streamed request: sent, read event by event, timed as its client sees it.

use std::time::{Duration, Instant};

use awc::Client;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use crate::event_lines::EventLines;
use crate::{BenchSpec, KMax, Prompt};

/// What one finished request measured.
pub(crate) struct Sample {
    /// Request sent to first text (TTFT).
    pub(crate) ttft: Duration,
    /// Times between arrivals of text (ITL); an arrival may carry several tokens.
    pub(crate) gaps: Vec<Duration>,
    /// First text to last text.
    pub(crate) decode: Duration,
    /// From the server's own usage.
    pub(crate) usage: Usage,
    /// The whole text, to compare runs.
    pub(crate) text: String,
}

/// The server's token counts.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    prompt: &'a Prompt,
    max_tokens: usize,
    temperature: f32,
    seed: u64,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<Speculation>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct Speculation {
    k_max: usize,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
}

/// What stays the same over all requests of a benchmark.
pub(crate) struct Caller<'a> {
    pub(crate) client: Client,
    pub(crate) spec: &'a BenchSpec,
    pub(crate) model: String,
}

impl Caller<'_> {
    /// Sends one streamed completion and reads it to its end.
    ///
    /// # Errors
    /// In words: the connection's error, the server's refusal, or a stream that broke off.
    pub(crate) async fn complete(
        &self,
        prompt: &Prompt,
        seed: u64,
        k: KMax,
        max_tokens: usize,
    ) -> Result<Sample, String> {
        let speculation = match k {
            KMax::ServerDefault => None,
            KMax::AtMost(k_max) => Some(Speculation { k_max }),
        };
        let body = Body {
            model: &self.model,
            prompt,
            max_tokens,
            temperature: self.spec.temperature,
            seed,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            speculation,
        };
        let sent = Instant::now();
        let url = format!("{}/v1/completions", self.spec.url);
        let sending = self.client.post(url).send_json(&body);
        let mut response = sending.await.map_err(|error| error.to_string())?.timeout(self.spec.patience);
        if !response.status().is_success() {
            let body = response.body().await.unwrap_or_default();
            return Err(format!("{}: {}", response.status(), String::from_utf8_lossy(&body)));
        }
        let mut reading = Reading::default();
        while let Some(bytes) = response.next().await {
            let bytes = bytes.map_err(|error| format!("the stream broke off: {error}"))?;
            if reading.feed(&bytes, sent.elapsed())? {
                return reading.finish();
            }
        }
        Err("the stream ended without [DONE]".into())
    }
}

/// The events read so far.
#[derive(Default)]
struct Reading {
    lines: EventLines,
    arrivals: Vec<Duration>,
    text: String,
    usage: Option<Usage>,
}

impl Reading {
    /// Takes what arrived `at` after sending; true once `[DONE]` was read.
    fn feed(&mut self, bytes: &[u8], at: Duration) -> Result<bool, String> {
        for data in self.lines.feed(bytes) {
            if data == b"[DONE]" {
                return Ok(true);
            }
            let chunk: Chunk = serde_json::from_slice(&data)
                .map_err(|error| format!("{error} in event {}", String::from_utf8_lossy(&data)))?;
            if let Some(error) = chunk.error {
                return Err(error.to_string());
            }
            let text = chunk.choices.first().map_or("", |choice| choice.text.as_str());
            if !text.is_empty() {
                self.text.push_str(text);
                self.arrivals.push(at);
            }
            self.usage = chunk.usage.or(self.usage);
        }
        Ok(false)
    }

    fn finish(self) -> Result<Sample, String> {
        let usage = self.usage.ok_or("the stream carried no usage")?;
        let (Some(&first), Some(&last)) = (self.arrivals.first(), self.arrivals.last()) else {
            return Err(format!("the answer has no text ({} tokens)", usage.completion_tokens));
        };
        let gaps = self.arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
        Ok(Sample { ttft: first, gaps, decode: last - first, usage, text: self.text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn events_split_anywhere_are_put_together() {
        let stream = "data: {\"choices\":[{\"text\":\"on\\u00e9\"}]}\r\n\r\n: comment\n\ndata: {\"choices\":[{\"text\":\"!\"}]}\n\n\
                      data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        for cut in 1..stream.len() {
            let mut reading = Reading::default();
            let early = reading.feed(&stream.as_bytes()[..cut], at(10)).unwrap();
            let done = early || reading.feed(&stream.as_bytes()[cut..], at(25)).unwrap();
            assert!(done, "cut at {cut}");
            let sample = reading.finish().unwrap();
            assert_eq!((sample.text.as_str(), sample.usage.completion_tokens), ("on\u{e9}!", 2));
            assert_eq!(sample.gaps, [sample.decode]);
            assert!(sample.ttft >= at(10) && sample.ttft + sample.decode <= at(25));
        }
    }

    #[test]
    fn an_error_event_ends_the_request() {
        let mut reading = Reading::default();
        let error = reading.feed(b"data: {\"error\":{\"message\":\"device lost\"}}\n", at(1)).unwrap_err();
        assert!(error.contains("device lost"), "{error}");
    }

    #[test]
    fn an_answer_without_usage_is_no_sample() {
        let mut reading = Reading::default();
        assert!(reading.feed(b"data: {\"choices\":[{\"text\":\"a\"}]}\ndata: [DONE]\n", at(1)).unwrap());
        assert!(reading.finish().is_err_and(|why| why.contains("usage")));
    }
}
