//! What to measure: one validated description of a benchmark.

use std::{fmt, str::FromStr, time::Duration};

use faser_engine::K_LIMIT;
use serde::{Serialize, Serializer};

use crate::{BenchError, MaxTokens, Prompts, Targets};

/// The bound a request puts on its speculative length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KMax {
    /// The request says nothing: the server's own policy, and the only choice for servers other than faser.
    ServerDefault,
    /// `speculation: {"k_max": n}`; 0 switches speculation off.
    AtMost(usize),
}

impl FromStr for KMax {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        match text {
            "default" => Ok(KMax::ServerDefault),
            number => match number.parse() {
                Ok(k) if k <= K_LIMIT => Ok(KMax::AtMost(k)),
                _ => Err(BenchError::Spec(format!(
                    "k `{text}` is not a number from 0 to {K_LIMIT}; write one, or `default` for the server's own choice"
                ))),
            },
        }
    }
}

impl fmt::Display for KMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KMax::ServerDefault => f.pad("default"),
            KMax::AtMost(k) => f.pad(&k.to_string()),
        }
    }
}

impl Serialize for KMax {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One benchmark: every concurrency with every k, `repeats` times.
#[derive(Clone, Debug, Serialize)]
pub struct BenchSpec {
    /// Where the server listens, without a path: `http://127.0.0.1:8000`.
    pub url: String,
    /// The model to ask for; none: the first that `/v1/models` lists.
    pub model: Option<String>,
    /// Numbers of requests kept in flight.
    pub concurrency: Vec<usize>,
    /// Speculative lengths to compare; ratios are taken against the first.
    pub k: Vec<KMax>,
    /// Requests per run (one run is one concurrency, one k, one repeat).
    pub requests: usize,
    /// Output tokens asked for per request.
    pub max_tokens: MaxTokens,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f32,
    /// Runs of each combination; figures are medians over them.
    pub repeats: usize,
    /// What is asked.
    pub prompts: Prompts,
    /// Ask every prompt once for one token before measuring, so that no run pays for a cold prefix cache that the next finds warm.
    pub warm_up: bool,
    /// Longest time one request may take before it counts as failed.
    pub patience: Duration,
    /// Latency targets that answers are held to. The server is not told of them.
    pub targets: Targets,
    /// The machine the server runs on, for the report's reader.
    pub machine: String,
    /// Sent as `Authorization: Bearer …`; in no report.
    #[serde(skip)]
    pub api_key: Option<String>,
}

impl BenchSpec {
    /// A small greedy benchmark of `url` with the built-in prompts: concurrency 1, the server's own k, 32 requests of 64 tokens, one repeat.
    /// `url` may end as the base URLs of clients do, with a slash or `/v1`.
    pub fn new(url: impl AsRef<str>) -> BenchSpec {
        let url = url.as_ref().trim_end_matches('/');
        BenchSpec {
            url: url.strip_suffix("/v1").filter(|host| !host.ends_with('/')).unwrap_or(url).to_owned(),
            model: None,
            concurrency: vec![1],
            k: vec![KMax::ServerDefault],
            requests: 32,
            max_tokens: MaxTokens::exactly(64),
            temperature: 0.0,
            repeats: 1,
            prompts: Prompts::BuiltIn,
            warm_up: true,
            patience: Duration::from_secs(120),
            targets: Targets::default(),
            machine: String::new(),
            api_key: None,
        }
    }

    /// Checks every value before the first request is sent.
    ///
    /// # Errors
    /// [`BenchError::Spec`] naming the value and what to write instead.
    pub fn validate(&self) -> Result<(), BenchError> {
        let refuse = |what: &str| Err(BenchError::Spec(what.to_owned()));
        if !self.url.starts_with("http://") {
            return refuse(&format!("url `{}` must start with http:// (TLS is not supported)", self.url));
        }
        if self.concurrency.is_empty() || self.concurrency.contains(&0) {
            return refuse("concurrency must be a list of numbers of at least 1, such as 1,4,16");
        }
        if self.k.is_empty() {
            return refuse("k must list at least one value, such as 0,2,4 or default");
        }
        for (name, value) in [("requests", self.requests), ("repeats", self.repeats)] {
            if value == 0 {
                return refuse(&format!("{name} must be at least 1"));
            }
        }
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temperature must be a number of at least 0");
        }
        self.targets.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_be_that_of_a_client() {
        for url in ["http://x:1", "http://x:1/", "http://x:1/v1", "http://x:1/v1/"] {
            assert_eq!(BenchSpec::new(url).url, "http://x:1");
        }
        assert_eq!(BenchSpec::new("http://x:1/faser/v1").url, "http://x:1/faser");
        assert_eq!(BenchSpec::new("http://v1/").url, "http://v1");
    }

    #[test]
    fn k_is_a_number_up_to_the_limit_or_default() {
        assert_eq!("0".parse::<KMax>().unwrap(), KMax::AtMost(0));
        assert_eq!("16".parse::<KMax>().unwrap(), KMax::AtMost(16));
        assert_eq!("default".parse::<KMax>().unwrap(), KMax::ServerDefault);
        for bad in ["17", "-1", "", "four"] {
            let message = bad.parse::<KMax>().unwrap_err().to_string();
            assert!(message.contains("0 to 16"), "{message}");
        }
    }

    #[test]
    fn impossible_values_are_named() {
        let good = BenchSpec::new("http://127.0.0.1:8000");
        good.validate().unwrap();
        let cases = [
            (BenchSpec { url: "https://x".into(), ..good.clone() }, "http://"),
            (BenchSpec { concurrency: vec![1, 0], ..good.clone() }, "concurrency"),
            (BenchSpec { k: vec![], ..good.clone() }, "k must"),
            (BenchSpec { requests: 0, ..good.clone() }, "requests"),
            (BenchSpec { repeats: 0, ..good.clone() }, "repeats"),
            (BenchSpec { temperature: f32::NAN, ..good.clone() }, "temperature"),
            (
                BenchSpec { targets: Targets { ttft_ms: Some(0.0), tpot_ms: None }, ..good.clone() },
                "TTFT target",
            ),
        ];
        for (spec, name) in cases {
            let message = spec.validate().unwrap_err().to_string();
            assert!(message.contains(name), "{message} should name {name}");
        }
    }
}
