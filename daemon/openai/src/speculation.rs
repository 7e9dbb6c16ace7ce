//! `speculation`, `priority` and `cache_salt`: how a request wants to be scheduled, and with whom it shares cached prompts. Nothing of it
//! changes the text.

use std::time::Duration;

use faser_config::fields::{Fault, FieldError, Fields, wrong_type, wrong_value};
use faser_engine::{Handling, K_LIMIT, Slo, SpeculationMode};
use serde_json::{Value, json};

/// The longest latency target, as in the config: an hour.
const LONGEST_TARGET_MS: u64 = 3_600_000;

/// Bytes of a `cache_salt` at most.
const MAX_SALT_BYTES: usize = 1024;

/// Reads them; `priorities` says whether the server goes by priorities, and `owner` whose key the request has.
///
/// # Errors
/// A field that is wrong, or a priority that would not count.
pub(super) fn handling(
    fields: &mut Fields<'_>,
    priorities: bool,
    owner: u128,
) -> Result<Handling, FieldError> {
    // vLLM's place for it.
    let outer = priority(fields, "As `speculation.priority`.", priorities)?;
    let salt = salt(fields)?;
    let about = "How the request is to be scheduled.";
    let inner = fields.within(("speculation", about), "Speculation", |inner| {
        let handling = Handling {
            k_max: inner.size("k_max", 0..=K_LIMIT)?,
            mode: mode(inner)?,
            slo: inner.within(("slo", "Latency targets."), "Slo", slo)?.unwrap_or_default(),
            ..Handling::default()
        };
        Ok((handling, priority(inner, "Lower is sooner.", priorities)?))
    })?;
    let (handling, inner) = inner.unwrap_or_default();
    if let (Some(outer), Some(inner)) = (outer, inner)
        && outer != inner
    {
        return Err(fields.wrong("priority", "and `speculation.priority` differ: give one of them"));
    }
    Ok(Handling { priority: outer.or(inner).unwrap_or(0), salt, owner, ..handling })
}

