//! The keys that tune engines while they run, each declared once: reading, reload, `faser ctl policy set`, the admin API and its document come
//! from here. `docs/operating.md` shows them, and a test compares.

use std::sync::LazyLock;
use std::time::Duration;

use faser_engine::{K_LIMIT, Mechanisms, Policy, Switch, Tuning};
use serde_json::{Value, json};

use super::MOST_PARTITIONS;
use crate::fields::{FieldError, Fields};

/// A key that tunes engines.
#[derive(Debug)]
pub struct Tunable {
    /// The key, as `section.key`.
    pub key: &'static str,
    /// From when on a change counts.
    pub when: &'static str,
    /// One line on it.
    pub help: &'static str,
    /// What its values are in JSON.
    pub kind: Kind,
    access: Access,
}

/// What values are in JSON; null, too, where `None` is a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// True or false.
    Flag,
    /// A whole number.
    Number,
    /// A whole number or null.
    MaybeNumber,
}

#[derive(Debug)]
enum Access {
    /// A mechanism of the engine.
    Switch(&'static Switch),
    /// Reads the field of that name, and tells the value.
    Own(fn(&mut Fields<'_>, &'static str, &mut Tuning) -> Result<(), FieldError>, fn(&Tuning) -> Value),
}

impl Tunable {
    const fn of(
        key: &'static str,
        kind: Kind,
        help: &'static str,
        when: &'static str,
        read: fn(&mut Fields<'_>, &'static str, &mut Tuning) -> Result<(), FieldError>,
        value: fn(&Tuning) -> Value,
    ) -> Tunable {
        Tunable { key, when, help, kind, access: Access::Own(read, value) }
    }

    /// Its name without the section.
    pub fn name(&self) -> &'static str {
        self.key.rsplit('.').next().unwrap_or(self.key)
    }

    /// Its value in a tuning.
    pub fn value(&self, tuning: &Tuning) -> Value {
        match &self.access {
            Access::Switch(switch) => (switch.is_on)(&tuning.mechanisms).into(),
            Access::Own(_, value) => value(tuning),
        }
    }

    fn read(&self, fields: &mut Fields<'_>, tuning: &mut Tuning) -> Result<(), FieldError> {
        match &self.access {
            Access::Switch(switch) => {
                if let Some(on) = fields.flag(self.name())? {
                    (switch.set)(&mut tuning.mechanisms, on);
                }
                Ok(())
            }
            Access::Own(read, _) => read(fields, self.name(), tuning),
        }
    }
}

/// All of them, by their keys.
pub static TUNABLES: LazyLock<Vec<Tunable>> = LazyLock::new(|| {
    let switches = Mechanisms::SWITCHES.iter().map(|switch| Tunable {
        key: format!("speculation.{}", switch.name).leak(),
        when: switch.when,
        help: switch.help,
        kind: Kind::Flag,
        access: Access::Switch(switch),
    });
    let mut all: Vec<Tunable> = switches.chain(own()).collect();
    all.sort_by_key(|tunable| tunable.key);
    all
});

fn own() -> [Tunable; 8] {
    [
        Tunable::of(
            "scheduler.max_prefill_rows",
            Kind::MaybeNumber,
            "rows of prompts in a pass that streams wait for; null for what is left of it, or what sizing takes",
            "the next pass",
            |fields, name, tuning| {
                tuning.max_prefill_rows = fields.size(name, 1..=65_536)?;
                Ok(())
            },
            |tuning| json!(tuning.max_prefill_rows),
        ),
        Tunable::of(
            "scheduler.max_running",
            Kind::Number,
            "sequences that run at once, up to what the daemon was started with",
            "the next admission; up to what the daemon was started with, and nobody is preempted",
            |fields, name, tuning| set(fields.size(name, 1..=4096)?, &mut tuning.max_running),
            |tuning| tuning.max_running.into(),
        ),
        Tunable::of(
            "scheduler.max_waiting",
            Kind::Number,
            "sequences that wait",
            "the next request; nobody who waits is refused",
            |fields, name, tuning| set(fields.size(name, 1..=65_536)?, &mut tuning.max_waiting),
            |tuning| tuning.max_waiting.into(),
        ),
        Tunable::of(
            "speculation.k_max",
            Kind::MaybeNumber,
            "cap on the speculative length, 0 to 16; null for none",
            "the next pass",
            |fields, name, tuning| {
                tuning.k_max = fields.size(name, 0..=K_LIMIT)?;
                Ok(())
            },
            |tuning| json!(tuning.k_max),
        ),
        Tunable::of(
            "speculation.partition",
            Kind::MaybeNumber,
            "the one partition for overlapped execution, counted from 1; null for any",
            "the next pass; a partition whose costs are known",
            |fields, name, tuning| {
                tuning.partition = fields.size(name, 1..=MOST_PARTITIONS)?;
                Ok(())
            },
            |tuning| json!(tuning.partition),
        ),
        Tunable::of(
            "speculation.policy",
            Kind::Text,
            Policy::FORMS,
            "the next pass; `budget` and `faser` if costs are known: by the start, or by `faser ctl profile`",
            |fields, name, tuning| {
                let Some(text) = fields.text(name)? else { return Ok(()) };
                let policy = text.parse().map_err(|_| fields.wrong_value(name, Policy::FORMS, &text.into()));
                tuning.policy = policy?;
                Ok(())
            },
            |tuning| tuning.policy.to_string().into(),
        ),
        Tunable::of(
            "speculation.slo.tpot_ms",
            Kind::MaybeNumber,
            "latency target, per token after the first; null for none",
            "requests that come from then on",
            |fields, name, tuning| latency(fields, name, &mut tuning.slo.tpot),
            |tuning| json!(tuning.slo.tpot.map(|target| target.as_millis() as u64)),
        ),
        Tunable::of(
            "speculation.slo.ttft_ms",
            Kind::MaybeNumber,
            "latency target, from arrival to the first token; null for none",
            "requests that come from then on",
            |fields, name, tuning| latency(fields, name, &mut tuning.slo.ttft),
            |tuning| json!(tuning.slo.ttft.map(|target| target.as_millis() as u64)),
        ),
    ]
}

fn set<T>(given: Option<T>, to: &mut T) -> Result<(), FieldError> {
    if let Some(value) = given {
        *to = value;
    }
    Ok(())
}

fn latency(fields: &mut Fields<'_>, name: &'static str, to: &mut Option<Duration>) -> Result<(), FieldError> {
    *to = fields.whole(name, 1..=3_600_000)?.map(Duration::from_millis);
    Ok(())
}

/// Reads those of a section; a key that is absent or null leaves the default.
///
/// # Errors
/// A value is impossible.
pub(super) fn read(section: &str, fields: &mut Fields<'_>, tuning: &mut Tuning) -> Result<(), FieldError> {
    let own = TUNABLES.iter().filter(|tunable| {
        tunable.key.strip_suffix(tunable.name()).is_some_and(|of| of.strip_suffix('.') == Some(section))
    });
    own.into_iter().try_for_each(|tunable| tunable.read(fields, tuning))
}
