//! `device.drills`: faults made on purpose, in debug builds, to see what clients notice of them.

use std::time::Duration;

use faser_actors::{Drill, DrillFault};
use serde_json::Value;

use crate::fields::{Fault, FieldError, Fields, each, required};

/// More would be no drill.
const MOST_DRILLS: usize = 64;

/// A list of objects such as `{what: panic, replica: 0, rank: 1, at: 40}`; see [`DrillFault`].
pub(super) fn drills(fields: &mut Fields<'_>, replicas: usize) -> Result<Vec<Drill>, FieldError> {
    let path = fields.path("drills");
    let Some(items) = fields.list("drills")? else { return Ok(Vec::new()) };
    let refuse = |problem: &str| Err(FieldError::new(&path, Fault::Value, problem));
    if !cfg!(debug_assertions) {
        return refuse("is for debug builds, and this is none: leave it out");
    }
    if items.len() > MOST_DRILLS {
        return refuse("has more than 64 entries");
    }
    each(&path, items, |path, item| drill(path, item, replicas))
}

fn drill(path: String, item: &Value, replicas: usize) -> Result<Drill, FieldError> {
    let mut fields = Fields::new(path, item)?;
    let what = fields.word("what", &["panic", "hang", "build"])?;
    let replica = fields.size("replica", 0..=replicas - 1)?.unwrap_or(0);
    let at = required(fields.size("at", 0..=1_000_000)?, &fields, "at")?;
    let fault = match what {
        Some("panic") => DrillFault::Panic { rank: fields.size("rank", 0..=63)?.unwrap_or(0), at },
        Some("hang") => {
            let rank = fields.size("rank", 0..=63)?.unwrap_or(0);
            let lasting = required(fields.whole("ms", 1..=600_000)?, &fields, "ms")?;
            DrillFault::Hang { rank, at, lasting: Duration::from_millis(lasting) }
        }
        Some(_) => DrillFault::Build { at },
        None => return Err(fields.missing("what", "is missing")),
    };
    fields.finish()?;
    Ok(Drill { replica, fault })
}
