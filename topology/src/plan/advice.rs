//! A plan with its warnings; where none fits, what would: each change is tried before it is named.

use std::fmt;

use super::fit::fit;
use super::{Plan, PlanDevices, PlanRequest, Problem, warnings};
use crate::Topology;

/// Why there is no plan, and what there could be a plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRefusal {
    /// Why.
    pub problem: Problem,
    /// Changes, each of which alone would do; as they are written in a config.
    pub would_fit: Vec<String>,
}

impl std::error::Error for PlanRefusal {}

impl fmt::Display for PlanRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)?;
        if self.would_fit.is_empty() {
            // What was asked for says itself what is wrong with it.
            return match self.problem {
                Problem::Asked(_) => Ok(()),
                _ => f.write_str(". Nothing near it would fit: take smaller models or more memory"),
            };
        }
        f.write_str(". What would fit:")?;
        self.would_fit.iter().try_for_each(|change| write!(f, "\n  {change}"))
    }
}

/// Plans a pair on a machine.
///
/// # Errors
/// A refusal with numbers, and what would fit.
pub fn plan(machine: &Topology, request: &PlanRequest<'_>) -> Result<Plan, PlanRefusal> {
    let mut plan = fit(machine, request)
        .map_err(|problem| PlanRefusal { would_fit: advice(machine, request, &problem), problem })?;
    plan.warnings = warnings::of(machine, request, &plan);
    Ok(plan)
}

/// A shorter context than this is no help.
const LEAST_CONTEXT: usize = 256;
/// GPUs that a machine could have.
const MOST_GPUS: usize = 16;

/// Changes to the request, each of which makes it fit.
fn advice(machine: &Topology, request: &PlanRequest<'_>, problem: &Problem) -> Vec<String> {
    if matches!(problem, Problem::Asked(_)) {
        return Vec::new();
    }
    let mut would_fit = Vec::new();
    let try_one =
        |changed: &PlanRequest<'_>, words: &str| fit(machine, changed).is_ok().then(|| words.to_owned());
    if matches!(problem, Problem::Context { .. }) {
        would_fit.extend(shorter(machine, request).map(context));
    }
    if request.kv.memory_bytes.is_some() {
        let mut changed = request.clone();
        changed.kv.memory_bytes = None;
        would_fit.extend(try_one(&changed, "leave out kv.memory"));
    }
    would_fit.extend(fuller(machine, request));
    would_fit.extend(wider(machine, request));
    for &dtype in request.other_dtypes {
        let changed = PlanRequest { dtype, ..request.clone() };
        would_fit.extend(or_shorter(machine, &changed, &format!("model.dtype: {dtype}")));
    }
    let fewer = (1..request.replicas).rev().map(|replicas| PlanRequest { replicas, ..request.clone() });
    would_fit.extend(fewer.into_iter().find_map(|changed| {
        let words = format!("device.replicas: {}", changed.replicas);
        try_one(&changed, &words)
    }));
    if request.draft.is_some() {
        let changed = PlanRequest { draft: None, ..request.clone() };
        would_fit.extend(or_shorter(machine, &changed, "no draft model (model.draft: none)"));
    }
    if would_fit.is_empty() || matches!(problem, Problem::Devices { .. }) {
        would_fit.extend(more_gpus(machine, request));
    }
    would_fit
}

fn context(tokens: usize) -> String {
    format!("scheduler.max_context: {tokens}")
}

/// The longest context that fits, in whole blocks.
fn shorter(machine: &Topology, request: &PlanRequest<'_>) -> Option<usize> {
    let block = request.kv.block_size.max(1);
    let fits = |blocks: usize| {
        let mut changed = request.clone();
        changed.kv.max_context = blocks * block;
        fit(machine, &changed).is_ok()
    };
    // Not one more than is asked for, and at least the shortest that helps.
    let (mut fitting, mut too_long) = (LEAST_CONTEXT.div_ceil(block), request.kv.max_context / block + 1);
    if fitting >= too_long || !fits(fitting) {
        return None;
    }
    while fitting + 1 < too_long {
        let middle = fitting.midpoint(too_long);
        if fits(middle) { fitting = middle } else { too_long = middle }
    }
    Some(fitting * block).filter(|tokens| *tokens < request.kv.max_context)
}

/// The words for a changed request, with a shorter context if it takes that too.
fn or_shorter(machine: &Topology, changed: &PlanRequest<'_>, words: &str) -> Option<String> {
    if fit(machine, changed).is_ok() {
        return Some(words.to_owned());
    }
    shorter(machine, changed).map(|tokens| format!("{words} with {}", context(tokens)))
}

/// More of each GPU's memory.
fn fuller(machine: &Topology, request: &PlanRequest<'_>) -> Option<String> {
    let PlanDevices::Gpus { usable, utilization, draft_sms } = &request.devices else { return None };
    // Above this the driver's own needs have no room.
    let shares = (1..=97).map(|percent| f64::from(percent) / 100.0).filter(|share| share > utilization);
    shares.into_iter().find_map(|utilization| {
        let devices = PlanDevices::Gpus { usable: usable.clone(), utilization, draft_sms: draft_sms.clone() };
        let changed = PlanRequest { devices, ..request.clone() };
        fit(machine, &changed).is_ok().then(|| format!("device.gpu_memory_utilization: {utilization:.2}"))
    })
}

/// A target split over more GPUs, with as many replicas as there are then.
fn wider(machine: &Topology, request: &PlanRequest<'_>) -> Option<String> {
    let PlanDevices::Gpus { usable, .. } = &request.devices else { return None };
    let widths = request.target.whole.ranks(usable.len()).filter(|ranks| *ranks > request.target_ranks);
    let each = widths.flat_map(|ranks| (1..=request.replicas).rev().map(move |replicas| (ranks, replicas)));
    each.into_iter().find_map(|(target_ranks, replicas)| {
        let changed = PlanRequest { target_ranks, replicas, ..request.clone() };
        let mut words = format!("device.tensor_parallel: {target_ranks}");
        if replicas != request.replicas {
            words += &format!(" with device.replicas: {replicas}");
        }
        or_shorter(machine, &changed, &words)
    })
}

/// More GPUs of the first kind, and the target split over as many as it takes.
fn more_gpus(machine: &Topology, request: &PlanRequest<'_>) -> Option<String> {
    let PlanDevices::Gpus { usable, utilization, draft_sms } = &request.devices else { return None };
    let gpu = machine.gpus.get(*usable.first()?)?;
    let widths = request.target.whole.ranks(MOST_GPUS).filter(|ranks| *ranks >= request.target_ranks);
    let counts = widths.flat_map(|ranks| (usable.len() + 1..=MOST_GPUS).map(move |count| (ranks, count)));
    let fitting = counts.filter(|(target_ranks, count)| {
        let larger =
            Topology::new(machine.name.clone(), machine.host.clone(), vec![gpu.clone(); *count], &[]);
        let devices = PlanDevices::Gpus {
            usable: (0..*count).collect(),
            utilization: *utilization,
            draft_sms: draft_sms.clone(),
        };
        let changed = PlanRequest { devices, target_ranks: *target_ranks, ..request.clone() };
        fit(&larger, &changed).is_ok()
    });
    let (ranks, count) = fitting.min_by_key(|(ranks, count)| (*count, *ranks))?;
    Some(format!("{count} GPUs such as this one ({}) with device.tensor_parallel: {ranks}", gpu.name))
}
