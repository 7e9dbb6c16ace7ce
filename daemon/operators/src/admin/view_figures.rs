//! From an engine's view now and one of a moment ago to figures.

use std::time::Duration;

use faser_actors::Look;
use faser_engine::{LoadView, PoolView, RequestState, RequestView, SteeringView, Totals};

use super::admin_api::RequestId;
use super::snapshot::{Figures, LENGTHS, PoolRow, RequestRow, SteeringRow, TotalsRow};

/// Figures of `now`, with rates since `then`, which was `window` ago, over so many replicas.
pub(super) fn figures(then: &LoadView, now: &LoadView, window: Duration, replicas: usize) -> Figures {
    let (before, after) = (&then.totals, &now.totals);
    let grown = |of: fn(&Totals) -> u64| of(after).saturating_sub(of(before));
    let per_s = |of| grown(of) as f64 / window.as_secs_f64().max(1e-3);
    let busy = |of: fn(&Totals) -> Duration| {
        let worked = of(after).saturating_sub(of(before)).as_secs_f64();
        (worked / (window.as_secs_f64() * replicas.max(1) as f64).max(1e-3)).min(1.0)
    };
    let prepared = grown(|totals| totals.outcome_verdicts);
    let passes = grown(|totals| totals.target_passes);
    let proposed = grown(|totals| totals.draft_tokens);
    let k_histogram: Vec<u64> =
        (0..LENGTHS).map(|k| after.chunks_by_length[k].saturating_sub(before.chunks_by_length[k])).collect();
    let by_position = |place: usize| {
        let accepted = after.accepted_per_position[place].saturating_sub(before.accepted_per_position[place]);
        let proposed = after.proposed_per_position[place].saturating_sub(before.proposed_per_position[place]);
        share(accepted, proposed)
    };
    Figures {
        running: now.running,
        waiting: now.waiting,
        partition: now.partition,
        steering: steering(now.steering),
        target_kv: pool(now.target_pool),
        draft_kv: pool(now.draft_pool),
        draft_busy: busy(|totals| totals.draft_time),
        verify_busy: busy(|totals| totals.verify_time),
        output_tokens_per_s: per_s(|totals| totals.output_tokens),
        prompt_tokens_per_s: per_s(|totals| totals.prompt_tokens),
        requests_per_s: per_s(|totals| totals.finished + totals.cancelled + totals.failed),
        passes_per_s: per_s(|totals| totals.target_passes),
        rows_per_pass: share(grown(|totals| totals.target_rows), passes),
        acceptance: share(grown(|totals| totals.accepted_tokens), proposed),
        prompt_lookup: share(grown(|totals| totals.prompt_lookup_tokens), proposed),
        tokens_per_chunk: share(grown(|totals| totals.output_tokens), k_histogram.iter().sum()),
        k_histogram,
        acceptance_by_position: (0..LENGTHS - 1).map(by_position).collect(),
        overlapped: share(grown(|totals| totals.overlapped_passes), passes),
        // A hit that was still drafted is counted when it comes, which may be later.
        outcome_hits: share(grown(|totals| totals.outcome_hits).min(prepared), prepared),
        pruning: share(grown(|totals| totals.pruning_passes), passes),
        chunks_cancelled_per_s: per_s(|totals| totals.chunks_cancelled),
        rows_pruned_per_s: per_s(|totals| totals.rows_pruned),
        totals: totals(after),
    }
}

/// One part of another; none of nothing.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn steering(view: SteeringView) -> Option<SteeringRow> {
    let SteeringView { decides, pass_rows, displaced_share, credit_s, suspended, kv_short } = view;
    decides.then_some(SteeringRow { pass_rows, displaced_share, credit_s, suspended, kv_short })
}

fn pool(pool: PoolView) -> PoolRow {
    PoolRow { total: pool.total, free: pool.free, cached: pool.cached }
}

fn totals(totals: &Totals) -> TotalsRow {
    TotalsRow {
        submitted: totals.submitted,
        refused: totals.refused,
        finished: totals.finished,
        cancelled: totals.cancelled,
        failed: totals.failed,
        preemptions: totals.preemptions,
        prompt_tokens: totals.prompt_tokens,
        cached_prompt_tokens: totals.cached_prompt_tokens,
        output_tokens: totals.output_tokens,
        draft_passes: totals.draft_passes,
        target_passes: totals.target_passes,
        proposed: totals.draft_tokens,
        accepted: totals.accepted_tokens,
        prompt_lookup: totals.prompt_lookup_tokens,
        prompt_lookup_accepted: totals.prompt_lookup_accepted_tokens,
    }
}

/// The requests of a replica, of this pair of several.
pub(super) fn requests(pair: Option<usize>, replica: usize, look: &Look) -> impl Iterator<Item = RequestRow> {
    look.requests.iter().map(move |request| row(RequestId { pair, replica, seq: request.seq }, request))
}

fn row(id: RequestId, request: &RequestView) -> RequestRow {
    let usage = &request.usage;
    RequestRow {
        id: id.to_string(),
        state: match request.state {
            RequestState::Waiting => "waiting".into(),
            RequestState::Prefill => "prefill".into(),
            RequestState::Decode => "decode".into(),
        },
        k: request.k,
        proposals: request.proposals,
        acceptance: share(usage.accepted as u64, usage.proposed as u64),
        expected_acceptance: f64::from(request.level),
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        output_tokens: usage.output_tokens,
        max_new_tokens: request.max_new_tokens,
        tokens_per_pass: share(usage.output_tokens as u64, usage.target_passes as u64),
        age_s: request.age.as_secs_f64(),
        ttft_s: request.to_first_token.map(|time| time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_window_and_shares_of_nothing_are_none() {
        let then = LoadView::default();
        let idle = figures(&then, &then, Duration::from_secs(2), 1);
        assert_eq!((idle.acceptance, idle.overlapped, idle.output_tokens_per_s), (None, None, 0.0));
        let mut now = LoadView { running: 3, ..LoadView::default() };
        now.totals.output_tokens = 30;
        now.totals.draft_tokens = 20;
        now.totals.accepted_tokens = 15;
        now.totals.target_passes = 5;
        now.totals.overlapped_passes = 1;
        now.totals.chunks_by_length[4] = 6;
        now.totals.proposed_per_position[0] = 4;
        now.totals.accepted_per_position[0] = 3;
        now.totals.verify_time = Duration::from_secs(1);
        let figures = figures(&then, &now, Duration::from_secs(2), 1);
        assert_eq!((figures.running, figures.output_tokens_per_s, figures.acceptance), (3, 15.0, Some(0.75)));
        assert_eq!((figures.verify_busy, figures.draft_busy, figures.overlapped), (0.5, 0.0, Some(0.2)));
        assert_eq!((figures.k_histogram[4], figures.k_histogram.len()), (6, 17));
        assert_eq!(figures.acceptance_by_position[..2], [Some(0.75), None]);
        assert_eq!(figures.tokens_per_chunk, Some(5.0));
        assert!(figures.steering.is_none(), "fixed lengths do not go by it");
        now.steering = SteeringView { decides: true, pass_rows: 512, ..SteeringView::default() };
        let steers = super::figures(&then, &now, Duration::from_secs(2), 1).steering;
        assert_eq!(steers.map(|steering| steering.pass_rows), Some(512));
    }
}
