//! `kv_events`: where routers hear what of the KV is cached.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::KvConfig;
use crate::fields::{FieldError, Fields};

/// Where KV events are published, and how they look. Keys have vLLM's names where they mean the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// Where the first replica publishes; each further one takes the next port. Port 0 takes a free one.
    pub endpoint: SocketAddr,
    /// Where past batches can be asked for again, if anywhere; ports as those of `endpoint`.
    pub replay_endpoint: Option<SocketAddr>,
    /// The first part of each message.
    pub topic: String,
    /// Past batches that are kept to be asked for.
    pub buffer_steps: usize,
    /// How an event is encoded.
    pub encoding: KvEncoding,
}

/// How an event is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvEncoding {
    /// By the names of its fields, as vLLM does since June 2026.
    #[default]
    Map,
    /// By their places, as it did before.
    Array,
}

impl fmt::Display for KvEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvEncoding::Map => "map",
            KvEncoding::Array => "array",
        })
    }
}

/// Characters of a topic at most.
const MOST_TOPIC_BYTES: usize = 512;
/// Past batches at most.
const MOST_STEPS: usize = 1_000_000;

pub(super) fn kv_events(
    mut fields: Fields<'_>,
    kv: &KvConfig,
    replicas: usize,
) -> Result<Option<KvEventsConfig>, FieldError> {
    let endpoint = endpoint(&mut fields, "endpoint", replicas)?;
    let replay_endpoint = self::endpoint(&mut fields, "replay_endpoint", replicas)?;
    let topic = fields.text("topic")?.unwrap_or_default().to_owned();
    if topic.len() > MOST_TOPIC_BYTES {
        return Err(fields.wrong("topic", format!("has more than {MOST_TOPIC_BYTES} bytes")));
    }
    let buffer_steps = fields.size("buffer_steps", 1..=MOST_STEPS)?.unwrap_or(10_000);
    let encoding = match fields.word("encoding", &["map", "array"])? {
        Some("array") => KvEncoding::Array,
        _ => KvEncoding::Map,
    };
    let Some(endpoint) = endpoint else {
        let useless = [("replay_endpoint", replay_endpoint.is_some()), ("topic", !topic.is_empty())];
        if let Some((name, _)) = useless.into_iter().find(|(_, given)| *given) {
            let problem =
                "is of no use without `kv_events.endpoint`, by which events are published: give both";
            return Err(fields.wrong(name, problem));
        }
        fields.finish()?;
        return Ok(None);
    };
    if !kv.prefix_cache {
        let problem =
            "tells what is cached, and `kv.prefix_cache: false` has nothing cached: leave one of the two out";
        return Err(fields.wrong("endpoint", problem));
    }
    if let Some(replay) = replay_endpoint
        && replay.port() != 0
        && endpoint.port() != 0
        && usize::from(replay.port().abs_diff(endpoint.port())) < replicas
    {
        let problem = format!(
            "takes ports that `kv_events.endpoint` has too, as each of {replicas} replicas takes the next one: choose ports {replicas} or more apart"
        );
        return Err(fields.wrong("replay_endpoint", problem));
    }
    fields.finish()?;
    Ok(Some(KvEventsConfig { endpoint, replay_endpoint, topic, buffer_steps, encoding }))
}

/// `tcp://HOST:PORT`, with room for a port for each replica.
fn endpoint(
    fields: &mut Fields<'_>,
    name: &'static str,
    replicas: usize,
) -> Result<Option<SocketAddr>, FieldError> {
    let Some(text) = fields.text(name)? else { return Ok(None) };
    let wanted = "an address of this machine to listen on, such as tcp://127.0.0.1:5557, or tcp://*:5557 for all of its addresses";
    let address = text.strip_prefix("tcp://").and_then(|text| match text.strip_prefix("*:") {
        Some(port) => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port.parse().ok()?)),
        None => text.parse().ok(),
    });
    let address = address.ok_or_else(|| fields.wrong_value(name, wanted, &text.into()))?;
    if usize::from(address.port()) + replicas - 1 > usize::from(u16::MAX) {
        let problem = format!("leaves no ports for {replicas} replicas, as each takes the next one");
        return Err(fields.wrong(name, problem));
    }
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::raw::Document;
    use crate::{Config, ConfigError};

    fn read(text: &str) -> Result<Option<KvEventsConfig>, ConfigError> {
        let document = Document::parse(Path::new("x.yaml"), text.to_owned())?;
        Ok(Config::from_document(&document)?.kv_events)
    }

    #[test]
    fn vllms_keys_are_taken_and_off_is_the_default() {
        assert_eq!(read("kv_events: {buffer_steps: 3}\n").unwrap(), None);
        let config = read(
            "kv_events: {endpoint: 'tcp://*:5557', replay_endpoint: 'tcp://[::1]:5558', topic: kv@a@m, encoding: array}\n",
        );
        let config = config.unwrap().unwrap();
        assert_eq!(config.endpoint, "0.0.0.0:5557".parse().unwrap());
        assert_eq!(config.replay_endpoint, "[::1]:5558".parse().ok());
        assert_eq!(
            (config.topic.as_str(), config.buffer_steps, config.encoding),
            ("kv@a@m", 10_000, KvEncoding::Array)
        );
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        for (text, words) in [
            (
                "kv_events: {endpoint: '127.0.0.1:1'}",
                "`kv_events.endpoint` must be an address of this machine",
            ),
            ("kv_events: {endpoint: 'tcp://router:5557'}", "tcp://127.0.0.1:5557"),
            ("kv_events: {endpoint: 'tcp://*'}", "`kv_events.endpoint`"),
            ("kv_events: {topic: a}", "`kv_events.topic` is of no use without `kv_events.endpoint`"),
            ("kv_events: {replay_endpoint: 'tcp://*:1'}", "`kv_events.replay_endpoint` is of no use"),
            (
                "kv: {prefix_cache: false}\nkv_events: {endpoint: 'tcp://*:1'}",
                "`kv.prefix_cache: false` has nothing cached",
            ),
            (
                "device: {replicas: 2}\nkv_events: {endpoint: 'tcp://*:5557', replay_endpoint: 'tcp://*:5558'}",
                "choose ports 2 or more apart",
            ),
            (
                "device: {replicas: 2}\nkv_events: {endpoint: 'tcp://*:65535'}",
                "leaves no ports for 2 replicas",
            ),
            ("kv_events: {endpoint: 'tcp://*:1', encoding: json}", "`kv_events.encoding`"),
            ("kv_events: {endpoint: 'tcp://*:1', hwm: 5}", "`kv_events.hwm` is unknown"),
        ] {
            let refusal = read(text).expect_err(text).to_string();
            assert!(refusal.contains(words), "{text}: {refusal}");
        }
    }
}