/// Half of the text's SHA-256: nobody finds a text for the salt of another one. 0, that of requests without a salt, is none's.
fn salt(fields: &mut Fields<'_>) -> Result<u128, FieldError> {
    let about = "Cached prompts are shared with requests of the same salt alone.";
    let text = fields.text(("cache_salt", about))?;
    fields.tell("cache_salt", || json!({"minLength": 1, "maxLength": MAX_SALT_BYTES}));
    let Some(text) = text else { return Ok(0) };
    if text.is_empty() || text.len() > MAX_SALT_BYTES {
        let wanted = format!("a string of 1 to {MAX_SALT_BYTES} bytes");
        return Err(fields.wrong_value("cache_salt", &wanted, &text.into()));
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let half = digest.as_ref().iter().take(16);
    Ok(half.fold(0, |salt: u128, byte| salt << 8 | u128::from(*byte)).max(1))
}

fn mode(fields: &mut Fields<'_>) -> Result<SpeculationMode, FieldError> {
    Ok(match fields.word("mode", &["auto", "off", "lookup", "draft", "suffix"])? {
        Some("off") => SpeculationMode::Off,
        Some("lookup") => SpeculationMode::Lookup,
        Some("draft") => SpeculationMode::Draft,
        Some("suffix") => SpeculationMode::Suffix,
        _ => SpeculationMode::Auto,
    })
}

fn slo(fields: &mut Fields<'_>) -> Result<Slo, FieldError> {
    let mut target = |name| {
        let target = fields.whole(name, 1..=LONGEST_TARGET_MS)?;
        Ok::<_, FieldError>(target.map(Duration::from_millis))
    };
    Ok(Slo { ttft: target("ttft_ms")?, tpot: target("tpot_ms")? })
}

/// A whole number of 32 bits. Where priorities do not count, only that of everybody may be asked for.
fn priority(fields: &mut Fields<'_>, about: &'static str, counts: bool) -> Result<Option<i32>, FieldError> {
    let schema = || json!({"type": "integer", "format": "int32"});
    let Some(value) = fields.value_of(("priority", about), schema) else { return Ok(None) };
    let path = fields.path("priority");
    let wanted = format!("a whole number from {} to {}, where lower is sooner", i32::MIN, i32::MAX);
    match value.as_i64().map(i32::try_from) {
        Some(Ok(priority)) if counts || priority == 0 => Ok(Some(priority)),
        Some(Ok(_)) => {
            let problem = "does not count on this server (`scheduler.priorities: false`): leave it out";
            Err(FieldError::new(path, Fault::Unsupported, format!("is not supported: it {problem}")))
        }
        _ if matches!(value, Value::Number(_)) => Err(wrong_value(&path, &wanted, value)),
        _ => Err(wrong_type(&path, &wanted, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value, priorities: bool) -> Result<Handling, FieldError> {
        let mut fields = Fields::new("", body)?;
        let read = handling(&mut fields, priorities, 7)?;
        fields.finish()?;
        Ok(read)
    }

    #[test]
    fn every_field_arrives_and_none_has_to_be_there() {
        let all = json!({"speculation": {
            "k_max": 3, "mode": "lookup", "slo": {"ttft_ms": 200, "tpot_ms": 25}, "priority": -7,
        }});
        let slo = Slo { ttft: Some(Duration::from_millis(200)), tpot: Some(Duration::from_millis(25)) };
        let wanted =
            Handling { k_max: Some(3), mode: SpeculationMode::Lookup, slo, priority: -7, salt: 0, owner: 7 };
        assert_eq!(read(&all, true), Ok(wanted));
        for nothing in
            [json!({}), json!({"speculation": {}}), json!({"speculation": {"mode": "auto", "slo": {}}})]
        {
            assert_eq!(read(&nothing, true), Ok(Handling { owner: 7, ..Handling::default() }), "{nothing}");
        }
        for (word, mode) in [
            ("off", SpeculationMode::Off),
            ("draft", SpeculationMode::Draft),
            ("suffix", SpeculationMode::Suffix),
        ] {
            assert_eq!(read(&json!({"speculation": {"mode": word}}), true).map(|read| read.mode), Ok(mode));
        }
    }

    #[test]
    fn a_priority_may_stand_where_vllm_has_it() {
        let of = |body: Value, counts| read(&body, counts).map(|read| read.priority);
        assert_eq!(of(json!({"priority": 5}), true), Ok(5));
        assert_eq!(of(json!({"priority": 5, "speculation": {"priority": 5}}), true), Ok(5));
        assert_eq!(of(json!({"priority": i32::MIN, "speculation": {"mode": "off"}}), true), Ok(i32::MIN));
        // Everybody's.
        assert_eq!(of(json!({"priority": 0, "speculation": {"priority": 0}}), false), Ok(0));
        let refused = of(json!({"speculation": {"priority": 1}}), false).expect_err("it does not count");
        assert_eq!(
            refused.message,
            "`speculation.priority` is not supported: it does not count on this server (`scheduler.priorities: false`): leave it out"
        );
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (body, path, fault) in [
            (json!({"speculation": 4}), "speculation", Fault::Type),
            (json!({"speculation": {"kmax": 1}}), "speculation.kmax", Fault::Unknown),
            (json!({"speculation": {"k_max": 17}}), "speculation.k_max", Fault::Value),
            (json!({"speculation": {"k_max": -1}}), "speculation.k_max", Fault::Value),
            (json!({"speculation": {"mode": "drafts"}}), "speculation.mode", Fault::Value),
            (json!({"speculation": {"mode": 1}}), "speculation.mode", Fault::Type),
            (json!({"speculation": {"slo": 20}}), "speculation.slo", Fault::Type),
            (json!({"speculation": {"slo": {"tpot_ms": 0}}}), "speculation.slo.tpot_ms", Fault::Value),
            (json!({"speculation": {"slo": {"tpot_ms": 0.5}}}), "speculation.slo.tpot_ms", Fault::Value),
            (
                json!({"speculation": {"slo": {"ttft_ms": 3_600_001}}}),
                "speculation.slo.ttft_ms",
                Fault::Value,
            ),
            (json!({"speculation": {"slo": {"ttft_ms": "fast"}}}), "speculation.slo.ttft_ms", Fault::Type),
            (json!({"speculation": {"slo": {"itl_ms": 5}}}), "speculation.slo.itl_ms", Fault::Unknown),
            (json!({"speculation": {"priority": "high"}}), "speculation.priority", Fault::Type),
            (json!({"speculation": {"priority": 1u64 << 40}}), "speculation.priority", Fault::Value),
            (json!({"priority": 1.5}), "priority", Fault::Value),
            (json!({"priority": u64::MAX}), "priority", Fault::Value),
            (json!({"priority": 1, "speculation": {"priority": 2}}), "priority", Fault::Value),
        ] {
            let err = read(&body, true).expect_err("this has to be refused");
            assert_eq!((err.path.as_str(), err.fault), (path, fault), "{body}: {err}");
        }
    }
}
